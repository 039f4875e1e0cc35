"""The network as the scheduler uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Most tokens of a sequence unless a flag or the model says otherwise.
DEFAULT_LENGTH = 2048


class Runner(Protocol):
    """A decoder with one cache of keys and values per slot; used in the executor thread only.

    Attributes:
        vocabulary_size: Logits per position.
        max_length: Most tokens of a sequence, prompt and answer.
        slots: Sequences at once.
        row_bytes: Cache bytes per token.
        adapter_bytes: Bytes of all adapters.
        graph_bytes: Estimated bytes of the graphs that `list_compilations` compiles.
        whole_prompts: Whether a prompt is computed at once, and never from another one's beginning.
    """

    vocabulary_size: int
    max_length: int
    slots: int
    row_bytes: int
    adapter_bytes: int
    graph_bytes: int
    whole_prompts: bool

    def prefill(
        self, slot: int, ids: NDArray[np.int32], position: int, *, adapter: int = 0, all_positions: bool = False
    ) -> NDArray[np.float32]:
        """Compute a prompt's tokens from a position on.

        Args:
            slot: The sequence's slot.
            ids: Token IDs with shape (n,).
            position: Count of tokens that the slot holds.
            adapter: The adapter's number; 0 for the base model.
            all_positions: Whether all positions' logits are returned.

        Returns:
            The last position's logits, float32 with shape (V,); or all, (n, V).
        """

    def decode(
        self, slots: Sequence[int], ids: NDArray[np.int32], positions: NDArray[np.int32], adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """Compute one token for each sequence.

        Args:
            slots: Their slots.
            ids: Token IDs with shape (B,).
            positions: Count of tokens that each slot holds, with shape (B,).
            adapters: The adapters' numbers; empty for the base model.

        Returns:
            Logits, float32 with shape (B, V).
        """

    def list_compilations(self) -> Sequence[Callable[[], Any]]:
        """Return what is called, one after the other, before the network is ready."""

    def read_adapter(self, directory: Path) -> Callable[[int], None]:
        """Read an adapter, in any thread; return a function that stores it under a number from 1, in the executor's.

        Args:
            directory: In peft's format.

        Raises:
            UserError: It is no adapter for this network; the message names the field.
        """

    def read_rows(self, slot: int, start: int, stop: int) -> Any:
        """Copy the cache rows for tokens from `start` to before `stop`."""

    def write_rows(self, slot: int, start: int, rows: Any) -> None:
        """Write what `read_rows` returned, from token `start` on."""
