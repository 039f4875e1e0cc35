"""Calls to a compiled MindIR graph without GraphCell's overhead.

For MindSpore 2.7 to 2.9: GraphCell computes the arguments' compilation key in Python in every call, which takes as long
as a small network's execution. The key depends on dtypes and shapes only, so further calls with a shape go to the graph
executor directly. Without that executor, in another version, every call goes through GraphCell.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Shapes = tuple[tuple[int, ...], ...]

# MindSpore 2.9's module, and that of the versions before.
_MODULES = ("mindspore.graph.api", "mindspore.common.api")


class CompiledGraph:
    """A loaded MindIR, for one thread and inputs with constant dtypes.

    Args:
        loaded: `mindspore.load`'s result.
    """

    def __init__(self, loaded: Any) -> None:
        from mindspore import Tensor, nn

        self._loaded = loaded
        self._make_cell = nn.GraphCell
        self._cell: Any = nn.GraphCell(loaded)
        # `Tensor` copies in 30 µs; `from_numpy` shares the memory in 1 µs.
        self._make_tensor: Callable[[NDArray[Any]], Any] = getattr(Tensor, "from_numpy", Tensor)
        self._execute = _get_executor()
        self._phases: dict[Shapes, Any] = {}

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute the outputs; compile first when the shapes are new.

        Args:
            arrays: One per input, in the graph's order. Outputs may share their memory.

        Raises:
            RuntimeError: The graph failed on the values; MindSpore raises other types too. Call `renew` then.
        """
        tensors = tuple([self._make_tensor(np.ascontiguousarray(array)) for array in arrays])
        shapes = tuple([array.shape for array in arrays])
        phase = self._phases.get(shapes)
        if phase is not None and self._execute is not None:
            return flatten_outputs(self._execute(tensors, phase))
        outputs = flatten_outputs(self._cell(*tensors))
        phase = getattr(self._cell, "current_phase", None)
        if phase is not None:
            self._phases[shapes] = phase
        return outputs

    def renew(self) -> None:
        """Discard the compiled graphs.

        After a kernel error every later call raises too. The old cell is freed before the next compilation: freeing it
        later corrupts the new one's values.
        """
        self._phases.clear()
        self._cell = None
        self._cell = self._make_cell(self._loaded)


def flatten_outputs(outputs: Any) -> list[NDArray[Any]]:
    """Return a network's outputs, a tensor or nested tuples of tensors, as a flat list of arrays."""
    if isinstance(outputs, tuple | list):
        return [array for output in outputs for array in flatten_outputs(output)]
    array: NDArray[Any] = outputs.asnumpy()
    return [array]


def _get_executor() -> Callable[[tuple[Any, ...], Any], Any] | None:
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        executor = getattr(getattr(module, "_cell_graph_executor", None), "_graph_executor", None)
        if callable(executor):
            return cast(Callable[[tuple[Any, ...], Any], Any], executor)
    return None
