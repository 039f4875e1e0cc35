"""A tiny random BERT as a Hugging Face directory, and its forward pass in float64."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, LAYERS, HEADS, HIDDEN, POSITIONS, LONGEST = 16, 2, 2, 24, 80, 64
_WORDS = ["quick", "brown", "fox", "over", "lazy", "dog", "what", "is", "capital", "of", "france", "paris", "##s"]


def write_bert(directory: Path, *, pooling: str = "mean", prefix: str = "", **changes: Any) -> dict[str, Any]:
    """Write the directory and return its tensors; `changes` replace fields of config.json."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {token: number for number, token in enumerate([*special, *"abcdefghijklmnopqrstuvwxyz", *_WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(special)
    # Published tokenizers pad and truncate by themselves.
    tokenizer.enable_padding(length=40)
    tokenizer.enable_truncation(8)
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(vocabulary), "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": HIDDEN, "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in zip(kinds, paths, strict=True)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": WIDTH, **modes}))
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(vocabulary), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm": (WIDTH,),
        "pooler.dense": (WIDTH, WIDTH),
    }
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        shapes |= {f"{layer}.attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        shapes |= {f"{layer}.attention.output.{name}": shape for name, shape in
                   (("dense", (WIDTH, WIDTH)), ("LayerNorm", (WIDTH,)))}  # fmt: skip
        shapes |= {f"{layer}.intermediate.dense": (HIDDEN, WIDTH), f"{layer}.output.dense": (WIDTH, HIDDEN)}
        shapes[f"{layer}.output.LayerNorm"] = (WIDTH,)
    random = np.random.default_rng(3)
    tensors: dict[str, Any] = {"embeddings.position_ids": np.arange(POSITIONS)[None]}
    for name, shape in shapes.items():
        if name.endswith("embeddings.weight"):
            tensors[name] = random.normal(size=shape).astype(np.float32)
            continue
        for kind, size in (("weight", shape), ("bias", shape[:1])):
            tensors[f"{name}.{kind}"] = random.normal(0.2, 0.4, size).astype(np.float32)
    save_file({prefix + name: array for name, array in tensors.items()}, directory / "model.safetensors")
    return tensors


def write_questions(file: Path) -> Path:
    """Write 20 pairs whose texts share subwords but no words."""
    pairs = itertools.islice(itertools.combinations(_WORDS[:-1], 3), 0, 200, 10)
    lines = [{"prompt": " ".join(f"{word}s" for word in words), "completion": " ".join(words)} for words in pairs]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def compute_float64(
    tensors: dict[str, Any], ids: Any, types: Any = None, *, pooling: str = "mean", normalised: bool = True
) -> Any:
    """Return one sequence's embedding, float64."""
    weights = {name: np.asarray(array, np.float64) for name, array in tensors.items()}

    def norm(value: Any, name: str) -> Any:
        centred = value - value.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(value: Any, name: str) -> Any:
        return value @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    names = ("word", "position", "token_type")
    words, positions, kinds = (weights[f"embeddings.{name}_embeddings.weight"] for name in names)
    rows = np.zeros(len(ids), int) if types is None else types
    hidden = norm(words[ids] + positions[: len(ids)] + kinds[rows], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        parts = [dense(hidden, f"{layer}.attention.self.{part}") for part in ("query", "key", "value")]
        size = WIDTH // HEADS
        mixed = []
        for head in range(HEADS):
            query, key, value = (part[:, head * size : (head + 1) * size] for part in parts)
            scores = np.exp(query @ key.T / math.sqrt(size))
            mixed.append(scores / scores.sum(-1, keepdims=True) @ value)
        attended = dense(np.concatenate(mixed, -1), f"{layer}.attention.output.dense")
        hidden = norm(hidden + attended, f"{layer}.attention.output.LayerNorm")
        inner = dense(hidden, f"{layer}.intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        hidden = norm(hidden + dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    pooled = hidden[0] if pooling == "cls" else hidden.mean(0)
    return pooled / np.linalg.norm(pooled) if normalised else pooled
