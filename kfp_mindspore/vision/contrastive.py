"""The networks of contrastive training: two towers, low-rank updates, and the loss over all workers' pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore import dtype as mstype

from kfp_mindspore.lm.network.lora import MODULES, LoraConfig
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.workers.sampler import get_part
from kfp_mindspore.transform.values import Normalize
from kfp_mindspore.vision.options import ALL, LORA
from kfp_mindspore.vision.text_towers import EncoderTextNetwork

# As published for CLIP (Radford et al., 2021, arXiv:2103.00020).
MAX_SCALE = 100.0
_LOG_MAX = float(np.log(MAX_SCALE))


class PixelTower(nn.Cell):  # type: ignore[misc]
    """An image tower for 8-bit pixels.

    Args:
        tower: For normalised images.
        norm: Normalises values from 0 to 1.
    """

    def __init__(self, tower: nn.Cell, norm: Normalize) -> None:
        super().__init__()
        self.tower = tower
        self.mean, self.std = (Tensor(value.reshape(-1, 1, 1)) for value in (norm.mean, norm.std))

    def construct(self, image: Any) -> Any:
        """Return embeddings for uint8 (N, 3, H, W)."""
        return self.tower((image.astype(mstype.float32) / 255.0 - self.mean) / self.std)


class DualNetwork(nn.Cell):  # type: ignore[misc]
    """Two towers with the loss over the pairs of a batch, for `fit` without a loss function.

    In training, the embeddings of all workers' shares of a batch are gathered, so that each picture is compared with
    each text. Gradients flow into a worker's own rows only, and `fit` adds them over the workers. Pairs with equal
    texts are right ones, too. Without a bias the loss is InfoNCE (CLIP, arXiv:2103.00020), with one the sigmoid loss
    (SigLIP, arXiv:2303.15343).

    Args:
        images: The image tower; None for embeddings as input.
        texts: The text tower; None for embeddings as input.
        scale: The similarities' factor at first; InfoNCE has at most 100.
        bias: Added to scaled similarities at first; None for InfoNCE.
        batch_size: Pairs in a step over all workers.
        worker: Rank and world size.
    """

    def __init__(
        self,
        images: nn.Cell | None,
        texts: nn.Cell | None,
        *,
        scale: float,
        bias: float | None,
        batch_size: int,
        worker: WorkerInfo,
    ) -> None:
        super().__init__()
        self.is_sigmoid = bias is not None
        self.images = nn.Identity() if images is None else images
        self.texts = nn.Identity() if texts is None else texts
        self.log_scale = Parameter(Tensor(np.log(np.full(1, scale, np.float32))), name="log_scale")
        self.bias = Parameter(Tensor(np.full(1, bias or 0.0, np.float32)), name="bias", requires_grad=bias is not None)
        part = get_part(batch_size, worker.rank, worker.size)
        # `fit` refuses more workers than pairs.
        self.factor = batch_size / max(part.stop - part.start, 1)
        self.is_parallel = worker.size > 1
        if self.is_parallel:
            self.place = ops.Pad(((part.start, batch_size - part.stop), (0, 0)))
            self.reduce_sum = ops.AllReduce()

    def gather(self, rows: Any) -> Any:
        """Return all workers' rows (B, …); the gradient is this worker's, multiplied by its share's inverse."""
        placed = self.place(rows)
        return ops.stop_gradient(self.reduce_sum(placed)) + (placed - ops.stop_gradient(placed)) * self.factor

    def construct(self, image: Any, text: Any, group: Any) -> Any:
        """Return the loss.

        Args:
            image: The image tower's input, or embeddings (N, width).
            text: The text tower's input, or embeddings (N, width).
            group: The text's number, float32 (N,); equal for equal texts.
        """
        image, text = self.images(image), self.texts(text)
        width = image.shape[1]
        rows = ops.concat((image, text, group.reshape(-1, 1)), 1)
        if self.is_parallel and self.training:
            rows = self.gather(rows)
        group = rows[:, 2 * width]
        same = (ops.expand_dims(group, 1) == ops.expand_dims(group, 0)).astype(mstype.float32)
        scores = ops.matmul(rows[:, :width], rows[:, width : 2 * width].T)
        if self.is_sigmoid:
            margins = (scores * ops.exp(self.log_scale) + self.bias) * (2.0 * same - 1.0)
            return (ops.relu(-margins) + ops.log1p(ops.exp(-ops.abs(margins)))).sum() / rows.shape[0]
        scores = scores * ops.exp(ops.minimum(self.log_scale, _LOG_MAX))
        share = same / same.sum(1, keepdims=True)
        by_image, by_text = ops.log_softmax(scores, 1), ops.log_softmax(scores.T, 1)
        return -((by_image + by_text) * share).sum() / (2.0 * rows.shape[0])


