"""Sweeps on this machine: real jobs, Optuna's study, engine and trial faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.evaluation.curves import read_records
from kfp_mindspore.local.cores import list_cores
from kfp_mindspore.msjob import LocalBackend, MSJobClient
from kfp_mindspore.sweeps import resume_sweep, sweep
from kfp_mindspore.sweeps.study import SweepResult, TrialResult, read_sweep
from tests.support.kube.operators import wait_for

SCRIPT = Path(__file__).parents[1] / "support" / "training" / "sweep_script.py"
TEMPLATE = {"script": str(SCRIPT)}
SPACE = {"x": {"low": -1.0, "high": 1.0}}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MSJobClient:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    return MSJobClient(LocalBackend())


def run_sweep(tmp_path: Path, space: Mapping[str, Any], **options: Any) -> SweepResult:
    return sweep(TEMPLATE, space, "loss", directory=tmp_path / "sweep", **{"parallel": 2, **options})


def assert_complete(result: SweepResult, count: int, client: MSJobClient) -> None:
    """Assert that all trials have ended, each was run by one process, and no job is left."""
    assert [trial.number for trial in result.trials] == list(range(count))
    assert {trial.state for trial in result.trials} <= {"complete", "pruned"}
    for trial in result.trials:
        records = read_records(Path(trial.output, "metrics.jsonl"))
        assert len({record["pid"] for record in records}) == 1, trial
        assert [record["epoch"] for record in records] == list(range(1, len(records) + 1)), trial
    assert client.list_jobs() == []


def test_losers_are_stopped_and_best_trial_is_named(tmp_path: Path, client: MSJobClient) -> None:
    ended = []
    space = {**SPACE, "kind": ["a", "b"], "y": {"low": 1, "high": 4, "when": {"kind": "b"}}}
    template = {**TEMPLATE, "trainer_parameters": {"epochs": 12}}
    result = sweep(template, space, "loss", directory=tmp_path / "sweep", parallel=2, trials=8, on_trial=ended.append)

    assert_complete(result, 8, client)
    assert sorted(trial.number for trial in ended) == list(range(8))
    assert {"complete", "pruned"} == {trial.state for trial in result.trials}
    assert all(("y" in trial.parameters) == (trial.parameters["kind"] == "b") for trial in result.trials)
    assert any(trial.epochs < 12 for trial in result.trials if trial.state == "pruned")
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert result.best.value == min(trial.value for trial in complete if trial.value is not None)
    assert result.best.value == pytest.approx((result.best.parameters["x"] - 0.3) ** 2 + 1 / 12)


def test_defaults_are_first_trial(tmp_path: Path, client: MSJobClient) -> None:
    space = {"x": {"low": -1.0, "high": 1.0, "default": 0.25}}
    result = run_sweep(tmp_path, space, trials=1, pruner="none")
    assert [trial.parameters for trial in result.trials] == [{"x": 0.25}]


@pytest.mark.slow
def test_sweeps_in_directories_of_one_name_have_their_own_jobs(tmp_path: Path, client: MSJobClient) -> None:
    names = []
    for parent in ("first", "second"):
        # No name of a job.
        directory = tmp_path / parent / "1. LeNet_5"
        result = sweep(TEMPLATE, {"x": [0.5]}, "loss", directory=directory, sampler="grid", pruner="none", trials=1)
        assert result.best.number == 0
        names.append(json.loads((directory / "sweep.json").read_text())["name"])
    assert all(name.startswith("sweep-1-lenet-5-") for name in names)
    assert names[0] != names[1]


@pytest.mark.slow
def test_killed_engine_goes_on_where_it_was(tmp_path: Path, client: MSJobClient) -> None:
    directory = tmp_path / "sweep"
    space = tmp_path / "space.yaml"
    space.write_text(json.dumps(SPACE))
    command = [sys.executable, "-m", "kfp_mindspore.cli.main", "sweep", "run", directory, "--script", SCRIPT]
    command += ["--space", space, "--objective", "loss", "--trials", "6", "--parallel", "2", "--pruner", "none"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline().startswith("trial ")
        engine.kill()
    states = [trial.state for trial in read_sweep(directory).trials]
    assert "running" in states, "the jobs of these trials run on without the engine"

    assert_complete(resume_sweep(directory), 6, client)


@pytest.mark.slow
def test_interrupted_sweep_leaves_no_process_and_goes_on(tmp_path: Path, client: MSJobClient) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(tmp_path, SPACE, trials=4, pruner="none", on_trial=interrupt)
    assert client.list_jobs() == []

    result = resume_sweep(tmp_path / "sweep")
    assert [trial.state for trial in result.trials] == ["complete"] * 4
    assert client.list_jobs() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("fails", "no such kind"),
        ("nan", "loss is nan in epoch 1"),
        ("silent", "no epoch of it has reported 'loss' (4 epochs in metrics.jsonl)"),
    ],
)
def test_failed_trial_has_its_reason_and_others_go_on(
    kind: str, reason: str, tmp_path: Path, client: MSJobClient
) -> None:
    result = run_sweep(tmp_path, {"x": [0.0], "kind": ["a", kind]}, sampler="grid", trials=2)

    states = {trial.parameters["kind"]: (trial.state, trial.reason) for trial in result.trials}
    assert states["a"] == ("complete", "")
    assert states[kind][0] == "failed"
    assert reason in states[kind][1]
    assert result.best.parameters["kind"] == "a"
    assert client.list_jobs() == []


@pytest.mark.slow
def test_second_engine_is_refused(tmp_path: Path, client: MSJobClient, capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    run_sweep(
        tmp_path, SPACE, trials=1, on_trial=lambda _: codes.append(run(["sweep", "resume", str(tmp_path / "sweep")]))
    )

    assert codes == [2]
    assert f"sweep {tmp_path / 'sweep'}: another process runs it" in capsys.readouterr().err


@pytest.mark.slow
def test_truncated_journal_loses_its_last_line_only(tmp_path: Path, client: MSJobClient) -> None:
    run_sweep(tmp_path, SPACE, trials=2, pruner="none")
    journal = tmp_path / "sweep" / "journal.log"
    journal.write_bytes(journal.read_bytes()[:-20])

    result = resume_sweep(tmp_path / "sweep")
    assert [trial.state for trial in result.trials] == ["complete"] * 2


def test_report_shows_conditional_parameters(
    tmp_path: Path, client: MSJobClient, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not in the order of the alphabet: a parameter's condition is in front of it.
    space = {"x": [0.0, 0.5], "kind": {"choices": ["a", "b"], "when": {"x": 0.5}}}
    run_sweep(tmp_path, space, sampler="grid", pruner="none", trials=2)
    resume_sweep(tmp_path / "sweep")
    page = tmp_path / "sweep.html"

    assert run(["sweep", "report", str(tmp_path / "sweep"), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert all(f"<title>trial {number}</title>" in text for number in (0, 1))
    assert "Importance" in text
    assert "Loss of the best trials" in text


def test_show_and_best_print_trials(tmp_path: Path, client: MSJobClient, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_sweep(tmp_path, {"x": [0.0, 0.5]}, sampler="grid", pruner="none", trials=2)
    directory = str(tmp_path / "sweep")

    assert run(["sweep", "show", directory]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["TRIAL", "STATE", "LOSS", "EPOCHS", "SECONDS", "PARAMETERS", "REASON"]
    assert [line[:2] for line in lines[1:]] == [["0", "complete"], ["1", "complete"]]
    assert run(["sweep", "best", directory, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["number"], found["parameters"]) == (result.best.number, {"x": 0.5})
    assert found["checkpoint"] is None
    checkpoint = Path(result.best.output, "checkpoint")
    assert run(["sweep", "best", directory]) == 0
    assert f"checkpoint: none, its training has written no {checkpoint}\n" in capsys.readouterr().out
    checkpoint.mkdir()
    assert run(["sweep", "best", directory, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == str(checkpoint)


@pytest.mark.slow
def test_sigint_ends_jobs(tmp_path: Path, client: MSJobClient) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(json.dumps(SPACE))
    command = [sys.executable, "-m", "kfp_mindspore.cli.main", "sweep", "run", tmp_path / "sweep", "--script", SCRIPT]
    command += ["--space", space, "--objective", "loss", "--trials", "9"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        engine.send_signal(signal.SIGINT)
        assert engine.wait() == 130
    assert client.list_jobs() == []


@pytest.mark.slow
def test_sigterm_ends_jobs_and_sweep_goes_on(tmp_path: Path, client: MSJobClient) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(json.dumps(SPACE))
    directory = tmp_path / "sweep"
    command = [sys.executable, "-m", "kfp_mindspore.cli.main", "sweep", "run", directory, "--script", SCRIPT]
    command += ["--space", space, "--objective", "loss", "--trials", "2", "--pruner", "none"]
    metrics = directory / "trials" / "0" / "metrics.jsonl"
    with subprocess.Popen(list(map(str, command))) as engine:
        wait_for(metrics.exists, lambda: "no epoch", 60)
        engine.terminate()
        assert engine.wait() == 143
    assert client.list_jobs() == []
    assert not psutil.pid_exists(read_records(metrics)[0]["pid"])
    assert [trial.state for trial in resume_sweep(directory).trials] == ["complete"] * 2


def test_sigterm_within_optunas_journal_ends_jobs(
    tmp_path: Path, client: MSJobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink
    sent = []

    def unlink_and_terminate(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if str(path).endswith(".rename") and not sent and client.list_jobs():
            sent.append(path)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(os, "unlink", unlink_and_terminate)
    with pytest.raises(SystemExit) as raised:
        run_sweep(tmp_path, SPACE, trials=2, pruner="none")
    assert raised.value.code == 143
    assert len(sent) == 1
    assert client.list_jobs() == []
    assert [trial.state for trial in resume_sweep(tmp_path / "sweep").trials] == ["complete"] * 2


def test_hanging_trial_is_terminated_after_its_timeout(tmp_path: Path, client: MSJobClient) -> None:
    space = {"x": [0.0], "kind": ["hangs"]}
    with pytest.raises(ProcessFailedError, match="ran longer than 1 s"):
        run_sweep(tmp_path, space, sampler="grid", trials=1, trial_timeout=1)
    assert [trial.state for trial in read_sweep(tmp_path / "sweep").trials] == ["failed"]
    assert client.list_jobs() == []


@pytest.mark.slow
def test_sweep_whose_trials_all_fail_ends_with_their_reason(
    tmp_path: Path, client: MSJobClient, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("learnin_rate: [0.1, 0.2]\n")
    command = ["sweep", "run", str(tmp_path / "sweep"), "--script", str(SCRIPT), "--space", str(space)]

    assert run([*command, "--objective", "loss", "--trials", "9"]) == 1
    assert "the last 3 trials failed before an epoch" in (error := capsys.readouterr().err)
    assert "required: --x" in error
    assert len(read_sweep(tmp_path / "sweep").trials) == 3
    assert client.list_jobs() == []


def test_objective_and_pruner_without_epochs_are_named(tmp_path: Path, client: MSJobClient) -> None:
    template = {**TEMPLATE, "trainer_parameters": {"epochs": 1}}
    with pytest.raises(ProcessFailedError, match=r"no epoch of it has reported 'accuracy' \(they have loss\)"):
        sweep(template, SPACE, "accuracy", directory=tmp_path / "none", trials=1)
    with pytest.warns(UserWarning, match="pruner: asha stops no trial: trial 0 has reported one epoch"):
        sweep(template, SPACE, "loss", directory=tmp_path / "one", trials=1)


@pytest.mark.slow
def test_objective_is_mean_over_seeds(tmp_path: Path, client: MSJobClient, capsys: pytest.CaptureFixture[str]) -> None:
    template = {**TEMPLATE, "trainer_parameters": {"seed": 5}}
    result = sweep(
        template, {"x": [0.3]}, "loss", directory=tmp_path / "sweep", sampler="grid", pruner="none", seeds=3, trials=1
    )

    (trial,) = result.trials
    # The script adds a thousandth of its seed.
    assert trial.value == pytest.approx(0.25 + 0.006)
    assert trial.spread == pytest.approx(0.001)
    outputs = sorted(path.name for path in (tmp_path / "sweep" / "trials").iterdir())
    assert outputs == ["0", "0-seed1", "0-seed2"]
    assert client.list_jobs() == []
    assert run(["sweep", "best", str(tmp_path / "sweep")]) == 0
    assert "loss 0.256 ± 0.001" in capsys.readouterr().out


@pytest.mark.slow
def test_engine_killed_between_seeds_goes_on(tmp_path: Path, client: MSJobClient) -> None:
    directory = tmp_path / "sweep"
    space = tmp_path / "space.yaml"
    space.write_text(json.dumps({"x": [0.3]}))
    command = [sys.executable, "-m", "kfp_mindspore.cli.main", "sweep", "run", directory, "--script", SCRIPT]
    command += ["--space", space, "--objective", "loss", "--sampler", "grid", "--seeds", "3"]
    with subprocess.Popen(list(map(str, command))) as engine:
        wait_for((directory / "trials" / "0-seed1" / "metrics.jsonl").exists, lambda: "no second seed", 60)
        engine.kill()

    (trial,) = resume_sweep(directory).trials
    assert trial.value == pytest.approx(0.25 + 0.001)
    for path in (directory / "trials").iterdir():
        assert len({record["pid"] for record in read_records(path / "metrics.jsonl")}) == 1, path
    assert client.list_jobs() == []


@pytest.mark.slow
def test_two_objectives_have_front(tmp_path: Path, client: MSJobClient, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_sweep(
        tmp_path, {"x": [0.3, 0.6, 0.9], "kind": ["a", "b"]}, sampler="grid", objectives=["latency:minimize"], trials=6
    )

    # Latency is 1 - x: kind b is worse in the first objective, and equal in the other.
    assert {trial.state for trial in result.trials} == {"complete"}
    assert sorted((trial.parameters["x"], trial.parameters["kind"]) for trial in result.front) == [
        (0.3, "a"), (0.6, "a"), (0.9, "a"),
    ]  # fmt: skip
    directory = str(tmp_path / "sweep")
    assert run(["sweep", "show", directory]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:4] == ["TRIAL", "STATE", "LOSS", "LATENCY"]
    assert sum(line[0].endswith("*") for line in lines[1:7]) == 3
    assert run(["sweep", "best", directory]) == 0
    assert capsys.readouterr().out.count("best: trial") == 3
    page = tmp_path / "sweep.html"
    assert run(["sweep", "report", directory, "-o", str(page)]) == 0
    assert "Pareto front" in page.read_text()


@pytest.mark.slow
def test_objective_that_is_not_reported_fails_trial(tmp_path: Path, client: MSJobClient) -> None:
    result = run_sweep(tmp_path, {"x": [0.3]}, sampler="grid", objectives=["size:minimize"], trials=1)
    assert [trial.state for trial in result.trials] == ["failed"]
    assert "no epoch of it has reported a number as 'size'" in result.trials[0].reason


@pytest.mark.slow
def test_trials_share_cores(tmp_path: Path, client: MSJobClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = run_sweep(tmp_path, {"x": [0.1, 0.2, 0.3]}, sampler="grid", pruner="none", trials=3)

    shares = [read_records(Path(trial.output, "metrics.jsonl"))[0]["cores"] for trial in result.trials]
    cores = list_cores()
    share = max(1, len(cores) // 2)
    assert {threads for threads, _ in shares} == {str(share)}
    assert {own for _, own in shares} <= {
        ",".join(map(str, cores[:share])),
        ",".join(map(str, cores[share : 2 * share])),
    }
    assert shares[0] != shares[1]


@pytest.mark.slow
def test_population_goes_on_from_winners_checkpoints(tmp_path: Path, client: MSJobClient) -> None:
    script = SCRIPT.with_name("population_script.py")
    space = {"rate": {"low": 0.1, "high": 4.0}}
    options: dict[str, Any] = {"pruner": "pbt", "population": 4, "interval": 2, "parallel": 2, "sampler": "random"}
    folder = tmp_path / "sweep"

    def interrupt(trial: TrialResult) -> None:
        if trial.number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep({"script": str(script)}, space, "loss", directory=folder, trials=12, on_trial=interrupt, **options)
    result = resume_sweep(folder)

    assert [trial.state for trial in result.trials] == ["complete"] * 12
    records = [read_records(Path(trial.output, "metrics.jsonl")) for trial in result.trials]
    # Each generation has two epochs more, and goes on where the former has ended.
    assert [[record["epoch"] for record in found] for found in records] == [
        [1 + 2 * generation, 2 + 2 * generation] for generation in range(3) for _ in range(4)
    ]
    ranked = sorted(range(4), key=lambda number: records[number][-1]["loss"])
    rates = [trial.parameters["rate"] for trial in result.trials]
    assert rates[4:7] == [rates[number] for number in ranked[:3]]
    winner = rates[ranked[0]]
    assert rates[7] in (pytest.approx(0.8 * winner), pytest.approx(1.25 * winner), 4.0)
    assert records[7][0]["loss"] == pytest.approx(abs(10 - 2 * winner - rates[7]))
    assert client.list_jobs() == []


@pytest.mark.slow
def test_best_third_goes_on_from_its_checkpoint(tmp_path: Path, client: MSJobClient) -> None:
    script = SCRIPT.with_name("population_script.py")
    space = {"rate": {"low": 0.1, "high": 3.0}}
    options: dict[str, Any] = {"pruner": "halving", "interval": 1, "parallel": 2, "sampler": "random", "trials": 5}
    result = sweep({"script": str(script)}, space, "loss", directory=tmp_path / "sweep", **options)

    assert [trial.state for trial in result.trials] == ["complete"] * 5
    best = max(result.trials[:4], key=lambda trial: trial.parameters["rate"])
    last = result.trials[4]
    assert last.parameters == best.parameters
    assert [record["epoch"] for record in read_records(Path(last.output, "metrics.jsonl"))] == [2, 3]
    assert client.list_jobs() == []
