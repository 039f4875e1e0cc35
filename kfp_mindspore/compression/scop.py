"""SCOP scores: channels that prefer real features over knock-off ones.

Tang et al., SCOP: Scientific Control for Reliable Neural Network Pruning, NeurIPS 2020 (arXiv:2010.10732). Knock-off
inputs have the samples' mean and covariance and no relation to their targets. Each unit's features are mixed from real
and knock-off ones by a factor, which is trained on the loss with fixed weights: a unit that needs no real features is
cut. The paper generates knock-offs by a network; here they are the second-order (Gaussian) ones of Candès et al., 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, jit, nn, ops, value_and_grad

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.parameters.widths import replace_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.compression.cutting import Cutter

_EPOCHS, _LEARNING_RATE = 4, 0.1
# Values of an input up to which its covariance is computed; larger ones have independent knock-offs.
_MOST_VALUES = 1024
_SHRINKAGE = 0.5


class MixedLayer(nn.Cell):  # type: ignore[misc]
    """A layer on a batch of real and knock-off samples: its real half becomes a mix of both.

    Args:
        layer: The layer.
        factors: One number a unit; its sigmoid is the real features' part.
        units: The unit of each output channel, -1 for one that is not mixed.
        axis: The output's channel axis.
    """

    def __init__(self, layer: Any, factors: Any, units: NDArray[np.int64], axis: int) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        self.factors = factors
        self.index = Tensor(np.maximum(units, 0).astype(np.int32))
        self.inside = Tensor((units >= 0).astype(np.float32))
        self.axis = axis

    def construct(self, values):  # type: ignore[no-untyped-def]  # noqa: D102
        values = self.layer(values)
        half = values.shape[0] // 2
        real, knockoff = values[:half], values[half:]
        part = ops.sigmoid(self.factors)[self.index] * self.inside + 1 - self.inside
        if self.axis == 1:
            part = part.reshape(1, -1, 1, 1)
        return ops.cat((part * real + (1 - part) * knockoff, knockoff), 0)


def score_scop(
    cutter: Cutter, loss: Any, batches: Sequence[tuple[NDArray[Any], ...]], inputs: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Return the trained fraction of real features for each unit, 0 to 1.

    Args:
        cutter: The network with its groups.
        loss: Loss function with arguments (outputs, *targets).
        batches: Training batches: the network's inputs and the targets.
        inputs: How many arrays in a batch are inputs.
        seed: Seed for the knock-offs.

    Raises:
        UserError: An input has no real numbers.
    """
    if any(array.dtype.kind != "f" for array in batches[0][:inputs]):
        raise UserError("method: 'scop' needs inputs of real numbers for its knock-off samples", hint="Use taylor.")
    generator = np.random.default_rng(seed)
    knockoffs = [
        build_knockoffs(np.concatenate([batch[index] for batch in batches]), generator) for index in range(inputs)
    ]
    network = cutter.cut(cutter.groups.whole)
    factors = mix_layers(network, cutter)
    optimizer = nn.Adam(list(factors.values()), learning_rate=_LEARNING_RATE)

    def forward(*arrays: Any) -> Any:
        outputs = network(*arrays[:inputs])
        return loss(outputs[: outputs.shape[0] // 2], *arrays[inputs:])

    # Without a graph a convolution's gradient on CPU takes seven times as long.
    compute = jit(value_and_grad(forward, None, optimizer.parameters))
    for _ in range(_EPOCHS):
        start = 0
        for batch in batches:
            size = len(batch[0])
            doubled = [
                np.concatenate([array, knockoff[start : start + size]])
                for array, knockoff in zip(batch[:inputs], knockoffs, strict=True)
            ]
            _, gradients = compute(*map(Tensor, (*doubled, *batch[inputs:])))
            optimizer(gradients)
            start += size
    return {name: 1 / (1 + np.exp(-factor.asnumpy().astype(np.float64))) for name, factor in factors.items()}


def mix_layers(network: Any, cutter: Cutter) -> dict[str, Any]:
    """Replace the layers that compute units by mixed ones; return the factors by group."""
    cells = dict(network.cells_and_names())
    factors = {}
    for name, group in cutter.groups.groups.items():
        factors[name] = Parameter(Tensor(np.zeros(len(group), np.float32)), name=f"scop.{name}")
        for parameter, axis in group.produced:
            path, _, attribute = parameter.rpartition(".")
            shape = cutter.groups.shapes[parameter]
            if attribute != "weight" or axis or len(shape) not in (2, 4):
                continue
            mixed = MixedLayer(cells[path], factors[name], group.slots[parameter, axis], 1 if len(shape) == 4 else -1)
            replace_layer(network, path, mixed)
    return factors


def build_knockoffs(samples: NDArray[Any], generator: np.random.Generator) -> NDArray[np.float32]:
    """Return second-order knock-off samples, with the samples' shape.

    Args:
        samples: Shape (N, …), real numbers.
        generator: Random generator.
    """
    flat = samples.reshape(len(samples), -1).astype(np.float64)
    mean, deviation = flat.mean(0), flat.std(0)
    standard = (flat - mean) / np.where(deviation > 0, deviation, 1)
    noise = generator.normal(size=flat.shape)
    if flat.shape[1] <= _MOST_VALUES:
        correlation = (1 - _SHRINKAGE) * standard.T @ standard / len(flat) + _SHRINKAGE * np.eye(flat.shape[1])
        least = min(1.0, 2 * float(np.linalg.eigvalsh(correlation)[0]))
        inverse = np.linalg.inv(correlation) * least
        covariance = least * (2 * np.eye(len(inverse)) - inverse)
        root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(inverse)))
        noise = standard - standard @ inverse + noise @ root.T
    knockoffs: NDArray[np.float32] = (mean + noise * deviation).reshape(samples.shape).astype(np.float32)
    return knockoffs
