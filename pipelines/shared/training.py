"""The steps for training pipelines that differ in data, script and defaults only."""


def train_and_deploy(workload, data, hyperparameters, *, metric, threshold, service_name, namespace, service_account):
    """Load a dataset, train, export and evaluate a bundled workload, and deploy it if its metric passes the threshold.

    Args:
        workload: Its package name in `kfp_mindspore.workloads`.
        data: Arguments for `load_dataset`.
        hyperparameters: The training script's arguments by name.
        metric: The gate's metric.
        threshold: Metric threshold on the test split.
        service_name: Service name.
        namespace: Namespace for the job and the service; empty for the steps'.
        service_account: Service account for the service's pods; empty for the default.
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
