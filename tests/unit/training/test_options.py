"""Options of TrainingConfig and forms of data: the results of option_scenarios.py, which runs in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mindspore_processes import MindSporeProcesses

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

EXACT = pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def results(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("options")
    script = Path(__file__).with_name("option_scenarios.py")
    code, output = mindspore_processes.start([script, root], root).finish(300)
    assert code == 0, output[-5000:]
    found: dict[str, Any] = json.loads((root / "results.json").read_text())
    return found


def test_accumulation_equals_whole_batch(results: dict[str, Any]) -> None:
    found = results["accumulation"]
    assert found["difference"] == EXACT
    assert found["uneven"] == EXACT
    assert found["weighted"] == EXACT
    assert found["loss"] == EXACT
    assert found["steps"] == 8


def test_clipping_equals_plain_loop(results: dict[str, Any]) -> None:
    found = results["clipping"]
    assert found["norm"] == EXACT
    assert found["value"] == EXACT
    assert found["unclipped"] > 0.01


def test_frozen_parameters_keep_their_values_also_under_weight_decay(results: dict[str, Any]) -> None:
    assert results["freezing"]["front"] == 0
    assert results["freezing"]["head"] > 0.1


def test_scheduled_unfreezing_equals_plain_loop(results: dict[str, Any]) -> None:
    assert results["freezing"]["scheduled"] == EXACT


def test_frozen_front_has_no_gradient_graph(results: dict[str, Any]) -> None:
    # Two layers forward; backward a product for the weights of each, and one for the input of the head.
    assert results["freezing"]["products"] == {"all": 5, "head": 3}


def test_schedule_by_name_equals_list_of_rates(results: dict[str, Any]) -> None:
    found = results["schedules"]
    assert found["difference"] == EXACT
    assert found["rates"] == pytest.approx(found["expected"])
    # Of linear at step 7 of 8, for two groups of two parameters.
    assert found["groups"] == pytest.approx([0.01 / 8, 0.01 / 8, 0.02 / 8, 0.02 / 8])


@pytest.mark.parametrize("case", ["samples", "sparse loss", "own loss", "balanced", "both"])
def test_weights_equal_plain_loop(results: dict[str, Any], case: str) -> None:
    assert results["weights"][case] == EXACT


def test_loss_of_user_is_not_changed_by_weights(results: dict[str, Any]) -> None:
    assert results["weights"]["reduction"] == "mean"


def test_averaged_weights_are_validated_and_saved(results: dict[str, Any]) -> None:
    found = results["averaging"]
    assert found["difference"] == EXACT
    assert found["eval_loss"] == pytest.approx(found["expected"], abs=1e-6)
    assert found["saved"] == 0


def test_best_epoch_is_kept(results: dict[str, Any]) -> None:
    found = results["best_epoch"]
    epoch, accuracy = found["best"]
    assert accuracy == max(found["accuracies"]) == found["accuracies"][epoch - 1]
    assert epoch == 3
    assert found["last"] == [None, found["accuracies"][-1]]


def test_resume_restores_state_of_every_option(results: dict[str, Any]) -> None:
    found = results["resumed"]
    assert found["resumed"] == "00002-8"
    assert found["difference"] == 0
    for field in ("losses", "rates", "metrics"):
        assert found[field][0] == found[field][1], field


def test_callbacks_are_configured_by_name(results: dict[str, Any]) -> None:
    found = results["callbacks_by_name"]
    assert found["stopped"]
    assert found["epochs"] < 30
    assert found["rates"] == pytest.approx([0.1, 0.1, 0.05, 0.025])


@pytest.mark.parametrize("form", ["dict", "pair", "tuples", "pipeline", "one function", "augmented", "weights of one"])
def test_several_inputs_and_outputs_equal_plain_loop(results: dict[str, Any], form: str) -> None:
    assert results["several_inputs_and_outputs"][form] == EXACT


def test_metrics_of_output(results: dict[str, Any]) -> None:
    found = results["several_inputs_and_outputs"]
    assert found["accuracy"][0] == found["accuracy"][1]
    assert found["mae"][0] == pytest.approx(found["mae"][1], abs=1e-6)


def test_columns_of_data_frame_are_stacked_for_single_input(results: dict[str, Any]) -> None:
    assert results["data_frames"] == [EXACT, EXACT]


def test_text_is_counted_in_tokens(results: dict[str, Any]) -> None:
    found = results["text"]
    assert found["ratio"] == pytest.approx(5, rel=0.01)
    assert found["seconds"] == ["checkpoint", "data", "evaluation", "step"]
    assert found["steps"] > 0


def test_result_is_shown_on_one_line(results: dict[str, Any]) -> None:
    shown = results["text"]["repr"]
    assert shown.startswith("FitResult(epochs=2, steps=8, loss=")
    assert "\n" not in shown
    assert "history" not in shown


def test_train_step_of_user(results: dict[str, Any]) -> None:
    assert results["own_step"] == EXACT


@pytest.mark.parametrize(
    ("task", "metric", "best"),
    [("regression", "rmse", 0), ("language_model", "perplexity", 1), ("classification", "accuracy", 1)],
)
def test_command_line_trains_by_task_of_dataset(results: dict[str, Any], task: str, metric: str, best: float) -> None:
    code, first, last = results["command_line"][task]
    assert code == 0
    assert set(last) == {"eval_loss", metric}
    assert abs(last[metric] - best) < abs(first[metric] - best)
    if task == "regression":
        assert last["eval_loss"] == pytest.approx(last["rmse"] ** 2, rel=1e-4)
    if task == "language_model":
        assert last["eval_loss"] == pytest.approx(np.log(last["perplexity"]), rel=1e-4)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("type", "epochs: must be an integer, got 'three' (str)"),
        ("loss", "loss: mindspore.nn has no loss 'CrossEntropyLos'; did you mean 'CrossEntropyLoss'?"),
        ("optimizer", "optimizer: mindspore.nn has no optimizer 'Adan'; did you mean 'Adam'?"),
        ("optimizer's argument", "optimizer: Adam cannot be built"),
        ("factory", "has no callable 'Nothing'"),
    ],
)
def test_command_line_names_mistake(results: dict[str, Any], mistake: str, message: str) -> None:
    code, output = results["command_line"]["wrong"][mistake]
    assert code == 2
    assert message in output


def test_float16_trains_float32_weights_and_warns_on_cpu(results: dict[str, Any]) -> None:
    found = results["precision"]
    assert "float16 is emulated on CPU" in found["warnings"][0]
    assert found["dtypes"] == ["Float32"]
    assert found["losses"][-1] == pytest.approx(found["reference"], abs=0.01)
    assert np.all(np.diff(found["losses"]) < 0)
    assert found["again"] == ["00004-16", 0.0], "the loss scale is part of a checkpoint"
    assert found["left"] == []


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("class of a network", "network: must be an object, got the class Small"),
        ("class of an optimizer", "optimizer: must be an object, got the class Adam"),
        ("class of a loss", "loss: must be an object, got the class CrossEntropyLoss"),
        ("class of a callback", "callbacks[0]: must be a mindspore.train.Callback object, got the class Callback"),
        ("another network's optimizer", "optimizer: 'front.weight' is no parameter of the network (4 of 4 are not)"),
        ("text for a loss", "loss: must be a function or a Cell, got str"),
        ("config", "config: must be a TrainingConfig, got dict"),
        ("too few samples", "batch_size: must be 1 to 8, the training samples, got 16"),
        ("text column", "data.x: must be numbers, got <U1"),
        ("large ids", "data.x: must be within int32"),
        ("no target", "loss: the data have no targets"),
        ("dataset without a target", "features has no target: load it again with --target NAME, or target=…."),
        ("no loss", "loss: not given, so Small must return one number, got (16, 3)"),
        ("several targets", "data: has both 'labels' and 'target'"),
        ("missing input", "data: has 1 input, and the network's construct takes ids, x"),
        ("unknown input", "data: has the inputs x, ids, z, and the network's construct takes ids, x"),
        ("loss without a target", "loss.kinds: has no target, found target"),
        ("columns", "Small: layer front (Dense) cannot be computed for a batch of x (16, 5) float32"),
        ("columns", "return self.head(ops.relu(self.front(x)))"),
        ("floats for ids", "An embedding needs integer ids (int32); ids has another dtype."),
        ("ids above the table", "ids has ids up to 50"),
        ("ids for floats", "Layers need float32; x and target have another dtype."),
        ("floats for labels", "For 'CrossEntropyLoss', the 'labels' should be Int32"),
        ("shape of the outputs", "For 'MSELoss', the output has shape (16, 1), the target (16"),
        ("metric", "metrics: unknown 'acuracy'; did you mean 'accuracy'?"),
        ("metric of no output", "metrics.kind.accuracy: no target 'kind'"),
        ("metric's arrays", "metrics.mae: cannot be computed from arrays of (64, 3), (64,)"),
        ("monitor", "keep_best: no metric 'acuracy'; did you mean 'accuracy'?"),
        ("monitor without validation", "Metrics need validation data"),
        ("callback's argument", "early_stopping: The input value must be int, but got 'str'"),
        ("pattern", "freeze: 'backbone.*' matches no parameter; found front.weight, front.bias"),
        ("all frozen", "freeze: leaves no parameter to train in epoch 1"),
        ("two schedules", "schedule: 'cosine' needs an optimizer with a constant learning rate"),
        ("bfloat16", "precision: MindSpore has no bfloat16 on CPU"),
        ("device", "device: Ascend was asked for, and MindSpore cannot use it: "),
        ("device_id", "device_id: must be 0 of 1 CPU, got 1"),
        ("class weights", "class_weights: must be one per class (3), got 2"),
        ("class weights of numbers", "class_weights: need one target of integer labels"),
        ("weight", "data.weight: must be finite numbers of at least 0"),
        ("sum", "loss: weights of samples need reduction='mean' or 'none', got 'sum'"),
        ("parallel mode on CPU", "parallel_mode: 'auto_parallel' needs Ascend or GPU devices"),
        ("parts of a sum", "loss: several workers or accumulate need reduction='mean' of CrossEntropyLoss"),
        ("train step", "train_step: must return a mindspore.nn.Cell, got NoneType"),
    ],
)
def test_mistake_is_named(results: dict[str, Any], mistake: str, message: str) -> None:
    found, exit_code = results["mistakes"][mistake]
    assert message in found
    assert exit_code == 2
    assert len(found.splitlines()) <= 3


def test_context_of_parallel_mode_is_that_of_mindspore(results: dict[str, Any]) -> None:
    generated, stored = results["parallel_context"]
    assert generated["parallel_mode"] == "semi_auto_parallel"
    assert (generated["device_num"], generated["global_rank"], generated["pipeline_stages"]) == (4, 1, 2)
    # MindSpore adds the defaults of this option.
    assert generated["strategy_ckpt_config"].items() <= stored["strategy_ckpt_config"].items()
    assert stored == {**generated, "strategy_ckpt_config": stored["strategy_ckpt_config"]}


def test_slices_are_saved_by_rank_with_description(results: dict[str, Any]) -> None:
    saved = results["sharded_checkpoint"]
    assert saved["files"] == ["rank_0/network-4_4.ckpt"]
    assert saved["steps"] == [16, 16, 4]
    assert saved["described"] == ["networks:Small", 3]
    assert saved["strategy"] == {"save_file": "strategy/rank_1.ckpt", "only_trainable_params": False}


def test_shards_train_as_arrays_and_resume_in_middle_of_epoch(results: dict[str, Any]) -> None:
    found = results["shards"]
    assert found["shards"] > 1
    assert found["difference"] == EXACT
    assert found["metrics"][0] == pytest.approx(found["metrics"][1])
    assert found["resumed"][0]
    assert found["resumed"][1] == EXACT


def test_workers_share_each_batch_of_shards(results: dict[str, Any]) -> None:
    # The last batch has four samples: one of five workers has none.
    assert results["shards"]["divided"]
    assert results["shards"]["sizes"] == [10, 10, 10, 10, 4]
