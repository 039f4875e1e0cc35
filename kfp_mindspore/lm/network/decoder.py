"""One configurable decoder: GPT-2, Llama, Mistral, Qwen2, Qwen3, SmolLM3, Granite, Phi-3, OLMo-2 and Gemma 3.

Weights are graph inputs, so that the graphs for all batch sizes and cache lengths share one copy, and so that a
training passes its parameters. `list_weights` names them in the graph's order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from numpy.typing import NDArray

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.network.rope import RopeScaling, compute_frequencies

# Added to the scores of tokens that are not seen.
MASKED = -1e9
# GELU's tanh form equals x * sigmoid(2z); ops.tanh is wrong by up to 1e-4 on CPU (MindSpore 2.9).
_TWO_Z, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's dimensions and variants.

    Args:
        vocabulary_size: Token IDs.
        width: Hidden size.
        layers: Blocks.
        heads: Query heads.
        kv_heads: Key and value heads; divides `heads`.
        head_size: Features per head.
        hidden: The feed-forward network's inner size.
        max_length: Most positions.
        rope_theta: Rotary base; 0 for learned positions.
        epsilon: Added to the variance by norms.
        norm: `rms` or `layer`.
        activation: `silu`, `gelu` or `gelu_tanh`.
        gated: Whether the feed-forward network is gated.
        tied: Whether the head is the embedding.
        qk_norm: Whether queries and keys are normalised per head.
        qkv_bias: Whether queries, keys and values have biases.
        out_bias: Whether the attention's output has a bias.
        mlp_bias: Whether the feed-forward network has biases.
        embeds: Whether the inputs are token IDs; else the previous stage's hidden states.
        predicts: Whether the outputs are logits; else hidden states for the next stage. `Decoder` has whole models.
        rope_scaling: The rotary positions' scaling, also as a mapping with its fields.
        unrotated: Numbers of the layers without rotary positions, ascending.
        attention_scale: Multiplies queries before the scores; 0 for `head_size ** -0.5`.
        norm_after: Whether a block's norms are applied to the outputs of attention and feed-forward network, not to
            their inputs.
        joint_qk_norm: Whether queries and keys are normalised over all heads together.
        norm_twice: Whether a block's norms are applied to inputs, and further ones, `out_norm` and `down_norm`, to
            outputs.
        window: Tokens that a windowed layer attends to, the own one included; 0 without such layers.
        windowed: Numbers of the windowed layers, ascending.
        window_theta: The windowed layers' rotary base, without scaling; 0 for the other layers' rotary positions.

    Raises:
        ValidationError: A size is not positive, sizes do not fit or a number is out of range; the message names them.
    """

    vocabulary_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    max_length: int
    rope_theta: float = 10000.0
    epsilon: float = 1e-5
    norm: str = "rms"
    activation: str = "silu"
    gated: bool = True
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    embeds: bool = True
    predicts: bool = True
    rope_scaling: RopeScaling | None = None
    unrotated: tuple[int, ...] = ()
    attention_scale: float = 0.0
    norm_after: bool = False
    joint_qk_norm: bool = False
    norm_twice: bool = False
    window: int = 0
    windowed: tuple[int, ...] = ()
    window_theta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rope_scaling", RopeScaling.build(self.rope_scaling))
        object.__setattr__(self, "unrotated", tuple(self.unrotated))
        object.__setattr__(self, "windowed", tuple(self.windowed))
        sizes = ("vocabulary_size", "width", "layers", "heads", "kv_heads", "head_size", "hidden", "max_length")
        errors = [f"{name}: must be >= 1, got {value}" for name in sizes if (value := getattr(self, name)) < 1]
        if not errors and self.heads % self.kv_heads:
            errors.append(f"kv_heads: must divide {self.heads} heads, got {self.kv_heads}")
        if self.rope_theta and self.head_size % 2:
            errors.append(f"head_size: must be even with rotary positions, got {self.head_size}")
        if not 0 <= self.rope_theta < math.inf:
            errors.append(f"rope_theta: must be >= 0, got {self.rope_theta}")
        if not 0 < self.epsilon < 1:
            errors.append(f"epsilon: must be > 0 and < 1, got {self.epsilon}")
        if not 0 <= self.attention_scale < math.inf:
            errors.append(f"attention_scale: must be >= 0, got {self.attention_scale}")
        for name in ("unrotated", "windowed"):
            if list(numbers := getattr(self, name)) != sorted({*numbers} & {*range(self.layers)}):
                errors.append(f"{name}: must be ascending layers below {self.layers}, got {list(numbers)}")
        if self.window < bool(self.windowed):
            errors.append(f"window: must be >= 1 with windowed layers, got {self.window}")
        if not 0 <= self.window_theta < math.inf:
            errors.append(f"window_theta: must be >= 0, got {self.window_theta}")
        if self.windowed and not self.rope_theta:
            errors.append("windowed: must be empty with learned positions")
        if self.norm_twice and self.norm_after:
            errors.append("norm_twice: must be false with norm_after")
        if self.unrotated and not self.rope_theta:
            errors.append("unrotated: must be empty with learned positions")
        if self.qk_norm and self.joint_qk_norm:
            errors.append("joint_qk_norm: must be false with qk_norm")
        errors += self._check_scaling()
        errors += [
            f"{name}: must be one of {', '.join(allowed)}, got {value!r}"
            for name, allowed in (("norm", ("rms", "layer")), ("activation", ("silu", "gelu", "gelu_tanh")))
            if (value := getattr(self, name)) not in allowed
        ]
        if errors:
            raise ValidationError(errors, subject="the decoder's configuration")

    def _check_scaling(self) -> list[str]:
        scaling, pairs = self.rope_scaling, self.head_size // 2
        if scaling is None:
            return []
        errors = [] if self.rope_theta else ["rope_scaling: must be None with learned positions"]
        if scaling.kind == "yarn" and 0 < self.rope_theta <= 1:
            errors.append(f"rope_theta: must be > 1 with yarn, got {self.rope_theta}")
        if scaling.factors and len(scaling.factors) != pairs:
            errors.append(f"rope_scaling.factors: must be {pairs} numbers, got {len(scaling.factors)}")
        return errors

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def list_weights(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return each weight's shape by name, in the graph's order; matrices are (outputs, inputs).

    `qkv` stacks queries, keys and values; `up` stacks a gated network's gate and up.

    Args:
        config: The decoder's.
    """
    width, hidden = config.width, config.hidden
    query = config.heads * config.head_size
    fused = query + 2 * config.kv_heads * config.head_size
    up = hidden * (2 if config.gated else 1)
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary_size, width)} if config.embeds else {}
    if config.embeds and not config.rope_theta:
        shapes["positions"] = (config.max_length, width)

    def add_norm(name: str) -> None:
        shapes[f"{name}.weight"] = (width,)
        if config.norm == "layer":
            shapes[f"{name}.bias"] = (width,)

    def add_dense(name: str, shape: tuple[int, int], bias: bool) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    for index in range(config.layers):
        layer = f"layers.{index}"
        add_norm(f"{layer}.norm1")
        add_dense(f"{layer}.qkv", (fused, width), config.qkv_bias)
        if config.qk_norm:
            shapes[f"{layer}.q_norm"] = shapes[f"{layer}.k_norm"] = (config.head_size,)
        if config.joint_qk_norm:
            shapes[f"{layer}.q_norm"] = (query,)
            shapes[f"{layer}.k_norm"] = (config.kv_heads * config.head_size,)
        add_dense(f"{layer}.out", (width, query), config.out_bias)
        if config.norm_twice:
            add_norm(f"{layer}.out_norm")
            add_norm(f"{layer}.down_norm")
        add_norm(f"{layer}.norm2")
        add_dense(f"{layer}.up", (up, width), config.mlp_bias)
        add_dense(f"{layer}.down", (width, hidden), config.mlp_bias)
    if config.predicts:
        add_norm("norm")
    if config.predicts and not config.tied:
        shapes["head"] = (config.vocabulary_size, width)
    return shapes


def compute_rotations(config: DecoderConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the rotary positions' cosines and sines, each float32 with shape (max_length, head_size / 2).

    Args:
        config: The decoder's; with learned positions the tables are not used.
    """
    scaling = config.rope_scaling
    frequencies = compute_frequencies(config.rope_theta or 1.0, config.head_size, scaling)
    angles = np.outer(np.arange(config.max_length), frequencies)
    magnitude = np.full(len(frequencies), scaling.attention_factor if scaling else 1.0)
    if scaling and scaling.rotated:
        magnitude[scaling.rotated :] = 1.0
    return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)


