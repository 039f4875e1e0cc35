"""A source's model, and its tensors under the network's names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kfp_mindspore.errors import UserError, ValidationError, join_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kfp_mindspore.lm.network.decoder import DecoderConfig


@dataclass(frozen=True)
class SourceModel:
    """A published model.

    Args:
        config: The decoder's.
        weights: float32 arrays by the network's names.
        tokenizer: tokenizer.json.
        template: The chat template; empty without one.
        generation: `eos_token_id`, `bos_token_id`, `pad_token_id`, sampling defaults, and `special_tokens`, which chat
            templates read, by name.
        architecture: The source's name for it.
    """

    config: DecoderConfig
    weights: Mapping[str, NDArray[np.float32]]
    tokenizer: str
    template: str
    generation: Mapping[str, Any]
    architecture: str


class TensorReader(Protocol):
    """One source's tensors."""

    def get_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return all shapes by name; matrices are (outputs, inputs)."""

    def read(self, name: str) -> NDArray[np.float32]:
        """Read one tensor as float32."""


def read_weights(
    config: DecoderConfig,
    reader: TensorReader,
    parts: Mapping[str, tuple[str, ...]],
    *,
    subject: str,
    ignored: Collection[str] = (),
) -> dict[str, NDArray[np.float32]]:
    """Check a decoder's tensors, then read them, as `read_tensors` does.

    Args:
        config: The decoder's.
        reader: The source's tensors.
        parts: The source's names that are stacked to one weight, by the weight's name.
        subject: The source, for messages.
        ignored: Name endings for tensors that hold no weights.

    Raises:
        ValidationError: Tensors are missing, have other shapes or are not known; the message lists them.
        UserError: The head differs from the embedding, which the configuration ties to it.
    """
    import numpy as np

    from kfp_mindspore.lm.network.decoder import list_weights

    head, found = parts["head"][0], reader.get_shapes()
    if config.tied and head in found and parts["embedding"][0] in found:
        if not np.array_equal(reader.read(head), reader.read(parts["embedding"][0])):
            raise UserError(f"{subject}: {head}: differs from the embedding, but the configuration ties them")
        ignored = (*ignored, head)

    def split(name: str, rows: int) -> list[int]:
        return split_rows(config, name, rows)

    return read_tensors(list_weights(config), parts, reader, subject=subject, ignored=ignored, split=split)


def read_tensors(
    shapes: Mapping[str, tuple[int, ...]],
    parts: Mapping[str, tuple[str, ...]],
    reader: TensorReader,
    *,
    subject: str,
    ignored: Collection[str] = (),
    split: Callable[[str, int], Sequence[int]] | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Check all tensors' names and shapes, then read them.

    Args:
        shapes: The network's weights.
        parts: The source's names that are stacked to one weight, by the weight's name.
        reader: The source's tensors.
        subject: The source, for messages.
        ignored: Name endings for tensors that hold no weights.
        split: Returns each part's rows from a weight's name and rows; default equal parts.

    Raises:
        ValidationError: Tensors are missing, have other shapes or are not known; the message lists them.
    """
    found, known = reader.get_shapes(), set()
    errors = []
    for name, shape in shapes.items():
        names = parts[name]
        sizes = [shape[0] // len(names)] * len(names)
        if split is not None and len(names) > 1:
            sizes = list(split(name, shape[0]))
        for part, rows in zip(names, sizes, strict=True):
            known.add(part)
            expected = (rows, *shape[1:])
            if part not in found:
                errors.append(f"{part}: missing")
            elif found[part] != expected:
                errors.append(f"{part}: shape must be {expected}, got {found[part]}")
    unknown = [name for name in found if name not in known and not name.endswith(tuple(ignored))]
    errors += [f"{name}: not a weight of this architecture" for name in unknown]
    if errors:
        shown = errors if len(errors) <= 12 else [*errors[:12], f"{len(errors)} in all"]
        raise ValidationError(shown, subject=f"{subject}: tensors")
    return {name: _stack([reader.read(part) for part in parts[name]]) for name in shapes}


def refuse_fields(subject: str, refused: Mapping[str, Any]) -> None:
    """Raise for the fields whose value is not None; the value is the reason.

    Raises:
        ValidationError: The message names all.
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
        rows: The weight's rows.
    """
    if ".qkv." in name:
        key = config.kv_heads * config.head_size
        return [rows - 2 * key, key, key]
    return [config.hidden] * 2 if ".up." in name and config.gated else [rows]


def _stack(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    import numpy as np

    return np.concatenate(arrays) if len(arrays) > 1 else np.ascontiguousarray(arrays[0])
