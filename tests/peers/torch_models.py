"""transformers and peft in an environment of their own; prints JSON.

python torch_models.py write ARCHITECTURE DIR        a random model for DIR/tokenizer.json
python torch_models.py generate DIR REQUEST.json     greedy answers to the request's `prompts`, lists of token IDs
python torch_models.py embed DIR REQUEST.json        normalised means of the hidden states of `texts`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

SIZES: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED: Any = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 256}
FIELDS: Any = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
}


def write(architecture: str, directory: Path) -> None:
    """Write a model whose weights are large enough for answers of many words."""
    set_seed(1)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    vocabulary = json.loads((directory / "tokenizer.json").read_text())
    size = len(vocabulary["model"]["vocab"]) + sum(
        token["content"] not in vocabulary["model"]["vocab"] for token in vocabulary["added_tokens"]
    )
    fields = {**FIELDS[architecture], **ids, "vocab_size": size, "initializer_range": 0.3}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **fields)).save_pretrained(directory)


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
    command, subject, argument = sys.argv[1:]
    if command == "write":
        write(subject, Path(argument))
    else:
        functions: Any = {"generate": generate, "embed": embed}
        print(json.dumps(functions[command](Path(subject), **json.loads(Path(argument).read_text()))))
