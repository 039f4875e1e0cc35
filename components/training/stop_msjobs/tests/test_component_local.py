from kfp import dsl, local

from ..component import stop_msjobs

pytest_plugins = ["kfp_mindspore.testing"]


@dsl.component(base_image="python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def work() -> int:
    """Do nothing."""
    return 1


def test_exit_task_of_local_run(local_home, tmp_path) -> None:
    """Exit task of a local run."""
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path))

    @dsl.pipeline(name="exit-handler")
    def pipeline():  # type: ignore[no-untyped-def]
        with dsl.ExitHandler(stop_msjobs()):
            work()

    pipeline()
    assert list(tmp_path.glob("*/stop-msjobs/executor_output.json"))
