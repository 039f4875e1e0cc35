"""Retraining in recurring runs: on drift, on a fallen metric, by age, or in each run."""

from kfp import dsl


@dsl.pipeline(
    name="scheduled-retraining",
    description="For recurring runs: compare the service's logged requests with its model's training data; on drift or "
    "a fallen metric, or from an age on, read the dataset again, train, export, compare with the model that serves and "
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
    log: str = "",
    labels: str = "",
    window: str = "24h",
    logger: dict = {},
    max_age: float = 0.0,
):
    """Retrain a served model in recurring runs and deploy only a clearly better one.

    With `log` the model is retrained if the window's requests or predictions have drifted from the training data, or
    the metric by later labels has fallen; with `max_age` if the version that serves is older; with neither in each run.
    The steps are retrain_and_promote's. A compiled
    pipeline's recurring run has the cron expression and KFP's maximum concurrency; set the latter to 1, so that two
    runs do not deploy the same service.

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
        log: The service's log, see `monitor_drift`; default none.
        labels: URI or file, CSV or JSON lines with `id`, an event's ID, and `label`; default none.
        window: The log's last part, to compare: a row count such as `1000`, or a duration; empty for all.
        logger: The deployed version's log, see `deploy_kserve`; default none.
        max_age: Days since the deployment of the version that serves, from which on it is retrained; default no limit.
    """
    from kfp_mindspore.components import monitor_drift
    from kfp_mindspore.pipelines.shared.retraining import retrain

    training = {"hyperparameters": {"epochs": epochs, "batch_size": 32, "seed": 42}, "workers": 1}
    comparison = {"metric": metric, "threshold": threshold, "margin": margin, "confidence": 0.95}
    deployment = {"canary": canary, "registry": registry, "logger": logger}
    target = {"service_name": service_name, "namespace": namespace}
    # Drift is the reason to retrain, and no failure.
    decision = {"metric": metric, "gate": False, "max_age": max_age}
    monitoring = monitor_drift(log=log, window=window, labels=labels, **decision, **target)
    monitoring.set_caching_options(False)
    with dsl.If(monitoring.outputs["retrain"] == True):
        retrain(data, training, comparison, service_name, namespace, service_account, **deployment)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(scheduled_retraining, package_path=__file__.replace(".py", ".yaml"))
