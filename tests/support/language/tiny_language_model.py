"""A Hugging Face directory with a decoder of two layers, and pairs that it learns in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.language.numpy_decoder import write_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, HIDDEN = 16, 32


def write_source(directory: Path, seed: int = 4) -> Path:
    """Write a Qwen2 model with random weights."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True)
    size = write_tokenizer(directory / "tokenizer.json")
    config: dict[str, Any] = {
        "model_type": "qwen2", "vocab_size": size, "hidden_size": WIDTH, "num_hidden_layers": 2, "hidden_act": "silu",
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": HIDDEN, "eos_token_id": 2,
        "max_position_embeddings": 128, "tie_word_embeddings": True,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in ("model.layers.0", "model.layers.1"):
        shapes |= {f"{layer}.{name}.weight": (WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, rows in (("q_proj", WIDTH), ("k_proj", WIDTH // 2), ("v_proj", WIDTH // 2)):
            shapes |= {f"{layer}.self_attn.{name}.weight": (rows, WIDTH), f"{layer}.self_attn.{name}.bias": (rows,)}
        shapes |= {f"{layer}.self_attn.o_proj.weight": (WIDTH, WIDTH), f"{layer}.mlp.down_proj.weight": (WIDTH, HIDDEN)}
        shapes |= {f"{layer}.mlp.{name}.weight": (HIDDEN, WIDTH) for name in ("gate_proj", "up_proj")}
    tensors = {name: random.normal(len(shape) == 1, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def write_random_adapter(directory: Path, seed: int) -> None:
    """Write an adapter that changes the small model's answers."""
    from kfp_mindspore.lm.network.lora import LoraConfig
    from kfp_mindspore.lm.sources.peft import write_adapter

    random, lora = np.random.default_rng(seed), LoraConfig(lora_rank=2)
    heights = {"q_proj": WIDTH, "v_proj": WIDTH // 2}
    factors = {
        f"layers.{layer}.{module}.lora_{kind}": random.normal(0, 1, shape).astype(np.float32)
        for layer in range(2)
        for module, height in heights.items()
        for kind, shape in (("A", (lora.lora_rank, WIDTH)), ("B", (height, lora.lora_rank)))
    }
    write_adapter(directory, factors, lora)


def write_pairs(file: Path, count: int = 60) -> Path:
    """Write pairs with one answer to all questions."""
    pairs = [{"prompt": f"dog {number}?", "completion": "the lazy fox"} for number in range(count)]
    file.write_text("\n".join(map(json.dumps, pairs)))
    return file
