"""Encoder-decoders: T5 and T5 v1.1.

Weights are graph inputs, as in the decoder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.network.decoder import MASKED

# GELU's tanh form equals x * sigmoid(2z); ops.tanh is wrong by up to 1e-4 on CPU (MindSpore 2.9).
_TWO_Z, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
_ENCODER = ("norm1", "qkv", "out", "norm2", "up", "down")
_DECODER = ("norm1", "qkv", "out", "norm2", "query", "key_value", "cross_out", "norm3", "up", "down")


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder-decoder's dimensions and variants.

    Args:
        vocabulary_size: Token IDs.
        width: Hidden size.
        layers: Encoder layers.
        decoder_layers: Decoder layers.
        heads: Attention heads.
        head_size: Features per head.
        hidden: The feed-forward networks' inner size.
        max_length: Most tokens in a source, and in an answer.
        buckets: Buckets for relative positions, even.
        max_distance: Distance from which on positions share a bucket.
        epsilon: Added to the mean square by norms.
        activation: `relu` or `gelu_tanh`.
        gated: Whether the feed-forward networks are gated.
        tied: Whether the head is the embedding.
        scaled: Whether the decoder's output is multiplied by `width**-0.5`.
        pad_id: Token that pads sources.

    Raises:
        ValidationError: A size is out of range; the message names it.
    """

    vocabulary_size: int
    width: int
    layers: int
    decoder_layers: int
    heads: int
    head_size: int
    hidden: int
    max_length: int = 512
    buckets: int = 32
    max_distance: int = 128
    epsilon: float = 1e-6
    activation: str = "relu"
    gated: bool = False
    tied: bool = True
    scaled: bool = True
    pad_id: int = 0

    def __post_init__(self) -> None:
        sizes = ("vocabulary_size", "width", "layers", "decoder_layers", "heads", "head_size", "hidden", "max_length")
        errors = [f"{name}: must be >= 1, got {value}" for name in sizes if (value := getattr(self, name)) < 1]
        if self.buckets < 4 or self.buckets % 4:
            errors.append(f"buckets: must be a multiple of 4, got {self.buckets}")
        if self.max_distance <= self.buckets // 2:
            errors.append(f"max_distance: must be > {self.buckets // 2}, half the buckets, got {self.max_distance}")
        if self.activation not in ("relu", "gelu_tanh"):
            errors.append(f"activation: must be one of relu, gelu_tanh, got {self.activation!r}")
        if not 0 <= self.pad_id < max(self.vocabulary_size, 1):
            errors.append(f"pad_id: must be a token of {self.vocabulary_size}, got {self.pad_id}")
        if errors:
            raise ValidationError(errors, subject="the encoder-decoder's configuration")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def list_seq2seq_weights(config: Seq2SeqConfig) -> dict[str, tuple[int, ...]]:
    """Return each weight's shape by name, in the graphs' order; matrices are (outputs, inputs).

    `qkv`, `key_value` and a gated network's `up` stack their parts.

    Args:
        config: The encoder-decoder's.
    """
    width, inner = config.width, config.heads * config.head_size
    matrices = {
        "qkv": (3 * inner, width),
        "query": (inner, width),
        "key_value": (2 * inner, width),
        **dict.fromkeys(("out", "cross_out"), (width, inner)),
        "up": (config.hidden * (2 if config.gated else 1), width),
        "down": (width, config.hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary_size, width)}
    for stack, names, count in (("encoder", _ENCODER, config.layers), ("decoder", _DECODER, config.decoder_layers)):
        shapes[f"{stack}.bias"] = (config.buckets, config.heads)
        for index in range(count):
            shapes |= {f"{stack}.layers.{index}.{name}": matrices.get(name, (width,)) for name in names}
        shapes[f"{stack}.norm"] = (width,)
    if not config.tied:
        shapes["head"] = (config.vocabulary_size, width)
    return shapes


