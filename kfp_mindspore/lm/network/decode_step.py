"""A decode step as one operator in C, by MindSpore's `ops.Custom`.

MindSpore 2.9 computes a layer of a step by about fifty operators on tensors so small that starting these takes longer
than reading the weights. decode_step.c computes all layers, the last norm and the head; a C compiler builds it at
first use for this machine's instruction set, and without one a step is computed by `CachedLayers`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights, mark_layers
from kfp_mindspore.local.cores import count_cores
from kfp_mindspore.settings import THREADS_VARIABLE

logger = logging.getLogger(__name__)

FLOAT32, INT8, NONE = "float32", "int8", "none"

SOURCE = Path(__file__).with_name("decode_step.c")
_FUNCTION = "decode_step"
# Without -ffast-math, whose operators take NaN and infinity for numbers.
_FLAGS = (
    *("-O3", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
)
_AVX512, _AVX2 = "avx512", "avx2"
_TARGETS = {
    _AVX512: ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    _AVX2: ("-march=x86-64-v3",),
    "": (),
}
# Of /proc/cpuinfo.
_CPU_FLAGS = {
    _AVX512: {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    _AVX2: {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
}
_COMPILE_SECONDS = 300
_CPUINFO = Path("/proc/cpuinfo")
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
# A configuration with another field than these, and not its default, is computed by `CachedLayers`.
_KNOWN = (
    *("vocabulary_size", "width", "layers", "heads", "kv_heads", "head_size", "hidden", "max_length", "rope_theta"),
    *("epsilon", "norm", "activation", "gated", "tied", "qk_norm", "qkv_bias", "out_bias", "mlp_bias", "embeds"),
    *("predicts", "rope_scaling", "unrotated", "attention_scale", "norm_after", "joint_qk_norm"),
)
# Of decode_step.c's `Plan`.
_PLAN = (
    *("threads", "layers", "heads", "kv_heads", "head_size", "hidden", "width", "outputs", "layer_norm", "activation"),
    *("gated", "rotary", "norm_after", "qk_norm", "joint_qk_norm", "predicts", "qkv_bias", "out_bias", "mlp_bias"),
    *("size", "norm1", "qkv", "q_norm", "k_norm", "out", "norm2", "up", "down"),
)


class DecodeStep:
    """Computes a token for each sequence.

    Args:
        config: The decoder's dimensions and variants.
        weights: Arrays by `list_weights`' names, float32; kept by reference.
        library: `compile_library`'s.
        is_int8: Whether matrices are rounded to int8 with a scale per row, in copies.
    """

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, NDArray[np.float32]], library: Path, *, is_int8: bool = False
    ) -> None:
        self._config, self._library = config, library
        threads = int(os.environ.get(THREADS_VARIABLE, "").partition(",")[0] or max(1, int(count_cores())))
        scale = config.attention_scale or config.head_size**-0.5
        numbers = np.array([config.epsilon, scale, *mark_layers(config, config.unrotated)], np.float32)
        self._inputs = [Tensor(_build_plan(config, threads)), Tensor(numbers)]
        names = [name for name in list_weights(config) if name.startswith(("layers.", "norm."))]
        names += ["embedding" if config.tied else "head"] if config.predicts else []
        arrays: list[NDArray[Any]] = [weights[name] for name in names]
        if is_int8:
            pairs = [quantize_rows(array) if array.ndim == 2 else (array,) for array in arrays]
            arrays = [pair[0] for pair in pairs] + [pair[1] for pair in pairs if len(pair) == 2]
        self._weights = [Tensor.from_numpy(array) for array in arrays]
        self.copied_bytes = sum(array.nbytes for array in arrays) if is_int8 else 0
        self._cells: dict[int, _StepCell] = {}

    def compute(
        self, hidden: NDArray[np.float32], positions: NDArray[np.int32], tables: Sequence[NDArray[Any]], cache: Tensor
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return logits (B, V), or hidden states (B, width), and new rows (2 * layers, B, kv_heads, head_size).

        Args:
            hidden: (B, width), of the sequences in the first slots.
            positions: Count of tokens that each slot holds, (B,).
            tables: `compute_rotations`' cosines and sines.
            cache: (2 * layers, slots, kv_heads, L, head_size).
        """
        batch = len(hidden)
        if batch not in self._cells:
            self._cells[batch] = _StepCell(self._config, self._library, batch)
        arrays = (hidden, positions, *(table[positions] for table in tables))
        inputs = [Tensor.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        found, rows = self._cells[batch].compile_and_run(*self._inputs, *inputs, cache, *self._weights)
        return found.asnumpy(), rows.asnumpy()


class _StepCell(nn.Cell):  # type: ignore[misc]
    def __init__(self, config: DecoderConfig, library: Path, batch: int) -> None:
        super().__init__()
        rows = (2 * config.layers, batch, config.kv_heads, config.head_size)
        shapes = ((batch, config.vocabulary_size if config.predicts else config.width), rows)
        self.step = ops.Custom(f"{library}:{_FUNCTION}", shapes, (ms.float32, ms.float32), "aot")

    def construct(self, *tensors: Any) -> Any:
        return self.step(*tensors)


def build_step(
    config: DecoderConfig, weights: Mapping[str, NDArray[np.float32]], operator: str, *, adapted: bool
) -> DecodeStep | None:
    """Return the operator, or None where steps are computed by `CachedLayers`: if the operator is not compiled.

    Args:
        config: The decoder's.
        weights: Arrays by `list_weights`' names.
        operator: `float32`, `int8` or `none`.
        adapted: Whether steps have adapters, which the operator has not.
    """
    if operator == NONE:
        return None
    others = [field for field in dataclasses.fields(config) if field.name not in _KNOWN]
    unknown = [field.name for field in others if getattr(config, field.name) != field.default]
    reason = "it has no adapters" if adapted else f"it has no {unknown[0]}" if unknown else ""
    library = None if reason else compile_library()
    if library is None:
        level = logging.WARNING if operator == INT8 else logging.INFO
        logger.log(level, "decode operator %s is not used: %s", operator, reason or "it is not compiled")
        return None
    return DecodeStep(config, weights, library, is_int8=operator == INT8)


def quantize_rows(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return a matrix (N, K) as int8, and each row's scale (N,)."""
    scales = np.abs(matrix).max(1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


@functools.cache
def compile_library() -> Path | None:
    """Return the operator's shared library, compiled unless the user's cache has it; None without a C compiler."""
    target = _detect_target(_CPUINFO)
    command = ["cc", *_FLAGS, *_TARGETS[target]]
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(command).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kfp-mindspore", "operators")
    library = cache / f"{_FUNCTION}-{target or platform.machine()}-{digest}.so"
    if library.is_file():
        return library
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            built = Path(directory, library.name)
            command += ["-o", str(built), str(SOURCE), "-lm"]
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMPILE_SECONDS)
            built.replace(library)
    except (OSError, subprocess.SubprocessError) as error:
        log = (getattr(error, "stderr", None) or "").strip().splitlines()
        logger.info("%s is not compiled: %s", SOURCE.name, log[-1] if log else error)
        return None
    return library


def _detect_target(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    return next((target for target, needed in _CPU_FLAGS.items() if needed <= flags), "")


def _build_plan(config: DecoderConfig, threads: int) -> NDArray[np.int32]:
    prefix = "layers.0."
    layer = [name.removeprefix(prefix) for name in list_weights(config) if name.startswith(prefix)]
    values = {name: getattr(config, name) for name in _PLAN if hasattr(config, name)}
    values |= dict.fromkeys(("q_norm", "k_norm"), -1)
    values |= {name.removesuffix(".weight"): index for index, name in enumerate(layer)}
    values |= {
        "threads": threads,
        "outputs": config.vocabulary_size,
        "layer_norm": config.norm == "layer",
        "activation": _ACTIVATIONS.index(config.activation),
        "rotary": config.rope_theta > 0,
        "size": len(layer),
    }
    return np.array([int(values[name]) for name in _PLAN], np.int32)
