from kfp_mindspore.components.training.stop_msjobs import stop_msjobs


def test_local_jobs_are_left_to_their_lease(local_home, capsys) -> None:
    stop_msjobs.python_func()
    assert "nothing to stop" in capsys.readouterr().out
