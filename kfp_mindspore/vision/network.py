"""Pre-norm transformers over image patches and over tokens, with their weights as parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

Weights = Mapping[str, NDArray[np.float32]]
_MASKED = -1e30
# Of a patch beside its pixels: the mean colour and the deviation.
_FEATURES = 4
_LEAST_VARIANCE = 0.01


@dataclass(frozen=True)
class BlockConfig:
    """A transformer's blocks.

    Args:
        width: Hidden size; a multiple of `heads`.
        layers: Blocks.
        heads: Attention heads.
        hidden: The feed-forward network's inner size.
        activation: `gelu` (by erf), `gelu_tanh`, `quick_gelu`, `silu` or `relu`.
        epsilon: Added to the variance by norms.
        biased: Whether queries, keys and values have biases.
        gated: Whether the feed-forward network is SwiGLU.
    """

    width: int
    layers: int
    heads: int
    hidden: int
    activation: str
    epsilon: float
    biased: bool = True
    gated: bool = False


@dataclass(frozen=True)
class ImageConfig:
    """An image tower or classifier.

    Args:
        blocks: The transformer.
        size: The images' height and width.
        patch: A patch's side.
        has_class: Whether a learned token precedes the patches.
        patch_bias: Whether the patches' projection has a bias.
        pre_norm: Whether a norm precedes the blocks.
        pooling: `class` for the learned token's state, `class_mean` for it and the patches' mean, or `attention` for a
            learned query.
        outputs: The last projection's rows; 0 without one.
        output_bias: Whether it has a bias.
        normalised: Whether an output has length 1.
    """

    blocks: BlockConfig
    size: tuple[int, int]
    patch: int
    has_class: bool = True
    patch_bias: bool = True
    pre_norm: bool = False
    pooling: str = "class"
    outputs: int = 0
    output_bias: bool = False
    normalised: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in height and width."""
        return self.size[0] // self.patch, self.size[1] // self.patch


