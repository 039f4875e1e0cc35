"""Memory of a language model: computed at the start, and refused where the container has less."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

from kfp_mindspore.errors import UserError

_LIMIT = Path("/sys/fs/cgroup/memory.max")
# MindSpore with its compiler, Python and the server.
_PROCESS_BYTES = 700 << 20


class MemoryPlan(NamedTuple):
    """A model's memory in bytes.

    Args:
        weights: The weights.
        slots: The caches of all slots.
        prefixes: The prefix cache.
        adapters: The adapters' factors.
        graphs: The compiled graphs, with what they keep between two calls.
    """

    weights: int
    slots: int
    prefixes: int
    adapters: int = 0
    graphs: int = 0

    def __str__(self) -> str:
        parts = {"weights": self.weights, "slots": self.slots, "prefix cache": self.prefixes}
        parts |= {name: size for name in ("adapters", "graphs") if (size := getattr(self, name))}
        return ", ".join(f"{name} {count / (1 << 20):.0f} MiB" for name, count in parts.items())

    def check(self, limit: int) -> None:
        """Refuse a model that does not fit.

        Args:
            limit: The container's memory in bytes.

        Raises:
            UserError: It needs more; the message has each part.
        """
        needed = sum(self) + _PROCESS_BYTES
        if needed > limit:
            raise UserError(
                f"the model needs {needed / (1 << 20):.0f} MiB ({self}, process {_PROCESS_BYTES >> 20} MiB), and the "
                f"container has {limit / (1 << 20):.0f} MiB",
                hint="Reduce --max-model-len, --max-num-seqs, --prefix-cache-mib or --max-loras, or raise the limit.",
            )


def read_memory_limit(file: Path = _LIMIT) -> int:
    """Return the bytes that this process may use: the control group's limit, else the machine's memory."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(file.read_text()))
    except (OSError, ValueError):  # no control group, or `max`
        return total
