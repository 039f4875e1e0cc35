"""Retraining for a served model: train, export, compare with the live service, and deploy only a better model."""

from kfp import dsl


@dsl.pipeline(
    name="retrain-and-promote",
    description="Train a model as an MSJob, export it to MindIR, compare it with the model that serves on the same "
    "held-out samples and, if it is better by more than chance, deploy it as a canary, test it, and promote it or roll "
    "it back.",
)
def retrain_and_promote(
    data: str = "digits",
    epochs: int = 30,
    seed: int = 42,
    workers: int = 1,
    batch_size: int = 32,
    metric: str = "accuracy",
    threshold: float = 0.9,
    margin: float = 0.0,
    confidence: float = 0.95,
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
    canary: int = 10,
    registry: str = "",
):
    """Train a model and deploy it if it is better than the one that serves by more than chance.

    The dataset is read again in each run; the comparison and the deployment are never cached. Without a service with
    that name the model only has to reach the threshold. A better model runs as a canary first, is tested, and is
    promoted or rolled back.

    Args:
        data: Dataset name, path or URI, see `load_dataset`.
        epochs: Passes over the training split.
        seed: Seed for the initial parameters and the sample order; it does not change the split.
        workers: Training worker count.
        batch_size: Samples per step over all workers.
        metric: Comparison metric, see `evaluate_mindir`.
        threshold: Metric value on the test split that is needed for deployment.
        margin: Improvement over the served model that its whole interval must exceed; below 0 accepts a decrease.
        confidence: The improvement interval's confidence, between 0 and 1.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
        canary: The new version's request percentage during its test, 1 to 99.
        registry: Kubeflow's Model Registry address, at which a deployed model is registered; default none.
    """
    from kfp_mindspore.pipelines.shared.retraining import retrain

    hyperparameters = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
    training = {"hyperparameters": hyperparameters, "workers": workers}
    comparison = {"metric": metric, "threshold": threshold, "margin": margin, "confidence": confidence}
    deployment = {"canary": canary, "registry": registry}
    retrain(data, training, comparison, service_name, namespace, service_account, **deployment)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(retrain_and_promote, package_path=__file__.replace(".py", ".yaml"))
