"""Trainings for test_fit.py in one process: each scenario returns JSON values."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from scenario_runner import run_scenarios

from kfp_mindspore import training
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats import checkpoint
from kfp_mindspore.training.computation.dropout import count_dropout

import mindspore as ms  # isort: skip
from mindspore import Tensor, nn  # isort: skip
from mindspore import dataset as pipelines  # isort: skip
from mindspore.common.initializer import initializer  # isort: skip
from mindspore.train import (  # isort: skip
    Accuracy,
    BackupAndRestore,
    Callback,
    CheckpointConfig,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    Model,
    ModelCheckpoint,
    OnRequestExit,
    ReduceLROnPlateau,
    TimeMonitor,
)

ROOT = Path(sys.argv[1])
DATASET = load_dataset("digits", ROOT / "digits")


def read_arrays(split: str, count: int) -> tuple[Any, Any]:
    samples = read_samples(DATASET, split, count=count)
    return samples.inputs["image"], samples.target


TRAIN, VALIDATION = read_arrays("train", 320), read_arrays("validation", 100)
SCENARIOS: dict[str, Callable[[Path], Any]] = {}


class Small(nn.Cell):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden = nn.Dense(64, hidden)
        self.output = nn.Dense(hidden, 10)
        generator = np.random.default_rng(0)
        for parameter in self.get_parameters():
            parameter.set_data(Tensor(generator.normal(0, 0.2, parameter.shape).astype(np.float32)))

    def construct(self, image: Any) -> Any:
        return self.output(ms.ops.relu(self.hidden(self.flatten(image))))


class Unusual(nn.Cell):
    """Cannot be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(initializer("ones", (64,)), name="weight")

    def construct(self, image: Any) -> Any:
        return image @ self.nowhere_defined(self.weight)


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    SCENARIOS[function.__name__] = function
    return function


def make_loss() -> Any:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def train(network: Any = None, *, rate: Any = 0.01, **arguments: Any) -> tuple[Any, Any, Any]:
    network = network or Small()
    given = {
        "data": TRAIN,
        "loss": make_loss(),
        "optimizer": nn.Adam(network.trainable_params(), rate),
        "validation": VALIDATION,
        "callbacks": (),
        "epochs": 3,
        "metrics": ["accuracy"],
        "verbose": False,
    }
    given.update(arguments)
    direct = {name: given.pop(name) for name in ("data", "loss", "optimizer", "validation", "callbacks")}
    result = training.fit(network, **direct, config=training.TrainingConfig(**given))
    return result, network, direct["optimizer"]


def read_weights(network: Any) -> list[Any]:
    return [parameter.asnumpy().copy() for parameter in network.get_parameters()]


