"""Contrastive training of a dual encoder by `fit`."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mindspore
import numpy as np
from mindspore import dataset as ms_dataset
from mindspore import nn
from numpy.typing import NDArray

from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.formats.bundle import (
    DUAL_KIND,
    EMBEDDING_KIND,
    NETWORK_FILE,
    OUTPUT,
    TEXT_MODEL_FILE,
    TOKENIZER_FILE,
    ModelBundle,
)
from kfp_mindspore.lm.network.encoder import EncoderConfig, list_encoder_weights
from kfp_mindspore.lm.network.lora import LoraConfig
from kfp_mindspore.lm.serving.network_files import read_network_files
from kfp_mindspore.mindir.environment import use_graph_mode
from kfp_mindspore.mindir.graph.metadata import read_weights
from kfp_mindspore.outputs import check_replaceable
from kfp_mindspore.training import TrainingConfig, fit, init_distributed, set_seed
from kfp_mindspore.transform.declaration import build_steps, declare_step
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.transform.values import Normalize
from kfp_mindspore.vision.bundle import build_zeros, parse_image_config, set_weights, write_dual_encoder
from kfp_mindspore.vision.contrastive import MAX_SCALE, DualNetwork, PixelTower, copy_weights, prepare_tower
from kfp_mindspore.vision.network import BlockConfig, ImageConfig, ImageNetwork, list_image_weights
from kfp_mindspore.vision.options import BEST, INFONCE, SIGMOID, ContrastiveOptions
from kfp_mindspore.vision.pairs import Pair, decode_pictures, hold_out, read_pairs
from kfp_mindspore.vision.processor import MAX_PIXELS
from kfp_mindspore.vision.retrieval import measure_retrieval
from kfp_mindspore.vision.sources.models import SourceImages, SourceTexts
from kfp_mindspore.vision.text_towers import (
    EncoderTextConfig,
    build_text_network,
    list_tower_weights,
    parse_text_config,
)

_BATCH = 64
# First values of factor and bias (CLIP, arXiv:2103.00020; SigLIP, arXiv:2303.15343).
_FIRST = {INFONCE: (1 / 0.07, None), SIGMOID: (10.0, -10.0)}


@dataclass(frozen=True)
class ContrastiveResult:
    """A contrastive training's result.

    Args:
        examples: Training pairs.
        held_out: Held-out pairs.
        loss: Mean loss of the held-out batches, with the final weights.
        accuracy: Fraction of held-out pictures whose caption is the most similar of all held-out captions.
        recall_at_5: Fraction of held-out captions with an own picture among the five most similar held-out ones.
        best_epoch: The final weights' epoch.
        history: One record per epoch, as in metrics.jsonl.
        seconds: Wall-clock time, the bundle's verification included.
    """

    examples: int
    held_out: int
    loss: float
    accuracy: float
    recall_at_5: float
    best_epoch: int
    history: Sequence[Mapping[str, Any]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the history."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "history"}


@dataclass(frozen=True)
class _Towers:
    """Two towers before training."""

    images: SourceImages
    image_cell: ImageNetwork
    texts: SourceTexts
    text_cell: nn.Cell


def finetune(
    bundle: Path, data: str, tuned: Path, options: ContrastiveOptions | None = None, *, verbose: bool = True
) -> ContrastiveResult:
    """Train two towers on pictures with captions, and write them as a `dual-encoder` bundle.

    As a job's worker, the process trains in data parallel with the others, and rank 0 writes the bundle.

    Args:
        bundle: A `dual-encoder` bundle, or an `embedding` bundle, which gets a new image tower.
        data: Pictures with captions, see `read_pairs`.
        tuned: The bundle's directory; replaced when it exists.
        options: See `ContrastiveOptions`.
        verbose: Whether to print a line per epoch.

    Raises:
        UserError: The bundle has another kind, or the pairs are missing, damaged, too few or too long.
        ValidationError: An option is invalid.
        KfpMindSporeError: The loss is no longer finite, or a graph differs from its network.
    """
    begun = time.perf_counter()
    options = options or ContrastiveOptions()
    check_replaceable(tuned, OUTPUT, [bundle, data])
    opened = ModelBundle.open(bundle)
    lora = LoraConfig(options.lora_rank, options.lora_alpha, tuple(options.lora_attn_modules))
    training, held = hold_out(read_pairs(data), options.held_out)
    worker = init_distributed()
    if worker.pieces > 1:
        raise UserError(
            f"workers: must be {worker.requested}, which the job requests, got {worker.size}: a batch is compared whole"
        )
    set_seed(options.seed)
    towers = _open_towers(opened, options)
    images, texts = towers.images, towers.texts
    # `DecodeImage` and `Normalize`, as each dual encoder's.
    decode, norm = (cast("Any", step) for step in build_steps(images.steps, "pre"))
    # Shuffled: the loss of a batch with equal captions measures nothing.
    held = [held[index] for index in np.random.default_rng(options.seed).permutation(len(held))]
    pixels = {name: decode_pictures(part, decode) for name, part in (("training", training), ("held", held))}
    ids, numbers = _encode_captions([*training, *held], texts)
    rows = {"training": numbers[: len(training)], "held": numbers[len(training) :]}
    image_tower = prepare_tower(towers.image_cell, options.images, lora, options.seed)
    text_tower = prepare_tower(towers.text_cell, options.texts, lora, options.seed + 1)
    if text_tower is None:
        ids = _compute(towers.text_cell, ids)
    arrays = {
        name: {
            "image": _compute(PixelTower(towers.image_cell, norm), pixels[name])
            if image_tower is None
            else pixels[name],
            "text": ids[rows[name]],
            "group": rows[name].astype(np.float32),
        }
        for name in rows
    }
    batch_size = min(options.batch_size, len(training))
    network = DualNetwork(
        None if image_tower is None else PixelTower(image_tower, norm),
        text_tower,
        scale=texts.scale,
        bias=texts.bias,
        batch_size=batch_size,
        worker=worker,
    )
    validation = ms_dataset.NumpySlicesDataset(arrays["held"], shuffle=False)
    result = fit(
        network,
        arrays["training"],
        optimizer=nn.AdamWeightDecay(
            network.trainable_params(), options.learning_rate, weight_decay=options.weight_decay
        ),
        validation=validation.batch(min(batch_size, len(held)), drop_remainder=True),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=batch_size,
            seed=options.seed,
            schedule={"name": "cosine", "warmup_epochs": min(1.0, options.epochs / 10)},
            clip_norm=1.0,
            keep_best="eval_loss" if options.keep == BEST else None,
            export_check="off",
            verbose=verbose,
        ),
    )
    image_cell = ImageNetwork(images.config, build_zeros(list_image_weights(images.config)))
    text_cell = build_text_network(texts.config, build_zeros(list_tower_weights(texts.config)))
    copy_weights(towers.image_cell, image_cell)
    copy_weights(towers.text_cell, text_cell)
    scale = math.exp(float(network.log_scale.asnumpy()[0]))
    bias = None if texts.bias is None else float(network.bias.asnumpy()[0])
    texts = dataclasses.replace(texts, scale=scale if bias is not None else min(scale, MAX_SCALE), bias=bias)
    if worker.is_writer:
        write_dual_encoder(tuned, images, image_cell, texts, text_cell, str(tuned))
    kept, right = np.unique(rows["held"], return_inverse=True)
    text_rows = ids[kept] if text_tower is None else _compute(text_cell, ids[kept])
    found = measure_retrieval(_compute(PixelTower(image_cell, norm), pixels["held"]), text_rows, right)
    return ContrastiveResult(
        examples=len(training),
        held_out=len(held),
        loss=float(result.metrics["eval_loss"]),
        **found,
        best_epoch=result.best_epoch or result.epochs,
        history=result.history,
        seconds=time.perf_counter() - begun,
    )


def _compute(cell: nn.Cell, rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return a tower's embeddings."""
    cell.set_train(False)
    size, parts = min(_BATCH, len(rows)), []
    with use_graph_mode():
        for start in range(0, len(rows), size):
            # One batch size: another one is compiled again.
            part = np.resize(rows[start : start + size], (size, *rows.shape[1:]))
            parts.append(cell(mindspore.Tensor(part)).asnumpy())
    found: NDArray[np.float32] = np.concatenate(parts)[: len(rows)]
    return found


