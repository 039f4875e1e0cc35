"""Training of an imported decoder by `fit`: all weights, or low-rank adapters (LoRA)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, ValidationError
from kfp_mindspore.lm.data import LanguageModelData
from kfp_mindspore.lm.network import Decoder, DecoderConfig, compute_rotations, list_weights
from kfp_mindspore.lm.sources.safetensors import SafetensorsReader
from kfp_mindspore.outputs import OutputKind

# A projection's weight in the network, and its number among the weight's stacked parts.
MODULES = {"q_proj": ("qkv", 0), "k_proj": ("qkv", 1), "v_proj": ("qkv", 2), "output_proj": ("out", 0)}
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
MASKED = -1e9


@dataclass(frozen=True)
class LoraConfig:
    """A low-rank adapter, by torchtune's names.

    Args:
        lora_rank: Rank of each update.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        lora_attn_modules: Projections with an update: q_proj, k_proj, v_proj, output_proj.
        lora_dropout: Part of an update's inputs that is set to 0 in training.

    Raises:
        ValidationError: A value is out of range; the message names the field.
    """

    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_attn_modules: tuple[str, ...] = ("q_proj", "v_proj")
    lora_dropout: float = 0.0

    def __post_init__(self) -> None:
        errors = [] if self.lora_rank >= 1 else [f"lora_rank: must be >= 1, got {self.lora_rank}"]
        if not self.lora_alpha > 0:
            errors.append(f"lora_alpha: must be > 0, got {self.lora_alpha}")
        if not 0 <= self.lora_dropout < 1:
            errors.append(f"lora_dropout: must be at least 0 and below 1, got {self.lora_dropout}")
        unknown = [name for name in self.lora_attn_modules if name not in MODULES]
        if unknown or not self.lora_attn_modules:
            known = ", ".join(MODULES)
            errors.append(f"lora_attn_modules: must be some of {known}, got {', '.join(unknown) or 'none'}")
        if errors:
            raise ValidationError(errors, subject="the adapter's configuration")


class TrainedDecoder(nn.Cell):  # type: ignore[misc]
    """A decoder that returns its loss, for `fit` without a loss function.

    The loss is the sum over counted tokens divided by the windows and by `tokens_per_window`, a constant. So `fit`'s
    means over samples are exact token-weighted means, whatever the accumulation and the count of workers.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names, float32; with an adapter they are frozen.
        tokens_per_window: Mean count of counted tokens in the data's windows.
        lora: The adapter's configuration; None trains all weights.
        seed: Of the adapter's initial values; its update is 0 at first.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, NDArray[np.float32]],
        *,
        tokens_per_window: float,
        lora: LoraConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config, self.lora = config, lora
        self.decoder = Decoder(config, adapted=lora is not None, dropout=lora.lora_dropout if lora is not None else 0.0)
        names = list(list_weights(config))
        self.base = ms.ParameterTuple(
            [Parameter(Tensor(weights[name]), name=name, requires_grad=lora is None) for name in names]
        )
        tables = compute_rotations(config)
        self.tables = (Tensor(tables[0]), Tensor(tables[1]))
        self.tokens_per_window = tokens_per_window
        self.head_index = names.index("embedding" if config.tied else "head")
        self.dense = ops.MatMul(transpose_b=True)
        # Of each layer's `qkv` and `out`: the parts' heights, their first factors, -1 without an update, and the width.
        self.parts: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = ()
        self.factors = ms.ParameterTuple(self._create_factors(seed) if lora is not None else [])
        self.scale = lora.lora_alpha / lora.lora_rank if lora is not None else 0.0
        self.rank = lora.lora_rank if lora is not None else 0
        self.whole = Tensor([[True]])

    def _create_factors(self, seed: int) -> list[Parameter]:
        assert self.lora is not None
        random, rank = np.random.default_rng(seed), self.lora.lora_rank
        shapes = list_weights(self.config)
        factors: list[Parameter] = []
        for layer in range(self.config.layers):
            for weight in ("qkv", "out"):
                sizes, width = list_parts(self.config, weight), shapes[f"layers.{layer}.{weight}.weight"][1]
                firsts = [-1] * len(sizes)
                for module in self.lora.lora_attn_modules:
                    owner, part = MODULES[module]
                    if owner != weight:
                        continue
                    firsts[part] = len(factors)
                    bound = width**-0.5
                    down = random.uniform(-bound, bound, (rank, width)).astype(np.float32)
                    up = np.zeros((sizes[part], rank), np.float32)
                    prefix = f"layers.{layer}.{module}"
                    factors += [Parameter(Tensor(down), name=f"{prefix}.lora_A")]
                    factors += [Parameter(Tensor(up), name=f"{prefix}.lora_B")]
                self.parts = (*self.parts, (tuple(sizes), tuple(firsts), width))
        return factors

    def stack(self, sizes: Any, firsts: Any, width: int) -> Any:
        """Return a weight's factors A (parts * rank, width) and B (outputs, parts * rank), as `AdapterFactors` does."""
        down: Any = ()
        up: Any = ()
        for part in range(len(sizes)):
            row: Any = ()
            for other in range(len(sizes)):
                if other == part and firsts[part] >= 0:
                    row = (*row, self.factors[firsts[part] + 1] * self.scale)
                else:
                    row = (*row, ops.zeros((sizes[part], self.rank), ms.float32))
            up = (*up, ops.concat(row, 1))
            if firsts[part] >= 0:
                down = (*down, self.factors[firsts[part]])
            else:
                down = (*down, ops.zeros((self.rank, width), ms.float32))
        return ops.concat(down, 0), ops.concat(up, 0)

    def construct(self, ids: Any, next_ids: Any, counts: Any, positions: Any, segments: Any) -> Any:
        """Return the loss of windows.

        Args:
            ids: int32 (N, L).
            next_ids: Targets, int32 (N, L).
            counts: float32 (N, L), 1 where the loss counts.
            positions: int32 (N, L).
            segments: int32 (N, L).
        """
        length = ids.shape[1]
        adapters: Any = (self.whole, self.whole)
        for sizes, firsts, width in self.parts:
            adapters = adapters + self.stack(sizes, firsts, width)
        steps = ms.numpy.arange(length)
        allowed = ops.logical_and(segments[:, :, None] == segments[:, None, :], steps[None, :] <= steps[:, None])
        masks = (ops.where(allowed, 0.0, MASKED).reshape(-1, 1, length, length),)
        hidden = self.decoder.compute_hidden(ids, positions, masks, self.tables, self.base, adapters)
        logits = self.dense(hidden, self.base[self.head_index])
        losses = ops.cross_entropy(logits, next_ids.reshape(-1), reduction="none")
        return (losses * counts.reshape(-1)).sum() / (ids.shape[0] * self.tokens_per_window)

    def get_adapter(self) -> dict[str, NDArray[np.float32]]:
        """Return the adapter's factors by name, `layers.<n>.<module>.lora_A` (rank, in) and `lora_B` (out, rank)."""
        return {factor.name: factor.asnumpy() for factor in self.factors}

    def get_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return all weights by name, an adapter merged."""
        base = {weight.name: weight.asnumpy() for weight in self.base}
        return base if self.lora is None else merge_adapter(self.config, base, self.get_adapter(), self.lora)


def build_arrays(data: LanguageModelData) -> dict[str, NDArray[Any]]:
    """Return windows as `fit`'s data for a `TrainedDecoder`."""
    names = {"ids": data.ids, "next_ids": data.targets, "counts": data.weights}
    return {**names, "positions": data.positions, "segments": data.segments}