def get_window_config(config: DecoderConfig) -> DecoderConfig:
    """Return the configuration whose rotations the windowed layers have.

    Args:
        config: The decoder's.
    """
    if not config.window_theta:
        return config
    return dataclasses.replace(config, rope_theta=config.window_theta, rope_scaling=None)


def mark_layers(config: DecoderConfig, layers: Sequence[int]) -> NDArray[np.float32]:
    """Return 0 for some layers, `unrotated` or `windowed`, and 1 for the others, (layers,).

    Args:
        config: The decoder's.
        layers: Their numbers.
    """
    marks = np.ones(config.layers, np.float32)
    marks[list(layers)] = 0
    return marks


def apply_norm(config: DecoderConfig, hidden: Any, weights: Any, index: int) -> Any:
    """Normalise the last axis by the weight at `index`, and with layer norm the bias behind it."""
    if config.norm == "layer":
        hidden = hidden - ops.mean(hidden, -1, True)
    scale = ops.rsqrt(ops.mean(hidden * hidden, -1, True) + config.epsilon)
    hidden = hidden * scale * weights[index]
    if config.norm == "layer":
        hidden = hidden + weights[index + 1]
    return hidden


class _Block(nn.Cell):  # type: ignore[misc]
    """Any layer; the attributes are positions among a layer's weights."""

    def __init__(
        self, config: DecoderConfig, names: Sequence[str], cached: bool, adapted: bool, dropout: float
    ) -> None:
        super().__init__()
        self.config, self.cached, self.adapted = config, cached, adapted
        self.drops = dropout > 0
        self.dropout = nn.Dropout(p=dropout)
        indices = {name: index for index, name in enumerate(names)}
        self.norm1, self.norm2 = indices["norm1.weight"], indices["norm2.weight"]
        self.qkv, self.out = indices["qkv.weight"], indices["out.weight"]
        self.up, self.down = indices["up.weight"], indices["down.weight"]
        self.q_norm, self.k_norm = indices.get("q_norm", -1), indices.get("k_norm", -1)
        # The norms of the outputs, if there are any.
        self.out_norm = self.norm1 if config.norm_after else indices.get("out_norm.weight", -1)
        self.down_norm = self.norm2 if config.norm_after else indices.get("down_norm.weight", -1)
        self.query = config.heads * config.head_size
        self.keys = self.query + config.kv_heads * config.head_size
        self.half = config.head_size // 2
        self.scale = config.attention_scale or config.head_size**-0.5
        self.dense = ops.MatMul(transpose_b=True)
        self.score = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def project(self, hidden: Any, weights: Any, index: int, bias: bool) -> Any:
        hidden = self.dense(hidden, weights[index])
        return hidden + weights[index + 1] if bias else hidden

    def adapt(self, hidden: Any, mask: Any, down: Any, up: Any) -> Any:
        """Return the adapters' updates; `where`, as one adapter's overflow times 0 is NaN for all rows."""
        if self.drops:
            hidden = self.dropout(hidden)
        return self.dense(ops.where(mask, self.dense(hidden, down), 0.0), up)

    def normalise(self, value: Any, weight: Any) -> Any:
        return value * ops.rsqrt(ops.mean(value * value, -1, True) + self.config.epsilon) * weight

    def rotate(self, value: Any, rotations: Any) -> Any:
        """Rotate (B, heads, S, size) by cosines and sines, each (B, 1, S, size / 2)."""
        first, second = value[..., : self.half], value[..., self.half :]
        cosine, sine = rotations
        return ops.concat((first * cosine - second * sine, second * cosine + first * sine), -1)

    def activate(self, value: Any) -> Any:
        if self.config.activation == "silu":
            return value * ops.sigmoid(value)
        if self.config.activation == "gelu":
            return value * 0.5 * (1.0 + ops.erf(value * 0.7071067811865476))
        return value * ops.sigmoid(_TWO_Z * (value + _CUBIC * value * value * value))

    def construct(self, hidden: Any, rotations: Any, masks: Any, cache: Any, weights: Any, adapters: Any) -> Any:
        """Return the layer's output (B * S, width) and its new keys and values, each (B, kv_heads, S, head_size).

        Args:
            hidden: (B * S, width).
            rotations: Cosines and sines, each (B, 1, S, head_size / 2); not used with learned positions.
            masks: Added to the scores: for new tokens (B, 1, S, S), and for cached ones (B, 1, 1, L), or with windowed
                layers (B, 1, S, L).
            cache: Keys and values, each (B, kv_heads, L, head_size), or an empty tuple.
            weights: The layer's, in `list_weights`' order.
            adapters: With adapters, the masks for `qkv` and `out`, then the layer's factors; see `AdapterFactors`.
        """
        config = self.config
        batch, length = masks[0].shape[0], masks[0].shape[2]
        groups = config.heads // config.kv_heads
        size = cache[0].shape[2] if self.cached else 0
        normed = hidden if config.norm_after else apply_norm(config, hidden, weights, self.norm1)
        fused = self.project(normed, weights, self.qkv, config.qkv_bias)
        if self.adapted:
            fused = fused + self.adapt(normed, adapters[0], adapters[2], adapters[3])
        if config.joint_qk_norm:
            query = self.normalise(fused[:, : self.query], weights[self.q_norm])
            key = self.normalise(fused[:, self.query : self.keys], weights[self.k_norm])
            fused = ops.concat((query, key, fused[:, self.keys :]), 1)
        fused = fused.reshape(batch, length, config.heads + 2 * config.kv_heads, config.head_size).transpose(0, 2, 1, 3)
        # Queries and keys are rotated together: fewer operators compile faster.
        heads, value = fused[:, : config.heads + config.kv_heads], fused[:, config.heads + config.kv_heads :]
        if config.qk_norm:
            query = self.normalise(heads[:, : config.heads], weights[self.q_norm])
            key = self.normalise(heads[:, config.heads :], weights[self.k_norm])
            heads = ops.concat((query, key), 1)
        if config.rope_theta:
            heads = self.rotate(heads, rotations)
        query, key = heads[:, : config.heads], heads[:, config.heads :]
        # Query heads that share a key head are rows of one product: keys are not repeated.
        query = (query * self.scale).reshape(batch, config.kv_heads, groups * length, config.head_size)
        scores = self.score(query, key).reshape(batch, config.heads, length, length) + masks[0]
        if self.cached:
            old = self.score(query, cache[0])
            scores = ops.concat((old.reshape(batch, config.heads, length, size) + masks[1], scores), -1)
        shape = (batch, config.kv_heads, groups * length, -1)
        shares = self.softmax(scores)
        if self.cached:
            mixed = self.mix(shares[..., :size].reshape(shape), cache[1])
            mixed = mixed + self.mix(shares[..., size:].reshape(shape), value)
        else:
            mixed = self.mix(shares.reshape(shape), value)
        mixed = mixed.reshape(batch, config.heads, length, config.head_size).transpose(0, 2, 1, 3)
        mixed = mixed.reshape(batch * length, self.query)
        update = self.project(mixed, weights, self.out, config.out_bias)
        if self.adapted:
            update = update + self.adapt(mixed, adapters[1], adapters[4], adapters[5])
        if self.out_norm >= 0:
            update = apply_norm(config, update, weights, self.out_norm)
        hidden = hidden + update
        normed = hidden if config.norm_after else apply_norm(config, hidden, weights, self.norm2)
        inner = self.project(normed, weights, self.up, config.mlp_bias)
        if config.gated:
            inner = self.activate(inner[:, : config.hidden]) * inner[:, config.hidden :]
        else:
            inner = self.activate(inner)
        update = self.project(inner, weights, self.down, config.mlp_bias)
        if self.down_norm >= 0:
            update = apply_norm(config, update, weights, self.down_norm)
        return hidden + update, (key, value)