@dataclass(frozen=True)
class DetectorConfig:
    """A YOLOS detector.

    Args:
        blocks: The transformer.
        size: The images' height and width.
        patch: A patch's side.
        queries: Detection tokens: the most boxes an image can have.
        classes: Classes, without the one for no object.
        mid_positions: Whether each block but the last is followed by positions of its own.
        stem: Inner size of a patch's embedding by two layers, see `_Stem`; 0 for YOLOS' own, which is one.
    """

    blocks: BlockConfig
    size: tuple[int, int]
    patch: int
    queries: int
    classes: int
    mid_positions: bool = False
    stem: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in height and width."""
        return self.size[0] // self.patch, self.size[1] // self.patch

    @property
    def tokens(self) -> int:
        """The class token, patches and detection tokens."""
        return 1 + self.grid[0] * self.grid[1] + self.queries


@dataclass(frozen=True)
class TextConfig:
    """A text tower.

    Args:
        blocks: The transformer.
        vocabulary_size: Token IDs.
        length: Tokens in a text with its padding.
        end_id: The token whose first state is the text's, under a causal mask; -1 for the highest ID; None for the
            last position's state without a mask.
        outputs: The projection's rows.
        output_bias: Whether it has a bias.
    """

    blocks: BlockConfig
    vocabulary_size: int
    length: int
    end_id: int | None
    outputs: int
    output_bias: bool


def list_block_weights(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """Return each weight's shape by name; matrices are (outputs, inputs), `qkv` stacks queries, keys and values.

    Args:
        config: The blocks.
    """
    width, shapes = config.width, {}
    dense = {"norm1": (width,), "qkv": (3 * width, width), "out": (width, width), "norm2": (width,)}
    dense |= {"up": ((1 + config.gated) * config.hidden, width), "down": (width, config.hidden)}
    for index in range(config.layers):
        for name, shape in dense.items():
            shapes[f"layers.{index}.{name}.weight"] = shape
            if name != "qkv" or config.biased:
                shapes[f"layers.{index}.{name}.bias"] = shape[:1]
    return shapes | {"norm.weight": (width,), "norm.bias": (width,)}


def list_image_weights(config: ImageConfig) -> dict[str, tuple[int, ...]]:
    """Return an image tower's weights, see `list_block_weights`.

    Args:
        config: The tower.
    """
    width, hidden, side = config.blocks.width, config.blocks.hidden, config.patch
    shapes: dict[str, tuple[int, ...]] = {"patch.weight": (width, 3, side, side)}
    shapes |= {"positions": (config.has_class + config.grid[0] * config.grid[1], width)}
    shapes |= {"patch.bias": (width,)} if config.patch_bias else {}
    shapes |= {"class": (width,)} if config.has_class else {}
    shapes |= {"pre_norm.weight": (width,), "pre_norm.bias": (width,)} if config.pre_norm else {}
    shapes |= list_block_weights(config.blocks)
    if config.pooling == "attention":
        shapes["head.probe"] = (width,)
        dense = {"qkv": (3 * width, width), "out": (width, width), "norm": (width,)}
        dense |= {"up": (hidden, width), "down": (width, hidden)}
        for name, shape in dense.items():
            shapes |= {f"head.{name}.weight": shape, f"head.{name}.bias": shape[:1]}
    inputs = 2 * width if config.pooling == "class_mean" else width
    shapes |= {"output.weight": (config.outputs, inputs)} if config.outputs else {}
    return shapes | ({"output.bias": (config.outputs,)} if config.output_bias else {})


def list_detector_weights(config: DetectorConfig) -> dict[str, tuple[int, ...]]:
    """Return a detector's weights, see `list_block_weights`; `classes` and `boxes` are its heads.

    Args:
        config: The detector.
    """
    width = config.blocks.width
    shapes: dict[str, tuple[int, ...]] = {"patch.weight": (width, 3, config.patch, config.patch)}
    if config.stem:
        shapes = {"stem.weight": (config.stem, 3 * config.patch**2 + _FEATURES), "stem.bias": (config.stem,)}
        shapes["patch.weight"] = (width, config.stem)
    shapes |= {"patch.bias": (width,), "class": (width,), "queries": (config.queries, width)}
    shapes["positions"] = (config.tokens, width)
    if config.mid_positions:
        shapes["mid_positions"] = (config.blocks.layers - 1, config.tokens, width)
    shapes |= list_block_weights(config.blocks)
    for head, outputs in (("classes", config.classes + 1), ("boxes", 4)):
        for index, rows in enumerate((width, width, outputs)):
            shapes |= {f"{head}.{index}.weight": (rows, width), f"{head}.{index}.bias": (rows,)}
    return shapes


def draw_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[np.float32]]:
    """Return random weights for training from the start.

    Biases are 0, norms 1, tokens and positions normal with deviation 0.02, matrices normal with Glorot's deviation
    √(2 / (inputs + outputs)).

    Args:
        shapes: By name, such as `list_detector_weights` returns them.
        seed: The generator's.
    """
    random, weights = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        if name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        elif "norm" in name:
            weights[name] = np.ones(shape, np.float32)
        else:
            inputs = math.prod(shape[1:])
            deviation = math.sqrt(2 / (shape[0] + inputs)) if name.endswith(".weight") else 0.02
            weights[name] = random.normal(0, deviation, shape).astype(np.float32)
    return weights


def list_text_weights(config: TextConfig) -> dict[str, tuple[int, ...]]:
    """Return a text tower's weights, see `list_block_weights`.

    Args:
        config: The tower.
    """
    width = config.blocks.width
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary_size, width)}
    shapes |= {"positions": (config.length, width), **list_block_weights(config.blocks)}
    shapes["output.weight"] = (config.outputs, width)
    return shapes | ({"output.bias": (config.outputs,)} if config.output_bias else {})


def _build_dense(weights: Weights, name: str) -> nn.Dense:
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    options = {"has_bias": False} if bias is None else {"bias_init": Tensor(bias)}
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=Tensor(weight), **options)


def _build_norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return nn.LayerNorm(weight.shape, gamma_init=Tensor(weight), beta_init=Tensor(bias), epsilon=epsilon)


class _FeedForward(nn.Cell):  # type: ignore[misc]
    def __init__(self, config: BlockConfig, weights: Weights, prefix: str) -> None:
        super().__init__()
        self.activation, self.gated = config.activation, config.gated
        self.up, self.down = _build_dense(weights, f"{prefix}up"), _build_dense(weights, f"{prefix}down")

    def construct(self, tokens: Any) -> Any:
        value = self.up(tokens)
        if self.gated:
            gate, value = ops.chunk(value, 2, -1)
            return self.down(gate * ops.sigmoid(gate) * value)
        if self.activation == "gelu":
            value = value * 0.5 * (1.0 + ops.erf(value * 0.7071067811865476))
        elif self.activation == "gelu_tanh":
            # As 0.5 * (1 + tanh(x)) is sigmoid(2 * x); MindSpore's tanh is less exact.
            value = value * ops.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
        elif self.activation == "quick_gelu":
            value = value * ops.sigmoid(1.702 * value)
        elif self.activation == "silu":
            value = value * ops.sigmoid(value)
        else:
            value = ops.relu(value)
        return self.down(value)


class _Block(nn.Cell):  # type: ignore[misc]
    """Attention and a feed-forward network, each after a norm and added to its input (N, `count`, width)."""

    def __init__(self, config: BlockConfig, weights: Weights, prefix: str, count: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.size, self.count = config.heads, config.width // config.heads, count
        self.causal = causal
        self.scale = self.size**-0.5
        self.product = ops.BatchMatMul(transpose_b=True)
        if causal:
            self.mask = Tensor(np.triu(np.full((count, count), _MASKED, np.float32), 1))
        self.norm1, self.norm2 = (_build_norm(weights, f"{prefix}norm{index}", config.epsilon) for index in (1, 2))
        self.qkv, self.out = _build_dense(weights, f"{prefix}qkv"), _build_dense(weights, f"{prefix}out")
        self.feed = _FeedForward(config, weights, prefix)

    def construct(self, tokens: Any) -> Any:
        parts = self.qkv(self.norm1(tokens)).reshape(-1, self.count, 3 * self.heads, self.size).swapaxes(1, 2)
        # Split, as slices take most of a block's time on CPU.
        queries, keys, values = ops.split(parts, self.heads, 1)
        scores = self.product(queries * self.scale, keys)
        if self.causal:
            scores = scores + self.mask
        mixed = ops.matmul(ops.softmax(scores, -1), values).swapaxes(1, 2)
        tokens = tokens + self.out(mixed.reshape(-1, self.count, self.heads * self.size))
        return tokens + self.feed(self.norm2(tokens))


def _build_blocks(config: BlockConfig, weights: Weights, count: int, *, causal: bool) -> list[_Block]:
    prefixes = [f"layers.{index}." for index in range(config.layers)]
    return [_Block(config, weights, prefix, count, causal=causal) for prefix in prefixes]


class _AttentionPooling(nn.Cell):  # type: ignore[misc]
    """A learned query's attention over all tokens, and a feed-forward network."""

    def __init__(self, config: BlockConfig, weights: Weights, count: int) -> None:
        super().__init__()
        width, self.heads, self.count = config.width, config.heads, count
        self.size = width // config.heads
        weight, bias = weights["head.qkv.weight"], weights["head.qkv.bias"]
        # The query does not depend on the image: (heads, 1, size).
        query = (weight[:width] @ weights["head.probe"] + bias[:width]) * self.size**-0.5
        self.query = Parameter(Tensor(query.astype(np.float32).reshape(self.heads, 1, self.size)), name="query")
        self.pair = _build_dense({"pair.weight": weight[width:], "pair.bias": bias[width:]}, "pair")
        self.out = _build_dense(weights, "head.out")
        self.norm = _build_norm(weights, "head.norm", config.epsilon)
        self.feed = _FeedForward(config, weights, "head.")

    def construct(self, tokens: Any) -> Any:
        parts = self.pair(tokens).reshape(-1, self.count, 2 * self.heads, self.size).swapaxes(1, 2)
        keys, values = ops.split(parts, self.heads, 1)
        shares = ops.softmax((self.query * keys).sum(-1), -1)
        mixed = self.out((ops.expand_dims(shares, -1) * values).sum(2).reshape(-1, self.heads * self.size))
        return mixed + self.feed(self.norm(mixed))


