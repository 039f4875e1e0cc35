"""The steps of training pipelines that differ in data, script and defaults only."""


def train_and_deploy(workload, data, hyperparameters, *, metric, threshold, service_name, namespace, service_account):
    """Load a dataset, train, export and evaluate a bundled workload, and deploy it if its metric passes the threshold.

    Args:
        workload: Its package name in `kfp_mindspore.workloads`.
        data: Arguments of `load_dataset`.
        hyperparameters: Arguments of the training script by name.
        metric: Name of the gate's metric.
        threshold: Threshold of the metric on the test split.
        service_name: Name of the service.
        namespace: Namespace of the job and the service; empty for the steps'.
        service_account: Service account of the service's pods; empty for the default.
    """
    from kfp_mindspore.components import load_dataset, train_msjob
    from kfp_mindspore.pipelines.shared.deployment import deploy_if_passed

    dataset = load_dataset(**data).outputs["dataset"]
    training = train_msjob(
        dataset=dataset,
        command=["python", "-m", f"kfp_mindspore.workloads.{workload}.train"],
        hyperparameters=hyperparameters,
        namespace=namespace,
    )
    deploy_if_passed(
        training.outputs["model"],
        dataset,
        metric=metric,
        threshold=threshold,
        service_name=service_name,
        namespace=namespace,
        service_account=service_account,
    )
