"""Batch computation, with a bounded search for the request at fault when the graph raises."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.mindir.graph.execution import KERNEL_ERRORS
from mindsporeserver.errors import GraphError, InvalidRequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.mindir.graph.execution import Graph, RowShapes

    Inputs = Mapping[str, NDArray[Any]]
    Result = dict[str, NDArray[Any]] | Exception

# The search's bounds. Some kernels take 3 s to fail, and every model in the process waits for them.
MAX_FAILURES = 8
MAX_FAILURE_SECONDS = 10.0


def compute_batch(graph: Graph, requests: Sequence[Inputs], row_shapes: RowShapes) -> list[Result]:
    """Compute the requests in a batch; called in the inference executor's thread.

    A batch that fails is split in halves, which are computed again, until `MAX_FAILURES` computations have failed or
    failed ones have taken `MAX_FAILURE_SECONDS`; the requests that are not computed by then get a GraphError.

    Args:
        graph: Loaded.
        requests: Each request's inputs; together they fit into one batch.
        row_shapes: Row shapes for all inputs.

    Returns:
        Each request's outputs by name, or the exception, in order: InvalidRequestError when its own values are at
        fault, which is known if the graph fails on them alone and still computes zeros.
    """
    results: dict[int, Result] = {}
    pending: deque[Sequence[int]] = deque([range(len(requests))])
    failures, failure_seconds = 0, 0.0
    while pending:
        part = pending.popleft()
        start = time.monotonic()
        try:
            outputs = graph.run([requests[index] for index in part], row_shapes)
        except ValidationError as error:
            results.update((index, InvalidRequestError(error.message)) for index in part)
        except KERNEL_ERRORS as error:
            failures += 1
            failure_seconds += time.monotonic() - start
            if len(part) > 1:
                middle = len(part) // 2
                pending += (part[:middle], part[middle:])
            else:
                results[part[0]] = _classify(graph, error)
            if failures >= MAX_FAILURES or failure_seconds >= MAX_FAILURE_SECONDS:
                reason = GraphError(f"{_shorten(error)} (perhaps because of another request of the same batch)")
                results.update((index, reason) for rest in pending for index in rest)
                break
        else:
            results.update(zip(part, outputs, strict=True))
    return [results[index] for index in range(len(requests))]


def _classify(graph: Graph, error: Exception) -> Exception:
    if graph.varies or graph.is_sound():
        return InvalidRequestError(f"inputs: the graph cannot compute these: {_shorten(error)}")
    return GraphError(_shorten(error))


def _shorten(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.strip("-")), type(error).__name__)[:300]