def normalise(value: Any) -> Any:
    """Return rows (N, width) with length 1."""
    return value / ops.sqrt((value * value).sum(-1, keepdims=True))


def _build_patch(weights: Weights) -> nn.Dense:
    # Equal to a convolution, without the kernels that are slow for a changing batch.
    weight = weights["patch.weight"]
    return _build_dense({**weights, "patch.weight": weight.reshape(len(weight), -1)}, "patch")


def _split_patches(image: Any, grid: tuple[int, int], side: int) -> Any:
    """Return an image's patches (N, rows · columns, 3 · side²), without what is left over at its right and bottom."""
    rows, columns = grid
    patches = image
    if image.shape[2:] != (rows * side, columns * side):
        patches = image[:, :, : rows * side, : columns * side]
    patches = patches.reshape(-1, 3, rows, side, columns, side).transpose(0, 2, 4, 1, 3, 5)
    return patches.reshape(-1, rows * columns, 3 * side * side)


class _Stem(nn.Cell):  # type: ignore[misc]
    """The first of two layers that embed patches: small networks then find forms of any colour.

    Its inputs are a patch's pixels less their mean colour, divided by their deviation (as targets of He et al., 2022,
    arXiv:2111.06377), the mean colour and the deviation.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(auto_prefix=False)
        self.dense = _build_dense(weights, "stem")

    def construct(self, patches: Any) -> Any:
        pixels = patches.reshape(*patches.shape[:2], 3, -1)
        colour = pixels.mean(-1, keep_dims=True)
        centred = (pixels - colour).reshape(*patches.shape)
        deviation = ops.sqrt((centred * centred).mean(-1, keep_dims=True) + _LEAST_VARIANCE)
        features = ops.concat((centred / deviation, colour.reshape(*patches.shape[:2], 3), deviation), -1)
        return ops.relu(self.dense(features))


class ImageNetwork(nn.Cell):  # type: ignore[misc]
    """An image tower or classifier.

    Args:
        config: Dimensions and variants.
        weights: Arrays by `list_image_weights`' names.
    """

    def __init__(self, config: ImageConfig, weights: Weights) -> None:
        super().__init__()
        blocks, side = config.blocks, config.patch
        self.pooling = config.pooling
        self.has_class, self.pre_normed, self.normalised = config.has_class, config.pre_norm, config.normalised
        self.grid, self.side = config.grid, side
        self.patch = _build_patch(weights)
        self.positions = Parameter(Tensor(weights["positions"]), name="positions")
        if config.has_class:
            self.first = Parameter(Tensor(weights["class"].reshape(1, 1, -1)), name="class")
        if config.pre_norm:
            self.pre_norm = _build_norm(weights, "pre_norm", blocks.epsilon)
        count = config.grid[0] * config.grid[1] + config.has_class
        self.blocks = nn.SequentialCell(*_build_blocks(blocks, weights, count, causal=False))
        self.norm = _build_norm(weights, "norm", blocks.epsilon)
        if config.pooling == "attention":
            self.head = _AttentionPooling(blocks, weights, count)
        self.has_output = bool(config.outputs)
        if config.outputs:
            self.output = _build_dense(weights, "output")

    def construct(self, image: Any) -> Any:
        """Return embeddings or scores (N, …) for images with shape (N, 3, H, W)."""
        tokens = self.patch(_split_patches(image, self.grid, self.side))
        if self.has_class:
            tokens = ops.concat((ops.zeros_like(tokens[:, :1]) + self.first, tokens), 1)
        tokens = tokens + self.positions
        if self.pre_normed:
            tokens = self.pre_norm(tokens)
        tokens = self.blocks(tokens)
        if self.pooling == "attention":
            value = self.head(self.norm(tokens))
        elif self.pooling == "class_mean":
            tokens = self.norm(tokens)
            value = ops.concat((tokens[:, 0], tokens[:, 1:].mean(1)), 1)
        else:
            value = self.norm(tokens[:, 0])
        if self.has_output:
            value = self.output(value)
        return normalise(value) if self.normalised else value


class ClassNetwork(nn.Cell):  # type: ignore[misc]
    """Classes by the similarity of an image's embedding with texts'.

    Args:
        images: The image tower.
        texts: The texts' embeddings, scaled, with shape (classes, width).
        bias: Added to each score.
    """

    def __init__(self, images: ImageNetwork, texts: NDArray[np.float32], bias: float) -> None:
        super().__init__()
        self.images = images
        self.classes = _build_dense(
            {"classes.weight": texts, "classes.bias": np.full(len(texts), bias, np.float32)}, "classes"
        )

    def construct(self, image: Any) -> Any:
        """Return scores (N, classes) for images with shape (N, 3, H, W)."""
        return self.classes(self.images(image))


class DetectorNetwork(nn.Cell):  # type: ignore[misc]
    """A YOLOS detector: a vision transformer with a detection token for each box (arXiv:2106.00666).

    Args:
        config: Dimensions and variants.
        weights: Arrays by `list_detector_weights`' names.
        dense: Whether the outputs in training are the patches' too, before the queries'; see
            `kfp_mindspore.training.detection.DetectionLoss`.
    """

    def __init__(self, config: DetectorConfig, weights: Weights, *, dense: bool = False) -> None:
        super().__init__()
        self.grid, self.side, self.queries = config.grid, config.patch, config.queries
        self.dense, self.patches = dense, config.grid[0] * config.grid[1]
        self.has_stem = bool(config.stem)
        if config.stem:
            self.stem = _Stem(weights)
        self.patch = _build_patch(weights)
        self.first = Parameter(Tensor(weights["class"].reshape(1, 1, -1)), name="class")
        self.tokens = Parameter(Tensor(weights["queries"][np.newaxis]), name="queries")
        self.positions = Parameter(Tensor(weights["positions"]), name="positions")
        self.has_mid, self.last = config.mid_positions, config.blocks.layers - 1
        if config.mid_positions:
            self.mid_positions = Parameter(Tensor(weights["mid_positions"]), name="mid_positions")
        self.blocks = nn.CellList(_build_blocks(config.blocks, weights, config.tokens, causal=False))
        self.norm = _build_norm(weights, "norm", config.blocks.epsilon)
        self.classes, self.boxes = (
            nn.SequentialCell(
                *(_build_dense(weights, f"{head}.0"), nn.ReLU(), _build_dense(weights, f"{head}.1"), nn.ReLU()),
                _build_dense(weights, f"{head}.2"),
            )
            for head in ("classes", "boxes")
        )

    def construct(self, image: Any, extent: Any = None) -> Any:
        """Return scores and boxes for images with shape (N, 3, H, W).

        Args:
            image: The images.
            extent: Their height and width in the unit that boxes are to have, float32 (N, 2); None for parts.

        Returns:
            Scores before softmax (N, queries, classes + 1), the last for no object, and boxes (N, queries, 4): the
            centre's x and y, width and height as parts of the image's width and height, 0 to 1.
        """
        patches = _split_patches(image, self.grid, self.side)
        tokens = self.patch(self.stem(patches) if self.has_stem else patches)
        zeros = ops.zeros_like(tokens[:, :1])
        tokens = ops.concat((zeros + self.first, tokens, zeros + self.tokens), 1) + self.positions
        for index, block in enumerate(self.blocks):
            tokens = block(tokens)
            if self.has_mid and index < self.last:
                tokens = tokens + self.mid_positions[index]
        kept = self.queries + (self.patches if self.dense and self.training else 0)
        states = self.norm(ops.split(tokens, [1 + self.patches + self.queries - kept, kept], 1)[1])
        boxes = ops.sigmoid(self.boxes(states))
        if extent is not None:
            boxes = boxes * ops.concat((extent[:, 1:], extent[:, :1]) * 2, 1).expand_dims(1)
        return self.classes(states), boxes


class PixelDetector(nn.Cell):  # type: ignore[misc]
    """A detector with its boxes in pixels.

    Args:
        detector: The network.
    """

    def __init__(self, detector: DetectorNetwork) -> None:
        # Parameter names stay, so that a training can start with them.
        super().__init__(auto_prefix=False)
        self.detector = detector

    def construct(self, image: Any, extent: Any) -> Any:
        """Return scores and boxes, see `DetectorNetwork.construct`, the boxes in the extent's units.

        Args:
            image: With shape (N, 3, H, W).
            extent: The images' height and width, float32 (N, 2).
        """
        return self.detector(image, extent)


class TextNetwork(nn.Cell):  # type: ignore[misc]
    """A text tower.

    Args:
        config: Dimensions and variants.
        weights: Arrays by `list_text_weights`' names.
    """

    def __init__(self, config: TextConfig, weights: Weights) -> None:
        super().__init__()
        self.end_id = config.end_id
        self.embedding = Parameter(Tensor(weights["embedding"]), name="embedding")
        self.positions = Parameter(Tensor(weights["positions"]), name="positions")
        blocks = _build_blocks(config.blocks, weights, config.length, causal=config.end_id is not None)
        self.blocks = nn.SequentialCell(*blocks)
        self.norm = _build_norm(weights, "norm", config.blocks.epsilon)
        self.output = _build_dense(weights, "output")
        # Less for later positions; twice the length lifts each end token above all other tokens.
        self.order = Tensor(np.arange(config.length, 0, -1, dtype=np.float32))
        self.lift = 2.0 * config.length

    def construct(self, ids: Any) -> Any:
        """Return embeddings (N, width) with length 1 for token IDs, int32 (N, length)."""
        states = self.blocks(ops.gather(self.embedding, ids, 0) + self.positions)
        if self.end_id is None:
            state = states[:, -1]
        else:
            wanted = ids.max(1, keepdims=True) if self.end_id < 0 else self.end_id
            rank = (ids == wanted).astype(states.dtype) * self.lift + self.order
            first = (rank == rank.max(1, keepdims=True)).astype(states.dtype)
            state = (states * ops.expand_dims(first, -1)).sum(1)
        return normalise(self.output(self.norm(state)))