class LowRankUpdate(nn.Cell):  # type: ignore[misc]
    """A projection's update (outputs, inputs) by low-rank factors, 0 at first.

    Args:
        weight: Its name, `qkv` or `out`, which stacks queries, keys and values.
        width: Inputs, and the outputs of each stacked part.
        lora: Rank, scale and projections.
        random: For the factors' initial values.
    """

    def __init__(self, weight: str, width: int, lora: LoraConfig, random: np.random.Generator) -> None:
        super().__init__()
        factors: list[Parameter] = []
        self.places: tuple[int, ...] = ()
        self.scale, bound = lora.lora_alpha / lora.lora_rank, width**-0.5
        for module in (module for module, (owner, _) in MODULES.items() if owner == weight):
            is_adapted = module in lora.lora_attn_modules
            self.places = (*self.places, len(factors) if is_adapted else -1)
            if is_adapted:
                down = random.uniform(-bound, bound, (lora.lora_rank, width)).astype(np.float32)
                up = np.zeros((width, lora.lora_rank), np.float32)
                factors += [Parameter(Tensor(down), name=f"{module}.lora_A")]
                factors += [Parameter(Tensor(up), name=f"{module}.lora_B")]
        self.factors = ParameterTuple(factors)
        self.zeros = Tensor(np.zeros((width, width), np.float32))

    def construct(self) -> Any:
        """Return the update."""
        parts: Any = ()
        for place in self.places:
            if place >= 0:
                parts = (*parts, ops.matmul(self.factors[place + 1], self.factors[place]) * self.scale)
            else:
                parts = (*parts, self.zeros)
        return ops.concat(parts, 0)


class _AdaptedDense(nn.Cell):  # type: ignore[misc]
    """A dense layer whose weight has an update."""

    def __init__(self, dense: nn.Dense, update: LowRankUpdate) -> None:
        super().__init__()
        self.dense, self.update = dense, update
        self.has_bias = dense.has_bias

    def construct(self, tokens: Any) -> Any:
        product = ops.matmul(tokens, (self.dense.weight + self.update()).T)
        return product + self.dense.bias if self.has_bias else product


def prepare_tower(tower: nn.Cell, mode: str, lora: LoraConfig, seed: int) -> nn.Cell | None:
    """Freeze or adapt a tower in place.

    Args:
        tower: The network.
        mode: `all` trains all weights, `lora` low-rank updates of the blocks' attention, `frozen` none.
        lora: The updates' configuration.
        seed: Seed for their initial values.

    Returns:
        The tower; None for a frozen one, which is computed once.
    """
    if mode != ALL:
        for parameter in tower.get_parameters():
            parameter.requires_grad = False
    if mode != LORA:
        return tower if mode == ALL else None
    random = np.random.default_rng(seed)
    owners = [name for name in ("qkv", "out") if any(MODULES[key][0] == name for key in lora.lora_attn_modules)]
    if isinstance(tower, EncoderTextNetwork):
        updates: list[nn.Cell] = []
        places = [-1] * len(tower.names)
        for index, name in enumerate(tower.names):
            layer, _, weight = name.rpartition(".")[0].rpartition(".")
            if layer and weight in owners and name.endswith(".weight"):
                places[index] = len(updates)
                updates.append(LowRankUpdate(weight, tower.base[index].shape[1], lora, random))
        tower.updates, tower.places = nn.CellList(updates), tuple(places)
        return tower
    for block in tower.blocks:
        for name in owners:
            dense = getattr(block, name)
            setattr(block, name, _AdaptedDense(dense, LowRankUpdate(name, dense.weight.shape[1], lora, random)))
    return tower


def copy_weights(tower: nn.Cell, target: nn.Cell) -> None:
    """Set a new network's weights to a trained tower's, with low-rank updates merged.

    Args:
        tower: After `prepare_tower` and training.
        target: Of the same configuration; its parameters keep their own names.
    """
    if isinstance(tower, EncoderTextNetwork):
        for weight, old, place in zip(target.base, tower.base, tower.places, strict=True):
            weight.set_data(old + tower.updates[place]() if place >= 0 else Tensor(old.asnumpy()))
        return
    values = {name: parameter.asnumpy() for name, parameter in tower.parameters_and_names()}
    for name, cell in tower.cells_and_names():
        if isinstance(cell, _AdaptedDense):
            values |= {f"{name}.{key}": values.get(f"{name}.dense.{key}") for key in ("weight", "bias")}
            values[f"{name}.weight"] = values[f"{name}.weight"] + cell.update().asnumpy()
    for name, parameter in target.parameters_and_names():
        parameter.set_data(Tensor(values[name]))
