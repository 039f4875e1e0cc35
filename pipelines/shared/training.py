"""The steps for training pipelines that differ in data, training and defaults only."""


def get_command(workload):
    """Return the command that trains a bundled workload, by its package name in `kfp_mindspore.workloads`."""
    return ["python", "-m", f"kfp_mindspore.workloads.{workload}.train"]


def train_and_deploy(train, data, training, threshold, service_name, namespace, service_account, **gate):
    """Load a dataset, train, export and evaluate a model, and deploy it if its metric passes the threshold.

    Args:
        train: The training component: train_msjob, sweep_msjob or ray_job.
        data: Arguments for `load_dataset`.
        training: Further arguments for the training component.
        threshold: See `deploy_if_passed`.
        service_name: Service name.
        namespace: Namespace for the job and the service; empty for the steps'.
        service_account: Service account for the service's pods; empty for the default.
        **gate: Further arguments for `deploy_if_passed`.
    """
    from kfp_mindspore.components import load_dataset
    from kfp_mindspore.pipelines.shared.deployment import deploy_if_passed

    dataset = load_dataset(**data).outputs["dataset"]
    model = train(dataset=dataset, namespace=namespace, **training).outputs["model"]
    deploy_if_passed(model, dataset, threshold, service_name, namespace, service_account, **gate)
