import pytest
from kfp.dsl import PipelineTaskFinalStatus

from ..component import notify

pytest_plugins = ["kfp_mindspore.testing"]


def make_status(state: str) -> PipelineTaskFinalStatus:
    """Return the status of the tasks under an ExitHandler."""
    return PipelineTaskFinalStatus(state, "", "exit-handler-1", None, None)


def test_success_sends_no_notice(local_home, capsys) -> None:
    """Success sends no notice."""
    notify.python_func(make_status("SUCCEEDED"), webhook="slack")
    assert "no notice" in capsys.readouterr().out


def test_missing_variable_is_named(local_home, monkeypatch) -> None:
    """Missing variable is named."""
    monkeypatch.delenv("KFP_MINDSPORE_WEBHOOK_URL", raising=False)
    with pytest.raises(Exception, match="KFP_MINDSPORE_WEBHOOK_URL: is not set"):
        notify.python_func(make_status("FAILED"), webhook="slack")