def merge_adapter(
    config: DecoderConfig,
    weights: Mapping[str, NDArray[np.float32]],
    adapter: Mapping[str, NDArray[np.float32]],
    lora: LoraConfig,
) -> dict[str, NDArray[np.float32]]:
    """Return the weights with an adapter's updates added.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names; unchanged.
        adapter: `TrainedDecoder.get_adapter`'s factors.
        lora: The adapter's configuration.
    """
    merged = dict(weights)
    for layer in range(config.layers):
        for module in lora.lora_attn_modules:
            owner, part = MODULES[module]
            name, prefix = f"layers.{layer}.{owner}.weight", f"layers.{layer}.{module}"
            sizes = list_parts(config, owner)
            start = sum(sizes[:part])
            update = adapter[f"{prefix}.lora_B"] @ adapter[f"{prefix}.lora_A"] * (lora.lora_alpha / lora.lora_rank)
            changed = merged[name].copy()
            changed[start : start + sizes[part]] += update
            merged[name] = changed
    return merged


def write_adapter(directory: Path, adapter: Mapping[str, NDArray[np.float32]], lora: LoraConfig) -> None:
    """Write an adapter as peft does: adapter_config.json and adapter_model.safetensors.

    Args:
        directory: Replaced when it exists.
        adapter: `TrainedDecoder.get_adapter`'s factors, of an architecture with separate projections (not GPT-2).
        lora: Its configuration.
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


def list_parts(config: DecoderConfig, weight: str) -> list[int]:
    """Return the heights of the projections that `qkv` or `out` stacks."""
    query, key = config.heads * config.head_size, config.kv_heads * config.head_size
    return [query, key, key] if weight == "qkv" else [config.width]


def _to_peft(name: str) -> str:
    _, layer, module, factor = name.split(".")
    return f"base_model.model.model.layers.{layer}.self_attn.{_PEFT[module]}.{factor}.weight"
