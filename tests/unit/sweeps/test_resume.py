"""Sweeps that were killed or whose journal is damaged: what a resume goes on with."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError
from kfp_mindspore.sweeps import sweep
from kfp_mindspore.sweeps.jobs import TrialJob, TrialJobState
from kfp_mindspore.sweeps.options import SAMPLERS

SPACE = {
    "x": {"low": -1.0, "high": 1.0},
    "layers": {"low": 1, "high": 40},
    "optimizer": ["Adam", "SGD"],
    "momentum": {"low": 0.0, "high": 1.0, "when": {"optimizer": "SGD"}},
}
GRID = {"x": [0.1 * step for step in range(8)], "optimizer": ["Adam", "SGD"]}
# More than the random trials in front of the first model, 10 for TPE and Gaussian processes, 1 for CMA-ES.
TRIALS = {"tpe": 12, "gp": 12}


class StubJobs:
    """Trials that succeed at once; the process is killed at the start of one."""

    poll_seconds = 0.0

    def __init__(self, killed_at: int | None = None, begun: list[int] | None = None) -> None:
        self._killed_at = killed_at
        self._begun = begun if begun is not None else []

    def list_names(self) -> Collection[str]:
        return ()

    def start(self, job: TrialJob) -> None:
        self._begun.append(job.number)
        if job.number == self._killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self, job: TrialJob) -> TrialJobState:
        parameters = job.parameters
        loss = (parameters["x"] - 0.3) ** 2 + parameters.get("layers", 0) / 100
        return TrialJobState("succeeded", [{"epoch": epoch, "loss": loss + 1 / epoch} for epoch in (1, 2)])

    def end(self, name: str) -> None:
        pass

    def abandon(self, names: Sequence[str], error: BaseException) -> None:
        pass

    def save(self) -> None:
        pass


def list_parameters(
    directory: Path, killed_at: int | None = None, *, begun: list[int] | None = None, **options: Any
) -> list[Mapping[str, Any]]:
    found = sweep(
        {"script": "train.py"},
        GRID if options["sampler"] == "grid" else SPACE,
        "loss",
        directory=directory,
        jobs=StubJobs(killed_at, begun),
        trials=options.pop("trials", TRIALS.get(options["sampler"], 4)),
        **options,
    )
    return [trial.parameters for trial in found.trials]


def is_installed(sampler: str) -> bool:
    return {"gp": find_spec("torch"), "cmaes": find_spec("cmaes")}.get(sampler, True) is not None


@pytest.mark.parametrize(
    "options",
    [
        *(
            pytest.param(
                {"sampler": name, "pruner": "none"},
                id=name,
                marks=pytest.mark.skipif(not is_installed(name), reason="its library is not installed"),
            )
            for name in SAMPLERS
        ),
        pytest.param({"sampler": "random", "pruner": "pbt", "population": 2}, id="pbt"),
    ],
)
def test_resume_after_kill_has_parameters_of_whole_sweep(options: dict[str, Any], tmp_path: Path) -> None:
    # Killed first: a fork of a process whose libraries have threads may hang.
    process = multiprocessing.get_context("fork").Process(
        target=list_parameters,
        args=(tmp_path / "killed", TRIALS.get(options["sampler"], 4) - 1),
        kwargs=options,
        daemon=True,
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    resumed = list_parameters(tmp_path / "killed", **options)
    expected = list_parameters(tmp_path / "whole", **options)
    assert resumed == expected
    if options["pruner"] == "none":
        assert len({tuple(parameters.items()) for parameters in expected}) == len(expected)


def test_seeds_differ(tmp_path: Path) -> None:
    first, second = (
        list_parameters(tmp_path / str(seed), sampler="random", pruner="none", seed=seed) for seed in (0, 1)
    )
    assert not any(parameters in second for parameters in first)


@pytest.mark.skipif(is_installed("gp"), reason="torch is installed")
def test_missing_library_of_sampler_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sampler: gp needs the library torch, which is not installed"):
        list_parameters(tmp_path / "sweep", sampler="gp")


@pytest.mark.parametrize(
    ("damage", "repeated"),
    [
        # Of the last trial, a whole entry in front of another one.
        (lambda lines: [*lines[:-3], b"\x00" * 20 + b"\n", *lines[-2:]], []),
        # The first entry of trial 1: the later trials have no place.
        (lambda lines: [b"{}\n" if line == get_first_entry(lines, 1) else line for line in lines], [1, 2, 3]),
        # The end of a write and the next one in the same line.
        (lambda lines: [*lines[:-3], lines[-3][:-9] + lines[-2], lines[-1]], []),
    ],
    ids=["zeros", "creation", "cut"],
)
def test_damaged_journal_is_named_and_its_readable_part_kept(
    damage: Callable[[list[bytes]], list[bytes]],
    repeated: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "sweep"
    options = {"sampler": "random", "pruner": "none"}
    expected = list_parameters(directory, **options)
    journal = directory / "journal.log"
    damaged = b"".join(damage(journal.read_bytes().splitlines(keepends=True)))
    journal.write_bytes(damaged)
    number = next(index for index, line in enumerate(damaged.splitlines(), 1) if not is_json(line))

    for command in ("show", "best", "report"):
        assert run(["sweep", command, str(directory)]) == 2
        error = capsys.readouterr().err
        assert f"{journal}: line {number} is no entry of Optuna's journal" in error
        assert f"kfp-mindspore sweep resume {directory}" in error
    assert journal.read_bytes() == damaged
    begun: list[int] = []
    with pytest.warns(UserWarning, match=f"line {number} was damaged: kept"):
        assert list_parameters(directory, begun=begun, **options) == expected
    assert (directory / "journal.log.damaged").read_bytes() == damaged
    assert begun == repeated


def get_first_entry(lines: Sequence[bytes], number: int) -> bytes:
    """Return the entry that creates a trial: the one in front of its first attribute."""
    first = next(index for index, line in enumerate(lines) if json.loads(line).get("trial_id") == number)
    return lines[first - 1]


def is_json(line: bytes) -> bool:
    try:
        return bool(json.loads(line))
    except ValueError:
        return False


def test_report_is_written_to_directory_of_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    list_parameters(tmp_path / "sweep", sampler="random", pruner="none", trials=1)
    assert run(["sweep", "report", str(tmp_path / "sweep")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'sweep' / 'sweep.html'}\n"
    assert "<svg" in (tmp_path / "sweep" / "sweep.html").read_text()
    assert list(Path().iterdir()) == []
