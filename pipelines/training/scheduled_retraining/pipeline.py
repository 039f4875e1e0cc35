"""Retraining in recurring runs: retrain_and_promote with a margin, so that equal models are not deployed again."""

from kfp import dsl


@dsl.pipeline(
    name="scheduled-retraining",
    description="For recurring runs: read the dataset again, train, export, compare with the model that serves and "
    "deploy only a model that is better by a margin.",
)
def scheduled_retraining(
    data: str = "digits",
    epochs: int = 30,
    metric: str = "accuracy",
    threshold: float = 0.9,
    margin: float = 0.005,
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
    canary: int = 10,
    registry: str = "",
):
    """Retrain a served model in recurring runs and deploy only a clearly better one.

    The steps are retrain_and_promote's. A compiled pipeline's recurring run has the cron expression and KFP's
    maximum concurrency; set the latter to 1, so that two runs do not deploy the same service.

    Args:
        data: Dataset name, path or URI, see `load_dataset`; it is read again in each run.
        epochs: Passes over the training split.
        metric: Comparison metric, see `evaluate_mindir`.
        threshold: Metric value on the test split that is needed for deployment.
        margin: Improvement over the served model that its whole 95 % interval must exceed.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
        canary: The new version's request percentage during its test, 1 to 99.
        registry: Kubeflow's Model Registry address, at which a deployed model is registered; default none.
    """
    from kfp_mindspore.pipelines.shared.retraining import retrain

    training = {"hyperparameters": {"epochs": epochs, "batch_size": 32, "seed": 42}, "workers": 1}
    comparison = {"metric": metric, "threshold": threshold, "margin": margin, "confidence": 0.95}
    deployment = {"canary": canary, "registry": registry}
    retrain(data, training, comparison, service_name, namespace, service_account, **deployment)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(scheduled_retraining, package_path=__file__.replace(".py", ".yaml"))
