"""Bundles of published vision models: image classifiers, image embeddings, dual encoders and detectors.

A classifier or an embedding of images alone is an ordinary bundle with a declared preprocessing, and so is a
`detector`: its graph has the images and their extents as inputs, scores and boxes as outputs. A `dual-encoder` has
the same files for its image tower, and

text.mindir       the text tower: token IDs, int32 (N, length), to embeddings with length 1
tokenizer.json
network.json      text_length, pad_id, vocabulary_size, width, scale, bias, and both networks' configurations
prompts.npz       verified texts: `ids.<n>` and the network's `embedding.<n>`

A tower over 1 GiB has its weights beside its graph, such as model.weights_0.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import (
    DETECTOR_KIND,
    DUAL_KIND,
    MODEL_FILE,
    NETWORK_FILE,
    OUTPUT,
    PROMPTS_FILE,
    TEXT_MODEL_FILE,
    TOKENIZER_FILE,
    BundleWriter,
    ModelBundle,
    Signature,
    TensorSpec,
    VerifiedSamples,
    write_bundle,
)
from kfp_mindspore.formats.manifest import describe_files
from kfp_mindspore.mindir.environment import use_graph_mode
from kfp_mindspore.mindir.export.graph import export_graph, place_graph, run_graph
from kfp_mindspore.mindir.graph.metadata import read_weights
from kfp_mindspore.mindir.graph.runner import GraphRunner
from kfp_mindspore.mindir.parameters.network import scratch_directory
from kfp_mindspore.mindir.verify import measure_difference
from kfp_mindspore.outputs import check_replaceable
from kfp_mindspore.transform.base import BYTES, fill_objects
from kfp_mindspore.transform.boxes import SelectBoxes
from kfp_mindspore.transform.declaration import build_pipeline, declare_step
from kfp_mindspore.transform.values import Label
from kfp_mindspore.vision.network import (
    BlockConfig,
    ClassNetwork,
    DetectorNetwork,
    ImageConfig,
    ImageNetwork,
    PixelDetector,
    list_image_weights,
)
from kfp_mindspore.vision.sources.keys import DETECTOR_CONFIG, DETECTOR_TYPE, DUAL_TYPES
from kfp_mindspore.vision.sources.models import (
    SourceDetector,
    SourceImages,
    SourceTexts,
    read_config,
    read_detector,
    read_images,
    read_texts,
)
from kfp_mindspore.vision.text_towers import build_text_network

if TYPE_CHECKING:
    from mindspore import nn
    from tokenizers import Tokenizer

_TOLERANCE = 1e-5
_TEXTS = ("a photo of a cat", "two red circles above a small blue square")
_MOST_LABELS, _BATCH = 1000, 32
# The verified images, which are drawn: as many as a smoke test sends, with these heights and widths.
_SAMPLES = 32
_SIDES = ((48, 64), (90, 50), (33, 33))
# Memory for a detector's attention scores, which limits its batch.
_ATTENTION_BYTES = 1 << 30


def import_source(source: str, bundle: Path) -> float:
    """Write a published model as a bundle.

    Args:
        source: Path, or URI that fsspec reads, of a Hugging Face directory with a CLIP, SigLIP, ViT, DINOv2 or YOLOS.
        bundle: The bundle's directory; replaced when it exists.

    Returns:
        The graphs' largest difference from the networks.

    Raises:
        NotFoundError: There is nothing.
        UserError: The source is not supported or damaged; the message names the key.
        KfpMindSporeError: The URI's server fails, or a graph differs from its network by more than 1e-5.
    """
    if "://" in source:
        with fetch_source(source) as path:
            return import_model(path, bundle)
    if not Path(source).is_dir():
        raise NotFoundError(f"{source}: no such directory", hint="Give a Hugging Face directory, or its URI.")
    return import_model(Path(source), bundle)


def import_model(source: Path, bundle: Path) -> float:
    """Write a published model as a bundle, see `import_source`.

    Args:
        source: The Hugging Face directory.
        bundle: The bundle's directory; replaced when it exists.

    Raises:
        UserError, KfpMindSporeError: As `import_source`.
    """
    check_replaceable(bundle, OUTPUT, [source])
    if read_config(source)[1] == DETECTOR_TYPE:
        return write_detector(read_detector(source), bundle, str(source))
    images = read_images(source)
    cell = ImageNetwork(images.config, images.weights)
    if images.architecture in DUAL_TYPES:
        texts = read_texts(source)
        return write_dual_encoder(
            bundle, images, cell, texts, build_text_network(texts.config, texts.weights), str(source)
        )
    with use_graph_mode(), write_bundle(bundle) as writer:
        metadata = {"architecture": images.architecture}
        return _write_images(writer, cell, images.steps, images.labels, metadata, str(source))


def write_dual_encoder(
    bundle: Path, images: SourceImages, image_cell: nn.Cell, texts: SourceTexts, text_cell: nn.Cell, subject: str
) -> float:
    """Write two towers as a `dual-encoder` bundle.

    Args:
        bundle: The bundle's directory; replaced when it exists.
        images: The image tower's configuration and preprocessing.
        image_cell: Its network.
        texts: The text tower's configuration, tokenizer and scale.
        text_cell: Its network.
        subject: The model's origin, for messages.

    Returns:
        The graphs' largest difference from the networks.

    Raises:
        KfpMindSporeError: It is more than 1e-5 of the largest value.
    """
    with use_graph_mode(), write_bundle(bundle) as writer:
        difference = _write_texts(writer, texts, text_cell, images.config, subject)
        metadata = {"architecture": images.architecture, "kind": DUAL_KIND, "max_length": str(texts.config.length)}
        return _write_images(writer, image_cell, images.steps, (), metadata, subject, difference=difference)


def write_detector(source: SourceDetector, bundle: Path, subject: str, architecture: str = DETECTOR_TYPE) -> float:
    """Write a detector as a bundle.

    Args:
        source: The network, its weights and preprocessing, and the classes.
        bundle: The bundle's directory; replaced when it exists.
        subject: The detector's origin, for messages.
        architecture: The signature's `architecture`.

    Returns:
        The graph's largest difference from the network, as a part of the largest score or side.

    Raises:
        KfpMindSporeError: The graph differs from its network by more than 1e-5.
    """
    config = source.config
    most = _ATTENTION_BYTES // (4 * config.blocks.heads * config.tokens**2)
    rows = 1 << min(max(most, 1).bit_length() - 1, 6)
    metadata = {"architecture": architecture, "kind": DETECTOR_KIND, "serving": json.dumps({"max_batch": rows})}
    metadata[DETECTOR_CONFIG] = json.dumps(dataclasses.asdict(config))
    cell = PixelDetector(DetectorNetwork(config, source.weights))
    with use_graph_mode(), write_bundle(bundle) as writer:
        return _write_images(writer, cell, source.steps, source.labels, metadata, subject, rows=rows)


def build_classifier(model: Path, labels: Sequence[str], template: str, bundle: Path) -> float:
    """Write an image classifier whose classes are texts.

    Args:
        model: A `dual-encoder` bundle.
        labels: The classes' names, 2 to 1,000.
        template: The text of a class, with `{}` for its name.
        bundle: The bundle's directory; replaced when it exists.

    Returns:
        The graph's largest difference from the network.

    Raises:
        UserError: Labels are too few, too many, empty, equal or too long, or the model is no dual encoder.
    """
    check_replaceable(bundle, OUTPUT, [model])
    labels = [label.strip() for label in labels]
    check_labels(labels, template)
    encoder = TextEncoder.open(model)
    texts = encoder.embed([template.replace("{}", label) for label in labels])
    opened, network = encoder.bundle, encoder.network
    config = parse_image_config(network["images"])
    images = ImageNetwork(config, build_zeros(list_image_weights(config)))
    set_weights(images, read_weights(opened.mindir))
    cell = ClassNetwork(images, texts * np.float32(network["scale"]), network["bias"] or 0.0)
    steps = opened.read_preprocessing()["pre"]
    metadata = {"architecture": opened.signature.metadata["architecture"], "template": template}
    with use_graph_mode(), write_bundle(bundle) as writer:
        return _write_images(writer, cell, steps, labels, metadata, str(model))


def check_labels(labels: Sequence[str], template: str) -> None:
    """Raise unless the labels are different names, and the template has a place for one.

    Args:
        labels: Without blanks at either end.
        template: See `build_classifier`.

    Raises:
        UserError: The message names the label.
    """
    if template.count("{}") != 1:
        raise UserError(f"--template: must have {{}} once, for the label, got {template!r}")
    if empty := [str(number) for number, label in enumerate(labels, 1) if not label]:
        raise UserError(f"--labels: label {', '.join(empty[:5])} is empty", hint="Separate names by one comma.")
    if equal := [label for label, count in Counter(labels).items() if count > 1]:
        raise UserError(f"--labels: must be different, got {equal[0]!r} twice")
    if not 2 <= len(labels) <= _MOST_LABELS:
        raise UserError(f"--labels: must be 2 to {_MOST_LABELS:,} names, got {len(labels):,}")


class TextEncoder:
    """Computes a dual encoder's text embeddings in this process.

    Args:
        bundle: The opened bundle.
        network: network.json.
        tokenizer: The tokenizer.
    """

    def __init__(self, bundle: ModelBundle, network: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.bundle, self.network = bundle, network
        self.max_length, self.width = int(network["text_length"]), int(network["width"])
        self.vocabulary_size, self.pad_id = int(network["vocabulary_size"]), int(network["pad_id"])
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._graph = CompiledGraph(mindspore.load(str(bundle.path / TEXT_MODEL_FILE)))

    @classmethod
    def open(cls, directory: Path) -> TextEncoder:
        """Open a `dual-encoder` bundle.

        Args:
            directory: The bundle.

        Raises:
            UserError: It is a bundle of another kind.
            CorruptBundleError: A file is not readable or has another digest than signed.
        """
        from tokenizers import Tokenizer

        opened = ModelBundle.open(directory)
        if opened.signature.kind != DUAL_KIND:
            raise UserError(
                f"{directory}: metadata.kind: must be {DUAL_KIND}, got {opened.signature.kind}",
                hint="Import one: kfp-mindspore vision import SOURCE -o MODEL_DIR",
            )
        file = opened.path / NETWORK_FILE
        try:
            network = json.loads(file.read_text())
            return cls(opened, network, Tokenizer.from_file(str(opened.path / TOKENIZER_FILE)))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CorruptBundleError(f"{file}: not readable: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Return a text's token IDs, special tokens included, without padding.

        Args:
            text: The text.
        """
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return embeddings with length 1, float32 with shape (n, width).

        Args:
            texts: The texts.

        Raises:
            UserError: A text has more tokens than the model's; the message has it.
        """
        sequences = [self.encode(text) for text in texts]
        for text, ids in zip(texts, sequences, strict=True):
            if len(ids) > self.max_length:
                raise UserError(
                    f"{text!r:.80}: must have at most {self.max_length} tokens, this model's longest text, "
                    f"got {len(ids)}"
                )
        return self.compute(sequences)

    def compute(self, sequences: Sequence[Sequence[int] | NDArray[np.int32]]) -> NDArray[np.float32]:
        """Return embeddings of token IDs, float32 with shape (n, width).

        Args:
            sequences: Each with 1 to `max_length` IDs.
        """
        rows = np.full((len(sequences), self.max_length), self.pad_id, np.int32)
        for row, ids in enumerate(sequences):
            rows[row, : len(ids)] = ids
        parts = []
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            # Few batch sizes: each is compiled once.
            size = 1 << (len(part) - 1).bit_length()
            padded = np.resize(part, (size, self.max_length))
            parts.append(self._graph.run([padded])[0][: len(part)].copy())
        return np.concatenate(parts)


def make_images() -> list[bytes]:
    """Return the PNG files of the verified images."""
    from PIL import Image

    source, files = np.random.default_rng(7), []
    for height, width in itertools.islice(itertools.cycle(_SIDES), _SAMPLES):
        coarse = source.integers(0, 256, (5, 4, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return files


def _write_images(
    writer: BundleWriter,
    cell: nn.Cell,
    steps: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    metadata: dict[str, str],
    subject: str,
    *,
    difference: float = 0.0,
    rows: int = _SAMPLES,
) -> float:
    """Write the image graph and its preprocessing, sign the bundle, and return the largest difference."""
    is_detector = metadata.get("kind") == DETECTOR_KIND
    raw = {"image": fill_objects(make_images()[:rows])}
    post = [declare_step(SelectBoxes(labels) if is_detector else Label(labels))] if labels else []
    declaration = {"inputs": [TensorSpec("image", BYTES, (-1,)).to_dict()], "pre": list(steps), "post": post}
    inputs = {name: np.ascontiguousarray(array) for name, array in build_pipeline(declaration).preprocess(raw).items()}
    cell.set_train(False)
    computed = cell(*map(mindspore.Tensor, inputs.values()))
    outputs = dict(zip(("logits", "boxes"), computed, strict=True)) if is_detector else {"output": computed}
    outputs = {name: tensor.asnumpy() for name, tensor in outputs.items()}
    with scratch_directory() as scratch:
        file = export_graph(cell, scratch, inputs, None, {})
        if rows >= _SAMPLES:
            run_graph(cell, file, inputs, None)
        place_graph(file, writer.directory / MODEL_FILE)
    kept = VerifiedSamples(inputs, outputs, None, raw=raw)
    writer.write_verified(kept)
    writer.write_preprocessing(declaration)
    if labels:
        metadata |= {"labels": json.dumps(list(labels)), "task": "none" if is_detector else "classification"}
    inward, outward = (
        tuple(TensorSpec(name, "float32", (-1, *array.shape[1:])) for name, array in arrays.items())
        for arrays in (inputs, outputs)
    )
    signature = Signature(inward, outward, mindspore.__version__, describe_files(writer.directory), metadata=metadata)
    with GraphRunner(ModelBundle(writer.directory, signature), warm=()) as runner:
        answers = runner.predict(inputs)
    found = measure_difference(outputs, answers)
    for name, array in outputs.items():
        share = measure_difference({name: array}, answers) / float(np.abs(array).max())
        difference = max(difference, _check(share, subject, "images"))
    verified = {
        "dataset": "drawn",
        "samples": len(kept),
        "max_abs_diff": found,
        "tolerance": kept.scale_tolerance(_TOLERANCE),
    }
    writer.sign(dataclasses.replace(signature, verified=verified))
    return difference


def _write_texts(writer: BundleWriter, texts: SourceTexts, cell: nn.Cell, images: ImageConfig, subject: str) -> float:
    """Write the text graph and its files; return its largest difference."""
    from tokenizers import Tokenizer

    config = texts.config
    cell.set_train(False)
    tokenizer = Tokenizer.from_str(texts.tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    sequences = [np.array(tokenizer.encode(text).ids[: config.length], np.int32) for text in _TEXTS]
    if most := max(int(ids.max()) for ids in sequences if len(ids)) >= config.vocabulary_size:
        raise UserError(f"{subject}: tokenizer.json: IDs must be below vocab_size {config.vocabulary_size}, got {most}")
    network = {
        "text_length": config.length,
        "pad_id": texts.pad_id,
        "vocabulary_size": config.vocabulary_size,
        "width": config.outputs,
        "scale": texts.scale,
        "bias": texts.bias,
        "images": dataclasses.asdict(images),
        "texts": dataclasses.asdict(config),
    }
    rows = np.full((len(sequences), config.length), texts.pad_id, np.int32)
    for row, ids in enumerate(sequences):
        rows[row, : len(ids)] = ids
    expected = cell(mindspore.Tensor(rows)).asnumpy()
    with scratch_directory() as scratch:
        file = export_graph(cell, scratch, {"ids": rows}, None, {})
        run_graph(cell, file, {"ids": rows}, None)
        place_graph(file, writer.directory / TEXT_MODEL_FILE)
    (writer.directory / NETWORK_FILE).write_text(json.dumps(network, indent=2))
    (writer.directory / TOKENIZER_FILE).write_text(texts.tokenizer)
    found = TextEncoder(ModelBundle(writer.directory, Signature((), (), "")), network, tokenizer).compute(sequences)
    arrays = {f"ids.{number}": ids for number, ids in enumerate(sequences)}
    arrays |= {f"embedding.{number}": row for number, row in enumerate(expected)}
    np.savez(writer.directory / PROMPTS_FILE, **arrays)
    difference = measure_difference({"output": expected}, {"output": found})
    return _check(difference / float(np.abs(expected).max()), subject, "texts")


def _check(difference: float, subject: str, what: str) -> float:
    if not difference <= _TOLERANCE:
        raise KfpMindSporeError(
            f"{subject}: the graph of {what} must differ by at most {_TOLERANCE} from the network, got "
            f"{difference:.1e} of its largest value"
        )
    return difference


def parse_image_config(value: Mapping[str, Any]) -> ImageConfig:
    """Return the configuration in network.json's `images`."""
    fields = dict(value)
    return ImageConfig(**{**fields, "blocks": BlockConfig(**fields["blocks"]), "size": tuple(fields["size"])})


def build_zeros(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Return weights that `set_weights` replaces."""
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def set_weights(cell: nn.Cell, values: Mapping[str, NDArray[Any]]) -> None:
    """Set a network's parameters to a MindIR file's, by name."""
    for parameter in cell.get_parameters():
        parameter.set_data(mindspore.Tensor(np.ascontiguousarray(values[parameter.name])))
