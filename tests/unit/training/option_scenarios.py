"""Trainings for test_options.py in one process: options of TrainingConfig beside plain loops."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import re
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scenario_runner import run_scenarios

from kfp_mindspore import training
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.checkpoint import NetworkSpec
from kfp_mindspore.formats.dataset import Column, write_dataset
from kfp_mindspore.mindir.parameters.shards import open_sharded
from kfp_mindspore.training import __main__ as command
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.parallel import build_context, build_saver
from kfp_mindspore.training.samples.data import resolve_train

import mindspore as ms  # isort: skip
from mindspore import ParameterTuple, Tensor, nn, ops  # isort: skip
from mindspore import dataset as pipelines  # isort: skip
from mindspore.train import Callback  # isort: skip

ROOT = Path(sys.argv[1])
SCENARIOS: dict[str, Callable[[Path], Any]] = {}
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(64, 6)).astype(np.float32)
IDS = GENERATOR.integers(0, 12, (64, 5)).astype(np.int32)
Y = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0.5)
REAL = (X @ np.arange(6) / 6).astype(np.float32)
WEIGHT = GENERATOR.uniform(0.1, 2, 64).astype(np.float32)


class Small(nn.Cell):
    """A front and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Dense(6, 8)
        self.head = nn.Dense(8, 3)
        initialise(self)

    def construct(self, x: Any) -> Any:
        return self.head(ops.relu(self.front(x)))


class Pair(nn.Cell):
    """Two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.dense = nn.Dense(6, 8)
        self.kind = nn.Dense(8, 3)
        self.size = nn.Dense(8, 1)
        initialise(self)

    def construct(self, ids: Any, x: Any) -> Any:
        hidden = ops.relu(self.dense(x) + self.table(ids).mean(1))
        return {"kind": self.kind(hidden), "size": self.size(hidden)[:, 0]}


class Language(nn.Cell):
    """Predicts the next id."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.dense = nn.Dense(8, 12)
        initialise(self)

    def construct(self, ids: Any) -> Any:
        return self.dense(self.table(ids)).reshape(-1, 12)


class Regressor(Small):
    """One number per sample, shape (N, 1)."""

    def construct(self, x: Any) -> Any:
        return self.head(ops.relu(self.front(x)))[:, :1]


class PairClassifier(Pair):
    """Two inputs and one output."""

    def construct(self, ids: Any, x: Any) -> Any:
        return self.kind(ops.relu(self.dense(x) + self.table(ids).mean(1)))


def next_id_loss(outputs: Any, target: Any) -> Any:
    return ops.cross_entropy(outputs, target.reshape(-1))


def initialise(network: nn.Cell) -> None:
    generator = np.random.default_rng(1)
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(generator.normal(0, 0.3, parameter.shape).astype(np.float32)))


def build_loss() -> Any:
    """Return the classes' loss, which MindSpore compiles in a third of CrossEntropyLoss's time."""
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    SCENARIOS[function.__name__] = function
    return function


def fit(network: Any = None, *, make: Any = None, **arguments: Any) -> tuple[Any, Any]:
    """Train with arguments of `fit` and of TrainingConfig together."""
    network = network or Small()
    given = {
        "data": (X, Y),
        "loss": build_loss(),
        "optimizer": (make or (lambda weights: nn.Momentum(weights, 0.1, 0.9)))(network.trainable_params()),
        "validation": None,
        "callbacks": (),
        "epochs": 2,
        "batch_size": 16,
        "shuffle": False,
        "verbose": False,
        **arguments,
    }
    direct = {name: given.pop(name) for name in ("data", "loss", "optimizer", "validation", "callbacks")}
    return training.fit(network, **direct, config=training.TrainingConfig(**given)), network


