"""Component that trains a model by an MSJob."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output


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
def train_msjob(
    model: Output[Model],
    metrics: Output[Metrics],
    curves: Output[HTML],
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
    storage: str = "artifacts",
    queue: str = "",
    queue_priority: str = "",
    device: str = "auto",
    task_config: dsl.TaskConfig = None,
):
    """Run a training command as an MSJob and wait until it has finished.

    The command can be any script. It reads its data from the directory KFP_MINDSPORE_DATASET_DIR, writes its output to
    KFP_MINDSPORE_OUTPUT_DIR, and may store checkpoints in KFP_MINDSPORE_CHECKPOINT_DIR, which persists across job
    restarts; `kfp_mindspore.training.fit` uses all three. With more than one worker, a scheduler is added, and each
    worker has MindSpore's topology in MS_*.

    The hyperparameters {"epochs": 5} become `--epochs 5`, {"nesterov": true} becomes `--nesterov`; false and null omit
    the option. The restart policy `ExitCode` restarts after a retryable exit code (130, 137, 138, 143) and fails after
    any other; `OnFailure` restarts after any exit code but 0. Without `checkpoint_dir`, checkpoints are beside the
    output and deleted at the end. The model's metadata contain the job's name and workers, the network and the
    hyperparameters.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[artifacts,kubernetes,pipelines,train].

    Args:
        model: The job's output: `checkpoint/` (parameters and how to build the network) and metrics.jsonl.
        metrics: Each metric's last value in metrics.jsonl, such as loss and accuracy.
        curves: A page with the loss and the metrics by epoch.
        command: Each worker's command, such as ["python", "train.py"].
        dataset: The dataset directory; optional.
        args: Command arguments; integers are written without a decimal point.
        hyperparameters: Further arguments by name; values can be pipeline parameters.
        workers: Worker count.
        image: The workers' image; default $KFP_MINDSPORE_IMAGE, else the step's image.
        env: The workers' environment variables by name.
        restart_policy: Terminations that restart the job: `ExitCode`, `OnFailure`, `Never` or `Always`.
        backoff_limit: Restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is terminated and fails; 0 for no limit.
        job_name: Job name, a DNS label of at most 51 characters; default the same for each step retry.
        namespace: Job namespace; default the step's.
        checkpoint_dir: Persistent checkpoints for later runs; on a cluster a URI or a directory in a volume.
        storage: How data reach the pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.
        queue: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
        queue_priority: Priority in the queue, a WorkloadPriorityClass.
        device: Each worker's device: `auto`, CPU, GPU or Ascend. `auto` is that of the requested resources.
        task_config: Filled in by KFP: resources, environment, volumes and scheduling from the task, for the job's pods.
    """
    from kfp_mindspore.msjob.build import JobOptions
    from kfp_mindspore.steps.launch.train import train_model

    options = JobOptions(
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
    train_model(
        model,
        metrics,
        curves,
        command,
        options,
        dataset=dataset,
        args=args,
        hyperparameters=hyperparameters,
        checkpoint_dir=checkpoint_dir,
        job_name=job_name,
        namespace=namespace,
        task_config=task_config,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(train_msjob, package_path=__file__.replace(".py", ".yaml"))
