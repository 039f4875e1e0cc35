"""Hugging Face directories: config.json, *.safetensors, tokenizer.json, generation_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.sources.families import FAMILIES, GEMMA, build_config, list_scales
from kfp_mindspore.lm.sources.fields import GENERATION, read_keys
from kfp_mindspore.lm.sources.model import SourceModel, read_weights, refuse_architecture, refuse_fields
from kfp_mindspore.lm.sources.safetensors import SafetensorsReader
from kfp_mindspore.lm.text.template import SPECIAL_TOKENS, read_special_tokens

_GENERATION = ("eos_token_id", "bos_token_id", "pad_token_id", "temperature", "top_p", "top_k", "repetition_penalty")
_IGNORED = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def read_huggingface(directory: Path) -> SourceModel:
    """Read a directory as `save_pretrained` writes it.

    Args:
        directory: With config.json.

    Raises:
        NotFoundError: A file is missing.
        UserError: The architecture or a variant is not supported, or a file is damaged; the message names the field.
    """
    import numpy as np

    values = read_json(directory / "config.json")
    subject = str(directory / "config.json")
    config = parse_config(values, subject)
    tokenizer = read_tokenizer(directory)
    reader = open_weights(directory)
    if values["model_type"] == "gpt2":
        reader = _Gpt2Reader(reader)
    parts = list_parts(config, values["model_type"])
    weights = read_weights(config, reader, parts, subject=str(directory), ignored=_IGNORED)
    weights |= pair_rotated(config, weights)
    if values["model_type"] == GEMMA:
        # Published less 1.
        weights |= {name: array + 1 for name, array in weights.items() if "norm" in name}
    weights |= {name: weights[name] * np.float32(scale) for name, scale in list_scales(values, config).items()}
    tokenizer_config = read_json(directory / "tokenizer_config.json", required=False)
    generation = read_generation(directory, values)
    tokens_map = read_json(directory / "special_tokens_map.json", required=False)
    tokens = read_special_tokens(tokens_map, tokenizer_config)
    return SourceModel(
        config,
        weights,
        tokenizer,
        _read_template(directory, tokenizer_config),
        {
            **{name: generation[name] for name in _GENERATION if generation.get(name) is not None},
            **({SPECIAL_TOKENS: tokens} if tokens else {}),
        },
        str(values["model_type"]),
    )


def get_model_type(directory: Path) -> str:
    """Return the model type that config.json names; empty without the file or the key."""
    return str(read_json(directory / "config.json", required=False).get("model_type", ""))


def read_tokenizer(directory: Path) -> str:
    """Return tokenizer.json.

    Args:
        directory: The model's.

    Raises:
        NotFoundError: There is none.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise NotFoundError(f"{directory}: no tokenizer.json", hint="Save the model's fast tokenizer there.")
    return file.read_text()


def parse_config(values: Mapping[str, Any], subject: str) -> DecoderConfig:
    """Return the decoder's configuration from a config.json.

    Args:
        values: The file's content.
        subject: The file's path, for messages.

    Raises:
        UserError: The architecture or a variant is not supported, or a field is missing.
    """
    # Code of the author's own makes any other key meaningless.
    own = values.get("model_type") != "phi3" and values.get("auto_map")
    refuse_fields(subject, {"auto_map": own and "the author's code is never run"})
    refuse_architecture(subject, values.get("model_type"), tuple(FAMILIES))
    return build_config(values, subject)


