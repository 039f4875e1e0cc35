"""A run's state, and the copy in a checkpoint: parameters, counters, callbacks and random numbers."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.formats.checkpoint import NETWORK_FILE, OPTIMIZER_FILE, Checkpoint, NetworkSpec, name_checkpoint
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir.parameters.widths import get_spec
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.tracking.trackers import Trackers
from kfp_mindspore.training.callbacks import copy_callbacks, restore_callbacks
from kfp_mindspore.training.checkpoints.checkpointing import Snapshot
from kfp_mindspore.training.computation.dropout import COUNTER_PREFIX
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.history import History, read_history
from kfp_mindspore.training.samples.data import Source

_RANDOM_FILE = "random.json"
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_logger = logging.getLogger(__name__)


class TrainingState:
    """A run's state between two steps, which a checkpoint contains.

    Args:
        config: The options.
        network: The network.
        description: How to build it.
        optimizer: The optimizer.
        further: Other parameters that are trained or updated.
        source: The samples.
        callbacks: The run's callbacks.
        workers: Worker count.
        trackers: Their states are part of a checkpoint.

    Attributes:
        epoch: Epochs completed.
        step: Optimizer steps done.
        position: Samples in the current epoch done by all workers.
        loss_sum: Their summed losses.
        stopped: Whether a callback requested a stop.
        metrics: Newest metrics by name.
        history: The epochs' records.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        network: Any,
        description: NetworkSpec,
        optimizer: Any,
        further: Sequence[Any],
        source: Source,
        callbacks: Sequence[Any],
        workers: int,
        trackers: Trackers,
    ) -> None:
        self.epoch = 0
        self.step = 0
        self.position = 0
        self.loss_sum = 0.0
        self.stopped = False
        self.metrics: dict[str, float] = {}
        self.history = History(None)
        self._config = config
        self._network = network
        self._description = description
        self._optimizer = optimizer
        self._further = further
        self._source = source
        self._callbacks = callbacks
        self._workers = workers
        self._trackers = trackers
        self._initial_rates = [float(rate.asnumpy().ravel()[0]) for rate in _list_rates(optimizer)]

    @property
    def name(self) -> str:
        """Checkpoint name for this state."""
        return name_checkpoint(self.epoch, self.step)

    @property
    def loss(self) -> float:
        """Mean loss over the epoch's samples so far."""
        return self.loss_sum / max(self.position, 1)

    def update_metrics(self, values: Mapping[str, Any], eval_loss: float) -> dict[str, Any]:
        """Add an evaluation's numbers to `metrics`, and return all values as JSON types."""
        plain = {"eval_loss": eval_loss, **{name: np.asarray(value).tolist() for name, value in values.items()}}
        self.metrics.update({name: float(value) for name, value in plain.items() if isinstance(value, (int, float))})
        return plain

    def open_history(self, path: Path | None, found: Checkpoint | None) -> None:
        """Begin epoch records with a checkpoint's records, in the file `path` unless it is None."""
        self.history = History(path, [] if found is None else read_history(found.path / METRICS_FILE))

    def load(self, found: Checkpoint, location: Path | str | None) -> None:
        """Load parameters, counters and metrics.

        Args:
            found: The checkpoint.
            location: Its path or URI, for messages.

        Raises:
            UserError: The checkpoint belongs to another network or optimizer.
            CorruptBundleError: A file is no MindSpore checkpoint.
        """
        config, source, training = self._config, self._source, found.training
        _load_parameters(found, self._network, self._optimizer, self._further)
        self._scale_rates(training.get("initial_rates", ()))
        self.epoch, self.step = found.epoch, found.step
        self.metrics = dict(found.metrics)
        self.stopped = bool(training.get("stopped")) and training.get("epochs") == config.epochs
        if found.seed != config.seed:
            _logger.warning("%s was trained with seed %d, this run has seed %d", location, found.seed, config.seed)
        # Without `samples` a checkpoint from an earlier version, whose unit is the step.
        if "samples" in training:
            unit, is_same = 1, training["samples"] == source.samples
        else:
            unit = source.batch_size
            is_same = (training.get("steps_per_epoch"), training.get("batch_size")) == (source.steps, unit)
        if is_same:
            self.position = int(training.get("position", 0)) * unit
            self.loss_sum = float(training.get("loss_sum", 0.0)) * unit
        elif training.get("position"):
            _logger.warning(
                "%s has other samples than this run: epoch %d starts at its first one", location, self.epoch + 1
            )

    def _scale_rates(self, former: Sequence[float]) -> None:
        """Apply a change of the optimizer's learning rate since the checkpoint, which has the former one."""
        for rate, old, new in zip(_list_rates(self._optimizer), former, self._initial_rates, strict=False):
            if old and old != new:
                rate.set_data(Tensor((rate.asnumpy() * (new / old)).astype(np.float32)))

    def load_after_begin(self, found: Checkpoint) -> None:
        """Load what `on_train_begin` resets: callback state and random numbers."""
        restore_callbacks(self._callbacks, found.training.get("callbacks", ()), found.path)
        if _RANDOM_FILE in found.files:
            _restore_random_state((found.path / _RANDOM_FILE).read_text(encoding="utf-8"))

    def take_snapshot(self, *, is_final: bool = False) -> Snapshot:
        """Copy the state; a final checkpoint has no callback state and no random numbers."""
        source = self._source
        callbacks, weights = copy_callbacks(() if is_final else self._callbacks)
        description = {
            "epoch": self.epoch,
            "step": self.step,
            "seed": self._config.seed,
            "network": self._description,
            "metrics": dict(self.metrics),
            "training": {
                "epochs": self._config.epochs,
                "steps_per_epoch": source.steps,
                "batch_size": source.batch_size,
                "samples": source.samples,
                "workers": self._workers,
                "position": self.position,
                "loss_sum": self.loss_sum,
                "stopped": self.stopped,
                "initial_rates": self._initial_rates,
                "callbacks": callbacks,
                "trackers": self._trackers.read_states(),
            },
            "preprocessing": source.raw.preprocessing if isinstance(source.raw, Dataset) else {},
        }
        texts = {METRICS_FILE: self.history.to_text()}
        if not is_final:
            texts[_RANDOM_FILE] = _read_random_state()
        parameters = _copy_parameters(self._network, self._optimizer, self._further)
        return Snapshot(description, {**parameters, **weights}, texts)


