"""transformers and peft in an environment of their own; prints JSON.

python torch_models.py write REQUEST.json            random models, each by a variant of FIELDS for its tokenizer.json
python torch_models.py defaults                      each configuration's keys with their defaults
python torch_models.py logits REQUEST.json           all positions' logits, into an .npy file for each item
python torch_models.py generate DIR REQUEST.json     greedy answers to the request's `prompts`, lists of token IDs
python torch_models.py embed DIR REQUEST.json        normalised means of the hidden states of `texts`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

SIZES: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED: Any = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 512}
# Head sizes and lengths with frequencies that are divided, that are not, and in between.
SCALED: Any = {**GROUPED, "head_dim": 16, "max_position_embeddings": 512}
GRANITE: Any = {
    **GROUPED, "embedding_multiplier": 3.0, "logits_scaling": 8.0, "residual_multiplier": 0.7,
    "attention_multiplier": 0.25,
}  # fmt: skip
FIELDS: Any = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "granite": GRANITE,
    "granite-tied": {**GRANITE, "tie_word_embeddings": True},
    "olmo2": GROUPED,
    "phi3": GROUPED,
    "phi3-partial": {**GROUPED, "partial_rotary_factor": 0.75},
    "phi3-longrope": {
        **GROUPED, "partial_rotary_factor": 0.75, "max_position_embeddings": 2048,
        "original_max_position_embeddings": 512,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [4.0, 8.0, 16.0]},
    },
    # A windowed layer, one with all, and sizes whose products with the scales are not exact.
    "gemma3_text": {
        **GROUPED, "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24, "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 1e5,
    },
    "gemma3_text-untied": {**GROUPED, "head_dim": 16, "sliding_window": 100, "tie_word_embeddings": False},
    # llama.cpp's pattern.
    "gemma3_text-pattern": {
        **GROUPED, "num_hidden_layers": 7, "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "mistral-window": {**GROUPED, "sliding_window": 50},
    "phi3-window": {**GROUPED, "sliding_window": 50},
    "qwen2-window": {**GROUPED, "use_sliding_window": True, "sliding_window": 50, "max_window_layers": 1},
    "smollm3-window": {
        **GROUPED, "num_hidden_layers": 3, "no_rope_layer_interval": 2, "tie_word_embeddings": False,
        "use_sliding_window": True, "sliding_window": 50,
    },
    "smollm3": {**GROUPED, "num_hidden_layers": 3, "no_rope_layer_interval": 2, "tie_word_embeddings": False},
    "smollm3-interval": {**GROUPED, "num_hidden_layers": 5, "tie_word_embeddings": False},
    "llama-linear": {**SCALED, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-llama3": {
        **SCALED,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral-yarn": {
        **SCALED,
        "sliding_window": None,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    },
    "qwen2-yarn": {
        # llama.cpp's Qwen2 has no head size of its own.
        **SCALED,
        "hidden_size": 64,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0,
            "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.707,
        },
    },
    "qwen3-yarn": {
        **SCALED,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.8, "truncate": False},
    },
}  # fmt: skip
FAMILIES = (
    "gpt2",
    "gemma3_text",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "granite",
    "olmo2",
    "phi3",
    "smollm3",
    "t5",
    "bert",
)


def write(directory: Path, variant: str, dtype: str = "float32") -> None:
    """Write a model whose weights are large enough for answers of many words."""
    set_seed(1)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    vocabulary = json.loads((directory / "tokenizer.json").read_text())
    size = len(vocabulary["model"]["vocab"]) + sum(
        token["content"] not in vocabulary["model"]["vocab"] for token in vocabulary["added_tokens"]
    )
    fields = {**FIELDS[variant], **ids, "vocab_size": size, "initializer_range": 0.3}
    config = AutoConfig.for_model(variant.partition("-")[0], **fields)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            # Norms begin with 1, Gemma's with 0: each gets numbers of its own.
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(directory)


def list_defaults() -> dict[str, dict[str, Any]]:
    """Return the configurations that save_pretrained writes, with all keys."""
    return {kind: AutoConfig.for_model(kind).to_dict() for kind in FAMILIES}


def write_logits(directory: Path, ids: list[int], output: Path, *, cast: str = "float32", **fields: Any) -> None:
    """Write the logits of a model that is cast to a dtype after it was loaded, and back to float32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **fields).to(getattr(torch, cast))
    with torch.inference_mode():
        np.save(output, model.float()(torch.tensor([ids])).logits[0].numpy())


def generate(directory: Path, prompts: list[list[int]], tokens: int, adapter: str | None = None) -> list[list[int]]:
    """Return each greedy answer's token IDs, as many as asked for, whatever the end token."""
    config = AutoConfig.from_pretrained(directory)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = kind.from_pretrained(directory, dtype=torch.float32)
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
            do_sample=False, num_beams=1, temperature=None, top_p=None, top_k=None, repetition_penalty=1.0,
        )  # fmt: skip
        answers.append(found[0, 1 if config.is_encoder_decoder else len(prompt) :].tolist())
    return answers


def embed(directory: Path, texts: list[str]) -> list[list[float]]:
    """Return each text's embedding."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory)
    found = []
    for text in texts:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        found.append(torch.nn.functional.normalize(hidden.mean(1), dim=-1)[0].tolist())
    return found


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "defaults":
        print(json.dumps(list_defaults()))
    elif command in ("write", "logits"):
        for item in json.loads(Path(arguments[0]).read_text()):
            directory = Path(item.pop("directory"))
            write(directory, **item) if command == "write" else write_logits(directory, **item)
    else:
        functions: Any = {"generate": generate, "embed": embed}
        print(json.dumps(functions[command](Path(arguments[0]), **json.loads(Path(arguments[1]).read_text()))))
