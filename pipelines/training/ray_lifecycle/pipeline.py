"""Load, train and serve with Ray: Ray Data, Ray Train, export, evaluation and KServe."""

from typing import List

from kfp import dsl


@dsl.pipeline(
    name="ray-lifecycle",
    description="Load data that need not fit in memory by Ray Data, train on Ray's workers, export the model to "
    "MindIR, evaluate it on held-out samples and, if its metric passes the threshold, deploy it with KServe's "
    "protocols and test the service.",
)
def ray_lifecycle(
    data: str,
    target: List[str] = [],
    features: List[str] = [],
    command: list = ["python", "-m", "kfp_mindspore.workloads.tabular.train"],
    hyperparameters: dict = {"epochs": 30},
    workers: int = 2,
    metric: str = "log_loss",
    threshold: float = 0.5,
    seed: int = 42,
    service_name: str = "tabular",
    namespace: str = "",
    service_account: str = "",
    storage: str = "artifacts",
):
    """Train on Ray with data larger than memory, and serve the model.

    Args:
        data: File, directory or URI: Parquet, CSV, JSON lines or an image folder, see `load_dataset`.
        target: Field with the classes or numbers to predict; default the field named target, label or class.
        features: Feature fields; default all others.
        command: Each worker's Python command, which uses `fit`, see `ray_job`.
        hyperparameters: The command's arguments.
        workers: Ray's worker count.
        metric: The gate's metric, such as `log_loss` or `accuracy` for classes, `rmse` for numbers.
        threshold: Its threshold on the test split: a minimum, or a maximum where less is better.
        seed: Split seed.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
        storage: How data reach Ray's pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.
    """
    from kfp_mindspore.components import ray_job
    from kfp_mindspore.pipelines.shared.training import train_and_deploy

    source = {"name": data, "target": target, "features": features, "seed": seed, "engine": "ray"}
    training = {"command": command, "hyperparameters": hyperparameters, "workers": workers, "storage": storage}
    train_and_deploy(ray_job, source, training, threshold, service_name, namespace, service_account, metric=metric)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(ray_lifecycle, package_path=__file__.replace(".py", ".yaml"))
