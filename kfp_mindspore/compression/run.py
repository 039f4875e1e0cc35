"""Compression of a checkpoint: rounds of cut and fine-tuning until the metric holds."""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore import events, files
from kfp_mindspore.compat.onednn import avoid_slow_convolutions
from kfp_mindspore.compression.options import CompressionChanges, CompressionOptions
from kfp_mindspore.compression.result import CompressionResult, ParameterChange, Round, Sizes, compare_latency
from kfp_mindspore.data.samples import Samples, read_samples
from kfp_mindspore.errors import GateNotMetError, UserError, join_names
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.formats.checkpoint import NETWORK_FILE, Checkpoint, NetworkSpec, write_checkpoint
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.packed import PACKED_FILE, SEARCHED_BITS, count_bytes, pack, widen, write_packed
from kfp_mindspore.outputs import OutputKind, check_replaceable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from kfp_mindspore.compression.cutting import Cutter
    from kfp_mindspore.compression.groups import Kept

    Arrays = dict[str, NDArray[Any]]

CHECKPOINT = "checkpoint"
REPORT = "compression.html"
DESCRIPTION = "compression.json"
OUTPUT = OutputKind(DESCRIPTION, names=(CHECKPOINT, REPORT))
# Batches that scores with gradients are computed on.
_SCORED_BATCHES = 16


def compress(
    checkpoint: Path | str,
    dataset: Path | str,
    output_dir: Path | str,
    options: CompressionOptions | None = None,
    *,
    augment: Callable[[Any, np.random.Generator], Any] | None = None,
    on_round: Callable[[Round], None] | None = None,
    strict: bool = True,
    **changes: Unpack[CompressionChanges],
) -> CompressionResult:
    """Cut channels and heads from a trained network, fine-tune it, and write a smaller checkpoint.

    The first round cuts `pruned`. If the metric then loses too much, `min_pruned` is tried, and the parts between them
    by bisection. Each round fine-tunes on the split `train`; the metric is measured on `validation`, or on `test`
    without one. The cut is checked before: the smaller network computes what the network does with the cut channels at
    zero. Layers for which that does not hold are left.

    Args:
        checkpoint: A checkpoint directory by `fit`, which records how its network is built.
        dataset: The dataset directory that it was trained on.
        output_dir: Directory to write: `checkpoint/`, `compression.html` (the report) and `compression.json`; replaced
            when it exists.
        options: The options; default all defaults.
        augment: Function (batch inputs, numpy Generator) → inputs for fine-tuning, as in TrainingConfig.
        on_round: Called with each round's result.
        strict: Whether to raise GateNotMetError; otherwise the result has `passed` False.
        changes: Fields of `CompressionOptions` that differ from `options`: compress(…, pruned=0.6).

    Returns:
        The result.

    Raises:
        UserError: The checkpoint, the dataset and the options do not fit together, or nothing can be cut.
        GateNotMetError: The metric loses more than `max_accuracy_lost` in each round; the best one is written.
        MissingExtraError: MindSpore is not installed.
    """
    options = dataclasses.replace(options or CompressionOptions(), **changes)
    check_replaceable(Path(output_dir), OUTPUT, [checkpoint, dataset])
    data = Dataset.open(dataset)
    metric = get_metric(options.metric, data.task)
    from kfp_mindspore.mindir.environment import import_mindspore
    from kfp_mindspore.mindir.parameters.files import open_checkpoint

    avoid_slow_convolutions()
    mindspore = import_mindspore()
    found = open_checkpoint(checkpoint)
    with events.span("compression"), tempfile.TemporaryDirectory(prefix="kfp-mindspore-compress-") as scratch:
        work = _Work(found, data, options, augment, Path(scratch))
        attempts: list[_Attempt] = []
        wanted: float | None = options.pruned
        while wanted is not None:
            attempts.append(work.run_round(wanted))
            if on_round is not None:
                on_round(attempts[-1].round)
            wanted = get_next_part([attempt.round for attempt in attempts], options)
        passed = [attempt for attempt in attempts if attempt.round.passed]
        sign = 1 if metric.higher_is_better else -1
        best = max(passed, key=lambda attempt: attempt.round.pruned, default=None) or max(
            attempts, key=lambda attempt: sign * attempt.round.value
        )
        result = work.describe(best, [attempt.round for attempt in attempts], Path(output_dir))
        work.write(best, result, mindspore.__version__)
    if strict and not result.passed:
        raise GateNotMetError(
            f"{result.metric} lost {result.lost:.4g} with {best.round.pruned:.1%} of the {options.target} cut, allowed "
            f"is {options.max_accuracy_lost:g}; the best of {len(attempts)} rounds is kept in {result.checkpoint}",
            hint="Lower --min-pruned, raise --epochs or --max-accuracy-lost, or try another --method.",
        )
    return result


