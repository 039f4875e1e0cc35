"""Trains a model by a MindSpore job, on as many workers as asked for."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def train_msjob(
    model: Output[Model],
    metrics: Output[Metrics],
    command: list[str],
    dataset: Input[Dataset] = None,
    args: list[str] = [],
    hyperparameters: dict = {},
    workers: int = 1,
    image: str = "",
    env: dict = {},
    restart_policy: str = "ExitCode",
    backoff_limit: int = 3,
    active_deadline_seconds: int = 0,
    job_name: str = "",
    namespace: str = "",
    checkpoint_dir: str = "",
):
    """Run a training command as an MSJob and wait for it.

    Any script can be the command. It finds its data in the directory KFP_MINDSPORE_DATASET_DIR, writes what it made to
    KFP_MINDSPORE_OUTPUT_DIR, and may keep checkpoints in KFP_MINDSPORE_CHECKPOINT_DIR, which outlives a restart of the
    job; `kfp_mindspore.training.fit` does all three by itself. With more than one worker, each has MindSpore's topology
    in MS_*, and a scheduler runs beside them.

    Args:
        model: What the job wrote: `checkpoint/` (parameters and how the network is built again) and metrics.jsonl. Its
            metadata hold the job's name, its workers, the network and the hyperparameters.
        metrics: The newest value of each metric in metrics.jsonl, such as loss and accuracy.
        command: The command of each worker, such as ["python", "train.py"].
        dataset: The dataset directory; none for a command that finds its data itself.
        args: Arguments of the command, passed as they are; whole numbers are spelled without a point.
        hyperparameters: Further arguments by name: {"epochs": 5} becomes `--epochs 5`, {"nesterov": true} becomes
            `--nesterov`; false and null leave one out. Parameters of a pipeline may be values here.
        workers: Number of workers.
        image: Image of the workers; by default the one of this package ($KFP_MINDSPORE_IMAGE).
        env: Environment variables of the workers, by name.
        restart_policy: `ExitCode`: restart after an exit code that promises to pass (130, 137, 138, 143), fail at once
            after another; `OnFailure`: restart after any but 0; `Never`; `Always`.
        backoff_limit: Number of restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is ended and fails; 0 for no limit.
        job_name: Name of the job, a DNS label of at most 51 characters; by default one made from the step's output,
            the same when the step is retried.
        namespace: Namespace of the job; by default that of the step.
        checkpoint_dir: Directory of checkpoints that outlives this run, so that a later run resumes from it; by default
            one beside the output, removed at the end.
    """
    from kfp_mindspore.steps.artifacts import record_training
    from kfp_mindspore.steps.train import run_training

    result = run_training(
        model.path,
        command=command,
        args=args,
        hyperparameters=hyperparameters,
        dataset_dir=dataset.path if dataset else "",
        checkpoint_dir=checkpoint_dir,
        job_name=job_name,
        namespace=namespace,
        image=image,
        workers=workers,
        env=env,
        restart_policy=restart_policy,
        backoff_limit=backoff_limit,
        active_deadline_seconds=active_deadline_seconds,
    )
    record_training(result, model, metrics)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(train_msjob, package_path=__file__.replace(".py", ".yaml"))