def compare(first: Any, second: Any) -> float:
    pairs = zip(read_weights(first), read_weights(second), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


class Interrupt(Callback):
    """Sends SIGTERM to this process at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class Stateful(Callback):
    """A user's callback with state."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_train_epoch_end(self, run_context: Any) -> None:
        self.epochs.append(run_context.original_args().cur_epoch_num)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


class Recorder(Callback):
    """Records each hook with the arguments of the callback."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.keys: set[str] = set()
        self.entered = 0

    def __enter__(self) -> Recorder:
        self.entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.entered -= 1

    def record(self, hook: str, run_context: Any) -> None:
        params = run_context.original_args()
        self.keys |= set(params)
        names = ("mode", "cur_epoch_num", "cur_step_num", "batch_num", "epoch_num", "dataset_sink_mode")
        results = params.get("eval_results") or {}
        self.calls.append(
            [
                hook,
                *(params.get(name) for name in names),
                {name: round(float(value), 5) for name, value in sorted(results.items())},
                type(params.network).__name__,
                isinstance(params.train_network, nn.Cell),
                isinstance(params.optimizer, nn.Optimizer),
            ]
        )

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda run_context: self.record(name, run_context)
        return super().__getattribute__(name)


def make_pipeline(arrays: Any, batch: int) -> Any:
    columns = {"image": arrays[0], "label": arrays[1]}
    return pipelines.NumpySlicesDataset(columns, shuffle=False).batch(batch, drop_remainder=True)


@scenario
def same_as_a_bare_loop(path: Path) -> Any:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    result, network, _ = train(shuffle=False, epochs=2)
    mode_after = ms.get_context("mode") == ms.PYNATIVE_MODE
    ms.set_context(mode=ms.GRAPH_MODE)
    other = Small()
    step = nn.TrainOneStepCell(nn.WithLossCell(other, make_loss()), nn.Adam(other.trainable_params(), 0.01))
    step.set_train()
    for _ in range(2):
        for start in range(0, 320, 32):
            step(Tensor(TRAIN[0][start : start + 32]), Tensor(TRAIN[1][start : start + 32]))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return {"difference": compare(network, other), "mode_after": mode_after, "steps": result.steps}


@scenario
def same_as_model_fit(path: Path) -> Any:
    found = {}
    for name in ("fit", "Model.fit"):
        network = Small()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        recorder, history = Recorder(), History()
        callbacks = [
            recorder,
            EarlyStopping("accuracy", patience=3, restore_best_weights=True, min_delta=0.02),
            ReduceLROnPlateau("eval_loss", patience=1, factor=0.5, min_delta=0.3),
            history,
        ]
        if name == "fit":
            training.fit(
                network,
                TRAIN,
                loss=make_loss(),
                optimizer=optimizer,
                validation=VALIDATION,
                callbacks=callbacks,
                config=training.TrainingConfig(
                    epochs=30, metrics={"accuracy": Accuracy()}, shuffle=False, verbose=False
                ),
            )
        else:
            ms.set_context(mode=ms.GRAPH_MODE)
            model = Model(network, make_loss(), optimizer, metrics={"accuracy": Accuracy()})
            model.fit(
                30,
                make_pipeline(TRAIN, 32),
                make_pipeline(VALIDATION, 100),
                callbacks=callbacks,
                dataset_sink_mode=False,
                valid_dataset_sink_mode=False,
            )
            ms.set_context(mode=ms.PYNATIVE_MODE)
        found[name] = {
            "calls": recorder.calls,
            "keys": sorted(recorder.keys),
            "entered": recorder.entered,
            "rate": float(optimizer.learning_rate.asnumpy()),
            "stopped_epoch": callbacks[1].stopped_epoch,
            "history": {key: [round(float(v), 4) for v in values] for key, values in history.history.items()},
        }
        found[name]["network"] = network
    difference = compare(found["fit"].pop("network"), found["Model.fit"].pop("network"))
    return {**found, "difference": difference}


@scenario
def resume(path: Path) -> Any:
    """Whole epochs, the middle of an epoch twice and the end: each against one uninterrupted run."""

    def run(root: str, epochs: int, *more: Any) -> Any:
        callbacks = [
            EarlyStopping("accuracy", patience=20, restore_best_weights=True),
            ReduceLROnPlateau("eval_loss", patience=1, factor=0.5, min_delta=0.2),
            Stateful(),
            *more,
        ]
        noise = lambda images, generator: images + generator.normal(0, 0.05, images.shape).astype(np.float32)  # noqa: E731
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                result, network, optimizer = train(
                    epochs=epochs,
                    callbacks=callbacks,
                    augment=noise,
                    checkpoint_dir=path / root / "checkpoints",
                    output_dir=path / root / "output",
                )
            except SystemExit as exit_:
                names = [entry.name for entry in checkpoint.list_checkpoints(path / root / "checkpoints")]
                return {"code": exit_.code, "checkpoints": names, "errors": errors.getvalue()}
        return result, network, optimizer, callbacks

    whole = run("whole", 8)
    run("parts", 3)
    parts = run("parts", 8)
    first = run("cut", 8, Interrupt(34))
    second = run("cut", 8, Interrupt(57))
    at_end = run("cut", 8, Interrupt(60))
    cut = run("cut", 8, Interrupt(0))
    again = run("parts", 8)

    def describe(found: Any) -> Any:
        result, network, optimizer, callbacks = found
        lines = [json.loads(line) for line in (result.checkpoint.parent / "metrics.jsonl").read_text().splitlines()]
        state = [p.asnumpy() for p in optimizer.get_parameters()]
        other = [p.asnumpy() for p in whole[2].get_parameters()]
        return {
            "difference": compare(network, whole[1]),
            "optimizer": max(float(np.abs(a - b).max()) for a, b in zip(state, other, strict=True)),
            "epochs": result.epochs,
            "steps": result.steps,
            "metrics": dict(result.metrics),
            "losses": [line["loss"] for line in lines],
            "rates": [line["learning_rate"] for line in lines],
            "wait": callbacks[0].wait,
            "best": float(callbacks[0].best),
            "epochs_seen": callbacks[2].epochs,
            "resumed_from": result.resumed_from and result.resumed_from.name,
        }

    return {
        "whole": describe(whole),
        "parts": describe(parts),
        "cut": describe(cut),
        "again": describe(again),
        "interruptions": [first, second, at_end],
        "kept": [entry.name for entry in checkpoint.list_checkpoints(path / "whole" / "checkpoints")],
    }


@scenario
def checkpoints_below_a_uri(path: Path) -> Any:
    """Checkpoints every four steps of ten, killed after step 18 and resumed from an object store."""

    class Kill(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 18:
                raise KeyboardInterrupt

    root = "memory://bucket/run"
    arguments: dict[str, Any] = {"epochs": 4, "checkpoint_steps": 4, "checkpoint_epochs": 9}
    _, whole, _ = train(**arguments)
    with contextlib.suppress(KeyboardInterrupt):
        train(**arguments, checkpoint_dir=root, callbacks=Kill())
    filesystem, remote = fsspec.url_to_fs(root)
    names = sorted({name.removeprefix(remote).split("/")[1] for name in filesystem.find(remote)})
    result, network, _ = train(**arguments, checkpoint_dir=root, callbacks=LambdaCallback())
    return {"names": names, "resumed_from": result.resumed_from, "difference": compare(network, whole)}


@scenario
def fit_within_fit(path: Path) -> Any:
    messages = []

    class Nested(Callback):
        def on_train_epoch_end(self, run_context: Any) -> None:
            try:
                train(checkpoint_dir=path)
            except UserError as error:
                messages.append(error.message)

    train(epochs=2, checkpoint_dir=path, callbacks=Nested())
    return {"messages": messages, "checkpoints": [entry.name for entry in checkpoint.list_checkpoints(path)]}


@scenario
def failed_background_checkpoint(path: Path) -> Any:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    steps = []
    seen = LambdaCallback(on_train_step_end=lambda context: steps.append(context.original_args().cur_step_num))
    with unittest.mock.patch("mindspore.save_checkpoint", fail):
        try:
            train(epochs=5, callbacks=seen, checkpoint_dir=path)
        except KfpMindSporeError as error:
            return {"message": error.message, "steps": len(steps)}
    return {}


@scenario
def dropout(path: Path) -> Any:
    """Share of zeros, correlation of neighbours, of two cells and of two steps, and the gradient of a kept element."""

    class Drop(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Dropout(p=0.3), nn.Dropout(p=0.3)

        def construct(self, values: Any) -> Any:
            return self.first(values), self.second(values)

    network, ones = Drop(), Tensor(np.ones((200, 300), np.float32))
    counters = count_dropout(network, 42, 0)
    network.set_train()
    masks = [np.stack([part.asnumpy().ravel() for part in network(ones)]) for _ in range(2)]
    kept = [(mask > 0) - 0.7 for mask in masks]
    correlate = lambda one, other: float((one * other).mean() / 0.21)  # noqa: E731
    gradient = ms.grad(lambda values: network(values)[0].sum())(ones).asnumpy()
    network.set_train(False)
    return {
        "shares": [float((mask == 0).mean()) for mask in masks],
        "scale": sorted({round(float(value), 4) for value in masks[0].ravel()}),
        "correlations": [
            *(correlate(kept[0][0][:-lag], kept[0][0][lag:]) for lag in (1, 2, 64, 300)),
            correlate(kept[0][0], kept[0][1]),
            correlate(kept[0][0], kept[1][0]),
        ],
        "gradient": sorted({round(float(value), 4) for value in gradient.ravel()}),
        "evaluation": float(network(ones)[0].asnumpy().min()),
        "counters": [int(counter.asnumpy()[0]) for counter in counters],
        "parameters": len(list(network.get_parameters())),
    }


@scenario
def early_stopping(path: Path) -> Any:
    stopping = EarlyStopping("accuracy", patience=2, restore_best_weights=True, min_delta=0.03)
    arguments: dict[str, Any] = {"epochs": 40, "callbacks": stopping, "checkpoint_dir": path / "checkpoints"}
    result, network, _ = train(rate=0.03, output_dir=path / "output", **arguments)
    final = checkpoint.Checkpoint.open(path / "output" / "checkpoint")
    loaded = ms.load_checkpoint(str(final.network_file))
    again, other, _ = train(rate=0.03, output_dir=path / "again", **arguments)
    return {
        "epochs": result.epochs,
        "stopped_early": result.stopped_early,
        "accuracies": [record["validation"]["accuracy"] for record in result.history],
        "final": dict(result.metrics),
        "recorded": dict(final.metrics),
        "files": sorted(final.files),
        "difference": max(
            float(np.abs(loaded[parameter.name].asnumpy() - parameter.asnumpy()).max())
            for parameter in network.get_parameters()
        ),
        "again": [again.epochs, again.stopped_early, compare(network, other), dict(again.metrics)],
    }


@scenario
def every_callback(path: Path) -> Any:
    seen: list[str] = []
    out = io.StringIO()
    saving = ModelCheckpoint("lenet", str(path / "own"), CheckpointConfig(save_checkpoint_steps=10))
    with contextlib.redirect_stdout(out):
        result, _, optimizer = train(
            epochs=2,
            callbacks=[
                LossMonitor(5),
                TimeMonitor(data_time=True),
                saving,
                LambdaCallback(
                    on_train_begin=lambda context: seen.append("begin"),
                    on_eval_end=lambda context: seen.append("eval"),
                    on_train_end=lambda context: seen.append("end"),
                ),
                LearningRateScheduler(lambda rate, step: rate * 0.5 if step == 10 else rate),
                BackupAndRestore(str(path / "backup"), delete_checkpoint=False),
                OnRequestExit(save_mindir=False, directory=str(path / "exit"), sig=signal.SIGUSR1),
            ],
        )
    loaded = ms.load_checkpoint(saving.latest_ckpt_file_name)
    return {
        "seen": seen,
        "output": out.getvalue(),
        "own": sorted(file.name for file in (path / "own").iterdir()),
        "loaded": sorted(loaded),
        "backup": sorted(file.name for file in (path / "backup").iterdir()),
        "rate": float(optimizer.learning_rate.asnumpy()),
        "rates": [record["learning_rate"] for record in result.history],
    }


@scenario
def hooks_without_a_phase(path: Path) -> Any:
    """A callback for Model.train, which Model.fit rejects."""
    steps = []

    class Old(Callback):
        def step_end(self, run_context: Any) -> None:
            steps.append(run_context.original_args().mode)

    train(epochs=1, callbacks=[Old()])
    return steps


@scenario
def stop_within_an_epoch(path: Path) -> Any:
    class Stop(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 14:
                run_context.request_stop()

    result, _, _ = train(epochs=5, callbacks=[Stop()])
    return [result.epochs, result.steps, result.stopped_early, sorted(result.metrics)]


@scenario
def what_a_run_writes(path: Path) -> Any:
    events = path / "events.jsonl"
    out = io.StringIO()
    os.environ.update(
        KFP_MINDSPORE_EVENTS=str(events),
        KFP_MINDSPORE_PROGRESS=str(path / "progress.json"),
        KFP_MINDSPORE_DATASET_DIR=str(DATASET.path),
        KFP_MINDSPORE_CHECKPOINT_DIR=str(path / "checkpoints"),
        KFP_MINDSPORE_OUTPUT_DIR=str(path / "output"),
    )
    try:
        with contextlib.redirect_stdout(out):
            result, _, _ = train(
                Small(hidden=8),
                data=None,
                validation=None,
                epochs=5,
                keep_checkpoints=2,
                checkpoint_epochs=2,
                network_arguments={"hidden": 8},
                network_factory="scenarios:Small",
                verbose=True,
                seed=3,
            )
    finally:
        for name in ("EVENTS", "PROGRESS", "DATASET_DIR", "CHECKPOINT_DIR", "OUTPUT_DIR"):
            del os.environ[f"KFP_MINDSPORE_{name}"]
    final = checkpoint.Checkpoint.open(path / "output" / "checkpoint")
    return {
        "events": [json.loads(line) for line in events.read_text().splitlines()],
        "progress": json.loads((path / "progress.json").read_text()),
        "lines": [json.loads(line) for line in (path / "output" / "metrics.jsonl").read_text().splitlines()],
        "checkpoints": [entry.name for entry in checkpoint.list_checkpoints(path / "checkpoints")],
        "network": [final.network.factory, dict(final.network.arguments)],
        "final": [final.epoch, final.step, final.seed, dict(final.metrics), final.mindspore_version],
        "result": [str(result.checkpoint), dict(result.metrics)],
        "output": out.getvalue(),
    }


@scenario
def other_sources(path: Path) -> Any:
    def losses(**arguments: Any) -> list[float]:
        result, _, _ = train(epochs=2, shuffle=False, **arguments)
        return [round(record["loss"], 6) for record in result.history]

    as_dict = {"features": TRAIN[0].astype(np.float64), "labels": TRAIN[1].astype(np.int64)}
    written = tuple(np.zeros_like(array) for array in TRAIN)

    class Write(Callback):
        def on_train_epoch_begin(self, run_context: Any) -> None:
            for array, values in zip(written, TRAIN, strict=True):
                array[:] = values

    return {
        "arrays": losses(),
        "dict": losses(data=as_dict),
        "written by a callback": losses(data=written, callbacks=[Write()]),
        "pipeline": losses(data=make_pipeline(TRAIN, 32), validation=make_pipeline(VALIDATION, 50)),
        "dataset": len(losses(data=DATASET, validation=DATASET)),
    }


@scenario
def learning_rates(path: Path) -> Any:
    found: dict[str, Any] = {}
    table = [0.01 * (step + 1) / 20 for step in range(20)]
    for name, rate in {"table": table, "schedule": nn.ExponentialDecayLR(0.01, 0.5, 10, is_stair=True)}.items():
        result, _, _ = train(rate=rate, epochs=2)
        found[name] = [record["learning_rate"] for record in result.history]
    network = Small()
    groups = [
        {"params": network.hidden.trainable_params(), "lr": 0.01},
        {"params": network.output.trainable_params(), "lr": 0.02},
    ]
    result, _, _ = train(network, optimizer=nn.Momentum(groups, 0.1, 0.9), epochs=1)
    found["groups"] = [record["learning_rate"] for record in result.history]
    return found


@scenario
def a_network_with_its_loss(path: Path) -> Any:
    network = nn.WithLossCell(Small(), make_loss())
    result, _, _ = train(network, loss=None, metrics=())
    return [dict(result.metrics), result.checkpoint]


@scenario
def seeds(path: Path) -> Any:
    def run(seed: int) -> list[float]:
        training.set_seed(seed)
        network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 10))
        result, _, _ = train(network, seed=seed)
        return [record["loss"] for record in result.history]

    return [run(1), run(1), run(2)]


@scenario
def refusals(path: Path) -> Any:
    """The exceptions by case."""
    logging.captureWarnings(True)
    other = path / "other"
    train(Small(hidden=8), epochs=1, checkpoint_dir=other)
    mistakes: dict[str, dict[str, Any]] = {
        "epochs": {"epochs": 0},
        "several": {"epochs": 0, "batch_size": 0},
        "too large a batch": {"batch_size": 321},
        "lengths": {"data": (TRAIN[0], TRAIN[1][:-1])},
        "kind of data": {"data": 3},
        "no dataset": {"data": None},
        "no such directory": {"data": str(path / "nowhere")},
        "metric": {"metrics": ["accurracy"]},
        "metric object": {"metrics": {"accuracy": 3}},
        "callback": {"callbacks": [print]},
        "factory": {"network_factory": "no colon"},
        "arguments": {"network_arguments": {"hidden": {1, 2}}},
        "augment": {"data": make_pipeline(TRAIN, 32), "augment": lambda images, generator: images},
        "loss is gone": {"rate": 1e30},
        "shapes": {"data": (TRAIN[0][:, :, :7], TRAIN[1])},
        "another network": {"epochs": 2, "checkpoint_dir": other},
    }
    found = {}
    for name, arguments in mistakes.items():
        try:
            train(**arguments)
        except KfpMindSporeError as error:
            found[name] = [type(error).__name__, str(error), error.exit_code]
    return found


@scenario
def failed_compile(path: Path) -> Any:
    os.chdir(path)
    try:
        train(Unusual(), epochs=1)
    except (RuntimeError, AttributeError, TypeError, ValueError, KfpMindSporeError) as error:
        return {"error": str(error)[:200], "left": sorted(entry.name for entry in path.iterdir())}
    return {}


if __name__ == "__main__":
    run_scenarios(SCENARIOS)