def batches(*arrays: Any, size: int = 16, epochs: int = 2) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield (epoch from 1, tensors) as a loop without shuffling."""
    for epoch in range(1, epochs + 1):
        for start in range(0, len(arrays[0]), size):
            yield epoch, tuple(Tensor(array[start : start + size]) for array in arrays)


def make_gradient(compute: Any, weights: Any) -> Any:
    return ops.value_and_grad(compute, None, weights)


def loop(network: Any, compute: Any, arrays: Any, optimizer: Any, change: Any = lambda gradients: gradients) -> Any:
    """Train in a plain loop; `change` gets the gradients."""
    gradient = make_gradient(compute, optimizer.parameters)
    for _, batch in batches(*arrays):
        _, gradients = gradient(*batch)
        optimizer(change(gradients))
    return network


def compare(first: Any, second: Any) -> float:
    pairs = zip(first.get_parameters(), second.get_parameters(), strict=True)
    return max(float(np.abs(a.asnumpy() - b.asnumpy()).max()) for a, b in pairs)


@functools.cache
def train_without_options() -> Any:
    """Return the network of `fit` without options, which several scenarios compare with."""
    return fit()[1]


@scenario
def accumulation(path: Path) -> Any:
    whole = fit(clip_norm=0.5)[1]
    parts = fit(clip_norm=0.5, accumulate=4)[1]
    uneven = fit(clip_norm=0.5, accumulate=3)[1]
    result, weighted = fit(data=(X, Y, WEIGHT), accumulate=2)
    reference, plain = fit(data=(X, Y, WEIGHT))
    return {
        "difference": compare(whole, parts),
        "uneven": compare(whole, uneven),
        "weighted": compare(weighted, plain),
        "loss": abs(result.metrics["loss"] - reference.metrics["loss"]),
        "steps": result.steps,
    }


@scenario
def clipping(path: Path) -> Any:
    def by_norm(gradients: Any) -> Any:
        arrays = [gradient.asnumpy() for gradient in gradients]
        norm = np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in arrays))
        return tuple(Tensor((array * min(1, 0.3 / norm)).astype(np.float32)) for array in arrays)

    def by_value(gradients: Any) -> Any:
        return tuple(Tensor(np.clip(gradient.asnumpy(), -0.02, 0.02)) for gradient in gradients)

    found = {}
    for name, option, change in (("value", {"clip_value": 0.02}, by_value), ("norm", {"clip_norm": 0.3}, by_norm)):
        network = Small()
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        loop(network, lambda x, y, n=network: nn.CrossEntropyLoss()(n(x), y), (X, Y), optimizer, change)
        clipped = fit(**option)[1]
        found[name] = compare(network, clipped)
    found["unclipped"] = compare(train_without_options(), clipped)
    return found


@scenario
def freezing(path: Path) -> Any:
    """The front is frozen in epoch 1 and trained in epoch 2, with weight decay."""
    decay = 0.01

    def make(weights: Any) -> Any:
        return nn.Momentum(weights, 0.1, 0.9, weight_decay=decay)

    frozen = fit(make=make, freeze=["front.*"])[1]
    scheduled = fit(make=make, freeze=["front.*"], unfreeze={"2": ["front.*"]})[1]
    start, network = Small(), Small()
    head, front = make(network.head.trainable_params()), make(network.front.trainable_params())
    both = ParameterTuple([*head.parameters, *front.parameters])
    gradient = make_gradient(lambda x, y: nn.CrossEntropyLoss()(network(x), y), both)
    for epoch, batch in batches(X, Y):
        _, gradients = gradient(*batch)
        head(gradients[:2])
        if epoch == 2:
            front(gradients[2:])
    return {
        "front": compare(frozen.front, start.front),
        "head": compare(frozen.head, start.head),
        "scheduled": compare(scheduled, network),
        "products": {name: count_products(path / name, option) for name, option in (("all", ()), ("head", "front.*"))},
    }


def count_products(directory: Path, freeze: Any) -> int:
    """Return the matrix products of the compiled step: forward and backward."""
    ms.set_context(save_graphs=1, save_graphs_path=str(directory))
    try:
        fit(freeze=freeze, epochs=1)
    finally:
        ms.set_context(save_graphs=0)
    (file,) = directory.rglob("*_validate_*.ir")
    return len(re.findall(r"= \S*MatMul", file.read_text()))


@scenario
def schedules(path: Path) -> Any:
    found: dict[str, Any] = {}
    schedule = training.Schedule(name="cosine", warmup_epochs=0.5, end=0.1)
    table = [0.1 * schedule.compute_factor(step, 4, 2) for step in range(8)]
    listed = fit(make=lambda weights: nn.Momentum(weights, table, 0.9))[1]
    result, network = fit(schedule={"name": "cosine", "warmup_epochs": 0.5, "end": 0.1})
    found["difference"] = compare(listed, network)
    found["rates"] = [record["learning_rate"] for record in result.history]
    found["expected"] = [table[3], table[7]]
    network = Small()
    groups = [
        {"params": network.front.trainable_params(), "lr": 0.01},
        {"params": network.head.trainable_params(), "lr": 0.02},
    ]
    result, _ = fit(network, optimizer=nn.Momentum(groups, 0.1, 0.9), schedule="linear")
    found["groups"] = sorted(result.history[-1]["learning_rate"])
    return found


@scenario
def weights(path: Path) -> Any:
    def train_plainly(factors: Any) -> Any:
        network = Small()
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)

        def compute(x: Any, y: Any, weight: Any) -> Any:
            return (nn.CrossEntropyLoss(reduction="none")(network(x), y) * weight).mean()

        return loop(network, compute, (X, Y, factors), optimizer)

    counts = np.bincount(Y)
    balanced = (64 / (3 * counts))[Y].astype(np.float32)
    sparse = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    own = lambda outputs, target: ops.cross_entropy(outputs, target, reduction="none")  # noqa: E731
    given = {"x": X, "labels": Y, "weight": WEIGHT}
    weighted = train_plainly(WEIGHT)
    result, samples = fit(data=given, validation=given, loss=nn.CrossEntropyLoss())
    return {
        "samples": compare(samples, weighted),
        "sparse loss": compare(fit(data=given, loss=sparse)[1], weighted),
        "own loss": compare(fit(data=given, loss=own)[1], weighted),
        "balanced": compare(fit(class_weights="balanced", loss=nn.CrossEntropyLoss())[1], train_plainly(balanced)),
        "both": compare(
            fit(data=given, class_weights=[1, 2, 3], loss=nn.CrossEntropyLoss())[1],
            train_plainly(WEIGHT * np.array([1, 2, 3], np.float32)[Y]),
        ),
        "reduction": sparse.reduction,
        "eval_loss": result.metrics["eval_loss"],
    }


@scenario
def averaging(path: Path) -> Any:
    network = Small()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    average = [weight.asnumpy().copy() for weight in optimizer.parameters]
    gradient = make_gradient(lambda x, y: nn.CrossEntropyLoss()(network(x), y), optimizer.parameters)
    for _, batch in batches(X, Y):
        optimizer(gradient(*batch)[1])
        average = [0.8 * old + 0.2 * new.asnumpy() for old, new in zip(average, optimizer.parameters, strict=True)]
    for parameter, value in zip(optimizer.parameters, average, strict=True):
        parameter.set_data(Tensor(value.astype(np.float32)))
    result, averaged = fit(ema=0.8, validation=(X, Y), output_dir=path / "output")
    loaded = ms.load_checkpoint(str(result.checkpoint / "network.ckpt"))
    return {
        "difference": compare(network, averaged),
        "eval_loss": result.metrics["eval_loss"],
        "expected": float(nn.CrossEntropyLoss()(network(Tensor(X)), Tensor(Y)).asnumpy()),
        "saved": max(float(np.abs(loaded[p.name].asnumpy() - p.asnumpy()).max()) for p in averaged.get_parameters()),
    }


@scenario
def best_epoch(path: Path) -> Any:
    class Spoil(Callback):
        """Replaces the weights before the last epochs."""

        def on_train_epoch_begin(self, run_context: Any) -> None:
            params = run_context.original_args()
            if params.cur_epoch_num > 3:
                for parameter in params.network.get_parameters():
                    parameter.set_data(Tensor(np.zeros(parameter.shape, np.float32)))

    options = {"validation": (X, Y), "metrics": ["accuracy"], "callbacks": Spoil(), "epochs": 5}
    result, _ = fit(**options, keep_best="accuracy", output_dir=path / "best")
    last, _ = fit(**options)
    return {
        "best": [result.best_epoch, result.metrics["accuracy"]],
        "accuracies": [record["validation"]["accuracy"] for record in result.history],
        "last": [last.best_epoch, last.metrics["accuracy"]],
    }


@scenario
def resumed(path: Path) -> Any:
    """All options with state, in one run and in two."""

    def run(root: str, epochs: int) -> Any:
        return fit(
            epochs=epochs,
            shuffle=True,
            ema=0.9,
            accumulate=2,
            clip_norm=1.0,
            freeze=["front.*"],
            unfreeze={3: ["front.*"]},
            class_weights="balanced",
            schedule=training.Schedule(name="exponential", rate=0.8),
            validation=(X, Y),
            keep_best="eval_loss",
            reduce_on_plateau=None,
            early_stopping={"patience": 10},
            checkpoint_dir=path / root,
        )

    whole, one = run("whole", 4)
    run("parts", 2)
    parts, other = run("parts", 4)
    return {
        "difference": compare(one, other),
        "losses": [[record["loss"] for record in result.history] for result in (whole, parts)],
        "rates": [[record["learning_rate"] for record in result.history] for result in (whole, parts)],
        "metrics": [dict(result.metrics) for result in (whole, parts)],
        "resumed": parts.resumed_from.name,
    }


@scenario
def shards(path: Path) -> Any:
    """Parquet shards beside arrays in the same order, resumed in an epoch, and divided among workers."""
    columns = [Column("x", "float32", (6,)), Column("y", "int32", (), "target")]
    splits = {"train": {"x": X, "y": Y.astype(np.int32)}, "validation": {"x": X[:9], "y": Y[:9].astype(np.int32)}}
    described = {"name": "d", "task": "classification", "columns": columns, "labels": ["a", "b", "c"]}
    with unittest.mock.patch("kfp_mindspore.formats.shards._BLOCK_BYTES", 100):
        sharded = write_dataset(path / "parquet", splits=splits, storage="parquet", **described)
    whole = write_dataset(path / "npz", splits=splits, **described)
    options = {"batch_size": 10, "drop_last": False, "class_weights": "balanced"}
    (first, one), (second, other) = (fit(data=data, **options) for data in (whole, sharded))
    shuffled = {**options, "data": sharded, "shuffle": True, "checkpoint_steps": 3}

    class Stop(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 4:
                raise InterruptedError

    _, uninterrupted = fit(**shuffled)
    with contextlib.suppress(InterruptedError):
        fit(**shuffled, checkpoint_dir=path / "resumed", callbacks=[Stop()])
    result, resumed_network = fit(**shuffled, checkpoint_dir=path / "resumed")

    config = training.TrainingConfig(batch_size=10, drop_last=False)

    def read(worker: WorkerInfo) -> list[Any]:
        source = resolve_train(sharded, Small(), config, worker, has_loss=True)
        return [batch.tensors[0].asnumpy() for batch in source.read(1, 20)]

    shares = [read(WorkerInfo(rank, 5)) for rank in range(5)]
    joined = [np.concatenate(parts) for parts in zip(*shares, strict=True)]
    return {
        "shards": len(sharded.shards["train"]),
        "difference": compare(one, other),
        "metrics": [dict(result.metrics) for result in (first, second)],
        "resumed": [result.resumed_from.name, compare(uninterrupted, resumed_network)],
        "divided": all(map(np.array_equal, joined, read(WorkerInfo()))),
        "sizes": [len(parts) for parts in joined],
    }


@scenario
def callbacks_by_name(path: Path) -> Any:
    stopped, _ = fit(
        epochs=30,
        validation=(X, Y),
        metrics=["accuracy"],
        early_stopping={"monitor": "accuracy", "patience": 2, "min_delta": 0.5},
    )
    plateau, _ = fit(
        epochs=4,
        validation=(X, Y),
        reduce_on_plateau={"patience": 1, "factor": 0.5, "min_delta": 10},
    )
    return {
        "epochs": stopped.epochs,
        "stopped": stopped.stopped_early,
        "rates": [record["learning_rate"] for record in plateau.history],
    }


@scenario
def several_inputs_and_outputs(path: Path) -> Any:
    """Each form of data against a plain loop."""
    plain = Pair()
    optimizer = nn.Momentum(plain.trainable_params(), 0.1, 0.9)

    def compute(ids: Any, x: Any, kind: Any, size: Any) -> Any:
        outputs = plain(ids, x)
        return nn.CrossEntropyLoss()(outputs["kind"], kind) + nn.MSELoss()(outputs["size"], size)

    loop(plain, compute, (IDS, X, Y, REAL), optimizer)
    losses = {"size": nn.MSELoss(), "kind": build_loss()}
    targets = {"kind": Y.astype(np.int64), "size": REAL.astype(np.float64)}
    forms = {
        "dict": {"x": X, "ids": IDS.astype(np.int64), "target": targets},
        "pair": ({"ids": IDS, "x": X}, targets),
        "tuples": ((IDS, X), targets),
        "pipeline": pipelines.NumpySlicesDataset({"kind": Y, "x": X, "size": REAL, "ids": IDS}, shuffle=False).batch(
            16
        ),
    }
    found: dict[str, Any] = {
        name: compare(plain, fit(Pair(), data=data, loss=losses)[1]) for name, data in forms.items()
    }

    def together(outputs: Any, kind: Any, size: Any) -> Any:
        return ops.cross_entropy(outputs["kind"], kind) + ops.mse_loss(outputs["size"], size)

    result, network = fit(
        Pair(),
        data=forms["dict"],
        loss=together,
        validation=forms["pipeline"],
        metrics=["kind.accuracy", "size.mae"],
    )
    found["one function"] = compare(plain, network)
    outputs = plain(Tensor(IDS), Tensor(X))
    found["accuracy"] = [result.metrics["kind.accuracy"], float((outputs["kind"].asnumpy().argmax(1) == Y).mean())]
    found["mae"] = [result.metrics["size.mae"], float(np.abs(outputs["size"].asnumpy() - REAL).mean())]
    _, network = fit(
        Pair(), data=forms["dict"], loss=losses, augment=lambda inputs, generator: {**inputs, "x": inputs["x"] * 0}
    )
    still = fit(Pair(), data={**forms["dict"], "x": X * 0}, loss=losses)[1]
    found["augmented"] = compare(network, still)
    weighted = fit(Pair(), data={**forms["dict"], "weight": np.full(64, 1.0)}, loss=losses)[1]
    found["weights of one"] = compare(plain, weighted)
    return found


@scenario
def data_frames(path: Path) -> Any:
    import pandas

    frame = pandas.DataFrame({f"column{index}": X[:, index] for index in range(6)})
    frame["labels"] = Y
    stacked = fit(data=frame)[1]
    frame["sample_weight"] = 1.0
    weighted = fit(data=frame)[1]
    return [compare(network, train_without_options()) for network in (stacked, weighted)]


@scenario
def text(path: Path) -> Any:
    result, _ = fit(Language(), data=(IDS, np.roll(IDS, -1, 1)), loss=next_id_loss)
    record = result.history[-1]
    return {
        "ratio": record["tokens_per_second"] / record["samples_per_second"],
        "seconds": sorted(record["seconds"]),
        "steps": record["seconds"]["step"],
        "repr": repr(result),
    }


@scenario
def own_step(path: Path) -> Any:
    class Step(nn.TrainOneStepCell):
        """A step of twice the gradient."""

        def construct(self, *batch: Any) -> Any:
            loss = self.network(*batch)
            gradients = self.grad_no_sens(self.network, self.weights)(*batch)
            return ops.depend(loss, self.optimizer(self.hyper_map(ops.partial(twice), gradients)))

        def __init__(self, network: Any, optimizer: Any) -> None:
            super().__init__(network, optimizer)
            self.hyper_map = ops.HyperMap()

    def twice(gradient: Any) -> Any:
        return gradient * 2

    own = fit(train_step=Step)[1]
    return compare(own, fit(make=lambda weights: nn.Momentum(weights, 0.1, 0.9, loss_scale=0.5))[1])


@scenario
def command_line(path: Path) -> Any:
    """Trainings of `python -m kfp_mindspore.training` by task."""
    real, ids = Column("size", "float32", (), "target"), Column("next", "int32", (5,), "target")
    x, text = Column("x", "float32", (6,)), Column("ids", "int32", (5,))
    features = {"ids": IDS, "x": X}
    datasets = {
        "regression": ((x, real), {"x": X, "size": REAL}),
        "language_model": ((text, ids), {"ids": IDS, "next": np.roll(IDS, -1, 1)}),
        "classification": (
            (text, x, Column("label", "int32", (), "target")),
            {**features, "label": Y.astype(np.int32)},
        ),
    }
    networks = {"regression": "Regressor", "language_model": "Language", "classification": "PairClassifier"}
    found: dict[str, Any] = {}
    sys.modules["option_scenarios"] = sys.modules["__main__"]
    for task, (columns, arrays) in datasets.items():
        # The first id of a language model is padding, which neither loss nor metric counts.
        labels = {"classification": tuple("abc"), "language_model": ("", *"abcdefghijk")}.get(task, ())
        splits = {"train": arrays, "validation": arrays}
        directory = path / task
        write_dataset(directory, name=task, task=task, columns=columns, splits=splits, labels=labels)
        os.environ["KFP_MINDSPORE_DATASET_DIR"] = str(directory)
        options = ["--epochs=20", "--batch-size=16", "--learning-rate=0.02", "--schedule=linear", "--clip-norm=5"]
        options += ["--no-verbose", f"--output-dir={path / task}-output"]
        code = command.main([f"option_scenarios:{networks[task]}", *options])
        lines = (path / f"{task}-output" / "metrics.jsonl").read_text().splitlines()
        found[task] = [code, json.loads(lines[0])["validation"], json.loads(lines[-1])["validation"]]
    wrong: dict[str, list[str]] = {
        "type": ["--epochs", "three"],
        "loss": ["--loss", "CrossEntropyLos"],
        "optimizer": ["--optimizer", "Adan"],
        "optimizer's argument": ["--optimizer-arguments", '{"rate": 1}'],
        "factory": [],
    }
    found["wrong"] = {}
    for name, options in wrong.items():
        errors = io.StringIO()
        factory = "option_scenarios:Nothing" if name == "factory" else "option_scenarios:PairClassifier"
        with contextlib.redirect_stderr(errors):
            code = command.main([factory, *options])
        found["wrong"][name] = [code, errors.getvalue()]
    del os.environ["KFP_MINDSPORE_DATASET_DIR"]
    return found


@scenario
def precision(path: Path) -> Any:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kfp_mindspore").addHandler(handler)
    result, network = fit(precision="float16", epochs=4, checkpoint_dir=path / "checkpoints")
    again, other = fit(precision="float16", epochs=4, checkpoint_dir=path / "checkpoints")
    logging.getLogger("kfp_mindspore").removeHandler(handler)
    return {
        "warnings": records,
        "losses": [record["loss"] for record in result.history],
        "reference": fit(epochs=4)[0].metrics["loss"],
        "dtypes": sorted({str(parameter.dtype) for parameter in network.get_parameters()}),
        "again": [again.resumed_from.name, compare(network, other)],
        "left": sorted(str(entry) for entry in Path.cwd().glob("rewritten_network")),
    }


@scenario
def parallel_context(path: Path) -> Any:
    """The context of a mode that needs devices, as MindSpore has stored it."""
    config = training.TrainingConfig(
        parallel_mode="semi_auto_parallel",
        parallel_options={"pipeline_stages": 2, "strategy_ckpt_config": {"save_file": str(path / "strategy.ckpt")}},
    )
    generated = build_context(config, WorkerInfo(1, 4))
    ms.set_auto_parallel_context(**generated)
    stored = {name: ms.get_auto_parallel_context(name) for name in generated}
    ms.reset_auto_parallel_context()
    return [generated, stored]


@scenario
def sharded_checkpoint(path: Path) -> Any:
    """Files of a run whose slices MindSpore's callback saves, by rank 0 of one worker."""
    config = training.TrainingConfig(checkpoint_dir=path, checkpoint_epochs=2, keep_checkpoints=1, seed=3)
    source = resolve_train((X, Y), Small(), config.replace(batch_size=16), WorkerInfo(), has_loss=True)
    spec = NetworkSpec("networks:Small", {})
    result, _ = fit(epochs=4, callbacks=[build_saver(config, WorkerInfo(), spec, source)], batch_size=16)
    checkpoint = open_sharded(path)
    options = build_context(config.replace(parallel_mode="auto_parallel"), WorkerInfo(1, 2))["strategy_ckpt_config"]
    return {
        "files": sorted(str(file.relative_to(path)) for file in path.rglob("*.ckpt")),
        "steps": [result.steps, checkpoint.step, checkpoint.epoch],
        "described": [checkpoint.network.factory, checkpoint.seed],
        "strategy": {**options, "save_file": str(Path(options["save_file"]).relative_to(path))},
    }


