from __future__ import annotations

import pytest

from kfp_mindspore import errors


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.KfpMindSporeError("x"), 1),
        (errors.ProcessFailedError("x"), 1),
        (errors.WaitTimeoutError("x"), 1),
        (errors.UserError("x"), 2),
        (errors.ValidationError(["x"]), 2),
        (errors.NotFoundError("x"), 2),
        (errors.AlreadyExistsError("x"), 2),
        (errors.MissingExtraError("kfp", "pipelines"), 2),
        (errors.CorruptBundleError("x"), 2),
        (errors.GateNotMetError("x"), 3),
    ],
)
def test_exit_codes(error: errors.KfpMindSporeError, exit_code: int) -> None:
    assert error.exit_code == exit_code


def test_message_is_followed_by_log_and_hint() -> None:
    error = errors.ProcessFailedError("step train failed", hint="See run.log", log=["a", "b"])
    assert str(error) == "step train failed\n  | a\n  | b\nSee run.log"


def test_missing_extra_in_pod_names_build_of_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert errors.MissingExtraError("pyarrow", "data").hint == "Install it with: pip install 'kfp-mindspore[data]'"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    hint = errors.MissingExtraError("pyarrow", "data").hint
    assert "EXTRAS=…,data of serving/Containerfile" in hint
    assert "kfp-mindspore image runtime --extra data" in hint
    assert "pip install" not in hint


def test_validation_error_names_subject_and_all_fields() -> None:
    error = errors.ValidationError(["spec.a: must be 1, got 0", "spec.b: missing"], subject="MSJob digits")
    assert str(error) == "MSJob digits is invalid: spec.a: must be 1, got 0; spec.b: missing"
    assert error.errors == ("spec.a: must be 1, got 0", "spec.b: missing")


def test_wait_timeout_is_timeout_error() -> None:
    assert issubclass(errors.WaitTimeoutError, TimeoutError)


@pytest.mark.parametrize(
    ("name", "listed", "hint"),
    [
        ("REPLICAS", False, "; did you mean 'replicas'?"),
        ("tmplate", False, "; did you mean 'podTemplate'?"),
        ("pod", True, "; did you mean 'podTemplate'?"),
        ("pod", False, ""),
        ("x", True, "; expected replicas, podTemplate"),
        ("", True, "; expected replicas, podTemplate"),
        ("", False, ""),
    ],
)
def test_suggestions(name: str, listed: bool, hint: str) -> None:
    assert errors.suggest(name, ["replicas", "podTemplate"], listed=listed) == hint
