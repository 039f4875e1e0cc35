from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from kfp_mindspore import __version__
from kfp_mindspore.cli import main
from kfp_mindspore.errors import GateNotMetError, KfpMindSporeError, NotFoundError, ProcessFailedError


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kfp_mindspore.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def use(monkeypatch: pytest.MonkeyPatch, body: Callable[[], None]) -> None:
    command = click.Command("job", callback=body)
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: command)


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (KfpMindSporeError("it broke"), 1, "Error: it broke\n"),
        (NotFoundError("x: no such job", hint="List them."), 2, "Error: x: no such job\nList them.\n"),
        (GateNotMetError("accuracy is low"), 3, "Error: accuracy is low\n"),
        (ProcessFailedError("step a failed", log=["one", "two"]), 1, "Error: step a failed\n  | one\n  | two\n"),
        (KeyboardInterrupt(), 130, "\nInterrupted.\n"),
        (click.UsageError("no"), 2, "Error: no\n"),
        (OSError(28, "No space left on device"), 1, "Error: [Errno 28] No space left on device\n"),
    ],
)
def test_error_prints_message_and_sets_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, expected: str
) -> None:
    def fail() -> None:
        raise error

    use(monkeypatch, fail)
    monkeypatch.delenv("KFP_MINDSPORE_DEBUG", raising=False)
    assert main.run(["job"]) == code
    captured = capsys.readouterr()
    assert captured.err.endswith(expected)
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KfpMindSporeError("it broke"), {"type": "KfpMindSporeError", "message": "it broke", "exit_code": 1}),
        (
            NotFoundError("x: no such job", hint="List them."),
            {"type": "NotFoundError", "message": "x: no such job", "hint": "List them.", "exit_code": 2},
        ),
        (GateNotMetError("low"), {"type": "GateNotMetError", "message": "low", "exit_code": 3}),
        (
            ProcessFailedError("failed", log=["one", "two"]),
            {"type": "ProcessFailedError", "message": "failed", "log": ["one", "two"], "exit_code": 1},
        ),
        (KeyboardInterrupt(), {"type": "Interrupted", "message": "Interrupted.", "exit_code": 130}),
        (click.UsageError("no"), {"type": "UsageError", "message": "no", "exit_code": 2}),
        (
            OSError(28, "No space left on device"),
            {"type": "OSError", "message": "[Errno 28] No space left on device", "exit_code": 1},
        ),
    ],
)
def test_error_is_one_line_of_json_with_option(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    expected: dict[str, object],
) -> None:
    def fail(as_json: bool) -> None:
        raise error

    command = click.Command("job", callback=fail, params=[click.Option(["--json", "as_json"], is_flag=True)])
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: command)
    monkeypatch.delenv("KFP_MINDSPORE_DEBUG", raising=False)
    assert main.run(["job", "--json"]) == expected["exit_code"]
    output, errors = capsys.readouterr()
    # click ends the line of ^C first.
    assert json.loads(errors.lstrip("\n")) == {"error": {"hint": "", "log": [], **expected}}
    assert (output, errors.lstrip("\n").count("\n")) == ("", 1)


def test_json_of_job_command_is_no_option() -> None:
    assert main._is_json(["job", "submit", "--json", "--", "python"])
    assert not main._is_json(["job", "submit", "--name", "a", "--", "python", "--json"])


@pytest.mark.parametrize(("words", "variable"), [(["--debug", "job"], ""), (["job"], "1")])
def test_debug_prints_stack_trace(monkeypatch: pytest.MonkeyPatch, words: list[str], variable: str) -> None:
    def fail() -> None:
        raise NotFoundError("x")

    use(monkeypatch, fail)
    monkeypatch.setenv("KFP_MINDSPORE_DEBUG", variable or "0")
    with pytest.raises(NotFoundError):
        main.run(words)


def test_debug_after_subcommand_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not main._is_debug(["job", "--debug"])