@scenario
def mistakes(path: Path) -> Any:
    """The exceptions by case."""
    other = Small()
    columns, splits = (Column("x", "float32", (6,)),), {"train": {"x": X}}
    write_dataset(path / "features", name="features", task="none", columns=columns, splits=splits)
    given = {"x": X, "ids": IDS, "labels": Y}
    cases: dict[str, Callable[[], Any]] = {
        "class of a network": lambda: training.fit(Small, (X, Y), loss=nn.MSELoss(), optimizer=None),
        "class of an optimizer": lambda: fit(optimizer=nn.Adam),
        "class of a loss": lambda: fit(loss=nn.CrossEntropyLoss),
        "class of a callback": lambda: fit(callbacks=[Callback]),
        "another network's optimizer": lambda: fit(optimizer=nn.Adam(other.trainable_params())),
        "text for a loss": lambda: fit(loss="mse"),
        "config": lambda: training.fit(Small(), optimizer=nn.Adam(other.trainable_params()), config={"epochs": 3}),
        "parallel mode on CPU": lambda: fit(parallel_mode="auto_parallel"),
        "parts of a sum": lambda: fit(loss=nn.CrossEntropyLoss(reduction="sum"), accumulate=2),
        "too few samples": lambda: fit(data=(X[:8], Y[:8])),
        "text column": lambda: fit(data=(np.array(["a"] * 64), Y)),
        "large ids": lambda: fit(data=(IDS.astype(np.int64) + 2**40, Y)),
        "no target": lambda: fit(data={"x": X}),
        "dataset without a target": lambda: fit(data=path / "features", loss=None),
        "no loss": lambda: fit(data={"x": X}, loss=None),
        "several targets": lambda: fit(data={**given, "target": Y}),
        "missing input": lambda: fit(Pair(), data=(X, Y)),
        "unknown input": lambda: fit(Pair(), data={**given, "z": X}),
        "loss without a target": lambda: fit(Pair(), data=given, loss={"kinds": nn.MSELoss()}),
        "columns": lambda: fit(data=(X[:, :5], Y)),
        "floats for ids": lambda: fit(Language(), data=(IDS.astype(np.float32), IDS), loss=next_id_loss),
        "ids above the table": lambda: fit(Language(), data=(IDS + 5000, IDS), loss=next_id_loss),
        "ids for floats": lambda: fit(data=(IDS, Y)),
        "floats for labels": lambda: fit(data=(X, REAL), loss=nn.CrossEntropyLoss()),
        "shape of the outputs": lambda: fit(Regressor(), data=(X, REAL), loss=nn.MSELoss()),
        "metric": lambda: fit(validation=(X, Y), metrics=["acuracy"]),
        "metric of no output": lambda: fit(validation=(X, Y), metrics=["kind.accuracy"]),
        "metric's arrays": lambda: fit(validation=(X, Y), metrics=["mae"]),
        "monitor": lambda: fit(validation=(X, Y), metrics=["accuracy"], keep_best="acuracy"),
        "monitor without validation": lambda: fit(early_stopping={"patience": 3}),
        "callback's argument": lambda: fit(validation=(X, Y), early_stopping={"patience": "3"}),
        "pattern": lambda: fit(freeze=["backbone.*"]),
        "all frozen": lambda: fit(freeze=["*"]),
        "two schedules": lambda: fit(
            make=lambda weights: nn.Adam(weights, nn.CosineDecayLR(0.0, 0.1, 8)), schedule="cosine"
        ),
        "bfloat16": lambda: fit(precision="bfloat16"),
        "device": lambda: fit(device="Ascend"),
        "device_id": lambda: fit(device_id=1),
        "class weights": lambda: fit(class_weights=[1.0, 2.0]),
        "class weights of numbers": lambda: fit(data=(X, REAL), loss=nn.MSELoss(), class_weights="balanced"),
        "weight": lambda: fit(data=(X, Y, -WEIGHT)),
        "sum": lambda: fit(data=(X, Y, WEIGHT), loss=nn.CrossEntropyLoss(reduction="sum")),
        "train step": lambda: fit(train_step=lambda network, optimizer: None),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
        except KfpMindSporeError as error:
            found[name] = [str(error), error.exit_code]
        except Exception as error:  # noqa: BLE001
            found[name] = [f"{type(error).__name__}: {error}", None]
        else:
            found[name] = ["no error", None]
    return found


if __name__ == "__main__":
    run_scenarios(SCENARIOS)
