"""Searched low-bit weights (SLB).

Yang et al., Searching for Low-Bit Weights in Quantized Neural Networks, NeurIPS 2020 (arXiv:2009.08695). Each weight is
a distribution over a codebook's few values, trained with the other parameters while its temperature falls, so that the
weights become single values. As in the paper the first and the last layer are not searched; they are stored as int8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Callback

from kfp_mindspore.formats.packed import build_levels
from kfp_mindspore.mindir.parameters.widths import replace_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST, _LAST = 1.0, 0.01
# How much larger a logit is for the nearest value than for the next one, at first.
_SHARPNESS = 2.0


class SearchedLayer(nn.Cell):  # type: ignore[misc]
    """A dense layer or convolution whose weight mixes a codebook's values.

    Args:
        layer: An nn.Dense or nn.Conv2d.
        bits: Bits per weight.
        temperature: Divides the logits; a parameter that is not trained.
    """

    def __init__(self, layer: Any, bits: int, temperature: Any) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        layer.weight.requires_grad = False
        weight = layer.weight.asnumpy()
        levels = build_levels(bits)
        scale = compute_scale(weight, levels)
        gaps = np.abs((weight.reshape(len(weight), -1) / scale[:, None])[..., None] - levels)
        logits = -_SHARPNESS * gaps / (levels[1] - levels[0])
        self.logits = Parameter(Tensor(logits.astype(np.float32)), name=f"{layer.weight.name}.logits")
        # One scale a channel, trained too.
        self.scale = Parameter(Tensor(scale[:, None]), name=f"{layer.weight.name}.scale")
        self.levels = Tensor(levels)
        self.temperature = temperature
        self.shape = weight.shape
        self.is_dense = isinstance(layer, nn.Dense)

    def construct(self, values):  # type: ignore[no-untyped-def]  # noqa: D102
        part = ops.softmax(self.logits / self.temperature, -1)
        weight = ops.reshape((part * self.levels).sum(-1) * self.scale, self.shape)
        if self.is_dense:
            outputs = ops.matmul(values, weight.T)
            outputs = outputs + self.layer.bias if self.layer.has_bias else outputs
            return outputs if self.layer.activation is None else self.layer.activation(outputs)
        outputs = self.layer.conv2d(values, weight)
        return self.layer.bias_add(outputs, self.layer.bias) if self.layer.has_bias else outputs

    def read(self) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return the codes with the weight's shape, and a scale a channel."""
        codes = self.logits.asnumpy().argmax(-1).reshape(self.shape).astype(np.uint8)
        return codes, self.scale.asnumpy()[:, 0]


class Cooling(Callback):  # type: ignore[misc]
    """Lowers the temperature by a constant factor each epoch."""

    def __init__(self, temperature: Any, epochs: int) -> None:
        super().__init__()
        self._temperature, self._epochs = temperature, epochs

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Set the epoch's temperature."""
        done = (run_context.original_args().cur_epoch_num - 1) / max(self._epochs - 1, 1)
        value = _FIRST * (_LAST / _FIRST) ** min(done, 1.0)
        self._temperature.set_data(Tensor([value], mindspore.float32))


def compute_scale(weight: NDArray[Any], levels: NDArray[Any]) -> NDArray[np.float32]:
    """Return the scale for each index of the first axis that rounds the weights with the least squared error."""
    rows = np.asarray(weight, np.float32).reshape(len(weight), -1)
    largest = np.maximum(np.abs(rows).max(1), 1e-8)
    best, least = largest, np.full(len(rows), np.inf)
    for factor in np.linspace(0.1, 1, 19):
        scale = largest * factor
        nearest = levels[np.abs((rows / scale[:, None])[..., None] - levels).argmin(-1)]
        errors = ((nearest * scale[:, None] - rows) ** 2).sum(1)
        best, least = np.where(errors < least, scale, best), np.minimum(errors, least)
    return np.asarray(best, np.float32)


def list_searched_layers(network: Any) -> list[str]:
    """Return the paths of a network's dense layers and convolutions but the first and the last."""
    found = [path for path, cell in network.cells_and_names() if type(cell) in (nn.Dense, nn.Conv2d)]
    return found[1:-1]


def search_weights(network: Any, bits: int) -> tuple[dict[str, SearchedLayer], Any]:
    """Replace the layers of `list_searched_layers` by searched ones.

    Returns:
        The layers by their weight's name, and the temperature.
    """
    cells = dict(network.cells_and_names())
    temperature = Parameter(Tensor([_FIRST], mindspore.float32), name="temperature", requires_grad=False)
    layers = {}
    for path in list_searched_layers(network):
        name = cells[path].weight.name
        layers[name] = SearchedLayer(cells[path], bits, temperature)
        replace_layer(network, path, layers[name])
    return layers, temperature