class CachedLayers(nn.Cell):  # type: ignore[misc]
    """Some decoder layers with caches. All else is an input, so that one graph computes any of them.

    Args:
        config: The decoder's dimensions and variants.
        layers: How many.
        adapted: Whether the graph has adapters as inputs.
        dropout: Fraction of the adapters' inputs that is set to 0 in training.
        cached: Whether the graph has caches as inputs.
    """

    def __init__(
        self, config: DecoderConfig, layers: int, *, adapted: bool = False, dropout: float = 0.0, cached: bool = True
    ) -> None:
        super().__init__()
        self.layers, self.cached, self.adapted = layers, cached, adapted
        self.selects, self.windowed = bool(config.unrotated), bool(config.windowed)
        prefix = "layers.0."
        names = [name.removeprefix(prefix) for name in list_weights(config) if name.startswith(prefix)]
        # One cell for all layers: MindSpore infers it once, and compiles in half the time of a cell per layer.
        self.block = _Block(config, names, cached, adapted, dropout)
        self.first_weight, self.size = 2 * layers if cached else 0, len(names)
        self.first_adapter = self.first_weight + layers * self.size

    def compute(self, hidden: Any, rotations: Any, masks: Any, caches: Any, weights: Any, adapters: Any) -> Any:
        """Return the layers' output (B * S, width), and all new keys and values.

        Args:
            hidden: (B * S, width).
            rotations: As a block has them; with unrotated layers also `mark_layers`' values of these layers, with
                windowed layers then also these layers' cosines, sines and values.
            masks: As a block has them; with windowed layers also what is added there.
            caches: Keys and values by layer, or an empty tuple.
            weights: The layers', in `list_weights`' order.
            adapters: `AdapterFactors`' two masks, then the layers' arrays; or an empty tuple.
        """
        pairs = ()
        for index in range(self.layers):
            cache = caches[2 * index : 2 * index + 2] if self.cached else ()
            factors = adapters[:2] + adapters[4 * index + 2 : 4 * index + 6] if self.adapted else ()
            layer = weights[index * self.size : (index + 1) * self.size]
            turns, seen = rotations, masks
            if self.windowed:
                whole = rotations[-1][index]
                turns = (
                    rotations[0] * whole + rotations[-3] * (1.0 - whole),
                    rotations[1] * whole + rotations[-2] * (1.0 - whole),
                )
                seen = (masks[0] + masks[2] * (1.0 - whole), masks[1] + masks[3] * (1.0 - whole))
            if self.selects:
                # A cosine of 1 and a sine of 0 leave a layer as it is, with the same operators.
                rotated = rotations[2][index]
                turns = (turns[0] * rotated + (1.0 - rotated), turns[1] * rotated)
            hidden, pair = self.block(hidden, turns, seen, cache, layer, factors)
            pairs = pairs + pair
        return hidden, pairs

    def construct(self, hidden: Any, cosine: Any, sine: Any, new: Any, old: Any, *tensors: Any) -> Any:
        """Extend sequences by S tokens.

        Args:
            hidden: (B, S, width).
            cosine: (B, 1, S, head_size / 2), as `sine`.
            sine: See `compute_rotations`.
            new: New tokens' mask, added to the scores, (B, 1, S, S).
            old: Cached tokens' mask, (B, 1, 1, L).
            tensors: Keys and values by layer, each (B, kv_heads, L, head_size); then `compute`'s weights and adapters,
                with unrotated layers `mark_layers`' values; and with windowed layers these layers' cosines, sines,
                masks that are added to `new` and `old`, and values.

        Returns:
            Hidden states (B, S, width); new rows (2 * layers, B, kv_heads, S, head_size).
        """
        caches, weights = tensors[: self.first_weight], tensors[self.first_weight : self.first_adapter]
        rows = hidden.reshape(-1, hidden.shape[2])
        rotations: Any = (cosine, sine)
        masks: Any = (new, old)
        if self.selects:
            rotations = (*rotations, tensors[-6] if self.windowed else tensors[-1])
        if self.windowed:
            rotations, masks = (*rotations, tensors[-5], tensors[-4], tensors[-1]), (new, old, tensors[-3], tensors[-2])
        output, pairs = self.compute(rows, rotations, masks, caches, weights, tensors[self.first_adapter :])
        return output.reshape(hidden.shape), ops.stack(pairs, 0)