def initialise_weights(config: Seq2SeqConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return T5's initial weights for a training from scratch, float32 by `list_seq2seq_weights`' names.

    Args:
        config: The encoder-decoder's.
        seed: Seed for the normal distributions.
    """
    random, inner = np.random.default_rng(seed), config.heads * config.head_size
    weights: dict[str, NDArray[np.float32]] = {}
    for name, shape in list_seq2seq_weights(config).items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, np.float32)
            continue
        deviation = shape[-1] ** -0.5
        if name in ("embedding", "head"):
            deviation = 1.0 if config.scaled or name == "embedding" else config.width**-0.5
        elif name.endswith(".bias"):
            deviation = config.width**-0.5
        values = random.normal(0, deviation, shape)
        # Scores are not scaled: queries are.
        if name.endswith((".qkv", ".query")):
            values[:inner] *= config.head_size**-0.5
        weights[name] = values.astype(np.float32)
    return weights


def compute_buckets(config: Seq2SeqConfig, distances: NDArray[Any], *, bidirectional: bool) -> NDArray[np.int32]:
    """Return relative positions' buckets, int32 in `distances`' shape.

    Args:
        config: The encoder-decoder's.
        distances: The key's position minus the query's, integers.
        bidirectional: Whether later positions have their own buckets, as in the encoder.
    """
    count = config.buckets // 2 if bidirectional else config.buckets
    start = np.where(distances > 0, count, 0) if bidirectional else np.zeros_like(distances)
    sizes = np.abs(distances) if bidirectional else np.maximum(-distances, 0)
    exact = count // 2
    # In float32, as the published models were trained.
    ratios = np.log(np.maximum(sizes, exact).astype(np.float32) / np.float32(exact))
    far = exact + (ratios / np.float32(math.log(config.max_distance / exact)) * np.float32(count - exact)).astype(int)
    found: NDArray[np.int32] = (start + np.where(sizes < exact, sizes, np.minimum(far, count - 1))).astype(np.int32)
    return found


def compute_square_buckets(config: Seq2SeqConfig, length: int, *, bidirectional: bool) -> NDArray[np.int32]:
    """Return the buckets for all pairs among `length` positions, int32 (length, length); see `compute_buckets`."""
    steps = np.arange(length)
    return compute_buckets(config, steps[None, :] - steps[:, None], bidirectional=bidirectional)


class _Layer(nn.Cell):  # type: ignore[misc]
    """Any encoder or decoder layer."""

    def __init__(self, config: Seq2SeqConfig, *, decoder: bool, cached: bool) -> None:
        super().__init__()
        self.config, self.decoder, self.cached = config, decoder, cached
        self.inner = config.heads * config.head_size
        self.feed_forward = 7 if decoder else 3
        self.dense = ops.MatMul(transpose_b=True)
        self.score = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def split(self, value: Any, batch: int, parts: int) -> Any:
        """Return (B * S, parts * inner) as (parts * B, heads, S, head_size), one part after the other."""
        config = self.config
        value = value.reshape(batch, -1, parts, config.heads, config.head_size).transpose(2, 0, 3, 1, 4)
        return value.reshape(parts * batch, config.heads, -1, config.head_size)

    def attend(self, query: Any, key: Any, value: Any, bias: Any) -> Any:
        """Return (B * S, inner)."""
        mixed = self.mix(self.softmax(self.score(query, key) + bias), value)
        return mixed.transpose(0, 2, 1, 3).reshape(-1, self.inner)

    def construct(self, hidden: Any, bias: Any, cross_bias: Any, cache: Any, cross: Any, weights: Any) -> Any:
        """Return the layer's output (B * S, width) and the new keys and values, each (B, heads, S, head_size).

        Args:
            hidden: (B * S, width).
            bias: Added to the self-attention's scores, (B or 1, heads, S, cached + S).
            cross_bias: Added to the cross-attention's, (B, 1, 1, source).
            cache: Keys and values, each (B, heads, L, head_size), or an empty tuple.
            cross: The source's keys and values, each (B, heads, source, head_size), or an empty tuple.
            weights: The layer's, in `list_seq2seq_weights`' order.
        """
        config, batch = self.config, cross_bias.shape[0]
        fused = self.split(self.dense(normalise(config, hidden, weights[0]), weights[1]), batch, 3)
        query, key, value = fused[:batch], fused[batch : 2 * batch], fused[2 * batch :]
        if self.cached:
            mixed = self.attend(query, ops.concat((cache[0], key), 2), ops.concat((cache[1], value), 2), bias)
        else:
            mixed = self.attend(query, key, value, bias)
        hidden = hidden + self.dense(mixed, weights[2])
        if self.decoder:
            query = self.split(self.dense(normalise(config, hidden, weights[3]), weights[4]), batch, 1)
            mixed = self.attend(query, cross[0], cross[1], cross_bias)
            hidden = hidden + self.dense(mixed, weights[6])
        start = self.feed_forward
        inner = self.dense(normalise(config, hidden, weights[start]), weights[start + 1])
        if config.gated:
            inner = activate(config, inner[:, : config.hidden]) * inner[:, config.hidden :]
        else:
            inner = activate(config, inner)
        return hidden + self.dense(inner, weights[start + 2]), (key, value)


def normalise(config: Seq2SeqConfig, hidden: Any, weight: Any) -> Any:
    """Divide the last axis by its root mean square, and multiply by the weight."""
    return hidden * ops.rsqrt(ops.mean(hidden * hidden, -1, True) + config.epsilon) * weight


def activate(config: Seq2SeqConfig, value: Any) -> Any:
    """Return the configuration's activation."""
    if config.activation == "relu":
        return ops.relu(value)
    return value * ops.sigmoid(_TWO_Z * (value + _CUBIC * value * value * value))


def _gather_bias(table: Any, buckets: Any) -> Any:
    """Return (B or 1, heads, S, L) for buckets (B, S, L) or (S, L)."""
    buckets = buckets.reshape(-1, buckets.shape[-2], buckets.shape[-1])
    return ops.gather(table, buckets.reshape(-1), 0).reshape(*buckets.shape, -1).transpose(0, 3, 1, 2)


class Seq2SeqEncoder(nn.Cell):  # type: ignore[misc]
    """An encoder without its own weights, which ends with the source's keys and values for the decoder.

    Args:
        config: Dimensions and variants.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        names = {name: index for index, name in enumerate(list_seq2seq_weights(config))}
        self.layer = _Layer(config, decoder=False, cached=False)
        self.bias, self.norm = names["encoder.bias"], names["encoder.norm"]
        self.key_values = tuple(names[f"decoder.layers.{index}.key_value"] for index in range(config.decoder_layers))
        self.dense = ops.MatMul(transpose_b=True)

    def construct(self, ids: Any, buckets: Any, *weights: Any) -> Any:
        """Return the decoder layers' keys and values, (2 * decoder_layers, B, heads, S, head_size).

        Args:
            ids: int32 (B, S), padded on the right by the configuration's `pad_id`.
            buckets: int32 (S, S), see `compute_square_buckets`.
            weights: In `list_seq2seq_weights`' order.
        """
        config, (batch, length) = self.config, ids.shape
        mask = build_source_mask(config, ids)
        bias = _gather_bias(weights[self.bias], buckets) + mask
        hidden = ops.gather(weights[0], ids.reshape(-1), 0)
        for index in range(config.layers):
            start = self.bias + 1 + 6 * index
            hidden, _ = self.layer(hidden, bias, mask, (), (), weights[start : start + 6])
        hidden = normalise(config, hidden, weights[self.norm])
        pairs: Any = ()
        for index in self.key_values:
            pairs = (*pairs, self.layer.split(self.dense(hidden, weights[index]), batch, 2))
        return ops.stack(pairs, 0).reshape(-1, batch, config.heads, length, config.head_size)


def build_source_mask(config: Seq2SeqConfig, ids: Any) -> Any:
    """Return 0 for a source's tokens and -1e9 for padding, (B, 1, 1, S)."""
    return ops.where(ids == config.pad_id, MASKED, 0.0).reshape(ids.shape[0], 1, 1, -1)


class Seq2SeqDecoder(nn.Cell):  # type: ignore[misc]
    """A decoder without its own weights.

    Args:
        config: Dimensions and variants.
        cached: Whether the graph has caches as inputs.
    """

    def __init__(self, config: Seq2SeqConfig, *, cached: bool = False) -> None:
        super().__init__()
        self.config, self.cached = config, cached
        names = {name: index for index, name in enumerate(list_seq2seq_weights(config))}
        self.layer = _Layer(config, decoder=True, cached=cached)
        self.bias, self.norm, self.head = names["decoder.bias"], names["decoder.norm"], names.get("head", 0)
        self.count = 2 * config.decoder_layers if cached else 0
        self.dense = ops.MatMul(transpose_b=True)

    def construct(self, ids: Any, source: Any, buckets: Any, mask: Any, cross: Any, *tensors: Any) -> Any:
        """Compute each answer's next S tokens.

        Args:
            ids: int32 (B, S), the start token first.
            source: int32 (B, source), as the encoder's.
            buckets: int32 (S, L + S) for L cached tokens, or (B, S, L + S).
            mask: 0 where a token attends to another, else -1e9, float32 in `buckets`' shape.
            cross: The encoder's output.
            tensors: With caches, keys and values by layer, each (B, heads, L, head_size); then the weights.

        Returns:
            Logits (B * S, V), new rows (2 * decoder_layers, B, heads, S, head_size).
        """
        config = self.config
        caches, weights = tensors[: self.count], tensors[self.count :]
        bias = _gather_bias(weights[self.bias], buckets) + mask.reshape(-1, 1, mask.shape[-2], mask.shape[-1])
        cross_bias = build_source_mask(config, source)
        hidden = ops.gather(weights[0], ids.reshape(-1), 0)
        pairs: Any = ()
        for index in range(config.decoder_layers):
            start = self.bias + 1 + 10 * index
            cache = caches[2 * index : 2 * index + 2] if self.cached else ()
            layer_weights = weights[start : start + 10]
            source_pair = (cross[2 * index], cross[2 * index + 1])
            hidden, pair = self.layer(hidden, bias, cross_bias, cache, source_pair, layer_weights)
            pairs = pairs + pair
        hidden = normalise(config, hidden, weights[self.norm])
        if config.scaled:
            hidden = hidden * config.width**-0.5
        return self.dense(hidden, weights[self.head]), ops.stack(pairs, 0)


class TrainedSeq2Seq(nn.Cell):  # type: ignore[misc]
    """An encoder-decoder with parameters that returns its loss, for `fit` without a loss function.

    The loss is the sum over counted target tokens divided by the samples and by `tokens_per_sample`, a constant. So
    `fit`'s means over samples are exact token-weighted means, whatever the accumulation and worker count.

    Args:
        config: The encoder-decoder's.
        weights: Arrays by `list_seq2seq_weights`' names, float32.
        source_length: Tokens in a padded source.
        target_length: Tokens in a padded target.
        tokens_per_sample: Mean number of counted tokens in the data's targets.
    """

    def __init__(
        self,
        config: Seq2SeqConfig,
        weights: Mapping[str, NDArray[np.float32]],
        *,
        source_length: int,
        target_length: int,
        tokens_per_sample: float,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = Seq2SeqEncoder(config), Seq2SeqDecoder(config)
        self.base = ms.ParameterTuple(
            [Parameter(Tensor(weights[name]), name=name) for name in list_seq2seq_weights(config)]
        )
        self.source_buckets = Tensor(compute_square_buckets(config, source_length, bidirectional=True))
        self.target_buckets = Tensor(compute_square_buckets(config, target_length, bidirectional=False))
        self.causal = Tensor(np.triu(np.full((target_length,) * 2, MASKED, np.float32), 1))
        self.tokens_per_sample = tokens_per_sample

    def construct(self, source: Any, ids: Any, next_ids: Any, counts: Any) -> Any:
        """Return the samples' loss.

        Args:
            source: int32 (N, source_length).
            ids: The decoder's input, int32 (N, target_length).
            next_ids: The decoder's targets, int32 (N, target_length).
            counts: float32 (N, target_length), 1 where the loss counts.
        """
        weights: Any = ()
        for index in range(len(self.base)):
            weights = (*weights, self.base[index])
        cross = self.encoder(source, self.source_buckets, *weights)
        logits, _ = self.decoder(ids, source, self.target_buckets, self.causal, cross, *weights)
        losses = ops.cross_entropy(logits, next_ids.reshape(-1), reduction="none")
        return (losses * counts.reshape(-1)).sum() / (ids.shape[0] * self.tokens_per_sample)

    def get_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return all weights by name."""
        return {weight.name: weight.asnumpy() for weight in self.base}
