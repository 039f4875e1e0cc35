"""A network's measurements: its metric on a split, and its exported graph's latency."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.compat.graph_executor import CompiledGraph, flatten_outputs
from kfp_mindspore.compression.result import BLOCKS
from kfp_mindspore.data.samples import Samples
from kfp_mindspore.evaluation.predictions import Predictions
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir.environment import use_graph_mode
from kfp_mindspore.mindir.evaluate import predict_task, summarize
from kfp_mindspore.mindir.export.graph import export_graph
from kfp_mindspore.mindir.parameters.network import scratch_directory

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCHES = (1, 32)
_ROWS = 256
# Executions for one latency, and the seconds after which no further one starts.
_REPEATS, _SECONDS = 30, 2.0


def evaluate_network(
    network: Any, inputs: Mapping[str, NDArray[Any]], samples: Samples, dataset: Dataset, metric: str
) -> float:
    """Return a network's metric on samples.

    Args:
        network: The network, with its scores as the only or first output.
        inputs: The samples' inputs in the network's order.
        samples: The samples.
        dataset: Their dataset, for the task and the labels.
        metric: Metric name; empty for the task's.

    Raises:
        UserError: The metric is not defined for the task, or the outputs do not fit the dataset.
    """
    import mindspore

    network.set_train(False)
    parts = []
    size = min(_ROWS, len(samples))
    with use_graph_mode():
        for start in range(0, len(samples), size):
            # A smaller last batch would compile the network again.
            rows = np.minimum(np.arange(start, start + size), len(samples) - 1)
            outputs = network(*(mindspore.Tensor(array[rows]) for array in inputs.values()))
            outputs = next(iter(outputs.values())) if isinstance(outputs, Mapping) else outputs
            part = slice(start, min(start + size, len(samples)))
            scores = flatten_outputs(outputs)[0][: part.stop - start]
            parts.append(predict_task(dataset, samples, scores, part, subject=type(network).__name__))
    return summarize(dataset, Predictions.concatenate(parts), metric).value


def measure_latency(networks: Sequence[Any], inputs: Mapping[str, NDArray[Any]]) -> list[dict[int, list[float]]]:
    """Return each exported graph's seconds by batch size; the graphs are executed in turns.

    Args:
        networks: The networks, with the same inputs.
        inputs: Samples in the networks' order.
    """
    import mindspore

    found: list[dict[int, list[float]]] = [{} for _ in networks]
    with scratch_directory() as scratch, use_graph_mode():
        graphs = []
        for network in networks:
            file = export_graph(network.set_train(False), scratch, inputs, None, {})
            graphs.append(CompiledGraph(mindspore.load(str(file))))
        for batch in BATCHES:
            arrays = [np.resize(array, (batch, *array.shape[1:])) for array in inputs.values()]
            seconds: list[list[float]] = [[] for _ in graphs]
            for graph in graphs:
                graph.run(arrays)
            while len(seconds[0]) < BLOCKS or (len(seconds[0]) < _REPEATS and sum(map(sum, seconds)) < _SECONDS):
                for graph, times in zip(graphs, seconds, strict=True):
                    begun = time.perf_counter()
                    graph.run(arrays)
                    times.append(time.perf_counter() - begun)
            for latency, times in zip(found, seconds, strict=True):
                latency[batch] = times
    return found
