"""Component that trains a model on Ray."""

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
def ray_job(
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
    restart_policy: str = "OnFailure",
    backoff_limit: int = 3,
    active_deadline_seconds: int = 0,
    job_name: str = "",
    namespace: str = "",
    checkpoint_dir: str = "",
    storage: str = "artifacts",
    task_config: dsl.TaskConfig = None,
):
    """Train on Ray by a Python command that uses `fit`, and wait until it has finished.

    The command is train_msjob's: it runs in each of Ray's workers, reads its data from the directory
    KFP_MINDSPORE_DATASET_DIR and writes its output to KFP_MINDSPORE_OUTPUT_DIR. Ray Train keeps the checkpoints that
    `fit` reports and resumes from the newest after a failure.

    On this machine Ray is started in the step. On a cluster the step creates a RayJob for KubeRay, whose head runs the
    driver and whose worker pods have the task's resources; the image needs kfp-mindspore[ray]. A step retry adopts the
    RayJob, a terminated run deletes it, and it belongs to the run.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[artifacts,kubernetes,pipelines,ray,train].

    Args:
        model: The job's output: `checkpoint/` (parameters and how to build the network) and metrics.jsonl.
        metrics: Each metric's last value in metrics.jsonl, such as loss and accuracy.
        curves: A page with the loss and the metrics by epoch.
        command: The Python command, such as ["python", "train.py"].
        dataset: The dataset directory; optional.
        args: Command arguments; integers are written without a decimal point.
        hyperparameters: Further arguments by name; values can be pipeline parameters.
        workers: Worker count; on a cluster a pod for each.
        image: The pods' image; default $KFP_MINDSPORE_IMAGE, else the step's image.
        env: The pods' environment variables by name.
        restart_policy: Whether training resumes after a failure: `OnFailure` or `Never`.
        backoff_limit: Failures after which the job fails.
        active_deadline_seconds: Seconds after which the job is terminated and fails; 0 for no limit.
        job_name: RayJob name, a DNS label of at most 47 characters; default the same for each step retry.
        namespace: Its namespace; default the step's.
        checkpoint_dir: Ray's storage path for later runs: a URI or a directory in a volume.
        storage: How data reach the pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.
        task_config: Filled in by KFP: resources, environment, volumes and scheduling from the task, for the pods.
    """
    from kfp_mindspore.msjob.build import JobOptions
    from kfp_mindspore.steps.launch.ray_job import train_on_ray

    options = JobOptions(
        workers=workers,
        image=image,
        env=env,
        restart_policy=restart_policy,
        backoff_limit=backoff_limit,
        active_deadline_seconds=active_deadline_seconds or None,
        storage=storage,
    )
    train_on_ray(
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

    compiler.Compiler().compile(ray_job, package_path=__file__.replace(".py", ".yaml"))