class Decoder(nn.Cell):  # type: ignore[misc]
    """A whole decoder without its own weights, and without caches.

    Args:
        config: Dimensions and variants.
        adapted: Whether the graph has adapters as inputs.
        dropout: Fraction of the adapters' inputs that is set to 0 in training.
    """

    def __init__(self, config: DecoderConfig, *, adapted: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.layers = CachedLayers(config, config.layers, adapted=adapted, dropout=dropout, cached=False)
        names = list(list_weights(config))
        self.first_layer, self.norm = names.index("layers.0.norm1.weight"), names.index("norm.weight")
        self.rotated = ms.Tensor(mark_layers(config, config.unrotated)) if config.unrotated else None
        self.whole = ms.Tensor(mark_layers(config, config.windowed)) if config.windowed else None
        local = compute_rotations(get_window_config(config)) if config.windowed else ()
        self.local = tuple(ms.Tensor(table) for table in local)

    def compute_hidden(
        self, ids: Any, positions: Any, masks: Any, tables: Any, weights: Any, adapters: Any = ()
    ) -> Any:
        """Return the normalised hidden states (N * L, width).

        Args:
            ids: int32 (N, L).
            positions: int32 (N, L).
            masks: Each sequence's mask, (N, 1, L, L), in a tuple.
            tables: `compute_rotations`' cosines and sines.
            weights: In `list_weights`' order.
            adapters: `AdapterFactors`' two masks, then its arrays; or an empty tuple.
        """
        batch, length = ids.shape
        rows = positions.reshape(-1)
        hidden = ops.gather(weights[0], ids.reshape(-1), 0)
        if not self.config.rope_theta:
            hidden = hidden + ops.gather(weights[1], rows, 0)
        shape = (batch, 1, length, self.config.head_size // 2)
        rotations: Any = (ops.gather(tables[0], rows, 0).reshape(shape), ops.gather(tables[1], rows, 0).reshape(shape))
        if self.config.unrotated:
            rotations = (*rotations, self.rotated)
        if self.config.windowed:
            local = [ops.gather(self.local[index], rows, 0).reshape(shape) for index in range(2)]
            rotations = (*rotations, *local, self.whole)
            steps = ms.numpy.arange(length)
            seen = steps[:, None] - steps[None, :] < self.config.window
            masks = (*masks, 0.0, ops.where(seen, 0.0, MASKED).reshape(1, 1, length, length), 0.0)
        hidden, _ = self.layers.compute(hidden, rotations, masks, (), weights[self.first_layer : self.norm], adapters)
        return apply_norm(self.config, hidden, weights, self.norm)

    def construct(self, ids: Any, cosine: Any, sine: Any, *weights: Any) -> Any:
        """Return whole sequences' normalised hidden states (N, L, width).

        Args:
            ids: int32 (N, L), padded on the right.
            cosine: See `compute_rotations`.
            sine: See `compute_rotations`.
            weights: In `list_weights`' order.
        """
        batch, length = ids.shape
        steps = ms.numpy.arange(length)
        causal = ops.where(steps[None, :] <= steps[:, None], 0.0, MASKED).reshape(1, 1, length, length)
        causal = ops.tile(causal, (batch, 1, 1, 1))
        positions = ops.tile(steps[None, :], (batch, 1))
        hidden = self.compute_hidden(ids, positions, (causal,), (cosine, sine), weights)
        return hidden.reshape(batch, length, self.config.width)


class Head(nn.Cell):  # type: ignore[misc]
    """A decoder's last norm, and its logits.

    Args:
        config: The decoder's.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = ops.MatMul(transpose_b=True)

    def construct(self, hidden: Any, *weights: Any) -> Any:
        """Return logits (B, V).

        Args:
            hidden: (B, width).
            weights: The norm's, then the head.
        """
        return self.dense(apply_norm(self.config, hidden, weights, 0), weights[-1])
