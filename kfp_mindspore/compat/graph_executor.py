"""What MindSpore compiled of a graph, called without what GraphCell does in Python for every call.

For each call GraphCell describes its arguments anew to find out whether that was compiled before, which takes as long
as a small network computes. Arrays of the same shapes are the same to it, so the second call of a shape asks the
executor directly. Where MindSpore has no such executor, every call is GraphCell's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Shapes = tuple[tuple[int, ...], ...]


class CompiledGraph:
    """A loaded MindIR. Its owner calls it in one thread, with inputs whose dtypes never change.

    Args:
        loaded: What `mindspore.load` gave.
    """

    def __init__(self, loaded: Any) -> None:
        from mindspore import Tensor, nn

        self._loaded = loaded
        self._make_cell = nn.GraphCell
        self._cell: Any = nn.GraphCell(loaded)
        # `Tensor` copies and takes 30 µs; `from_numpy` shares the memory and takes one.
        self._make_tensor: Callable[[NDArray[Any]], Any] = getattr(Tensor, "from_numpy", Tensor)
        self._execute = _find_executor()
        self._phases: dict[Shapes, Any] = {}

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute the outputs; compile first when the shapes are new.

        Args:
            arrays: One an input, in the graph's order. Outputs may share their memory.

        Raises:
            RuntimeError: The graph refused the values; MindSpore raises other types too. `renew` is what helps.
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
        """Forget what was compiled.

        A kernel that raised leaves it unusable for good: every later call raises too. It is freed before another is
        compiled, or it would take values of that one with it.
        """
        self._phases.clear()
        self._cell = None
        self._cell = self._make_cell(self._loaded)


def flatten_outputs(outputs: Any) -> list[NDArray[Any]]:
    """Return what a network gave, a tensor or nested tuples of them, as a flat list of arrays."""
    if isinstance(outputs, tuple | list):
        return [array for output in outputs for array in flatten_outputs(output)]
    array: NDArray[Any] = outputs.asnumpy()
    return [array]


def _find_executor() -> Callable[[tuple[Any, ...], Any], Any] | None:
    try:
        from mindspore.graph.api import _cell_graph_executor
    except ImportError:
        return None
    executor = getattr(_cell_graph_executor, "_graph_executor", None)
    return executor if callable(executor) else None
