"""Tiny random T5 networks, their forward pass in float64, and their Hugging Face directories."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig, list_seq2seq_weights

T5 = Seq2SeqConfig(40, 16, 2, 2, 2, 6, 24, 64, buckets=8, max_distance=10)
V1_1 = Seq2SeqConfig(
    40, 16, 2, 1, 2, 6, 24, 64, 8, 10, activation="gelu_tanh", gated=True, tied=False, scaled=False
)  # fmt: skip


def make_weights(config: Seq2SeqConfig) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = list_seq2seq_weights(config).items()
    return {name: random.normal(len(shape) == 1, 0.3, shape).astype(np.float32) for name, shape in shapes}


def compute_bucket(config: Seq2SeqConfig, distance: int, both: bool) -> int:
    count = config.buckets // 2 if both else config.buckets
    start = count if both and distance > 0 else 0
    size, exact = (abs(distance) if both else max(-distance, 0)), count // 2
    if size < exact:
        return start + size
    ratio = math.log(size / exact) / math.log(config.max_distance / exact)
    return start + min(exact + int(ratio * (count - exact)), count - 1)


def compute_logits(config: Seq2SeqConfig, weights: dict[str, np.ndarray], source: Any, steps: Any) -> np.ndarray:
    """Return the logits of one source without padding, in float64."""
    wide = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(hidden: np.ndarray, name: str) -> np.ndarray:
        return hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + config.epsilon) * wide[name]

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, bias: Any) -> np.ndarray:
        query, key, value = (
            part.reshape(len(part), config.heads, -1).transpose(1, 0, 2) for part in (query, key, value)
        )
        scores = np.exp(query @ key.transpose(0, 2, 1) + bias)
        mixed = scores / scores.sum(-1, keepdims=True) @ value
        return mixed.transpose(1, 0, 2).reshape(mixed.shape[1], -1)

    def run(stack: str, ids: Any, encoded: np.ndarray | None) -> np.ndarray:
        count = len(ids)
        both = encoded is None
        pairs = [[compute_bucket(config, key - query, both) for key in range(count)] for query in range(count)]
        bias = wide[f"{stack}.bias"][np.array(pairs)].transpose(2, 0, 1)
        if not both:
            bias = bias + np.triu(np.full((count, count), -np.inf), 1)
        hidden = wide["embedding"][ids]
        for index in range(config.layers if both else config.decoder_layers):
            layer = f"{stack}.layers.{index}"
            parts = np.split(norm(hidden, f"{layer}.norm1") @ wide[f"{layer}.qkv"].T, 3, -1)
            hidden = hidden + attend(*parts, bias) @ wide[f"{layer}.out"].T
            if encoded is not None:
                query = norm(hidden, f"{layer}.norm2") @ wide[f"{layer}.query"].T
                key, value = np.split(encoded @ wide[f"{layer}.key_value"].T, 2, -1)
                hidden = hidden + attend(query, key, value, 0) @ wide[f"{layer}.cross_out"].T
            inner = norm(hidden, f"{layer}.norm{2 if both else 3}") @ wide[f"{layer}.up"].T
            if config.gated:
                gate, inner = np.split(inner, 2, -1)
                inner = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * inner
            else:
                inner = np.maximum(inner, 0)
            hidden = hidden + inner @ wide[f"{layer}.down"].T
        return norm(hidden, f"{stack}.norm")

    hidden = run("decoder", steps, run("encoder", source, None))
    return hidden * (config.width**-0.5 if config.scaled else 1) @ wide["embedding" if config.tied else "head"].T


def write_t5(
    directory: Path, config: Seq2SeqConfig = T5, *, dropped: str = "", **changes: Any
) -> dict[str, np.ndarray]:
    """Write a model as `save_pretrained` does and return its weights; `changes` replace fields of config.json."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(f"▁w{number}", -2.0) for number in range(3, config.vocabulary_size)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    values: dict[str, Any] = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": config.vocabulary_size,
        "d_model": config.width, "num_layers": config.layers, "num_decoder_layers": config.decoder_layers,
        "num_heads": config.heads, "d_kv": config.head_size, "d_ff": config.hidden, "n_positions": config.max_length,
        "relative_attention_num_buckets": config.buckets, "relative_attention_max_distance": config.max_distance,
        "feed_forward_proj": "gated-gelu" if config.gated else "relu", "tie_word_embeddings": config.tied,
        "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**values, **changes}))
    weights = make_weights(config)
    tensors = {"shared.weight": weights["embedding"]}
    if not config.tied:
        tensors["lm_head.weight"] = weights["head"]
    inner = config.heads * config.head_size
    for stack, count in (("encoder", config.layers), ("decoder", config.decoder_layers)):
        first, last = f"{stack}.block.0.layer.0.SelfAttention", 1 if stack == "encoder" else 2
        tensors[f"{first}.relative_attention_bias.weight"] = weights[f"{stack}.bias"]
        tensors[f"{stack}.final_layer_norm.weight"] = weights[f"{stack}.norm"]
        for index in range(count):
            block, layer = f"{stack}.block.{index}.layer", f"{stack}.layers.{index}"
            for number, part in enumerate("qkv"):
                rows = weights[f"{layer}.qkv"][number * inner : (number + 1) * inner]
                tensors[f"{block}.0.SelfAttention.{part}.weight"] = rows
            tensors[f"{block}.0.SelfAttention.o.weight"] = weights[f"{layer}.out"]
            tensors |= {f"{block}.{n}.layer_norm.weight": weights[f"{layer}.norm{n + 1}"] for n in range(last + 1)}
            if stack == "decoder":
                tensors[f"{block}.1.EncDecAttention.q.weight"] = weights[f"{layer}.query"]
                tensors[f"{block}.1.EncDecAttention.k.weight"] = weights[f"{layer}.key_value"][:inner]
                tensors[f"{block}.1.EncDecAttention.v.weight"] = weights[f"{layer}.key_value"][inner:]
                tensors[f"{block}.1.EncDecAttention.o.weight"] = weights[f"{layer}.cross_out"]
            dense, up = f"{block}.{last}.DenseReluDense", weights[f"{layer}.up"]
            if config.gated:
                tensors |= {f"{dense}.wi_0.weight": up[: config.hidden], f"{dense}.wi_1.weight": up[config.hidden :]}
            else:
                tensors[f"{dense}.wi.weight"] = up
            tensors[f"{dense}.wo.weight"] = weights[f"{layer}.down"]
    tensors.pop(dropped, None)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, directory / "model.safetensors")
    return weights
