"""The sweep engine: when trials start and end, what is written of them, and which sweeps it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, ProcessFailedError, UserError, ValidationError
from kfp_mindspore.kube.errors import UnreachableError
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.sweeps import sweep
from kfp_mindspore.sweeps.jobs import TrialJob, TrialJobState
from kfp_mindspore.sweeps.study import SweepResult, read_sweep

TEMPLATE = {"script": "train.py"}
# With the sampler grid, trial n has x = n.
GRID = {"x": [0, 1, 2, 3]}
Answer = TrialJobState | Exception


def report(*losses: float, phase: Any = "succeeded", **further: Any) -> TrialJobState:
    """Return the state of a job with these losses by epoch."""
    records = [{"epoch": epoch, "loss": loss, **further} for epoch, loss in enumerate(losses, 1)]
    return TrialJobState(phase, records)


def fail(reason: str, *losses: float) -> TrialJobState:
    return TrialJobState("failed", report(*losses).records, reason)


class ScriptedJobs:
    """Jobs whose states are given, and a record of the calls."""

    poll_seconds = 0.0

    def __init__(self, script: Callable[[TrialJob], Sequence[Answer]], existing: Collection[str] = ()) -> None:
        self._script = script
        self._existing = existing
        self._answers: dict[str, list[Answer]] = {}
        self.started: list[TrialJob] = []
        self.ended: list[str] = []
        self.abandoned: list[str] = []
        self.most = 0

    def list_names(self) -> Collection[str]:
        return self._existing

    def start(self, job: TrialJob) -> None:
        self.started.append(job)
        self._answers[job.name] = list(self._script(job))
        self.most = max(self.most, len(self._answers))

    def read(self, job: TrialJob) -> TrialJobState:
        answers = self._answers[job.name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self, name: str) -> None:
        self.ended.append(name)
        self._answers.pop(name, None)

    def abandon(self, names: Sequence[str], error: BaseException) -> None:
        self.abandoned.extend(names)

    def save(self) -> None:
        pass


def run_grid(
    directory: Path, answers: Mapping[int, Sequence[Answer]], jobs: ScriptedJobs | None = None, **options: Any
) -> SweepResult:
    """Run four trials with scripted states."""
    jobs = jobs or ScriptedJobs(lambda job: answers[job.number])
    given: dict[str, Any] = {"sampler": "grid", "pruner": "none", "trials": 4, **options}
    return sweep(TEMPLATE, GRID, "loss", directory=directory, jobs=jobs, **given)


GOOD = [report(0.5)]


# Each trial's states, one a read, and what is written of it.
ENDS: dict[str, tuple[Sequence[Answer], tuple[str, float | None, int, str]]] = {
    "best epoch": ([report(0.5, 0.2, 0.3)], ("complete", 0.2, 3, "")),
    "epochs one by one": (
        [report(phase="running"), report(0.9, phase="running"), report(0.9, 0.8)],
        ("complete", 0.8, 2, ""),
    ),
    "cluster unreachable for a time": ([UnreachableError("no answer"), report(0.5)], ("complete", 0.5, 1, "")),
    "newest epoch only": ([report(0.5, 0.4, phase="running"), report(0.5)], ("complete", 0.4, 2, "")),
    "deleted": ([NotFoundError("job")], ("failed", None, 0, "its job was deleted")),
    "deleted after an epoch": (
        [report(0.5, phase="running"), NotFoundError("job")],
        ("failed", 0.5, 1, "its job was deleted"),
    ),
    "failed": ([fail("out of memory")], ("failed", None, 0, "out of memory")),
    "time-out after an epoch": ([fail("ran longer than 3 s", 0.4)], ("failed", 0.4, 1, "ran longer than 3 s")),
    "not a number": ([report(0.5, math.nan, 0.1)], ("failed", 0.5, 1, "loss is nan in epoch 2")),
    "diverged": ([report(0.5, math.inf)], ("failed", 0.5, 1, "loss is inf in epoch 2")),
    "negative infinity": ([report(-math.inf)], ("failed", None, 0, "loss is -inf in epoch 1")),
    "no epoch": ([report()], ("failed", None, 0, "no epoch of it has reported 'loss' (0 epochs in metrics.jsonl)")),
    "other metrics": (
        [TrialJobState("succeeded", [{"epoch": 1, "validation": {"rmse": 0.1, "accuracy": 0.5}}])],
        ("failed", None, 0, "no epoch of it has reported 'loss' (they have accuracy, rmse)"),
    ),
    "text": (
        [TrialJobState("succeeded", [{"epoch": 1, "loss": "0.1"}])],
        ("failed", None, 0, "no epoch of it has reported 'loss' (they have loss)"),
    ),
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, ScriptedJobs]:
    """A sweep with a trial for each of ENDS, between good ones: a row of failures would end it."""
    scripts = [script for answers, _ in ENDS.values() for script in (answers, GOOD)]
    jobs = ScriptedJobs(lambda job: scripts[job.number])
    space = {"x": list(range(len(scripts)))}
    directory = tmp_path_factory.mktemp("ends")
    found = sweep(
        TEMPLATE, space, "loss", directory=directory, jobs=jobs, sampler="grid", pruner="none", trials=len(scripts)
    )
    return found, jobs


@pytest.mark.parametrize("name", ENDS)
def test_trial_ends_with_its_state_and_reason(name: str, ends: tuple[SweepResult, ScriptedJobs]) -> None:
    found, jobs = ends
    trial = found.trials[2 * list(ENDS).index(name)]
    assert (trial.state, trial.value, trial.epochs, trial.reason) == ENDS[name][1]
    assert trial.job in jobs.ended
    assert trial.seconds is not None


def test_trials_that_end_leave_no_job(ends: tuple[SweepResult, ScriptedJobs]) -> None:
    found, jobs = ends
    assert all(trial.state == "complete" for trial in found.trials[1::2])
    assert jobs.ended == [job.name for job in jobs.started]
    assert jobs.abandoned == []


@pytest.mark.parametrize(("parallel", "most"), [(1, 1), (2, 2), (3, 3), (9, 4)])
def test_no_more_trials_run_than_parallel(parallel: int, most: int, tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: [report(phase="running"), report(1.0)])
    run_grid(tmp_path, {}, jobs, parallel=parallel)

    assert jobs.most == most
    # Trials that run at the same time have different shares of the cores.
    assert [job.slot for job in jobs.started][:most] == list(range(most))
    assert {job.slots for job in jobs.started} == {parallel}
    assert all(job.slot < parallel for job in jobs.started)


@pytest.mark.parametrize(("trials", "expected"), [(1, [0]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (100, [0, 1, 2, 3])])
def test_grid_ends_with_its_last_combination(trials: int, expected: list[int], tmp_path: Path) -> None:
    found = run_grid(tmp_path, dict.fromkeys(range(4), GOOD), trials=trials)
    assert [trial.parameters["x"] for trial in found.trials] == expected


def test_ended_sweep_goes_on_with_more_trials_only(tmp_path: Path) -> None:
    run_grid(tmp_path, {0: GOOD, 1: [fail("full disk", 0.9)]}, trials=2)
    jobs = ScriptedJobs(lambda job: GOOD)
    again = run_grid(tmp_path, {}, jobs, trials=2)
    assert (jobs.started, [trial.state for trial in again.trials]) == ([], ["complete", "failed"])

    more = run_grid(tmp_path, {}, jobs, trials=4)
    assert [job.number for job in jobs.started] == [2, 3]
    assert [trial.state for trial in more.trials] == ["complete", "failed", "complete", "complete"]


def test_error_of_engine_keeps_running_trials_for_resume(tmp_path: Path) -> None:
    interrupted = ScriptedJobs(lambda job: GOOD if job.number == 0 else [report(0.7, phase="running"), OSError("gone")])
    with pytest.raises(OSError, match="gone"):
        run_grid(tmp_path, {}, interrupted, parallel=2)
    running = [job for job in interrupted.started if job.name not in interrupted.ended]
    assert interrupted.abandoned == [job.name for job in running]
    assert [trial.state for trial in read_sweep(tmp_path).trials][1:] == ["running"] * 3

    # The ended trial's job, which a killed engine has not deleted, is deleted now.
    left = interrupted.started[0].name
    jobs = ScriptedJobs(lambda job: [report(0.7, 0.6)], existing=[left])
    found = run_grid(tmp_path, {}, jobs, parallel=2)
    assert jobs.ended[0] == left
    assert [job.number for job in jobs.started] == [1, 2, 3]
    assert {job.name for job in running} <= {job.name for job in jobs.started}
    assert [(trial.value, trial.epochs) for trial in found.trials] == [(0.5, 1)] + [(0.6, 2)] * 3


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        pytest.param({}, 3, id="from the start"),
        pytest.param({0: GOOD}, 4, id="after a good one"),
        # One that has reported an epoch ends the row.
        pytest.param({1: [fail("x", 0.5)]}, 4, id="an epoch between"),
    ],
)
def test_trials_that_fail_alike_end_sweep(answers: Mapping[int, Any], count: int, tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: answers.get(job.number, [fail("no module named 'net'")]))
    if 1 in answers:
        assert len(run_grid(tmp_path, {}, jobs).trials) == count
        return
    with pytest.raises(ProcessFailedError, match="the last 3 trials failed before an epoch: no module named 'net'"):
        run_grid(tmp_path, {}, jobs)
    assert len(jobs.started) == count


def test_one_trial_that_fails_is_enough_for_sweep_of_one(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailedError, match="the last 1 trials failed before an epoch: full"):
        run_grid(tmp_path, {0: [fail("full")]}, trials=1)
    with pytest.raises(NotFoundError) as caught:
        _ = read_sweep(tmp_path).best
    assert "no trial is complete, so there is no best one; trial 0: full" in str(caught.value)
    assert caught.value.hint == f"The trials' states: kfp-mindspore sweep show {tmp_path}"


@pytest.mark.parametrize("pruner", ["asha", "median"])
def test_trial_behind_is_pruned_and_keeps_its_value(pruner: str, tmp_path: Path) -> None:
    def script(job: TrialJob) -> list[TrialJobState]:
        loss = 9.0 if job.number >= 6 else 0.1 * job.number
        return [report(*[loss] * epoch, phase="running" if epoch < 4 else "succeeded") for epoch in range(1, 5)]

    jobs = ScriptedJobs(script)
    found = sweep(
        TEMPLATE,
        {"x": list(range(8))},
        "loss",
        directory=tmp_path,
        jobs=jobs,
        sampler="grid",
        pruner=pruner,
        trials=8,
    )
    pruned = [trial for trial in found.trials if trial.state == "pruned"]
    assert {6, 7} <= {trial.number for trial in pruned}
    assert all(1 <= trial.epochs < 4 and trial.value is not None and not trial.reason for trial in pruned)
    assert found.best.number == 0
    assert len(jobs.ended) == 8


def test_pruner_without_second_epoch_is_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="pruner: asha stops no trial: trial 0 has reported one epoch"):
        run_grid(tmp_path, {0: GOOD}, pruner="asha", trials=1)


def test_each_seed_is_a_job_and_objective_is_their_mean(tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: [report(float(job.parameters["seed"]))])
    found = sweep(
        {**TEMPLATE, "trainer_parameters": {"seed": 7}},
        GRID,
        "loss",
        directory=tmp_path,
        jobs=jobs,
        sampler="grid",
        trials=1,
        seeds=3,
        pruner="none",
    )
    (trial,) = found.trials
    assert [job.parameters["seed"] for job in jobs.started] == [7, 8, 9]
    assert [Path(job.output).name for job in jobs.started] == ["0", "0-seed1", "0-seed2"]
    assert [job.name.removeprefix(jobs.started[0].name) for job in jobs.started] == ["", "-seed1", "-seed2"]
    assert (trial.value, trial.spread, trial.parameters) == (8.0, 1.0, {"x": 0})
    assert (trial.job, Path(trial.output).name) == (jobs.started[0].name, "0")


def test_trial_with_failed_seed_has_no_value_of_objective(tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: [fail("second seed")] if job.name.endswith("seed1") else GOOD)
    with pytest.raises(ProcessFailedError):
        run_grid(tmp_path, {}, jobs, seeds=2, trials=1)
    (trial,) = read_sweep(tmp_path).trials
    assert (trial.state, trial.reason, trial.values) == ("failed", "second seed", {})


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            [{"epoch": 1, "loss": 2.0, "latency": 5.0}, {"epoch": 2, "loss": 1.0, "latency": 9.0}],
            {"loss": 1.0, "latency": 9.0},
        ),
        # Measured once, after the last epoch.
        ([{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 2.0, "latency": 9.0}], {"loss": 1.0, "latency": 9.0}),
        ([{"epoch": 1, "loss": 1.0}], "no epoch of it has reported a number as 'latency'"),
        ([{"epoch": 1, "loss": 1.0, "latency": math.nan}], "no epoch of it has reported a number as 'latency'"),
    ],
)
def test_further_objective_is_that_of_best_epoch(
    records: list[dict[str, Any]], expected: dict[str, float] | str, tmp_path: Path
) -> None:
    jobs = ScriptedJobs(lambda job: [TrialJobState("succeeded", records)])
    found = run_grid(tmp_path, {}, jobs, objectives=["latency:minimize"], trials=2)
    trial = found.trials[0]
    assert (trial.reason if isinstance(expected, str) else trial.values) == expected
    assert trial.epochs == len(records)


def test_checkpoint_bytes_are_those_of_final_checkpoint(tmp_path: Path) -> None:
    def script(job: TrialJob) -> list[TrialJobState]:
        for name, size in (("checkpoint/weights", 100), ("checkpoint/more/optimizer", 20), ("checkpoints/epoch-1", 7)):
            file = Path(job.output, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * size)
        return GOOD

    found = run_grid(tmp_path, {}, ScriptedJobs(script), objectives=["checkpoint_bytes"], trials=1)
    assert found.trials[0].values == {"loss": 0.5, "checkpoint_bytes": 120.0}
    assert found.get_checkpoint(found.best) == f"{tmp_path}/trials/0/checkpoint"


def test_trial_without_checkpoint_has_none(tmp_path: Path) -> None:
    found = run_grid(tmp_path, {0: GOOD}, trials=1)
    assert found.get_checkpoint(found.best) is None


@pytest.mark.parametrize("output", ["s3://bucket/sweep", "/data/sweep"])
def test_trials_on_cluster_write_below_output(output: str, tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: GOOD)
    found = run_grid(tmp_path, {}, jobs, output=output, trials=2)
    assert [job.output for job in jobs.started] == [f"{output}/0", f"{output}/1"]
    # It is not checked: this machine may not reach it.
    assert found.get_checkpoint(found.trials[1]) == f"{output}/1/checkpoint"


@pytest.mark.parametrize(("pruner", "interval"), [("pbt", 1), ("pbt", 3), ("halving", 2)])
def test_generations_go_on_from_trials_of_former_one(pruner: str, interval: int, tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: [report(*[float(job.parameters["x"])] * job.parameters["epochs"])])
    sweep(
        TEMPLATE,
        {"x": {"low": 0.0, "high": 1.0}},
        "loss",
        directory=tmp_path,
        jobs=jobs,
        sampler="random",
        pruner=pruner,
        population=3,
        interval=interval,
        trials=6,
        parallel=2,
    )
    epochs = {job.number: job.parameters["epochs"] for job in jobs.started}
    sources = {job.number: Path(job.source).name for job in jobs.started if job.source}
    if pruner == "pbt":
        assert list(epochs.values()) == [interval] * 3 + [2 * interval] * 3
        assert set(sources) == {3, 4, 5}
    else:
        # Five at first, the best of them goes on.
        assert list(epochs.values()) == [interval] * 5 + [3 * interval]
        best = min(jobs.started[:5], key=lambda job: job.parameters["x"])
        assert sources == {5: str(best.number)}
        assert jobs.started[5].parameters["x"] == best.parameters["x"]
    assert all(int(source) < (3 if pruner == "pbt" else 5) for source in sources.values())


def test_generation_without_survivor_ends_sweep(tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: [fail("diverged", 0.5)])
    with pytest.raises(ProcessFailedError, match="all trials of the generation before trial 2 have failed"):
        sweep(
            TEMPLATE,
            GRID,
            "loss",
            directory=tmp_path,
            jobs=jobs,
            sampler="random",
            pruner="pbt",
            population=2,
            trials=4,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"template": {"script": "other.py"}}, "has another training or another space"),
        (
            {"template": {"script": "train.py", "trainer_parameters": {"epochs": 2}}},
            "another training or another space",
        ),
        ({"space": {"x": [0, 1]}}, "has another training or another space"),
        ({"space": {"x": [0, 1, 2, 3], "y": [1]}}, "has another training or another space"),
    ],
)
def test_directory_of_another_sweep_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    run_grid(tmp_path, dict.fromkeys(range(4), GOOD))
    before = (tmp_path / "sweep.json").read_bytes(), (tmp_path / "journal.log").read_bytes()
    given: dict[str, Any] = {"template": TEMPLATE, "space": GRID, **changes}
    jobs = ScriptedJobs(lambda job: GOOD)
    with pytest.raises(UserError, match=message) as caught:
        sweep(**given, objective="loss", directory=tmp_path, jobs=jobs, sampler="grid", pruner="none")
    assert str(caught.value).startswith(f"sweep {tmp_path}: ")
    assert caught.value.hint == "Use another directory for a new sweep."
    assert jobs.started == []
    assert ((tmp_path / "sweep.json").read_bytes(), (tmp_path / "journal.log").read_bytes()) == before


def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Lease.hold(tmp_path / ".lock"), pytest.raises(UserError, match="another process runs it"):
        run_grid(tmp_path, {})
    assert not (tmp_path / "sweep.json").exists()


@pytest.mark.parametrize("place", ["trainer_parameters", "space"])
@pytest.mark.parametrize("pruner", ["pbt", "halving"])
def test_epochs_of_generations_are_not_given(pruner: str, place: str, tmp_path: Path) -> None:
    template = {**TEMPLATE, "trainer_parameters": {"epochs": 3}} if place == "trainer_parameters" else TEMPLATE
    space = {"epochs": [1, 2]} if place == "space" else GRID
    with pytest.raises(UserError, match=f"sweep: {pruner} sets the parameter epochs"):
        sweep(template, space, "loss", directory=tmp_path / "sweep", pruner=pruner, trials=8)
    assert not (tmp_path / "sweep").exists()


def test_parameters_of_network_are_checked_and_of_script_are_not(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="x: the training has no such parameter"):
        sweep({"network": "net:Net"}, GRID, "loss", directory=tmp_path / "a")
    assert run_grid(tmp_path / "b", {0: GOOD}, trials=1).best.parameters == {"x": 0}


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("Digits Sweep", "digits-sweep"),
        ("2026_01", "sweep-2026-01"),
        ("---", "sweep"),
        ("x" * 80, "x" * 30),
        ("größe", "gr-e"),
    ],
)
def test_job_names_are_valid_for_any_directory(name: str, prefix: str, tmp_path: Path) -> None:
    jobs = ScriptedJobs(lambda job: GOOD)
    run_grid(tmp_path / name, {}, jobs, trials=1)
    head, _, number = jobs.started[0].name.rpartition("-")
    head, _, token = head.rpartition("-")
    assert (head, number, len(token)) == (prefix, "0", 6)


def test_resume_keeps_job_names(tmp_path: Path) -> None:
    first, second = ScriptedJobs(lambda job: GOOD), ScriptedJobs(lambda job: GOOD)
    run_grid(tmp_path, {}, first, trials=1)
    run_grid(tmp_path, {}, second, trials=2)
    assert second.started[0].name == f"{first.started[0].name.removesuffix('0')}1"
