"""The steps from a trained model to a tested service."""


def deploy(bundle, gate, service_name, namespace, service_account, **options):
    """Deploy and test a bundle if its gate is met; the step is never cached.

    Args:
        bundle: Output `bundle` from export_mindir, or a language model.
        gate: The output that decides, such as `passed` from evaluate_mindir.
        service_name: Name for the service and for the model in its URLs.
        namespace: Service namespace; empty for the steps'.
        service_account: Service account for the service's pods; empty for the default.
        **options: Further arguments for `deploy_kserve`.
    """
    from kfp_mindspore.components import deploy_kserve

    deploy_kserve(
        bundle=bundle,
        gate=gate,
        service_name=service_name,
        namespace=namespace,
        service_account=service_account,
        **options,
    ).set_caching_options(False)


def deploy_if_passed(
    model, dataset, threshold, service_name, namespace, service_account, *, metric="accuracy", smoke_samples=32
):
    """Export and evaluate a model, and deploy and test it if a metric passes a threshold.

    Args:
        model: Output `model` from train_msjob.
        dataset: Output `dataset` from load_dataset.
        threshold: Metric threshold on the test split: a minimum, or a maximum where less is better.
        service_name: See `deploy`.
        namespace: See `deploy`.
        service_account: See `deploy`.
        metric: Metric name, see docs/evaluation.md.
        smoke_samples: Held-out samples that the smoke test sends by each protocol.
    """
    from kfp_mindspore.components import evaluate_mindir, export_mindir

    bundle = export_mindir(model=model, dataset=dataset).outputs["bundle"]
    gate = evaluate_mindir(bundle=bundle, dataset=dataset, metric=metric, threshold=threshold).outputs["passed"]
    deploy(bundle, gate, service_name, namespace, service_account, smoke_samples=smoke_samples)