def read_generation(directory: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json's values with generation_config.json's, after sampling defaults and IDs were checked.

    Args:
        directory: The model's.
        values: config.json, whose keys were checked.

    Raises:
        UserError: generation_config.json is no JSON object, or a value is out of range; the message names the key.
    """
    file = directory / "generation_config.json"
    found = read_json(file, required=False)
    read_keys({name: found[name] for name in GENERATION if name in found}, GENERATION, str(file))
    return {**values, **found}


def list_parts(config: DecoderConfig, kind: str) -> dict[str, tuple[str, ...]]:
    """Return the tensors that each weight stacks, by the weight's name; GPT-2's are without `transformer.`.

    Args:
        config: The decoder's.
        kind: `model_type`.
    """
    gpt2 = kind == "gpt2"
    parts: dict[str, tuple[str, ...]] = {"head": ("lm_head.weight",)}
    if gpt2:
        parts |= {"embedding": ("wte.weight",), "positions": ("wpe.weight",)}
        parts |= {f"norm.{kind}": (f"ln_f.{kind}",) for kind in ("weight", "bias")}
        names = {"norm1": ("ln_1",), "qkv": tuple(f"attn.c_attn.{part}" for part in "qkv"), "out": ("attn.c_proj",)}
        names |= {"norm2": ("ln_2",), "up": ("mlp.c_fc",), "down": ("mlp.c_proj",)}
    else:
        parts |= {"embedding": ("model.embed_tokens.weight",), "norm.weight": ("model.norm.weight",)}
        names = {"norm1": ("input_layernorm",), "norm2": ("post_attention_layernorm",), "down": ("mlp.down_proj",)}
        names |= {"qkv": tuple(f"self_attn.{part}_proj" for part in "qkv"), "out": ("self_attn.o_proj",)}
        names["up"] = ("mlp.gate_proj", "mlp.up_proj") if config.gated else ("mlp.up_proj",)
        if kind == "olmo2":
            names |= {"norm1": ("post_attention_layernorm",), "norm2": ("post_feedforward_layernorm",)}
        if kind == GEMMA:
            names |= {"out_norm": ("post_attention_layernorm",), "norm2": ("pre_feedforward_layernorm",)}
            names["down_norm"] = ("post_feedforward_layernorm",)
        if kind == "phi3":
            names |= {"qkv": ("self_attn.qkv_proj",), "up": ("mlp.gate_up_proj",)}
    for index in range(config.layers):
        prefix = f"h.{index}" if gpt2 else f"model.layers.{index}"
        for name, sources in names.items():
            for kind in ("weight", "bias"):
                parts[f"layers.{index}.{name}.{kind}"] = tuple(f"{prefix}.{source}.{kind}" for source in sources)
        for name in ("q_norm", "k_norm"):
            parts[f"layers.{index}.{name}"] = (f"{prefix}.self_attn.{name}.weight",)
    return parts


def pair_rotated(config: DecoderConfig, weights: Mapping[str, Any], *, inverse: bool = False) -> dict[str, Any]:
    """Return the weights of partly rotated heads, their features in the network's order; none for other heads.

    The part's features are pairs of its first and second half; the network pairs the head's halves. Queries and keys in
    another order have the same products.

    Args:
        config: The decoder's.
        weights: By the network's names.
        inverse: Whether the published order is returned.
    """
    import numpy as np

    rotated = config.rope_scaling.rotated if config.rope_scaling is not None else 0
    half, heads = config.head_size // 2, config.heads + config.kv_heads
    if not rotated:
        return {}
    first, second = np.arange(rotated), np.arange(rotated, 2 * rotated)
    first_rest, second_rest = np.arange(2 * rotated, half + rotated), np.arange(half + rotated, config.head_size)
    order = np.concatenate([first, first_rest, second, second_rest])
    if inverse:
        order = np.argsort(order)
    rows = (np.arange(heads)[:, None] * config.head_size + order).reshape(-1)
    names = [name for name in weights if ".qkv." in name]
    return {name: np.concatenate([weights[name][rows], weights[name][len(rows) :]]) for name in names}


class _Gpt2Reader(SafetensorsReader):
    """GPT-2's tensors: matrices transposed, the fused projection split, names without `transformer.`."""

    def __init__(self, reader: SafetensorsReader) -> None:
        self.entries = {name.removeprefix("transformer."): entry for name, entry in reader.entries.items()}

    def get_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return all shapes by name, as the network has them."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in super().get_shapes().items():
            turned = shape[::-1] if _is_transposed(name) else shape
            if ".attn.c_attn." in name:
                head, kind = name.rsplit(".", 1)
                shapes |= {f"{head}.{part}.{kind}": (turned[0] // 3, *turned[1:]) for part in "qkv"}
            else:
                shapes[name] = turned
        return shapes

    def read(self, name: str) -> Any:
        """Read one tensor as float32, as the network has it."""
        if ".attn.c_attn." in name:
            head, part, kind = name.rsplit(".", 2)
            array = super().read(f"{head}.{kind}").T
            rows = len(array) // 3
            return array["qkv".index(part) * rows :][:rows]
        array = super().read(name)
        return array.T if _is_transposed(name) else array


def _is_transposed(name: str) -> bool:
    return ".c_" in name and name.endswith(".weight")


def open_weights(directory: Path) -> SafetensorsReader:
    """Open a directory's safetensors files, with an index or without.

    Args:
        directory: The model's.

    Raises:
        NotFoundError: A shard is missing.
        UserError: There are none, or a header is damaged.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = [directory / Path(name).name for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise NotFoundError(f"{directory}: {', '.join(missing)} missing, which {index.name} names")
    if not files:
        pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
        found = f"; {', '.join(pickled[:3])}: pickle files are never opened" if pickled else ""
        raise UserError(f"{directory}: no *.safetensors{found}", hint="Save the model with safe_serialization=True.")
    return SafetensorsReader(files)


def _read_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = tokenizer_config.get("chat_template") or ""
    if isinstance(template, list):
        template = next((item["template"] for item in template if item.get("name") == "default"), "")
    return str(template)


def read_json(file: Path, *, required: bool = True) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        file: The file.
        required: Whether a missing file is an error; else it is an empty object.

    Raises:
        NotFoundError: It is missing.
        UserError: It is no JSON object.
    """
    if not file.is_file():
        if required:
            raise NotFoundError(
                f"{file}: missing", hint="Save the model with its tokenizer or image processor by save_pretrained."
            )
        return {}
    try:
        value = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: must be an object, got {type(value).__name__}")
    return value
