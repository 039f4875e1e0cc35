"""Component that sweeps a training's parameters, each trial an MSJob."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Markdown, Metrics, Model, Output


@dsl.component(
    base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image",
    install_kfp_package=False,
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_VOLUMES,
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
    ],
)
def sweep_msjob(
    model: Output[Model],
    metrics: Output[Metrics],
    curves: Output[HTML],
    report: Output[HTML],
    trial_table: Output[Markdown],
    command: list[str],
    space: str,
    objective: str,
    dataset: Input[Dataset] = None,
    args: list[str] = [],
    hyperparameters: dict = {},
    direction: str = "",
    objectives: list[str] = [],
    seeds: int = 1,
    trials: int = 20,
    parallel: int = 1,
    sampler: str = "tpe",
    pruner: str = "asha",
    population: int = 4,
    interval: int = 1,
    trial_timeout: int = 0,
    seed: int = 0,
    workers: int = 1,
    image: str = "",
    env: dict = {},
    restart_policy: str = "ExitCode",
    backoff_limit: int = 3,
    active_deadline_seconds: int = 0,
    namespace: str = "",
    storage: str = "artifacts",
    queue: str = "",
    queue_priority: str = "",
    device: str = "auto",
    task_config: dsl.TaskConfig = None,
) -> NamedTuple("Outputs", [("best_parameters", dict), ("best_value", float)]):
    """Train with other parameters in each trial, an MSJob, and keep the best model.

    The command is train_msjob's: it gets the trial's parameters as `--learning-rate 0.01` after the hyperparameters
    that all trials share, and writes metrics.jsonl, in which each epoch has the objective. The pruner ends a trial that
    falls behind with SIGTERM. A step retry goes on with the sweep: its ended trials are not run again, and its running
    jobs are adopted. A terminated run ends its jobs. On a cluster the trials' outputs stay below the step's output
    root, in `sweep/trials`.

    The space is YAML or JSON: each parameter by its name as a list of choices, or as `{low: 0.0001, high: 0.1, log:
    true}`; two integers are a range of integers, `step` is the distance between values, and `when: {optimizer: SGD}`
    makes a parameter conditional. It is text because a dict's integers become floats in KFP.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[artifacts,kubernetes,pipelines,sweeps,train].

    Args:
        model: The best trial's output, as train_msjob's; its metadata name the trial, its job and its parameters.
        metrics: Each of its metrics' last value in metrics.jsonl.
        curves: A page with the best trials' loss and metrics by epoch.
        report: A page with the trials, parallel coordinates, the parameters' importance and curves.
        trial_table: The trials as a table, the best first.
        command: Each worker's command, such as ["python", "train.py"].
        space: The parameters and their values, as YAML or JSON.
        objective: Metric that the best trial has the best value of: a validation metric, `loss` or `eval_loss`.
        dataset: The dataset directory; optional.
        args: Command arguments; integers are written without a decimal point.
        hyperparameters: Further arguments by name that all trials share; values can be pipeline parameters.
        direction: `minimize` or `maximize`; by default the metric's own, for a metric that this package knows.
        objectives: Further metrics to improve, as `name` or `name:minimize`; the model is the best by `objective`.
        seeds: Trainings of each trial, whose parameter `seed` differs; the objective is their mean.
        trials: Trials in all, including what an interrupted sweep has run.
        parallel: Trials that run at the same time.
        sampler: How parameters are chosen: `tpe`, `random`, `grid`, `gp` or `cmaes`.
        pruner: Which trials are stopped early, by their epochs: `asha`, `hyperband`, `median` or `none`.
        population: Members of a generation for `pbt`.
        interval: Epochs of the first generation for `halving`, and of each for `pbt`.
        trial_timeout: Seconds after which a trial's training is terminated and the trial fails; 0 for no limit.
        seed: The sampler's seed.
        workers: Worker count, of each trial.
        image: The workers' image; default $KFP_MINDSPORE_IMAGE, else the step's image.
        env: The workers' environment variables by name.
        restart_policy: Terminations that restart the job: `ExitCode`, `OnFailure`, `Never` or `Always`.
        backoff_limit: Restarts after which the job fails, and its trial.
        active_deadline_seconds: Seconds after which the job is terminated and fails; 0 for no limit.
        namespace: Job namespace; default the step's.
        storage: How data reach the pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.
        queue: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
        queue_priority: Priority in the queue, a WorkloadPriorityClass.
        device: Each worker's device: `auto`, CPU, GPU or Ascend. `auto` is that of the requested resources.
        task_config: Filled in by KFP: resources, environment, volumes and scheduling from the task, for the jobs' pods.

    Returns:
        best_parameters: The best trial's parameters, without the hyperparameters that all share.
        best_value: Its best value of the objective.
    """
    from kfp_mindspore.msjob.build import JobOptions
    from kfp_mindspore.steps.launch.sweep import sweep_models
    from kfp_mindspore.sweeps.options import SweepOptions

    sweep_options = SweepOptions(
        objective=objective,
        direction=direction,
        objectives=objectives,
        seeds=seeds,
        trials=trials,
        parallel=parallel,
        sampler=sampler,
        pruner=pruner,
        population=population,
        interval=interval,
        trial_timeout=trial_timeout or None,
        seed=seed,
    )
    job_options = JobOptions(
        workers=workers,
        image=image,
        env=env,
        restart_policy=restart_policy,
        backoff_limit=backoff_limit,
        active_deadline_seconds=active_deadline_seconds or None,
        storage=storage,
        queue=queue,
        queue_priority=queue_priority,
        device=device or "auto",
    )
    return sweep_models(
        model,
        metrics,
        curves,
        report,
        trial_table,
        command,
        space,
        sweep_options,
        job_options,
        dataset=dataset,
        args=args,
        hyperparameters=hyperparameters,
        namespace=namespace,
        task_config=task_config,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(sweep_msjob, package_path=__file__.replace(".py", ".yaml"))
