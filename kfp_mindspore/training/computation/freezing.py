"""Frozen parameters by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from kfp_mindspore.errors import UserError, join_names
from kfp_mindspore.training.config import TrainingConfig


class Freezer:
    """Freezes the parameters that an epoch does not train.

    Args:
        config: `freeze` and `unfreeze` patterns.
        optimizer: The optimizer.

    Raises:
        UserError: A pattern matches no parameter, or an epoch has nothing left to train.
    """

    def __init__(self, config: TrainingConfig, optimizer: Any) -> None:
        self._config = config
        self._optimizer = optimizer
        self._names = [parameter.name for parameter in optimizer.parameters]
        self._described: frozenset[str] = frozenset()
        for epoch in sorted({1, *config.unfreeze}):
            list_frozen(config, self._names, epoch)

    def freeze(self, epoch: int) -> frozenset[str]:
        """Exempt an epoch's frozen parameters from weight decay, and return their names.

        Their names are printed where they differ from the last epoch's.
        """
        frozen = list_frozen(self._config, self._names, epoch)
        if self._config.verbose and frozen != self._described:
            print(self._describe(frozen, epoch), flush=True)
        self._described = frozen
        if self._config.freeze:
            _disable_weight_decay(self._optimizer, frozen)
        return frozen

    def _describe(self, frozen: frozenset[str], epoch: int) -> str:
        sizes = {parameter.name: parameter.size for parameter in self._optimizer.parameters}
        share = f"{sum(sizes[name] for name in frozen):,} of {sum(sizes.values()):,} values"
        trained = [name for name in sizes if name not in frozen]
        fixed = _summarize([name for name in sizes if name in frozen], trained)
        return f"from epoch {epoch} frozen ({share}): {fixed or 'none'}; trained: {_summarize(trained, frozen)}"


def list_frozen(config: TrainingConfig, names: Sequence[str], epoch: int) -> frozenset[str]:
    """Return the parameter names that are not trained in an epoch.

    Args:
        config: `freeze` and `unfreeze` patterns.
        names: The optimizer's parameter names.
        epoch: The epoch, from 1.

    Raises:
        UserError: A pattern matches no parameter, or nothing is left to train.
    """
    frozen = _match(config.freeze, names, "freeze")
    for start, patterns in config.unfreeze.items():
        released = _match(patterns, sorted(frozen), f"unfreeze.{start}")
        if epoch >= start:
            frozen = frozen - released
    if frozen and len(frozen) == len(set(names)):
        raise UserError(f"freeze: leaves no parameter to train in epoch {epoch}")
    return frozen


def _disable_weight_decay(optimizer: Any, frozen: Iterable[str]) -> None:
    """Exempt frozen parameters from weight decay, which changes parameters without a gradient too.

    The other parameters' flags are restored to their values when the optimizer was built.
    """
    flags = getattr(optimizer, "decay_flags", None)
    if flags is None:
        return
    original = getattr(optimizer, "original_decay_flags", None)
    if original is None:
        original = optimizer.original_decay_flags = tuple(flags)
    names = set(frozen)
    optimizer.decay_flags = tuple(
        flag and weight.name not in names for flag, weight in zip(original, optimizer.parameters, strict=True)
    )


def _summarize(names: Iterable[str], others: Iterable[str]) -> str:
    """Return the names, with `layer.*` for a whole layer."""
    shared = {name.partition(".")[0] for name in others}
    parts = ((name, *name.partition(".")[:2]) for name in names)
    return join_names(
        dict.fromkeys(f"{layer}.*" if dot and layer not in shared else name for name, layer, dot in parts)
    )


def _match(patterns: Iterable[str], names: Sequence[str], field: str) -> frozenset[str]:
    found: set[str] = set()
    for pattern in patterns:
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise UserError(f"{field}: {pattern!r} matches no parameter; found {join_names(names) or 'none'}")
        found |= matches
    return frozenset(found)
