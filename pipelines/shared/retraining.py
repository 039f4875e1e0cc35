"""Retraining steps: train, export, compare with the live service, deploy and register a better model."""

CANARY_WORSENING = 0.1


def retrain(data, training, comparison, service_name, namespace, service_account, **deployment):
    """Train a model on digits and deploy it if it is better than the one that serves.

    The dataset is read again in each run; the comparison and the deployment are never cached.

    Args:
        data: Dataset name, path or URI.
        training: Arguments for `train_msjob`. The split is the same for every seed among the hyperparameters: the
            served model must not be compared on samples it was trained with.
        comparison: Arguments for `compare_models`.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service.
        service_account: Service account for the service's pods.
        **deployment: Further arguments for `deploy_kserve`.
    """
    from kfp_mindspore.components import compare_models, export_mindir, load_dataset, train_msjob
    from kfp_mindspore.pipelines.shared.deployment import deploy
    from kfp_mindspore.pipelines.shared.training import get_command

    dataset = load_dataset(name=data).set_caching_options(False).outputs["dataset"]
    model = train_msjob(dataset=dataset, command=get_command("digits"), namespace=namespace, **training).outputs[
        "model"
    ]
    bundle = export_mindir(model=model, dataset=dataset).outputs["bundle"]
    comparison = compare_models(
        candidate=bundle, dataset=dataset, service_name=service_name, namespace=namespace, **comparison
    ).set_caching_options(False)
    # The canary's own test has a few samples only: the comparison above decides, by the whole split.
    gate = comparison.outputs["better"]
    deploy(bundle, gate, service_name, namespace, service_account, max_worsening=CANARY_WORSENING, **deployment)
