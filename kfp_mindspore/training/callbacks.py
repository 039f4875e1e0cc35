"""MindSpore callbacks with Model.fit's semantics, and their state in a checkpoint."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, load_checkpoint
from mindspore.train import Callback, EarlyStopping, History, LambdaCallback, ReduceLROnPlateau, TimeMonitor
from mindspore.train import callback as _builtin

from kfp_mindspore.errors import UserError, suggest
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.names import is_lower_better
from kfp_mindspore.training.samples.data import Source

_logger = logging.getLogger(__name__)

# State that MindSpore callbacks keep between epochs.
_STATE = {
    EarlyStopping: ("best", "stopped_epoch", "wait"),
    ReduceLROnPlateau: ("best", "cooldown_counter", "wait"),
    History: ("epoch", "history"),
}
_GENERAL_HOOKS = ("begin", "end", "epoch_begin", "epoch_end", "step_begin", "step_end")


class CallbackParams(dict[str, Any]):
    """Callback arguments: a dict with the entries as attributes."""

    @classmethod
    def of_training(
        cls,
        config: TrainingConfig,
        network: Any,
        loss: Any,
        optimizer: Any,
        source: Source,
        callbacks: Sequence[Any],
        workers: int,
    ) -> CallbackParams:
        """Return Model.fit's parameters before the first step."""
        return cls(
            batch_num=source.steps,
            cur_step_num=0,
            dataset_sink_mode=False,
            device_number=workers,
            epoch_num=config.epochs,
            initial_step=0,
            last_save_ckpt_step=None,
            latest_ckpt_file=None,
            list_callback=callbacks,
            loss_fn=loss,
            loss_scale_mananger=None,
            mode="train",
            network=network,
            optimizer=optimizer,
            parallel_mode=config.parallel_mode if workers > 1 else "stand_alone",
            train_dataset=source.raw,
            train_dataset_element=None,
            train_network=None,
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class CallbackList(contextlib.ExitStack):
    """A run's callbacks in order, and a context manager for them all.

    Args:
        callbacks: One callback or several.

    Raises:
        UserError: An item is not a mindspore.train.Callback.
    """

    def __init__(self, callbacks: Any) -> None:
        super().__init__()
        self.callbacks: list[Any] = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        for index, callback in enumerate(self.callbacks):
            if not isinstance(callback, Callback):
                kind = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
                raise UserError(f"callbacks[{index}]: must be a mindspore.train.Callback object, got {kind}")

    def __enter__(self) -> CallbackList:
        super().__enter__()
        for callback in self.callbacks:
            self.enter_context(callback)
        return self

    def call(self, hook: str, context: Any) -> None:
        """Call one hook on all callbacks, such as `on_train_step_end`."""
        for callback in self.callbacks:
            getattr(callback, hook)(context)

    def select_for_evaluation(self) -> CallbackList:
        """Return the callbacks that Model.fit runs during evaluation too.

        Excluded are MindSpore's own, except TimeMonitor and LambdaCallback, and callbacks with hooks without `train`
        or `eval` in their names. Model.fit rejects the latter; here they run in training only.
        """
        return CallbackList([callback for callback in self.callbacks if _is_for_evaluation(callback)])


def _is_for_evaluation(callback: Any) -> bool:
    if isinstance(callback, (TimeMonitor, LambdaCallback)):
        return True
    kind = type(callback)
    if kind.__name__ in _builtin.__all__:
        return False
    return not any(getattr(kind, hook) is not getattr(Callback, hook) for hook in _GENERAL_HOOKS)


class BestWeights(Callback):  # type: ignore[misc]
    """Weights from the epoch with the best metric value, loaded into the network when training ends.

    Args:
        monitor: A validation metric's name, or eval_loss.
        network: The network.
        averages: Returns the averaged weights by name, which are validated instead of the network's.
    """

    def __init__(self, monitor: str, network: Any, averages: Callable[[], Mapping[str, Any]]) -> None:
        self.best: float | None = None
        self.epoch = 0
        self.best_weights_param_dict: dict[str, Any] = {}
        self._monitor = monitor
        self._network = network
        self._averages = averages

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Keep the weights if the metric has improved."""
        params = run_context.original_args()
        value = (params.get("eval_results") or {}).get(self._monitor)
        if value is None:
            return
        value = float(np.asarray(value))
        lower = is_lower_better(self._monitor)
        if self.best is None or (value < self.best if lower else value > self.best):
            self.best, self.epoch = value, params.cur_epoch_num
            weights = {weight.name: weight for weight in self._network.get_parameters()} | dict(self._averages())
            self.best_weights_param_dict = {
                name: Parameter(Tensor(weight.asnumpy().copy()), name=name) for name, weight in weights.items()
            }

    def on_train_end(self, run_context: Any) -> None:
        """Load the weights."""
        for parameter in self._network.get_parameters():
            if parameter.name in self.best_weights_param_dict:
                parameter.set_data(self.best_weights_param_dict[parameter.name])

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and epoch."""
        return {"best": self.best, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.best, self.epoch = state["best"], state["epoch"]


def build_callbacks(config: TrainingConfig, known: Sequence[str]) -> list[Any]:
    """Return MindSpore's callbacks that a configuration names.

    Args:
        config: `early_stopping`, `reduce_on_plateau` and `keep_best`.
        known: Names that can be monitored: loss, and with validation data eval_loss and the metrics.

    Raises:
        UserError: A monitored metric is not computed, or an argument is wrong.
    """
    built = []
    for field, kind in (("early_stopping", EarlyStopping), ("reduce_on_plateau", ReduceLROnPlateau)):
        given = getattr(config, field)
        if given is None:
            continue
        arguments = {"monitor": "eval_loss", **given}
        _check_monitor(f"{field}.monitor", arguments["monitor"], known)
        arguments.setdefault("mode", "min" if is_lower_better(arguments["monitor"]) else "max")
        try:
            built.append(kind(**arguments))
        except (TypeError, ValueError) as error:
            raise UserError(f"{field}: {str(error).strip().splitlines()[0]}") from error
    if config.keep_best is not None:
        _check_monitor("keep_best", config.keep_best, [name for name in known if name != "loss"])
    return built


def _check_monitor(field: str, monitor: Any, known: Sequence[str]) -> None:
    if monitor not in known:
        hint = "" if "eval_loss" in known else "Metrics need validation data: give validation=…"
        raise UserError(f"{field}: no metric {monitor!r}{suggest(str(monitor), known)}", hint=hint)


def copy_callbacks(callbacks: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return the callbacks' state.

    A user callback's state is saved if it has `state_dict()` and `load_state_dict(state)`; the state is JSON.

    Args:
        callbacks: The run's callbacks.

    Returns:
        One JSON object per callback, in their order; and the best weights from EarlyStopping and keep_best as
        `mindspore.save_checkpoint` arguments by file name. Both callbacks replace these weights and do not change them.
    """
    described = []
    weights: dict[str, list[dict[str, Any]]] = {}
    for index, callback in enumerate(callbacks):
        entry: dict[str, Any] = {"class": type(callback).__name__}
        names = _get_state_attributes(callback)
        if hasattr(callback, "state_dict"):
            entry["state"] = copy.deepcopy(callback.state_dict())
        elif names:
            entry["state"] = {name: _to_plain(getattr(callback, name)) for name in names}
        if isinstance(callback, (EarlyStopping, BestWeights)) and callback.best_weights_param_dict:
            entry["weights"] = f"callback-{index}.ckpt"
            best = callback.best_weights_param_dict.items()
            weights[entry["weights"]] = [{"name": name, "data": parameter} for name, parameter in best]
        described.append(entry)
    return described, weights


def restore_callbacks(callbacks: Sequence[Any], described: Sequence[dict[str, Any]], directory: Path) -> None:
    """Restore the state from `copy_callbacks`; call it after `on_train_begin`, which resets callbacks."""
    kinds = [type(callback).__name__ for callback in callbacks]
    recorded = [entry["class"] for entry in described]
    if kinds != recorded:
        _logger.warning(
            "the callbacks are %s, those of the checkpoint %s: their state is not restored",
            ", ".join(kinds) or "none",
            ", ".join(recorded) or "none",
        )
        return
    for callback, entry in zip(callbacks, described, strict=True):
        state = entry.get("state", {})
        if hasattr(callback, "load_state_dict"):
            callback.load_state_dict(state)
        else:
            for name in _get_state_attributes(callback):
                setattr(callback, name, _from_plain(state[name]))
        if "weights" in entry:
            callback.best_weights_param_dict = load_checkpoint(str(directory / entry["weights"]))


def _get_state_attributes(callback: Any) -> tuple[str, ...]:
    for kind, names in _STATE.items():
        if isinstance(callback, kind):
            return names
    return ()


def _to_plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, dict):
        return {str(name): _to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {name: _from_plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return value