def test_help_and_version_import_no_subcommand() -> None:
    code = (
        "import sys; from kfp_mindspore.cli import main; assert main.run(['--help']) == 0; "
        "heavy = {'kfp', 'mindspore', 'kserve', 'numpy', 'rich', 'yaml'} & set(sys.modules); "
        "nouns = [name for name in sys.modules if name.startswith('kfp_mindspore.cli.') and name[18:] != 'main']; "
        "assert not heavy and not nouns, (heavy, nouns)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"  {noun} " in done.stdout for noun in main.COMMANDS)
    assert __version__ in run("--version").stdout


@pytest.mark.parametrize("noun", list(main.COMMANDS))
def test_every_command_has_help_with_example(noun: str) -> None:
    command = getattr(importlib.import_module(f"kfp_mindspore.cli.{noun}"), noun)
    commands = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for one in commands:
        context = click.Context(one, info_name=one.name)
        assert "xample" in one.get_help(context), f"{noun} {one.name}: no example"
        assert one.help, f"{noun} {one.name}: no help"


def test_summaries_are_short_sentences() -> None:
    for noun, text in main.COMMANDS.items():
        assert text.endswith(".")
        assert len(text) < 80, noun


@pytest.mark.parametrize("words", [["nope"], ["run"], ["run", "x", "--param", "novalue"], ["--nope"]])
def test_usage_error_exits_2(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_pipe_prints_no_stack_trace() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "kfp_mindspore.cli.main", "--help"], stdout=write, stderr=subprocess.PIPE, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    os.close(write)
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 141)


def test_run_as_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("kfp-mindspore")
    done = subprocess.run(
        [script, "run", "no_such"], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: no_such: no such pipeline")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rnu", "x"], "No such command 'rnu'. Did you mean 'run'?"),
        (["service", "lst"], "Did you mean 'list'?"),
        (["zzzz"], "No such command 'zzzz'."),
        (["run", "x", "--epochs", "3"], "No such option '--epochs'.\nAn argument of the pipeline: -p epochs=3"),
        (["run", "x", "--learning-rate=0.1"], "An argument of the pipeline: -p learning_rate=0.1"),
        (["run", "x", "--epochs"], "An argument of the pipeline: -p epochs=VALUE"),
        (["run", "x", "--kee"], "'--keep'"),
        (["job", "list", "--epochs", "3"], "No such option '--epochs'."),
    ],
)
def test_mistyped_word_is_answered_with_right_one(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) == 2
    errors = capsys.readouterr().err
    assert expected in errors
    assert ("-p" in expected) == ("An argument of the pipeline" in errors)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "digits_lifecycle"],
        ["demo"],
        ["job", "submit", "--name", "a", "--", "python", "-c", "1"],
        ["service", "stop", "a"],
    ],
)
def test_unwritable_home_exits_2_and_names_its_variable(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    assert main.run(words) == 2
    assert capsys.readouterr().err.endswith("Set KFP_MINDSPORE_HOME to a directory that you can write to.\n")


@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        ("kfp", "from kfp_mindspore.components import load_dataset", "pipelines"),
        ("kfp", "from kfp_mindspore.pipelines import digits_lifecycle", "pipelines"),
        ("mindspore", "from kfp_mindspore.mindir.graph.metadata import inspect_mindir; inspect_mindir(MODEL)", "train"),
        ("mindspore", "from kfp_mindspore.mindir import verify_bundle; verify_bundle(FREE, outputs=True)", "serving"),
    ],
)
def test_missing_library_is_import_error_that_names_its_extra(
    models: Path, missing: str, code: str, extra: str
) -> None:
    preamble = (
        f"import sys; sys.modules[{missing!r}] = None; FREE = {str(models / 'free')!r}; MODEL = FREE + '/model.mindir'"
    )
    program = f"{preamble}\ntry:\n    {code}\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{missing} is not installed\nInstall it with: pip install 'kfp-mindspore[{extra}]'\n"


def test_interrupt_during_import_prints_no_stack_trace() -> None:
    program = """
import os, signal, sys
import kfp_mindspore_cli

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "kfp_mindspore.errors":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
kfp_mindspore_cli.main()
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("line", "expected"), [("ru", "plain,run"), ("run --ke", "plain,--keep"), ("job su", "plain,submit")]
)
def test_shell_completion(line: str, expected: str) -> None:
    words = ["kfp-mindspore", *line.split()]
    environment = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from kfp_mindspore.cli.main import main; main()"],
        env={**os.environ, **environment, "_KFP_MINDSPORE_COMPLETE": "bash_complete"},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert any(found.startswith(expected) for found in done.stdout.splitlines())
