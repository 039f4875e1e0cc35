"""Export of sharded checkpoints: the slices of a trained network, with strategy files in MindSpore's format."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kfp_mindspore.cli.main import run
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.checkpoint import NetworkSpec
from kfp_mindspore.mindir import GraphRunner, export_mindir
from kfp_mindspore.mindir.parameters.network import build_network
from kfp_mindspore.mindir.parameters.shards import open_sharded, write_description

pytestmark = pytest.mark.mindspore

Arrays = dict[str, NDArray[np.float32]]
SUPPORT = str(Path(__file__).parents[3] / "support" / "models")
# Axis of the device matrix (from the right) that divides each axis of a parameter; -1: not divided.
TensorMap = Mapping[str, Sequence[int]]
# 2 x 2 ranks: divided along both axes, along one, and replicated.
BOTH_AXES = {"first.weight": (1, 0), "first.bias": (0,), "second.weight": (-1, 0), "norm.moving_mean": (1,)}
# Two stages of 2 ranks.
STAGES = (("first.", "norm."), {"first.weight": (0, -1)}), (("second.",), {"second.weight": (-1, 0)})


@pytest.fixture(autouse=True)
def _where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SUPPORT)


@pytest.fixture(scope="module")
def trained(models: Path) -> tuple[Arrays, Arrays]:
    """The parameters of a trained network with its optimizer's state, and its outputs on the test split."""
    import mindspore
    from mindspore import Tensor, nn

    mindspore.set_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SUPPORT)
        network = build_network("small_networks:Perceptron", {})
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.CrossEntropyLoss()), optimizer).set_train()
    train, test = (read_samples(models / "dataset", split) for split in ("train", "test"))
    for _ in range(20):
        step(Tensor(train.inputs["image"][:256]), Tensor(train.target[:256].astype(np.int32)))
    network.set_train(False)
    outputs = {"output": network(Tensor(test.inputs["image"])).asnumpy()}
    return {parameter.name: parameter.asnumpy() for parameter in step.get_parameters()}, outputs


def write_shards(
    directory: Path, parameters: Arrays, maps: TensorMap, matrix: Sequence[int], stage: int = 0, step: str = "3_5"
) -> None:
    """Write the slices of the ranks of one stage and its strategy file."""
    from mindspore import Parameter, Tensor, save_checkpoint
    from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

    strategy = ParallelStrategyMap(current_stage=stage)
    item = strategy.parallel_strategy_item.add(node_name="MatMul")
    item.parallel_strategys.stage = stage
    layouts = {}
    for name, array in parameters.items():
        # The optimizer's state of a parameter is divided as the parameter.
        layouts[name] = maps.get(name.removeprefix("moments."), (-1,) * array.ndim)
        if array.ndim == 0:
            continue
        layout = strategy.parallel_layout_item.add(param_name=name).parallel_layouts
        layout.dev_matrix.add(dim=matrix)
        layout.tensor_map.add(dim=layouts[name])
        layout.param_split_shape.add()
        layout.indices_offset.add()
        layout.field = layout.opt_weight_shard_step = layout.opt_weight_shard_size = 0
    ranks = int(np.prod(matrix))
    (directory / "strategy").mkdir(parents=True, exist_ok=True)
    for local in range(ranks):
        rank = stage * ranks + local
        (directory / "strategy" / f"rank_{rank}.ckpt").write_bytes(strategy.SerializeToString())
        place = np.unravel_index(local, matrix)
        slices = []
        for name, array in parameters.items():
            part = array
            for axis, device_axis in enumerate(layouts[name]):
                if device_axis >= 0:
                    index = len(matrix) - 1 - device_axis
                    part = np.split(part, matrix[index], axis)[place[index]]
            slices.append({"name": name, "data": Parameter(Tensor(np.ascontiguousarray(part)), name=name)})
        (directory / f"rank_{rank}").mkdir(exist_ok=True)
        save_checkpoint(slices, str(directory / f"rank_{rank}" / f"network-{step}.ckpt"))


