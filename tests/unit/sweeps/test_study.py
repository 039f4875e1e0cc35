"""A sweep's study: the best trial, the front, importances, and journals that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore import files
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.study import (
    SweepResult,
    TrialResult,
    adopt_trial,
    begin_trial,
    choose_best,
    compute_importances,
    name_output,
    open_study,
    read_sweep,
)

STATES = ["running", "complete", "pruned", "failed"]


def make_trial(number: int, state: str, value: float | None, **further: Any) -> TrialResult:
    values = {"loss": value} if state == "complete" and value is not None else {}
    return TrialResult(number, state, {"x": number}, value, 1, 1.0, "", "out", **{"values": values, **further})


def make_sweep(trials: Sequence[TrialResult], *, is_maximized: bool = False) -> SweepResult:
    return SweepResult(Path("sweep"), "loss", is_maximized, trials, {"loss": is_maximized})


@pytest.mark.parametrize(
    ("trials", "is_maximized", "best"),
    [
        pytest.param([("complete", 0.4), ("complete", 0.2), ("complete", 0.2)], False, 1, id="first of equal ones"),
        pytest.param([("complete", 0.4), ("complete", 0.2), ("complete", 0.4)], True, 0, id="first of equal greatest"),
        pytest.param([("complete", 0.0), ("complete", 1.0)], False, 0, id="zero is a value"),
        pytest.param([("complete", -1.0), ("complete", 0.0)], True, 1, id="zero is greater"),
        pytest.param([("pruned", 0.1), ("failed", 0.1), ("running", 0.1), ("complete", 9.0)], False, 3, id="complete"),
    ],
)
def test_best_trial(trials: list[tuple[str, float]], is_maximized: bool, best: int) -> None:
    found = make_sweep([make_trial(*item) for item in numbered(trials)], is_maximized=is_maximized)
    assert found.best.number == best


def numbered(trials: Sequence[tuple[str, float | None]]) -> list[tuple[int, str, float | None]]:
    return [(number, state, value) for number, (state, value) in enumerate(trials)]


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([], ""),
        ([make_trial(0, "pruned", 0.1), make_trial(1, "running", 0.1)], ""),
        ([make_trial(0, "pruned", 0.1), TrialResult(1, "failed", {}, None, 0, 1.0, "full", "")], "; trial 1: full"),
    ],
)
def test_sweep_without_complete_trial_has_no_best(trials: list[TrialResult], message: str) -> None:
    found = make_sweep(trials)
    with pytest.raises(NotFoundError) as caught:
        _ = found.best
    assert f"sweep sweep: no trial is complete, so there is no best one{message}" in str(caught.value)
    assert caught.value.hint == "The trials' states: kfp-mindspore sweep show sweep"
    assert found.front == []


trial_lists = st.lists(st.tuples(st.sampled_from(STATES), st.floats(-10, 10)), min_size=1, max_size=8)


@given(trial_lists, st.booleans())
def test_no_complete_trial_surpasses_best_one(trials: list[tuple[str, float]], is_maximized: bool) -> None:
    found = make_sweep([make_trial(*item) for item in numbered(trials)], is_maximized=is_maximized)
    complete = [value for state, value in trials if state == "complete"]
    if complete:
        assert found.best.value == choose_best(complete, is_maximized)
        # Of one objective the front has all trials with the best value.
        assert found.best in found.front
        assert {trial.value for trial in found.front} == {found.best.value}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=10))
def test_front_has_trials_that_no_other_one_surpasses(points: list[tuple[int, int]]) -> None:
    """The accuracy is maximised and the latency minimised."""
    trials = [
        make_trial(number, "complete", accuracy, values={"accuracy": accuracy, "latency": latency})
        for number, (accuracy, latency) in enumerate(points)
    ]
    found = SweepResult(Path("sweep"), "accuracy", True, trials, {"accuracy": True, "latency": False})
    front = {points[trial.number] for trial in found.front}
    assert front
    for point in points:
        is_surpassed = any(other[0] >= point[0] and other[1] <= point[1] and other != point for other in points)
        assert (point in front) is not is_surpassed


@pytest.mark.parametrize(
    ("values", "is_maximized", "expected"),
    [
        ([], False, None),
        ([float("nan"), float("inf"), float("-inf")], True, None),
        ([float("nan"), 2.0, float("-inf"), 1.0], False, 1.0),
        ([float("nan"), 2.0, float("inf"), 1.0], True, 2.0),
    ],
)
def test_best_value_is_finite(values: list[float], is_maximized: bool, expected: float | None) -> None:
    assert choose_best(values, is_maximized) == expected


@pytest.mark.parametrize(
    ("output", "seed", "expected"),
    [("", 0, "/sweeps/a/trials/3"), ("", 2, "/sweeps/a/trials/3-seed2"), ("s3://b/c", 1, "s3://b/c/3-seed1")],
)
def test_output_of_each_seed_is_its_own(output: str, seed: int, expected: str) -> None:
    assert name_output({"output": output}, Path("/sweeps/a"), 3, seed) == expected


def write_sweep(directory: Path, options: SweepOptions) -> optuna.Study:
    description = {"options": vars(options), "space": [["x", {"low": 0.0, "high": 1.0}]], "template": {}}
    files.write_json(directory / "sweep.json", description)
    return open_study(directory, options)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_parameters_follow_from_seed_and_number(sampler: str, tmp_path: Path) -> None:
    """Whoever asks for a trial: one process, one for each trial, or one that adopts a killed one's trial."""

    def draw(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", 0.0, 1.0)

    options = SweepOptions(objective="loss", sampler=sampler, seed=3)
    study = open_study(tmp_path, options)
    (tmp_path / "other").mkdir()
    first = [draw(begin_trial(study, options)) for _ in range(3)]
    second = [draw(begin_trial(open_study(tmp_path / "other", options), options)) for _ in range(2)]
    # Killed before it has drawn a value.
    begin_trial(open_study(tmp_path / "other", options), options)
    second.append(draw(adopt_trial(open_study(tmp_path / "other", options), options, tmp_path / "other", 2)))

    assert first == second
    assert len(set(first)) == 3


def test_unfinished_line_is_cut_at_resume(tmp_path: Path) -> None:
    options = SweepOptions(objective="loss", sampler="random")
    study = write_sweep(tmp_path, options)
    study.tell(begin_trial(study, options), 0.5)
    journal = tmp_path / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "work')

    assert [trial.value for trial in read_sweep(tmp_path).trials] == [0.5]
    resumed = open_study(tmp_path, options)
    assert journal.read_bytes().startswith(whole)
    resumed.tell(begin_trial(resumed, options), 0.25)
    assert [trial.value for trial in read_sweep(tmp_path).trials] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"no journal\n", "line 1 is no entry of Optuna's journal", "sweep resume"),
        (b'{"epoch": 1}\n', "line 1 is no entry of Optuna's journal", "sweep resume"),
        (b"[]\n", "line 1 is no entry of Optuna's journal", "sweep resume"),
        (b"", "journal.log: cannot be read", "Start the sweep in another directory."),
    ],
    ids=["text", "metrics", "list", "empty"],
)
def test_journal_of_no_sweep_is_refused(content: bytes, message: str, hint: str, tmp_path: Path) -> None:
    write_sweep(tmp_path, SweepOptions(objective="loss"))
    (tmp_path / "journal.log").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_sweep(tmp_path)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert (tmp_path / "journal.log").read_bytes() == content


