"""A BERT encoder that turns token IDs into one embedding per sequence.

Weights are graph inputs, as in the decoder; `list_encoder_weights` names them in the graph's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn, ops

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.network.decoder import MASKED

_CHOICES = (("activation", ("gelu", "relu")), ("pooling", ("mean", "cls")))


@dataclass(frozen=True)
class EncoderConfig:
    """An encoder's dimensions, and how it computes an embedding.

    Args:
        vocabulary_size: Token IDs.
        width: Hidden size, which is the embedding's.
        layers: Blocks.
        heads: Attention heads; divides `width`.
        hidden: The feed-forward network's inner size.
        positions: Learned positions.
        types: Token types.
        max_length: Most tokens in a text, special tokens included; at most `positions`.
        epsilon: Added to the variance by norms.
        activation: `gelu` (exact, by erf) or `relu`.
        pooling: `mean` for the tokens' mean state, or `cls` for the first token's.
        normalised: Whether an embedding has length 1.
        lower_case: Whether texts are lower-cased before the tokenizer.

    Raises:
        ValidationError: A size is not positive or sizes do not fit; the message names them.
    """

    vocabulary_size: int
    width: int
    layers: int
    heads: int
    hidden: int
    positions: int
    types: int
    max_length: int
    epsilon: float = 1e-12
    activation: str = "gelu"
    pooling: str = "mean"
    normalised: bool = False
    lower_case: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocabulary_size", "width", "layers", "heads", "hidden", "positions", "types", "max_length")
        errors = [f"{name}: must be >= 1, got {value}" for name in sizes if (value := getattr(self, name)) < 1]
        if not errors and self.width % self.heads:
            errors.append(f"heads: must divide width {self.width}, got {self.heads}")
        if self.max_length > self.positions:
            errors.append(f"max_length: must be at most {self.positions} positions, got {self.max_length}")
        errors += [
            f"{name}: must be one of {', '.join(allowed)}, got {value!r}"
            for name, allowed in _CHOICES
            if (value := getattr(self, name)) not in allowed
        ]
        if errors:
            raise ValidationError(errors, subject="the encoder's configuration")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def list_encoder_weights(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return each weight's shape by name, in the graph's order; matrices are (outputs, inputs).

    `qkv` stacks queries, keys and values.

    Args:
        config: The encoder's.
    """
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary_size, width)}
    shapes |= {"positions": (config.positions, width), "types": (config.types, width)}
    shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    dense = {"qkv": (3 * width, width), "out": (width, width), "norm1": (width,)}
    dense |= {"up": (config.hidden, width), "down": (width, config.hidden), "norm2": (width,)}
    for index in range(config.layers):
        for name, shape in dense.items():
            shapes |= {f"layers.{index}.{name}.weight": shape, f"layers.{index}.{name}.bias": shape[:1]}
    return shapes


def _apply_norm(hidden: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    hidden = hidden - ops.mean(hidden, -1, True)
    return hidden * ops.rsqrt(ops.mean(hidden * hidden, -1, True) + epsilon) * weight + bias


class _Block(nn.Cell):  # type: ignore[misc]
    """Any layer, with the norm after each residual sum; the attributes are positions among a layer's weights."""

    def __init__(self, config: EncoderConfig, names: Sequence[str]) -> None:
        super().__init__()
        self.config = config
        indices = {name: index for index, name in enumerate(names)}
        self.qkv, self.out, self.norm1 = indices["qkv.weight"], indices["out.weight"], indices["norm1.weight"]
        self.up, self.down, self.norm2 = indices["up.weight"], indices["down.weight"], indices["norm2.weight"]
        self.head_size = config.width // config.heads
        self.scale = self.head_size**-0.5
        self.dense = ops.MatMul(transpose_b=True)
        self.score = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def project(self, hidden: Any, weights: Any, index: int) -> Any:
        return self.dense(hidden, weights[index]) + weights[index + 1]

    def normalise(self, hidden: Any, weights: Any, index: int) -> Any:
        return _apply_norm(hidden, weights[index], weights[index + 1], self.config.epsilon)

    def activate(self, value: Any) -> Any:
        if self.config.activation == "relu":
            return ops.relu(value)
        return value * 0.5 * (1.0 + ops.erf(value * 0.7071067811865476))

    def construct(self, hidden: Any, mask: Any, weights: Any) -> Any:
        """Return the layer's output (B * S, width).

        Args:
            hidden: (B * S, width).
            mask: Added to the scores, (B, 1, 1, S).
            weights: The layer's, in `list_encoder_weights`' order.
        """
        config = self.config
        batch, length = mask.shape[0], mask.shape[3]
        fused = self.project(hidden, weights, self.qkv)
        fused = fused.reshape(batch, length, 3 * config.heads, self.head_size).transpose(0, 2, 1, 3)
        query, key = fused[:, : config.heads], fused[:, config.heads : 2 * config.heads]
        shares = self.softmax(self.score(query * self.scale, key) + mask)
        mixed = self.mix(shares, fused[:, 2 * config.heads :]).transpose(0, 2, 1, 3)
        mixed = self.project(mixed.reshape(batch * length, config.width), weights, self.out)
        hidden = self.normalise(hidden + mixed, weights, self.norm1)
        inner = self.project(self.activate(self.project(hidden, weights, self.up)), weights, self.down)
        return self.normalise(hidden + inner, weights, self.norm2)


class Encoder(nn.Cell):  # type: ignore[misc]
    """An encoder without its own weights.

    Args:
        config: Dimensions and variants.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        names = list(list_encoder_weights(config))
        layer = [name.removeprefix("layers.0.") for name in names if name.startswith("layers.0.")]
        # One cell for all layers: MindSpore infers it once.
        self.block = _Block(config, layer)
        self.first_layer, self.layer_size = names.index(f"layers.0.{layer[0]}"), len(layer)

    def construct(self, ids: Any, types: Any, mask: Any, *weights: Any) -> Any:
        """Return embeddings, float32 (B, width).

        Args:
            ids: int32 (B, S), padded on the right.
            types: Token types, int32 (B, S).
            mask: 1 for tokens and 0 for padding, float32 (B, S).
            weights: In `list_encoder_weights`' order.
        """
        config = self.config
        batch, length = ids.shape
        hidden = ops.gather(weights[0], ids.reshape(-1), 0) + ops.gather(weights[2], types.reshape(-1), 0)
        hidden = hidden.reshape(batch, length, config.width) + weights[1][:length]
        hidden = _apply_norm(hidden.reshape(batch * length, config.width), weights[3], weights[4], config.epsilon)
        scores = ((1.0 - mask) * MASKED).reshape(batch, 1, 1, length)
        for index in range(config.layers):
            start = self.first_layer + index * self.layer_size
            hidden = self.block(hidden, scores, weights[start : start + self.layer_size])
        hidden = hidden.reshape(batch, length, config.width)
        if config.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            # A row of padding only has no tokens to divide by.
            count = ops.maximum(mask.sum(-1, keepdims=True), 1.0)
            pooled = (hidden * mask.reshape(batch, length, 1)).sum(1) / count
        if config.normalised:
            pooled = pooled / ops.maximum(ops.sqrt((pooled * pooled).sum(-1, keepdims=True)), 1e-12)
        return pooled