@pytest.fixture(scope="module")
def sharded(trained: tuple[Arrays, Arrays], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shards") / "checkpoints"
    write_shards(directory, trained[0], BOTH_AXES, (2, 2))
    spec = NetworkSpec("small_networks:Perceptron", {})
    write_description(directory, network=spec, preprocessing={}, seed=5, steps_per_epoch=7)
    return directory


def assert_predicts_as(bundle: Path, models: Path, outputs: Arrays) -> None:
    with GraphRunner(bundle, warm=()) as runner:
        found = runner.predict(read_samples(models / "dataset", "test").inputs)
    np.testing.assert_allclose(found["output"], outputs["output"], atol=1e-6)


def test_slices_along_both_axes_export_to_whole_network(
    sharded: Path, trained: tuple[Arrays, Arrays], models: Path, tmp_path: Path
) -> None:
    arguments = ["model", "export", str(sharded), "--dataset", str(models / "dataset"), "-o", str(tmp_path / "model")]
    assert run(arguments) == 0
    metadata = ModelBundle.open(tmp_path / "model").signature.metadata
    assert (metadata["epoch"], metadata["step"], metadata["seed"]) == ("3", "19", "5")
    assert_predicts_as(tmp_path / "model", models, trained[1])


def test_pipeline_stages_are_merged(trained: tuple[Arrays, Arrays], models: Path, tmp_path: Path) -> None:
    for stage, (prefixes, maps) in enumerate(STAGES):
        own = {name: array for name, array in trained[0].items() if name.removeprefix("moments.").startswith(prefixes)}
        write_shards(tmp_path / "stages", own, maps, (2,), stage)
    network = "small_networks:Perceptron"
    export_mindir(tmp_path / "stages", tmp_path / "model", dataset_dir=models / "dataset", network=network)
    assert_predicts_as(tmp_path / "model", models, trained[1])


def test_newest_checkpoint_is_newest_of_all_ranks(
    sharded: Path, trained: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    shutil.copytree(sharded, tmp_path / "copy")
    for rank, steps in enumerate((("10_7", "11_7"), ("10_7",), ("10_7",), ("10_7",))):
        for step in steps:
            (tmp_path / "copy" / f"rank_{rank}" / f"network-{step}.ckpt").write_bytes(b"")
    assert (open_sharded(tmp_path / "copy").epoch, open_sharded(tmp_path / "copy").step) == (10, 70)


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        ("rm -r rank_2", {}, "rank_2 missing: the strategy"),
        ("rm -r rank_?", {}, "rank_0 is missing"),
        ("rm rank_1/*", {}, "rank_1: holds no .ckpt file"),
        ("mv rank_1/network-3_5.ckpt rank_1/network-2_7.ckpt", {}, "its 4 ranks hold no checkpoint of the same epoch"),
        ("rm -r strategy", {}, "strategy: no strategy file"),
        ("true", {"strategy": "elsewhere"}, "elsewhere: no strategy file"),
        ("for i in 0 1 2 3; do echo no >strategy/rank_$i.ckpt; done", {}, "its slices do not fit the strategy"),
        ("chmod u+w rank_3/*; echo no >rank_3/network-3_5.ckpt", {}, "its slices do not fit the strategy"),
        ("true", {"network_arguments": {"hidden": 8}}, "does not fit the network: "),
        ("true", {"network": "small_networks:Sequence"}, "does not fit the network: no value for "),
        ("rm -r rank_? sharded.json", {}, "checkpoint.json is missing, so this is no checkpoint"),
    ],
)
def test_mistake_is_named(
    sharded: Path,
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: str,
    options: dict[str, object],
    message: str,
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(sharded, directory)
    subprocess.run(["bash", "-c", damage], cwd=directory, check=True)
    arguments = ["model", "export", str(directory), "--dataset", str(models / "dataset"), "-o", str(tmp_path / "model")]
    for name, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        arguments += [f"--{name.replace('_', '-')}", text]
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
