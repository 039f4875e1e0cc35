"""Retraining steps: train, export, compare with the live service, deploy and register a better model."""

CANARY_WORSENING = 0.1


def retrain(
    *,
    data,
    epochs,
    seed,
    workers,
    batch_size,
    metric,
    threshold,
    margin,
    confidence,
    service_name,
    namespace,
    service_account,
    canary,
    registry,
):
    """Train a model and deploy it if it is better than the one that serves.

    The dataset is read again in each run; the comparison and the deployment are never cached.

    Args:
        data: Dataset name, path or URI.
        epochs: Passes over the training split.
        seed: Seed for the initial parameters and the sample order. The split is the same for every seed: the served
            model must not be compared on samples it was trained with.
        workers: Training worker count.
        batch_size: Samples per step over all workers.
        metric: Comparison metric.
        threshold: Metric value on the test split that is needed for deployment.
        margin: Improvement over the served model that its interval must exceed.
        confidence: The improvement interval's confidence, between 0 and 1.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service.
        service_account: Service account for the service's pods.
        canary: The canary's request percentage during its test, 1 to 99.
        registry: Kubeflow's Model Registry address; empty for none.
    """
    from kfp_mindspore.components import compare_models, deploy_kserve, export_mindir, load_dataset, train_msjob

    dataset = load_dataset(name=data).set_caching_options(False).outputs["dataset"]
    training = train_msjob(
        dataset=dataset,
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": epochs, "batch_size": batch_size, "seed": seed},
        workers=workers,
        namespace=namespace,
    )
    bundle = export_mindir(model=training.outputs["model"], dataset=dataset).outputs["bundle"]
    comparison = compare_models(
        candidate=bundle,
        dataset=dataset,
        service_name=service_name,
        namespace=namespace,
        metric=metric,
        threshold=threshold,
        margin=margin,
        confidence=confidence,
    ).set_caching_options(False)
    # The canary's own test has a few samples only: the comparison above decides, by the whole split.
    deploy_kserve(
        bundle=bundle,
        service_name=service_name,
        namespace=namespace,
        service_account=service_account,
        canary=canary,
        max_worsening=CANARY_WORSENING,
        gate=comparison.outputs["better"],
        registry=registry,
    ).set_caching_options(False)