def test_journal_of_another_study_is_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path, SweepOptions(objective="loss"))
    (tmp_path / "journal.log").unlink()
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
    optuna.create_study(study_name="mine", storage=optuna.storages.JournalStorage(backend))
    with pytest.raises(UserError, match=r"journal\.log: cannot be read") as caught:
        read_sweep(tmp_path)
    assert caught.value.hint == "Start the sweep in another directory."


@pytest.mark.parametrize(
    ("objectives", "losses", "has_importances"),
    [
        ([], [], False),
        ([], [0.5], False),
        ([], [0.5, 0.5, 0.5], False),
        ([], [0.5, 0.1, 0.4, 0.2], True),
        (["latency:minimize"], [0.5, 0.1, 0.4, 0.2], True),
    ],
)
def test_importances_need_different_values(
    objectives: list[str], losses: list[float], has_importances: bool, tmp_path: Path
) -> None:
    options = SweepOptions(objective="loss", objectives=objectives, sampler="random")
    study = write_sweep(tmp_path, options)
    for loss in losses:
        trial = begin_trial(study, options)
        trial.suggest_float("x", 0.0, 1.0)
        study.tell(trial, [loss] * len(options.directions))
    found = compute_importances(tmp_path)
    assert list(found) == (["x"] if has_importances else [])
    assert all(0 <= value <= 1 for value in found.values())
