"""Train with many parameters, and deploy the best model."""

from kfp import dsl


@dsl.pipeline(
    name="sweep-and-deploy",
    description="Train with other parameters in each trial, stop trials that fall behind, export the best model "
    "to MindIR, evaluate it on held-out samples and, if its metric reaches the threshold, deploy it with KServe's "
    "protocols and test the service.",
)
def sweep_and_deploy(
    dataset: str = "digits",
    command: list = ["python", "-m", "kfp_mindspore.workloads.digits.train"],
    hyperparameters: dict = {"epochs": 10},
    space: str = "{learning_rate: {low: 0.0001, high: 0.1, log: true}, batch_size: [16, 32, 64]}",
    objective: str = "accuracy",
    trials: int = 8,
    parallel: int = 2,
    sampler: str = "tpe",
    pruner: str = "asha",
    trial_timeout: int = 0,
    seed: int = 0,
    metric: str = "accuracy",
    threshold: float = 0.95,
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
):
    """Find a training's best parameters, and serve its model.

    Args:
        dataset: Dataset name, file, directory or URI, see `load_dataset`.
        command: Each worker's command, see `sweep_msjob`.
        hyperparameters: Command arguments that all trials share.
        space: The parameters and their values, as YAML or JSON.
        objective: Metric on the validation split by which trials are compared.
        trials: Trials in all.
        parallel: Trials that run at the same time.
        sampler: How parameters are chosen: `tpe`, `random`, `grid`, `gp` or `cmaes`.
        pruner: Which trials are stopped early: `asha`, `hyperband`, `median` or `none`.
        trial_timeout: Seconds after which a trial's training is terminated and the trial fails; 0 for no limit.
        seed: The sampler's seed.
        metric: Metric on the test split that is the gate, see docs/evaluation.md.
        threshold: Its threshold: a minimum, or a maximum where less is better.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the jobs and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import sweep_msjob
    from kfp_mindspore.pipelines.shared.training import train_and_deploy

    trial = {"command": command, "hyperparameters": hyperparameters, "trial_timeout": trial_timeout}
    search = {"space": space, "objective": objective, "trials": trials, "sampler": sampler, "pruner": pruner}
    training = {**trial, **search, "parallel": parallel, "seed": seed}
    data = {"name": dataset}
    train_and_deploy(sweep_msjob, data, training, threshold, service_name, namespace, service_account, metric=metric)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(sweep_and_deploy, package_path=__file__.replace(".py", ".yaml"))