def _encode_captions(pairs: Sequence[Pair], texts: SourceTexts) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the different captions' token IDs, int32 (M, length), and each pair's place among them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(texts.tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    places: dict[str, int] = {}
    rows, length = [], texts.config.length
    for pair in pairs:
        if pair.caption in places:
            continue
        places[pair.caption] = len(places)
        found = tokenizer.encode(pair.caption).ids
        if not 0 < len(found) <= length:
            raise UserError(
                f"{pair.origin}: caption: must have 1 to {length} tokens, the text length, got {len(found)}: "
                f"{pair.caption!r:.60}",
                hint="Shorten the caption; with an embedding model, set a larger length.",
            )
        rows.append(found + [texts.pad_id] * (length - len(found)))
    return np.array(rows, np.int32), np.array([places[pair.caption] for pair in pairs])


def _open_towers(opened: ModelBundle, options: ContrastiveOptions) -> _Towers:
    kind, architecture = opened.signature.kind, opened.signature.metadata.get("architecture", "")
    if kind == EMBEDDING_KIND:
        return _add_images(opened, options)
    if kind != DUAL_KIND:
        raise UserError(
            f"{opened.path}: metadata.kind: must be {DUAL_KIND} or {EMBEDDING_KIND}, got {kind}",
            hint="Import one: kfp-mindspore vision import SOURCE, or kfp-mindspore lm import minilm.",
        )
    file = opened.path / NETWORK_FILE
    try:
        network = json.loads(file.read_text())
        if "texts" not in network:
            raise UserError(f"{file}: texts: missing, the bundle is older than training", hint="Import it again.")
        image_config, text_config = parse_image_config(network["images"]), parse_text_config(network["texts"])
        scale, bias, pad_id = network["scale"], network["bias"], network["pad_id"]
        tokenizer = (opened.path / TOKENIZER_FILE).read_text()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptBundleError(f"{file}: not readable: {error}") from None
    if options.loss == SIGMOID and bias is None:
        scale, bias = _FIRST[SIGMOID]
    elif options.loss == INFONCE:
        scale, bias = min(scale, MAX_SCALE), None
    images = ImageNetwork(image_config, build_zeros(list_image_weights(image_config)))
    texts = build_text_network(text_config, build_zeros(list_tower_weights(text_config)))
    set_weights(images, read_weights(opened.mindir))
    set_weights(texts, read_weights(opened.path / TEXT_MODEL_FILE))
    steps = opened.read_preprocessing()["pre"]
    return _Towers(
        SourceImages(image_config, {}, steps, architecture),
        images,
        SourceTexts(text_config, {}, tokenizer, pad_id, scale, bias),
        texts,
    )


def _add_images(opened: ModelBundle, options: ContrastiveOptions) -> _Towers:
    """Return an embedding model and a new ViT, whose projection has the embedding's width."""
    encoder, weights = read_network_files(opened.path, EncoderConfig, list_encoder_weights)
    tokenizer, pad_id = _read_tokenizer(opened.path / TOKENIZER_FILE, lower_case=encoder.lower_case)
    text_config = EncoderTextConfig(encoder, min(options.length, encoder.max_length), pad_id)
    side = (options.image_size, options.image_size)
    blocks = BlockConfig(options.width, options.layers, options.heads, 4 * options.width, "gelu", 1e-6)
    config = ImageConfig(blocks, side, options.patch, outputs=encoder.width, normalised=True)
    steps = [
        declare_step(step)
        for step in (
            DecodeImage(max_pixels=MAX_PIXELS, resize=side, resample="bicubic", rotate=True),
            Normalize([0.5] * 3, [0.5] * 3),
        )
    ]
    scale, bias = _FIRST[options.loss or INFONCE]
    return _Towers(
        SourceImages(config, {}, steps, "vit"),
        ImageNetwork(config, create_weights(config, options.seed)),
        SourceTexts(text_config, {}, tokenizer, pad_id, scale, bias),
        build_text_network(text_config, weights),
    )


def create_weights(config: ImageConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return random weights of a new image tower by `list_image_weights`' names.

    Args:
        config: The tower's.
        seed: Seed.
    """
    random, weights = np.random.default_rng(seed), {}
    for name, shape in list_image_weights(config).items():
        if len(shape) > 1:
            # Glorot's deviation for matrices.
            deviation = 0.02 if name == "positions" else math.sqrt(2 / (shape[0] + math.prod(shape[1:])))
            weights[name] = random.normal(0, deviation, shape).astype(np.float32)
        else:
            weights[name] = np.full(shape, "norm" in name and name.endswith("weight"), np.float32)
    return weights


def _read_tokenizer(file: Path, *, lower_case: bool) -> tuple[str, int]:
    """Return tokenizer.json, which lower-cases where the model does, and the padding token."""
    from tokenizers import Tokenizer, normalizers

    tokenizer = Tokenizer.from_file(str(file))
    if lower_case:
        steps = [normalizers.Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
        tokenizer.normalizer = normalizers.Sequence(steps)
    pad_id = tokenizer.padding["pad_id"] if tokenizer.padding else tokenizer.token_to_id("[PAD]")
    if pad_id is None:
        raise UserError(f"{file}: must have the token [PAD] or a padding, which a text tower masks")
    return tokenizer.to_str(), pad_id