def get_next_part(rounds: Sequence[Round], options: CompressionOptions) -> float | None:
    """Return the part to cut in the next round, or None when there is no better one.

    Args:
        rounds: The rounds so far, at least one.
        options: The options.
    """
    last = rounds[-1]
    if len(rounds) == options.rounds or (last.wanted == options.pruned and last.passed):
        return None
    if len(rounds) == 1:
        return options.min_pruned if options.min_pruned < options.pruned else None
    if not rounds[1].passed:
        return None
    low = max(entry.wanted for entry in rounds if entry.passed)
    high = min(entry.wanted for entry in rounds if not entry.passed)
    return (low + high) / 2


class _Work:
    """A checkpoint's network with its data, and what the rounds share."""

    def __init__(
        self, checkpoint: Checkpoint, dataset: Dataset, options: CompressionOptions, augment: Any, scratch: Path
    ) -> None:
        from kfp_mindspore.compression.cutting import find_groups
        from kfp_mindspore.compression.lowbit import list_searched_layers
        from kfp_mindspore.compression.measure import evaluate_network, measure_latency
        from kfp_mindspore.compression.scores import compute_scores
        from kfp_mindspore.mindir.parameters.files import get_source, load_matching, read_parameters
        from kfp_mindspore.mindir.parameters.widths import build_described
        from kfp_mindspore.training import set_seed
        from kfp_mindspore.training.computation.losses import build_task_loss

        set_seed(options.seed)
        self.checkpoint, self.dataset, self.options, self._augment, self._scratch = (
            *(checkpoint, dataset, options, augment, scratch),
        )
        network = build_described(checkpoint)
        load_matching(network, read_parameters(checkpoint.path), get_source(checkpoint))
        if options.weights in SEARCHED_BITS and not list_searched_layers(network):
            raise UserError(f"weights: {options.weights} needs three or more nn.Dense and nn.Conv2d layers")
        self._loss = build_task_loss(dataset.task, dataset.labels)
        if self._loss is None:
            raise UserError(f"{dataset.path}: task {dataset.task}: compression has no loss to fine-tune with")
        self._train = self._read("train")
        self._split = next((name for name in ("validation", "test") if dataset.splits.get(name)), "")
        if not self._split:
            raise UserError(f"{dataset.path}: has no split validation or test to measure the metric on")
        self._held_out = self._read(self._split)
        self._order = _order_inputs(network, self._train)
        self.cutter: Cutter = find_groups(
            lambda: build_described(checkpoint),
            _read_values(network),
            self._select(self._train),
            checkpoint.network.cut,
        )
        groups = self.cutter.groups
        if options.pruned and not groups.groups:
            reasons = join_names([f"{left.layer} ({left.reason})" for left in groups.left])
            raise UserError(f"{checkpoint.path}: no layer can be cut: {reasons or 'no layer with weights'}")
        self._evaluate = evaluate_network
        self._measure = measure_latency
        self.value = self._compute_metric(network)
        self.scores: dict[str, Any] = {}
        if options.pruned:
            batches = self._list_batches()
            self.scores = compute_scores(
                options.method, self.cutter, self._loss, batches, len(self._order), options.seed
            )

    def run_round(self, wanted: float) -> _Attempt:
        """Cut, fine-tune and evaluate."""
        from kfp_mindspore.compression.cutting import set_parameters

        kept, pruned = self._select_kept(wanted)
        network = self.cutter.cut(kept)
        if pruned:
            self._fine_tune(network)
        values = _read_values(network)
        searched: dict[str, Any] = {}
        if self.options.weights in SEARCHED_BITS:
            values, searched = self._search_weights(kept, values)
        form = self.options.weights
        packed = {name: pack(value, form, searched.get(name)) for name, value in values.items()}
        # Compiled for training: a fresh one is evaluated, with the weights as they are stored.
        network = self.cutter.cut(kept)
        set_parameters(network, {name: widen(parts, values[name].shape) for name, parts in packed.items()})
        value = self._compute_metric(network)
        lost = self._get_lost(value)
        return _Attempt(Round(wanted, pruned, value, lost <= self.options.max_accuracy_lost + 1e-9), kept, packed)

    def describe(self, best: _Attempt, rounds: Sequence[Round], output: Path) -> CompressionResult:
        """Return the best round's result."""
        chosen, kept = best.round, best.kept
        network = self.cutter.cut(kept)
        groups = self.cutter.groups
        whole = self.cutter.cut(groups.whole)
        latency_before, latency = self._measure([whole, network], self._select(self._train))
        return CompressionResult(
            directory=output,
            options=self.options,
            metric=get_metric(self.options.metric, self.dataset.task).name,
            split=self._split,
            value_before=self.value,
            value=chosen.value,
            lost=self._get_lost(chosen.value),
            passed=chosen.passed,
            before=self._get_sizes(groups.whole, latency_before),
            after=self._get_sizes(kept, latency, best.packed),
            layers=tuple(self._list_layers(best)),
            left=groups.left,
            rounds=tuple(rounds),
            speedups={batch: compare_latency(times, latency[batch]) for batch, times in latency_before.items()},
        )

    def write(self, best: _Attempt, result: CompressionResult, version: str) -> None:
        """Write checkpoint, report and description."""
        import mindspore

        from kfp_mindspore.compression.report import render_report

        former, spec = self.checkpoint, self.checkpoint.network
        cut = {name: found for name, found in self.cutter.describe(best.kept).items() if found}
        with files.replace_directory(result.directory, OUTPUT) as directory:
            with write_checkpoint(
                directory / CHECKPOINT,
                epoch=former.epoch,
                step=former.step,
                seed=former.seed,
                network=NetworkSpec(spec.factory, spec.arguments, cut),
                metrics={result.metric: result.value},
                training={"compression": dataclasses.asdict(self.options)},
                mindspore_version=version,
                preprocessing=former.preprocessing,
            ) as target:
                if self.options.weights == "float32":
                    saved = [
                        {"name": name, "data": mindspore.Tensor(parts["values"])} for name, parts in best.packed.items()
                    ]
                    mindspore.save_checkpoint(saved, str(target / NETWORK_FILE))
                else:
                    write_packed(target / PACKED_FILE, best.packed, self.cutter.groups.get_shapes(best.kept))
            files.write_json(directory / DESCRIPTION, result.to_dict())
            files.write_text(directory / REPORT, render_report(result))

    def _read(self, split: str) -> Samples:
        samples = read_samples(self.dataset, split, preprocessing=self.checkpoint.preprocessing or None)
        if samples.target is None:
            raise UserError(f"{self.dataset.path}: has no target to fine-tune with")
        return samples

    def _select(self, samples: Samples) -> Arrays:
        return {name: samples.inputs[name] for name in self._order}

    def _compute_metric(self, network: Any) -> float:
        held_out = self._held_out
        return self._evaluate(network, self._select(held_out), held_out, self.dataset, self.options.metric)

    def _get_lost(self, value: float) -> float:
        metric = get_metric(self.options.metric, self.dataset.task)
        return (self.value - value) * (1 if metric.higher_is_better else -1)

    def _list_batches(self) -> list[tuple[NDArray[Any], ...]]:
        samples, size = self._train, self.options.batch_size
        assert samples.target is not None
        arrays = (*self._select(samples).values(), samples.target)
        order = np.random.default_rng(self.options.seed).permutation(len(samples))[: size * _SCORED_BATCHES]
        return [
            tuple(array[rows] for array in arrays)
            for rows in (order[start : start + size] for start in range(0, len(order), size))
            if len(rows) == min(size, len(order))
        ]

    def _select_kept(self, wanted: float) -> tuple[Kept, float]:
        """Return the units that stay when at least a part of the target goes, and the part that goes."""
        from kfp_mindspore.compression.groups import select_units

        groups = self.cutter.groups
        if not wanted:
            return groups.whole, 0.0

        def compute(kept: Kept) -> float:
            if self.options.target == "latency":
                networks = [self.cutter.cut(units) for units in (groups.whole, kept)]
                before, after = self._measure(networks, self._select(self._train))
                return 1 - 1 / compare_latency(before[32], after[32]).ratio
            count = groups.count_flops if self.options.target == "flops" else groups.count_parameters
            return 1 - count(kept) / count(groups.whole)

        kept = select_units(groups, self.scores, 1.0)
        pruned = compute(kept)
        if pruned < wanted:
            reasons = join_names([f"{left.layer} ({left.reason})" for left in groups.left])
            raise UserError(
                f"pruned: {wanted:.1%} of the {self.options.target} cannot be cut, at most {pruned:.1%}; left are "
                f"{reasons or 'no layers'}",
                hint="Each layer keeps at least a tenth of its channels.",
            )
        low, high = 0.0, 1.0
        for _ in range(5 if self.options.target == "latency" else 12):
            part = (low + high) / 2
            tried = select_units(groups, self.scores, part)
            reached = compute(tried)
            if reached >= wanted:
                high, kept, pruned = part, tried, reached
            else:
                low = part
        return kept, pruned

    def _search_weights(self, kept: Kept, values: Arrays) -> tuple[Arrays, dict[str, Any]]:
        """Return the parameters after a search for low-bit weights, and the searched codes with their scales."""
        from kfp_mindspore.compression.cutting import set_parameters
        from kfp_mindspore.compression.lowbit import Cooling, search_weights

        network = self.cutter.cut(kept)
        set_parameters(network, values)
        own = {parameter.name: parameter for parameter in network.get_parameters()}
        layers, temperature = search_weights(network, SEARCHED_BITS[self.options.weights])
        self._fine_tune(network, callbacks=[Cooling(temperature, self.options.epochs)])
        trained = {name: parameter.asnumpy().copy() for name, parameter in own.items()}
        return trained, {name: layer.read() for name, layer in layers.items()}

    def _fine_tune(self, network: Any, callbacks: Sequence[Any] = ()) -> None:
        from mindspore import nn

        from kfp_mindspore.compression.distillation import build_distillation
        from kfp_mindspore.training import Schedule, TrainingConfig, fit

        options, samples = self.options, self._train
        step = None
        if options.distillation:
            is_logits = self.dataset.task in ("classification", "language_model")
            teacher = self.cutter.cut(self.cutter.groups.whole)
            step = build_distillation(teacher, options.distillation, options.temperature, is_logits=is_logits)
        inputs = self._select(samples)
        columns: list[Any] = [inputs if len(inputs) > 1 else next(iter(inputs.values())), samples.target]
        if samples.weight is not None:
            columns.append(samples.weight)
        fit(
            network,
            tuple(columns),
            loss=self._loss,
            callbacks=list(callbacks),
            optimizer=nn.AdamWeightDecay(network.trainable_params(), options.learning_rate, weight_decay=1e-4),
            config=TrainingConfig(
                epochs=options.epochs,
                batch_size=min(options.batch_size, len(samples)),
                seed=options.seed,
                schedule=Schedule(name="cosine", end=0.01, warmup_epochs=options.epochs / 10),
                train_step=step,
                augment=self._augment,
                export_check="off",
                trackers=(),
                output_dir=self._scratch / "fit",
                checkpoint_dir=tempfile.mkdtemp(dir=self._scratch),
                checkpoint_epochs=options.epochs,
                verbose=False,
            ),
        )

    def _get_sizes(
        self, kept: Kept, latency: Mapping[int, Sequence[float]], packed: Mapping[str, Any] | None = None
    ) -> Sizes:
        groups = self.cutter.groups
        stored = (
            sum(value.nbytes for value in self.cutter.values.values())
            if packed is None
            else sum(map(count_bytes, packed.values()))
        )
        least = {batch: min(seconds) for batch, seconds in latency.items()}
        return Sizes(groups.count_parameters(kept), groups.count_flops(kept), stored, least)

    def _list_layers(self, best: _Attempt) -> list[ParameterChange]:
        groups = self.cutter.groups
        after, flops = groups.get_shapes(best.kept), groups.count_layer_flops(best.kept)
        whole = groups.count_layer_flops(groups.whole)
        return [
            ParameterChange(
                *(name, tuple(shape), tuple(after[name]), whole.get(name, 0), flops.get(name, 0)),
                bytes=count_bytes(best.packed[name]),
            )
            for name, shape in groups.shapes.items()
        ]


@dataclass(frozen=True)
class _Attempt:
    """A round with the units that it kept and its parameters, packed as they are stored."""

    round: Round
    kept: Kept
    packed: Mapping[str, Mapping[str, Any]]


def _read_values(network: Any) -> Arrays:
    return {parameter.name: parameter.asnumpy().copy() for parameter in network.get_parameters()}


def _order_inputs(network: Any, samples: Samples) -> list[str]:
    """Return the samples' input names in `construct`'s parameter order."""
    names = list(inspect.signature(network.construct).parameters)
    if len(samples.inputs) > 1 and set(samples.inputs) <= set(names):
        return [name for name in names if name in samples.inputs]
    return list(samples.inputs)
