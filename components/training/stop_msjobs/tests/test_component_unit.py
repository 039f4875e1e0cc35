from ..component import stop_msjobs

pytest_plugins = ["kfp_mindspore.testing"]


def test_local_jobs_are_left_to_their_lease(local_home, capsys) -> None:
    """Local jobs are left to their lease."""
    stop_msjobs.python_func()
    assert "nothing to stop" in capsys.readouterr().out
