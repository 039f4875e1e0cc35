"""Component that ends a terminated or failed run's MSJobs."""

from kfp import dsl


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def stop_msjobs(namespace: str = ""):
    """Delete a run's unfinished MSJobs, as dsl.ExitHandler's exit task.

    A terminated run sends SIGTERM to its steps, whose launchers delete their jobs, and leaves them half a second for
    it. This task runs on success and failure, and on termination unless Argo cuts it off (4.0 does with Kubeflow's
    default `retryStrategy`), and ends what is left, in seconds; without it, a job's lease does so after three minutes.
    Finished jobs are kept until the run is deleted.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[kubernetes,pipelines].

    Args:
        namespace: Job namespace; default the step's.
    """
    from kfp_mindspore.steps.launch.stop import stop_jobs

    stop_jobs(namespace)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(stop_msjobs, package_path=__file__.replace(".py", ".yaml"))
