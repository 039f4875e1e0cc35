"""A decode step as one operator in C, by MindSpore's `ops.Custom`.

MindSpore 2.9 computes a layer of a step by about fifty operators on tensors so small that starting these takes longer
than reading the weights. decode_step.c computes all layers, the last norm and the head; a C compiler builds it at
first use for this machine's instruction set, and without one a step is computed by `CachedLayers`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from kfp_mindspore.lm.network.decode_library import FUNCTION, compile_library
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights, mark_layers
from kfp_mindspore.local.cores import count_cores
from kfp_mindspore.settings import THREADS_VARIABLE

logger = logging.getLogger(__name__)

FLOAT32, INT8, NONE = "float32", "int8", "none"

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
# A configuration with another field than these, and not its default, is computed by `CachedLayers`.
_KNOWN = (
    *("vocabulary_size", "width", "layers", "heads", "kv_heads", "head_size", "hidden", "max_length", "rope_theta"),
    *("epsilon", "norm", "activation", "gated", "tied", "qk_norm", "qkv_bias", "out_bias", "mlp_bias", "embeds"),
    *("predicts", "rope_scaling", "unrotated", "attention_scale", "norm_after", "joint_qk_norm", "norm_twice"),
    *("window", "windowed", "window_theta"),
)
# Of decode_step.c's `Plan`.
_PLAN = (
    *("threads", "layers", "heads", "kv_heads", "head_size", "hidden", "width", "outputs", "layer_norm", "activation"),
    *("gated", "rotary", "norm_after", "qk_norm", "joint_qk_norm", "predicts", "qkv_bias", "out_bias", "mlp_bias"),
    *(
        "window",
        "loras",
        "lora_rank",
        "size",
        "norm1",
        "qkv",
        "q_norm",
        "k_norm",
        "out",
        "out_norm",
        "norm2",
        "up",
        "down",
        "down_norm",
    ),
)


class DecodeStep:
    """Computes a token for each sequence.

    Args:
        config: The decoder's dimensions and variants.
        weights: Arrays by `list_weights`' names, float32; kept by reference.
        library: `compile_library`'s.
        is_int8: Whether matrices are rounded to int8 with a scale per row, in copies.
        adapters: `AdapterFactors`' arrays; kept by reference.
        loras: Most adapters at once.
        lora_rank: Highest adapter rank.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, NDArray[np.float32]],
        library: Path,
        *,
        is_int8: bool = False,
        adapters: Sequence[NDArray[np.float32]] = (),
        loras: int = 0,
        lora_rank: int = 0,
    ) -> None:
        self._config, self._library = config, library
        threads = int(os.environ.get(THREADS_VARIABLE, "").partition(",")[0] or max(1, int(count_cores())))
        scale = config.attention_scale or config.head_size**-0.5
        marks = [mark_layers(config, layers) for layers in (config.unrotated, config.windowed)]
        numbers = np.array([config.epsilon, scale, *np.concatenate(marks)], np.float32)
        self._inputs = [Tensor(_build_plan(config, threads, loras, lora_rank)), Tensor(numbers)]
        names = [name for name in list_weights(config) if name.startswith(("layers.", "norm."))]
        names += ["embedding" if config.tied else "head"] if config.predicts else []
        arrays: list[NDArray[Any]] = [weights[name] for name in names]
        if is_int8:
            pairs = [quantize_rows(array) if array.ndim == 2 else (array,) for array in arrays]
            arrays = [pair[0] for pair in pairs] + [pair[1] for pair in pairs if len(pair) == 2]
        self._weights = [Tensor.from_numpy(array) for array in (*arrays, *adapters)]
        self.copied_bytes = sum(array.nbytes for array in arrays) if is_int8 else 0
        self._cells: dict[int, _StepCell] = {}

    def compute(
        self,
        hidden: NDArray[np.float32],
        positions: NDArray[np.int32],
        tables: Sequence[NDArray[Any]],
        cache: Tensor,
        adapters: Sequence[int] = (),
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return logits (B, V), or hidden states (B, width), and new rows (2 * layers, B, kv_heads, head_size).

        Args:
            hidden: (B, width), of the sequences in the first slots.
            positions: Count of tokens that each slot holds, (B,).
            tables: `compute_rotations`' cosines and sines, then the windowed layers' if there are any.
            cache: (2 * layers, slots, kv_heads, L, head_size).
            adapters: The first sequences' adapters, from 1; 0 for none. Further ones have none.
        """
        batch = len(hidden)
        numbers = np.zeros((2, batch), np.int32)
        numbers[0], numbers[1, : len(adapters)] = positions, adapters
        if batch not in self._cells:
            self._cells[batch] = _StepCell(self._config, self._library, batch)
        rotations = [np.stack([table[positions] for table in tables[kind::2]]) for kind in (0, 1)]
        arrays = (hidden, numbers, *rotations)
        inputs = [Tensor.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        found, rows = self._cells[batch].compile_and_run(*self._inputs, *inputs, cache, *self._weights)
        return found.asnumpy(), rows.asnumpy()


class _StepCell(nn.Cell):  # type: ignore[misc]
    def __init__(self, config: DecoderConfig, library: Path, batch: int) -> None:
        super().__init__()
        rows = (2 * config.layers, batch, config.kv_heads, config.head_size)
        shapes = ((batch, config.vocabulary_size if config.predicts else config.width), rows)
        self.step = ops.Custom(f"{library}:{FUNCTION}", shapes, (ms.float32, ms.float32), "aot")

    def construct(self, *tensors: Any) -> Any:
        return self.step(*tensors)


def build_step(
    config: DecoderConfig,
    weights: Mapping[str, NDArray[np.float32]],
    operator: str,
    *,
    adapters: Sequence[NDArray[np.float32]] = (),
    loras: int = 0,
    lora_rank: int = 0,
) -> DecodeStep | None:
    """Return the operator, or None where steps are computed by `CachedLayers`: if the operator is not compiled.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names.
        operator: `float32`, `int8` or `none`.
        adapters: `AdapterFactors`' arrays.
        loras: Most adapters at once.
        lora_rank: Highest adapter rank.
    """
    if operator == NONE:
        return None
    others = [field for field in dataclasses.fields(config) if field.name not in _KNOWN]
    unknown = [field.name for field in others if getattr(config, field.name) != field.default]
    reason = f"it has no {unknown[0]}" if unknown else ""
    library = None if reason else compile_library()
    if library is None:
        level = logging.WARNING if operator == INT8 else logging.INFO
        logger.log(level, "decode operator %s is not used: %s", operator, reason or "it is not compiled")
        return None
    is_int8 = operator == INT8
    return DecodeStep(config, weights, library, is_int8=is_int8, adapters=adapters, loras=loras, lora_rank=lora_rank)


def quantize_rows(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return a matrix (N, K) as int8, and each row's scale (N,)."""
    scales = np.abs(matrix).max(1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def _build_plan(config: DecoderConfig, threads: int, loras: int, lora_rank: int) -> NDArray[np.int32]:
    prefix = "layers.0."
    layer = [name.removeprefix(prefix) for name in list_weights(config) if name.startswith(prefix)]
    values = {name: getattr(config, name) for name in _PLAN if hasattr(config, name)}
    values |= dict.fromkeys(("q_norm", "k_norm", "out_norm", "down_norm"), -1)
    values |= {name.removesuffix(".weight"): index for index, name in enumerate(layer)}
    if config.norm_after:
        values |= {"out_norm": values["norm1"], "down_norm": values["norm2"]}
    values |= {
        "threads": threads,
        "loras": loras,
        "lora_rank": lora_rank,
        "outputs": config.vocabulary_size,
        "layer_norm": config.norm == "layer",
        "activation": _ACTIVATIONS.index(config.activation),
        "rotary": config.rope_theta > 0,
        "size": len(layer),
    }
    return np.array([int(values[name]) for name in _PLAN], np.int32)
