"""The stages of `python -m tests.device` that compute in a process of their own, on $KFP_MINDSPORE_DEVICE."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from kfp_mindspore.compat.onednn import avoid_slow_convolutions
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir import GraphRunner
from kfp_mindspore.mindir.devices import has_bfloat16, use_device
from kfp_mindspore.settings import CPU, DEVICE_VARIABLE
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.workloads.vit.network import Network

# On the CPU a rehearsal, whose figures mean nothing.
_IS_REHEARSAL = os.environ.get(DEVICE_VARIABLE) == CPU
_STEPS, _IMAGES, _BATCH = (1, 4, 4) if _IS_REHEARSAL else (20, 128, 128)


def check_kernels() -> dict[str, Any]:
    """Return the largest differences of a product and a convolution from NumPy's float64 results."""
    generator = np.random.default_rng(0)
    begun = time.perf_counter()
    left, right = (generator.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    product = ops.matmul(Tensor(left), Tensor(right)).asnumpy()
    first = time.perf_counter() - begun
    images = generator.standard_normal((8, 3, 32, 32)).astype(np.float32)
    weights = generator.standard_normal((6, 3, 5, 5)).astype(np.float32)
    found = ops.conv2d(Tensor(images), Tensor(weights)).asnumpy()
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (5, 5), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.float64))
    errors = {
        "matmul": float(np.abs(product - left.astype(np.float64) @ right).max() / np.sqrt(512)),
        "convolution": float(np.abs(found - expected).max() / np.sqrt(75)),
    }
    # 10 bits, as of TF32 and HF32.
    assert max(errors.values()) < 5e-3, errors
    return {**errors, "first_call_seconds": first, "bfloat16": has_bfloat16()}


class Residual(nn.Cell):
    """Eight convolutions with BatchNorm, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3)
        self.blocks = nn.CellList(
            [nn.SequentialCell(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(8)]
        )
        self.last = nn.Dense(64, 10)

    def construct(self, images: Tensor) -> Tensor:
        """Return the logits."""
        images = self.first(images)
        for block in self.blocks:
            images = images + block(images)
        return self.last(images.mean((2, 3)))


def measure_speed(bundle: Path, dataset: Path) -> dict[str, Any]:
    """Return ratios and times: `fit` to a bare loop, a runner to its graph, and a step to PyTorch's."""
    images = np.random.default_rng(0).standard_normal((_IMAGES, 3, 32, 32)).astype(np.float32)
    labels = (np.arange(_IMAGES) % 10).astype(np.int32)
    found: dict[str, Any] = {"fit_to_bare_loop": _compare_fit(dataset), **_measure_graph(bundle)}
    network = Residual()
    optimizer = nn.Adam(network.trainable_params(), 1e-3)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.CrossEntropyLoss()), optimizer)
    step.set_train()
    tensors = Tensor(images), Tensor(labels)
    found["step_ms"] = 1000 * _time(lambda: step(*tensors).asnumpy())
    if importlib.util.find_spec("torch") is not None:
        found["torch_step_ms"] = 1000 * _time_torch(images, labels)
        found["step_to_torch"] = found["step_ms"] / found["torch_step_ms"]
    return found


def _compare_fit(dataset: Path) -> float:
    opened = Dataset.open(dataset)
    samples = read_samples(opened, "train")
    (images,) = samples.inputs.values()
    assert samples.target is not None
    images, labels, size = images[: 3 * _BATCH], samples.target[: 3 * _BATCH].astype(np.int32), _BATCH
    arguments = {"size": images.shape[2], "classes": len(opened.labels), "channels": images.shape[1]}
    set_seed(42)
    network = Network(**arguments)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-3)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.CrossEntropyLoss()), optimizer)
    step.set_train()
    batch = Tensor(images[:size]), Tensor(labels[:size])
    bare = _time(lambda: step(*batch).asnumpy())
    network = Network(**arguments)
    config = TrainingConfig(
        epochs=2 if _IS_REHEARSAL else 6, batch_size=size, verbose=False, network_arguments=arguments
    )
    result = fit(
        network,
        (images, labels),
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), 1e-3),
        config=config,
    )
    seconds = [record["seconds"]["step"] for record in result.history[1:]]
    return statistics.median(seconds) / (len(images) // size) / bare


def _measure_graph(bundle: Path) -> dict[str, float]:
    opened = ModelBundle.open(bundle)
    inputs = {name: np.resize(array, (32, *array.shape[1:])) for name, array in opened.read_verified().inputs.items()}
    graph = nn.GraphCell(mindspore.load(str(opened.mindir)))
    tensors = [Tensor(array) for array in inputs.values()]
    alone = _time(lambda: graph(*tensors).asnumpy())
    with GraphRunner(opened) as runner:
        served = _time(lambda: runner.predict(inputs))
    return {"graph_ms": 1000 * alone, "runner_to_graph": alone / served}


def _time_torch(images: Any, labels: Any) -> float:
    torch: Any = importlib.import_module("torch")

    class Peer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 64, 3, padding=1)
            parts = (torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU())
            self.blocks = torch.nn.ModuleList([torch.nn.Sequential(*map(_copy, parts)) for _ in range(8)])
            self.last = torch.nn.Linear(64, 10)

        def forward(self, batch: Any) -> Any:
            batch = self.first(batch)
            for block in self.blocks:
                batch = batch + block(batch)
            return self.last(batch.mean((2, 3)))

    def _copy(module: Any) -> Any:
        return importlib.import_module("copy").deepcopy(module)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = Peer().to(device).train()
    optimizer, loss = torch.optim.Adam(network.parameters(), 1e-3), torch.nn.CrossEntropyLoss()
    batch, target = torch.from_numpy(images).to(device), torch.from_numpy(labels).long().to(device)

    def step() -> None:
        optimizer.zero_grad()
        value = loss(network(batch), target)
        value.backward()
        optimizer.step()
        value.item()

    return _time(step)


def _time(function: Callable[[], Any]) -> float:
    """Return the median seconds of a call, after two that compile."""
    seconds = []
    for _ in range(_STEPS + 2):
        begun = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[2:])


if __name__ == "__main__":
    if use_device() == CPU:
        avoid_slow_convolutions()
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    result = check_kernels() if sys.argv[1] == "kernels" else measure_speed(Path(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps(result))
