"""Low-rank adapters (LoRA) in peft's format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, ValidationError
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
from kfp_mindspore.lm.network.lora import MODULES, LoraConfig, list_parts
from kfp_mindspore.lm.sources.safetensors import SafetensorsReader
from kfp_mindspore.outputs import OutputKind

# peft's names, which are Hugging Face's.
ADAPTER_FILE = "adapter_config.json"
_TENSORS_FILE = "adapter_model.safetensors"
# An adapter in peft's format as an output.
OUTPUT = OutputKind(ADAPTER_FILE, names=(_TENSORS_FILE,))
_PEFT = {**{name: name for name in MODULES}, "output_proj": "o_proj"}
# What peft can write and this network does not have; absent and empty values are allowed.
_REQUIRED: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    **dict.fromkeys(("use_dora", "use_rslora", "lora_bias", "fan_in_fan_out", "layer_replication"), False),
    **dict.fromkeys(("modules_to_save", "layers_to_transform", "rank_pattern", "alpha_pattern"), False),
}


def write_adapter(directory: Path, adapter: Mapping[str, NDArray[np.float32]], lora: LoraConfig) -> None:
    """Write an adapter as peft does: adapter_config.json and adapter_model.safetensors.

    Args:
        directory: Replaced when it exists.
        adapter: `TrainedDecoder.get_adapter`'s factors, for an architecture with separate projections (not GPT-2).
        lora: The adapter's configuration.
    """
    from safetensors.numpy import save_file

    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.lora_rank,
        "lora_alpha": lora.lora_alpha,
        "lora_dropout": lora.lora_dropout,
        "bias": "none",
        "target_modules": [_PEFT[module] for module in lora.lora_attn_modules],
        "base_model_name_or_path": "",
        "inference_mode": True,
    }
    with files.replace_directory(directory, OUTPUT) as temporary:
        files.write_json(temporary / ADAPTER_FILE, settings)
        tensors = {_to_peft(name): np.ascontiguousarray(array) for name, array in adapter.items()}
        save_file(tensors, temporary / _TENSORS_FILE)


def read_adapter(directory: Path, config: DecoderConfig) -> tuple[dict[str, NDArray[np.float32]], LoraConfig]:
    """Read an adapter in peft's format.

    Args:
        directory: With adapter_config.json and adapter_model.safetensors.
        config: The decoder's.

    Raises:
        CorruptBundleError: A file is not readable, or a tensor is missing, unknown, not finite or has another shape.
        UserError: The tensors' header claims what its file does not hold.
        ValidationError: The adapter uses what is not supported; the message names the field.
    """
    file, tensors_file = (directory / name for name in (ADAPTER_FILE, _TENSORS_FILE))
    try:
        settings = json.loads(file.read_text())
        reader = SafetensorsReader([tensors_file])
    except OSError as error:
        raise CorruptBundleError(
            f"{directory}: not a readable adapter: {error}",
            hint=f"An adapter is a directory with {file.name} and {tensors_file.name}, as peft writes it.",
        ) from None
    except ValueError as error:
        raise CorruptBundleError(f"{file}: not valid JSON: {error}") from None
    lora = _read_config(settings, str(file))
    shapes, found = _list_shapes(config, lora), reader.get_shapes()
    names = {name: _to_peft(name) for name in shapes}
    if unknown := sorted(found.keys() - names.values()):
        raise CorruptBundleError(
            f"{tensors_file}: {unknown[0]}: not an update of target_modules in {config.layers} layers"
        )
    adapter = {}
    for name, shape in shapes.items():
        if found.get(names[name]) != shape:
            got = found.get(names[name], "nothing")
            raise CorruptBundleError(f"{tensors_file}: {names[name]}: shape must be {shape}, got {got}")
        adapter[name] = reader.read(names[name])
        if not np.isfinite(adapter[name]).all():
            raise CorruptBundleError(f"{tensors_file}: {names[name]}: must be finite, got NaN or infinity")
    return adapter, lora


def _read_config(settings: Any, subject: str) -> LoraConfig:
    if not isinstance(settings, dict):
        raise ValidationError([f"must be an object, got {type(settings).__name__}"], subject=subject)
    errors = [
        f"{name}: must be {expected!r}, got {settings[name]!r}"
        for name, expected in _REQUIRED.items()
        if settings.get(name) and settings[name] != expected
    ]
    for name in ("r", "lora_alpha"):
        if not isinstance(settings.get(name), (int, float)) or (name == "r" and type(settings[name]) is not int):
            errors.append(f"{name}: must be a number, got {settings.get(name)!r}")
    dropout = settings.get("lora_dropout") or 0.0
    if not isinstance(dropout, (int, float)):
        errors.append(f"lora_dropout: must be a number, got {dropout!r}")
    own = {name: module for module, name in _PEFT.items()}
    targets: Any = settings.get("target_modules")
    if not isinstance(targets, list):
        errors.append(f"target_modules: must be a list, got {targets!r:.80}")
    else:
        errors += [f"target_modules: {name}: must be one of {', '.join(own)}" for name in targets if name not in own]
    if errors:
        raise ValidationError(errors, subject=subject)
    modules = tuple(module for module in MODULES if _PEFT[module] in targets)
    return LoraConfig(settings["r"], float(settings["lora_alpha"]), modules, float(dropout))


def _list_shapes(config: DecoderConfig, lora: LoraConfig) -> dict[str, tuple[int, int]]:
    shapes, rank = {}, lora.lora_rank
    weights = list_weights(config)
    for layer in range(config.layers):
        for module in lora.lora_attn_modules:
            owner, part = MODULES[module]
            prefix = f"layers.{layer}.{module}"
            shapes[f"{prefix}.lora_A"] = (rank, weights[f"layers.{layer}.{owner}.weight"][1])
            shapes[f"{prefix}.lora_B"] = (list_parts(config, owner)[part], rank)
    return shapes


def _to_peft(name: str) -> str:
    _, layer, module, factor = name.split(".")
    return f"base_model.model.model.layers.{layer}.self_attn.{_PEFT[module]}.{factor}.weight"
