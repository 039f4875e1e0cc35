"""The steps from a trained model to a tested service."""


def deploy_if_passed(
    model, dataset, *, threshold, service_name, namespace, service_account, metric="accuracy", smoke_samples=32
):
    """Export and evaluate a model, and deploy and test it if a metric passes a threshold.

    Args:
        model: Output `model` from train_msjob.
        dataset: Output `dataset` from load_dataset.
        threshold: Metric threshold on the test split: a minimum, or a maximum where less is better.
        service_name: Name for the service and for the model in its URLs.
        namespace: Service namespace.
        service_account: Service account for the service's pods.
        metric: Metric name, see docs/evaluation.md.
        smoke_samples: Held-out samples that the smoke test sends by each protocol.
    """
    from kfp_mindspore.components import deploy_kserve, evaluate_mindir, export_mindir

    bundle = export_mindir(model=model, dataset=dataset).outputs["bundle"]
    evaluation = evaluate_mindir(bundle=bundle, dataset=dataset, metric=metric, threshold=threshold)
    deploy_kserve(
        bundle=bundle,
        service_name=service_name,
        namespace=namespace,
        service_account=service_account,
        gate=evaluation.outputs["passed"],
        smoke_samples=smoke_samples,
    ).set_caching_options(False)
