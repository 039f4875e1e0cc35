"""A source's model, and its tensors under the network's names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kfp_mindspore.errors import UserError, ValidationError, join_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kfp_mindspore.lm.network import DecoderConfig


@dataclass(frozen=True)
class SourceModel:
    """A published model.

    Args:
        config: The decoder's.
        weights: float32 arrays by the network's names.
        tokenizer: tokenizer.json.
        template: The chat template; empty without one.
        generation: `eos_token_id`, `bos_token_id`, `pad_token_id` and sampling defaults.
        architecture: The source's name for it.
    """

    config: DecoderConfig
    weights: Mapping[str, NDArray[np.float32]]
    tokenizer: str
    template: str
    generation: Mapping[str, Any]
    architecture: str


class TensorReader(Protocol):
    """Tensors of one source."""

    def get_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return all shapes by name; matrices are (outputs, inputs)."""

    def read(self, name: str) -> NDArray[np.float32]:
        """Read one tensor as float32."""


Part = Callable[[str], tuple[str, ...]]


def read_weights(
    config: DecoderConfig,
    reader: TensorReader,
    parts: Mapping[str, tuple[str, ...]],
    *,
    subject: str,
    ignored: Collection[str] = (),
) -> dict[str, NDArray[np.float32]]:
    """Check all tensors' names and shapes, then read them.

    Args:
        config: The decoder's.
        reader: The source's tensors.
        parts: The source's names that are stacked to one weight, by its name.
        subject: The source, for messages.
        ignored: Endings of tensors that hold no weights.

    Raises:
        ValidationError: Tensors are missing, have other shapes or are not known; the message lists them.
        UserError: The head differs from the embedding, which the configuration ties to it.
    """
    import numpy as np

    from kfp_mindspore.lm.network import list_weights

    found, known = reader.get_shapes(), set()
    errors = []
    for name, shape in list_weights(config).items():
        names = parts[name]
        for part, rows in zip(names, split_rows(config, name, shape[0]), strict=True):
            known.add(part)
            expected = (rows, *shape[1:])
            if part not in found:
                errors.append(f"{part}: missing")
            elif found[part] != expected:
                errors.append(f"{part}: shape must be {expected}, got {found[part]}")
    head = parts["head"][0]
    if config.tied and head in found:
        known.add(head)
        if not np.array_equal(reader.read(head), reader.read(parts["embedding"][0])):
            raise UserError(f"{subject}: {head}: differs from the embedding, but the configuration ties them")
    unknown = [name for name in found if name not in known and not name.endswith(tuple(ignored))]
    errors += [f"{name}: not a weight of this architecture" for name in unknown]
    if errors:
        shown = errors if len(errors) <= 12 else [*errors[:12], f"{len(errors)} in all"]
        raise ValidationError(shown, subject=f"{subject}: tensors")
    return {name: _stack([reader.read(part) for part in parts[name]]) for name in list_weights(config)}


def refuse_fields(subject: str, refused: Mapping[str, Any]) -> None:
    """Raise for the fields whose value is not None; the value is the reason.

    Raises:
        ValidationError: The message names all of them.
    """
    errors = [f"{name}: {reason}" for name, reason in refused.items() if reason]
    if errors:
        raise ValidationError(errors, subject=subject)


def refuse_architecture(subject: str, name: Any, supported: Collection[str]) -> None:
    """Raise when an architecture is not supported.

    Raises:
        UserError: The message lists the supported ones.
    """
    if name not in supported:
        raise UserError(f"{subject}: architecture must be one of {join_names(sorted(supported))}, got {name!r}")


def split_rows(config: DecoderConfig, name: str, rows: int) -> list[int]:
    """Return the rows of each part that a weight stacks.

    Args:
        config: The decoder's.
        name: The weight.
        rows: All its rows.
    """
    if ".qkv." in name:
        key = config.kv_heads * config.head_size
        return [rows - 2 * key, key, key]
    return [config.hidden] * 2 if ".up." in name and config.gated else [rows]


def _stack(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    import numpy as np

    return np.concatenate(arrays) if len(arrays) > 1 else np.ascontiguousarray(arrays[0])
