"""Flags of `python -m kfp_mindspore.training`, without MindSpore."""

from __future__ import annotations

import pytest

from kfp_mindspore.msjob.commands import NETWORK_PARAMETERS
from kfp_mindspore.training.__main__ import build_parser, list_flags, main, read_suggestions


def test_every_parameter_of_job_is_flag() -> None:
    flags = {word for action in build_parser()._actions for word in action.option_strings}
    assert {"--" + name.replace("_", "-") for name in NETWORK_PARAMETERS} <= flags


def test_every_option_is_parameter_of_job() -> None:
    # A job has its directories from its environment; booleans are on by default.
    names = {
        f"no_{name}" if name in ("drop_last", "initial_strict", "shuffle", "verbose") else name for name in list_flags()
    }
    assert names - set(NETWORK_PARAMETERS) == {"checkpoint_dir", "output_dir"}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--epochs", "5"], "epochs", 5),
        (["--epochs", "five"], "epochs", "five"),
        (["--schedule", "cosine"], "schedule", "cosine"),
        (["--schedule", '{"name": "step"}'], "schedule", {"name": "step"}),
        (["--freeze", "a.*,b.*"], "freeze", ["a.*", "b.*"]),
        (["--freeze", '["a.*"]'], "freeze", ["a.*"]),
        (["--class-weights", "balanced"], "class_weights", "balanced"),
        (["--no-shuffle"], "shuffle", False),
        ([], "ema", None),
    ],
)
def test_values_of_flags(words: list[str], name: str, value: object) -> None:
    assert getattr(build_parser().parse_args(["module:network", *words]), name) == value


def test_help_describes_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--clip-norm CLIP_NORM Largest L2 norm of all gradients together" in printed
    assert "--epochs EPOCHS Total number of epochs, those before a resume included" in printed


def test_suggestions_replace_options() -> None:
    environment = {
        "KUBEFLOW_TRAINER_OPT_LEARNING_RATE": "1e-3",
        "KUBEFLOW_TRAINER_OPT_EPOCHS": "3",
        "KUBEFLOW_TRAINER_OPT_SHUFFLE": "false",
        "OTHER": "1",
    }
    words = ["module:network", "--epochs", "9"]
    known = vars(build_parser().parse_args(words))
    options = build_parser().parse_args([*words, *read_suggestions(known, environment)])

    assert (options.learning_rate, options.epochs, options.shuffle) == (0.001, 3, False)


def test_unknown_suggestion_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBEFLOW_TRAINER_OPT_LEARNING_RTE", "1")
    assert main(["module:network"]) == 2
    assert "KUBEFLOW_TRAINER_OPT_LEARNING_RTE: the training has no option 'learning_rte'" in capsys.readouterr().err