def describe_network(network: Any, factory: str | None, arguments: Mapping[str, Any] | None) -> NetworkSpec:
    """Return how to build the network.

    The default is a checkpoint's description if the network is built from it (`mindir.load_network`), else its
    class, if that can be imported by name.

    Raises:
        UserError: The factory is not `module:name`, or the arguments are not JSON.
    """
    loaded = get_spec(network)
    if loaded is not None and (factory in (None, loaded.factory)):
        return NetworkSpec(loaded.factory, dict(arguments or loaded.arguments), loaded.cut)
    if factory is None:
        kind = type(network)
        module = kind.__module__
        if module == "__main__":
            specification = getattr(sys.modules["__main__"], "__spec__", None)
            module = specification.name if specification is not None else ""
        factory = f"{module}:{kind.__qualname__}" if module and "<locals>" not in kind.__qualname__ else ""
    elif not _FACTORY.fullmatch(factory):
        raise UserError(f"network_factory: must be 'module:name', got {factory!r}")
    try:
        plain = json.loads(json.dumps(dict(arguments or {})))
    except (TypeError, ValueError) as error:
        raise UserError(f"network_arguments: must be JSON types ({error})") from None
    return NetworkSpec(factory, plain)


def _list_rates(optimizer: Any) -> list[Any]:
    """Return the optimizer's learning rates that are parameters: one, one for each group, or none with a schedule."""
    rates = getattr(optimizer, "learning_rate", None)
    listed = rates if isinstance(rates, (list, tuple)) else (rates,)
    return [rate for rate in listed if isinstance(rate, mindspore.Parameter) and rate.size == 1]


def _copy_parameters(network: Any, optimizer: Any, further: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return copies as `mindspore.save_checkpoint` arguments, by file name."""
    own, state = _split_parameters(network, optimizer)
    return {NETWORK_FILE: _copy(own), OPTIMIZER_FILE: _copy([*state, *further])}


def _read_random_state() -> str:
    """Return the generator state of Python, NumPy and MindSpore as JSON."""
    generator: Any = np.random.get_state()
    name, key, *rest = generator
    return json.dumps(
        {
            "python": random.getstate(),
            "numpy": [name, key.tolist(), *rest],
            "mindspore": mindspore.get_rng_state().asnumpy().tolist(),
        }
    )


def _restore_random_state(text: str) -> None:
    """Restore `_read_random_state`."""
    state = json.loads(text)
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.asarray(key, np.uint32), *rest))
    mindspore.set_rng_state(Tensor(np.asarray(state["mindspore"], np.uint8)))


def _load_parameters(checkpoint: Checkpoint, network: Any, optimizer: Any, further: Sequence[Any]) -> None:
    own, state = _split_parameters(network, optimizer)
    _load(own, checkpoint.network_file)
    _load([*state, *further], checkpoint.optimizer_file)


def _split_parameters(network: Any, optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Return the network's parameters and the optimizer's own."""
    own = list(network.get_parameters())
    known = {id(parameter) for parameter in own}
    return own, [parameter for parameter in optimizer.get_parameters() if id(parameter) not in known]


def _copy(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": parameter.name, "data": Tensor(parameter.asnumpy().copy())} for parameter in parameters]


def _load(parameters: list[Any], path: Path) -> None:
    try:
        loaded = mindspore.load_checkpoint(str(path))
    except (ValueError, TypeError, RuntimeError) as error:
        raise CorruptBundleError(f"{path}: MindSpore cannot read it ({str(error).splitlines()[0]})") from error
    hint = "Resume needs the same network and optimizer; use another checkpoint directory for a new run."
    # Checkpoints from earlier versions have no Dropout counters.
    parameters = [item for item in parameters if item.name in loaded or not item.name.startswith(COUNTER_PREFIX)]
    for parameter in parameters:
        if parameter.name not in loaded:
            raise UserError(f"{path}: has no parameter {parameter.name!r}", hint=hint)
        if tuple(loaded[parameter.name].shape) != tuple(parameter.shape):
            raise UserError(
                f"{path}: {parameter.name!r} has shape {tuple(loaded[parameter.name].shape)}, "
                f"the network's has {tuple(parameter.shape)}",
                hint=hint,
            )
    for parameter in parameters:
        parameter.set_data(loaded[parameter.name])
