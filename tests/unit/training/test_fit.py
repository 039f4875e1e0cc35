"""`fit`: the results of scenarios.py, which runs in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.mindspore_processes import MindSporeProcesses

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]


@pytest.fixture(scope="module")
def results(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("scenarios")
    code, output = mindspore_processes.start([Path(__file__).with_name("scenarios.py"), root], root).finish(240)
    assert code == 0, output[-5000:]
    found: dict[str, Any] = json.loads((root / "results.json").read_text())
    return found


def test_result_equals_bare_loop(results: dict[str, Any]) -> None:
    found = results["same_as_a_bare_loop"]
    assert found["difference"] == 0
    assert found["steps"] == 20
    assert found["mode_after"], "the caller's mode is restored"


def test_callbacks_behave_as_under_model_fit(results: dict[str, Any]) -> None:
    ours, theirs = results["same_as_model_fit"]["fit"], results["same_as_model_fit"]["Model.fit"]
    assert ours["calls"] == theirs["calls"]
    assert ours["keys"] == theirs["keys"]
    assert ours["rate"] == theirs["rate"] < 0.01
    assert ours["stopped_epoch"] == theirs["stopped_epoch"] > 0
    assert ours["history"] == theirs["history"]
    assert ours["entered"] == 0
    assert results["same_as_model_fit"]["difference"] == 0


@pytest.mark.parametrize("way", ["parts", "cut", "again"])
def test_resumed_run_equals_uninterrupted_one(results: dict[str, Any], way: str) -> None:
    whole, resumed = results["resume"]["whole"], results["resume"][way]
    assert resumed["difference"] == 0
    assert resumed["optimizer"] == 0
    for field in ("epochs", "steps", "metrics", "losses", "rates", "wait", "best", "epochs_seen"):
        assert resumed[field] == whole[field], field
    assert whole["epochs_seen"] == list(range(1, 9))
    assert whole["rates"][-1] < whole["rates"][0], "ReduceLROnPlateau was active"


def test_killed_run_resumes_within_epoch_from_object_store(results: dict[str, Any]) -> None:
    found = results["checkpoints_below_a_uri"]
    assert found["names"] == ["00000-4", "00000-8", "00001-12", "00001-16"][-3:], "one for every four steps"
    assert found["resumed_from"] == "memory://bucket/run/00001-16"
    assert found["difference"] == 0


def test_second_fit_of_process_in_one_checkpoint_directory_is_refused(results: dict[str, Any]) -> None:
    found = results["fit_within_fit"]
    assert len(found["messages"]) == 2
    assert all("is in use by another run of this process" in message for message in found["messages"])
    assert found["checkpoints"] == ["00002-20", "00001-10"], "of the first one alone"


def test_failed_background_checkpoint_ends_run(results: dict[str, Any]) -> None:
    found = results["failed_background_checkpoint"]
    assert "00001-10: the checkpoint cannot be written (No space left on device)" in found["message"]
    assert 10 <= found["steps"] <= 20, "before the next checkpoint"


def test_masks_of_dropout_are_random(results: dict[str, Any]) -> None:
    found = results["dropout"]
    for share in found["shares"]:
        assert share == pytest.approx(0.3, abs=0.01)
    assert found["scale"] == found["gradient"] == [0, round(1 / 0.7, 4)]
    # Five standard deviations of a sample of 60,000.
    assert all(abs(value) < 5 / 60000**0.5 for value in found["correlations"])
    assert found["evaluation"] == 1
    assert found["counters"][0] >= 3
    assert found["parameters"] == 0


def test_run_resumes_from_newest_checkpoint(results: dict[str, Any]) -> None:
    found = results["resume"]
    assert found["whole"]["resumed_from"] is None
    assert found["parts"]["resumed_from"] == "00003-30"
    assert found["cut"]["resumed_from"] == "00006-60"
    assert found["again"]["resumed_from"] == "00008-80"
    assert found["kept"] == ["00008-80", "00007-70", "00006-60"]


def test_sigterm_finishes_step_saves_and_exits_with_143(results: dict[str, Any]) -> None:
    interruptions = results["resume"]["interruptions"]
    assert [found["code"] for found in interruptions] == [143, 143, 143]
    # Sent at steps 34 and 57: received by the next step. Within the last step of an epoch, the epoch is finished.
    assert [found["checkpoints"][0] for found in interruptions] == ["00003-35", "00005-58", "00006-60"]
    assert "SIGTERM after step 35: saved" in interruptions[0]["errors"]


def test_early_stopping_writes_best_weights(results: dict[str, Any]) -> None:
    found = results["early_stopping"]
    assert found["stopped_early"]
    assert found["epochs"] == len(found["accuracies"]) < 40
    assert found["final"]["accuracy"] == found["recorded"]["accuracy"] == max(found["accuracies"][:-2])
    assert found["difference"] == 0
    assert found["files"] == ["metrics.jsonl", "network.ckpt", "optimizer.ckpt"]
    assert found["again"] == [found["epochs"], True, 0.0, found["final"]], "a restarted job has nothing to do"


def test_every_callback_of_mindspore_works(results: dict[str, Any]) -> None:
    found = results["every_callback"]
    assert found["seen"] == ["begin", "eval", "eval", "end"]
    assert found["own"] == ["lenet-1_10.ckpt", "lenet-2_10.ckpt", "lenet-graph.meta"]
    assert {"global_step", "hidden.weight", "moment1.hidden.weight"} <= set(found["loaded"])
    assert found["backup"] == ["backup.ckpt"]
    assert found["rate"] == pytest.approx(0.005)
    assert found["rates"] == pytest.approx([0.005, 0.005])
    output = found["output"]
    assert "epoch: 2 step: 10, loss is" in output
    assert "Train epoch time" in output
    assert "Eval result: epoch 2, metrics: {'accuracy'" in output


def test_hooks_without_phase_run_in_training_only(results: dict[str, Any]) -> None:
    assert results["hooks_without_a_phase"] == ["train"] * 10


def test_callback_stops_within_epoch(results: dict[str, Any]) -> None:
    assert results["stop_within_an_epoch"] == [2, 14, True, ["accuracy", "eval_loss", "loss"]]


def test_directories_of_environment(results: dict[str, Any]) -> None:
    found = results["what_a_run_writes"]
    assert found["checkpoints"] == ["00005-180", "00004-144"]
    assert found["network"] == ["scenarios:Small", {"hidden": 8}]
    epoch, step, seed, metrics, version = found["final"]
    assert (epoch, step, seed) == (5, 180, 3)
    assert version.startswith("2.")
    assert found["result"][0].endswith("/output/checkpoint")
    assert found["result"][1] == metrics
    assert "epoch 5/5: loss" in found["output"]


def test_metrics_jsonl_has_line_per_epoch(results: dict[str, Any]) -> None:
    lines = results["what_a_run_writes"]["lines"]
    assert [(line["epoch"], line["step"]) for line in lines] == [(epoch, 36 * epoch) for epoch in range(1, 6)]
    for line in lines:
        assert set(line) == {"epoch", "step", "loss", "learning_rate", "samples_per_second", "seconds", "validation"}
        assert set(line["validation"]) == {"eval_loss", "accuracy"}
        assert line["learning_rate"] == pytest.approx(0.01)
        assert line["samples_per_second"] > 0
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_progress_events(results: dict[str, Any]) -> None:
    events = results["what_a_run_writes"]["events"]
    assert [event["kind"] for event in (events[0], events[-1])] == ["begin", "end"]
    progress = [event for event in events if event["kind"] == "progress"]
    assert {event["name"] for event in events} == {"training.fit"}
    assert {(event["epochs"], event["steps"]) for event in progress} == {(5, 180)}
    # The last step of an epoch may also be reported when it is due.
    assert list(dict.fromkeys(event["epoch"] for event in progress if event["step"] % 36 == 0)) == [1, 2, 3, 4, 5]
    assert set(progress[-1]["metrics"]) == {"loss", "eval_loss", "accuracy"}


def test_progress_for_backend_ends_at_100_percent(results: dict[str, Any]) -> None:
    progress = results["what_a_run_writes"]["progress"]
    metrics = progress.pop("metrics")
    assert progress == {
        "percentage": 100, "epoch": 5, "epochs": 5, "step": 180, "steps": 180, "estimatedRemainingSeconds": 0,
        "device": "CPU",
    }  # fmt: skip
    assert {metric["name"] for metric in metrics} == {"loss", "eval_loss", "accuracy"}


def test_all_forms_of_data_are_equivalent(results: dict[str, Any]) -> None:
    found = results["other_sources"]
    assert found["dict"] == found["arrays"]
    assert found["written by a callback"] == found["arrays"]
    assert found["pipeline"] == pytest.approx(found["arrays"], abs=1e-5)
    assert found["dataset"] == 2


def test_recorded_learning_rate_is_last_step_s(results: dict[str, Any]) -> None:
    found = results["learning_rates"]
    assert found["table"] == pytest.approx([0.005, 0.01])
    assert found["schedule"] == pytest.approx([0.01, 0.005])
    assert sorted(set(found["groups"][0])) == pytest.approx([0.01, 0.02])


def test_network_that_returns_its_loss(results: dict[str, Any]) -> None:
    metrics, path = results["a_network_with_its_loss"]
    assert set(metrics) == {"loss", "eval_loss"}
    assert path is None


def test_run_is_reproducible_by_its_seed(results: dict[str, Any]) -> None:
    first, again, other = results["seeds"]
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("mistake", "kind", "message"),
    [
        ("epochs", "ValidationError", "epochs: must be at least 1, got 0"),
        ("several", "ValidationError", "epochs: must be at least 1, got 0; batch_size: must be at least 1, got 0"),
        ("too large a batch", "UserError", "batch_size: must be 1 to 320, the training samples, got 321"),
        ("lengths", "UserError", "data: columns must be equally long, got image 320, target 319"),
        ("kind of data", "UserError", "data: must be (inputs, targets)"),
        ("no dataset", "UserError", "data: not given, and KFP_MINDSPORE_DATASET_DIR is not set"),
        ("no such directory", "NotFoundError", "no such dataset directory"),
        ("metric", "UserError", "metrics: unknown 'accurracy'; did you mean 'accuracy'?"),
        ("metric object", "UserError", "metrics.accuracy: must be a mindspore.train.Metric, got int"),
        ("callback", "UserError", "callbacks[0]: must be a mindspore.train.Callback"),
        ("factory", "UserError", "network_factory: must be 'module:name', got 'no colon'"),
        ("arguments", "UserError", "network_arguments: must be JSON types"),
        ("augment", "UserError", "augment: works on arrays"),
        ("loss is gone", "KfpMindSporeError", "training cannot continue"),
        (
            "shapes",
            "UserError",
            "cannot be computed for a batch of image (32, 1, 7, 8) float32 and target (32,) int32: For",
        ),
        ("shapes", "UserError", "scenarios.py:"),
        ("another network", "UserError", "'hidden.weight' has shape (8, 64), the network's has (16, 64)"),
    ],
)
def test_invalid_arguments(results: dict[str, Any], mistake: str, kind: str, message: str) -> None:
    found_kind, found_message, exit_code = results["refusals"][mistake]
    assert found_kind == kind
    assert message in found_message
    assert exit_code == (1 if kind == "KfpMindSporeError" else 2)


def test_failed_compile_writes_nothing_to_working_directory(results: dict[str, Any]) -> None:
    assert "nowhere_defined" in results["failed_compile"]["error"]
    assert results["failed_compile"]["left"] == []
