"""The operator in C computes a decode step as MindSpore's graphs do."""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor

from kfp_mindspore.lm.network import decode_library, decode_step
from kfp_mindspore.lm.network.decode_library import compile_library
from kfp_mindspore.lm.network.decode_step import FLOAT32, INT8, NONE, DecodeStep, build_step, quantize_rows
from kfp_mindspore.lm.network.decoder import DecoderConfig, compute_rotations, list_weights
from kfp_mindspore.lm.network.rope import RopeScaling
from kfp_mindspore.lm.serving.runner import CausalRunner

pytestmark = pytest.mark.mindspore

# Widths that no vector register divides.
LLAMA = DecoderConfig(
    vocabulary_size=61, width=36, layers=2, heads=6, kv_heads=2, head_size=10, hidden=45, max_length=40
)
CONFIGS = {
    "llama": LLAMA,
    "gpt2": dataclasses.replace(
        LLAMA, kv_heads=6, rope_theta=0, norm="layer", activation="gelu_tanh", gated=False, tied=True, qkv_bias=True,
        out_bias=True, mlp_bias=True,
    ),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, tied=True, epsilon=1e-6),
    "gelu": dataclasses.replace(LLAMA, activation="gelu", mlp_bias=True),
    "smollm3": dataclasses.replace(LLAMA, unrotated=(1,), attention_scale=0.2),
    "olmo2": dataclasses.replace(LLAMA, joint_qk_norm=True, norm_after=True),
    # Sequences shorter and longer than the window.
    "window": dataclasses.replace(LLAMA, unrotated=(0,), window=4, windowed=(1,)),
    "gemma3": dataclasses.replace(
        LLAMA, activation="gelu_tanh", qk_norm=True, tied=True, norm_twice=True, window=6, windowed=(0,),
        window_theta=100.0, rope_scaling=RopeScaling("linear", 8.0),
    ),
    "scaled": dataclasses.replace(LLAMA, rope_scaling=RopeScaling("linear", 4.0)),
    "first stage": dataclasses.replace(LLAMA, predicts=False),
    "second stage": dataclasses.replace(LLAMA, embeds=False),
}  # fmt: skip


def make_weights(config: DecoderConfig) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = list_weights(config).items()
    return {name: random.normal(len(shape) == 1, 0.15, shape).astype(np.float32) for name, shape in shapes}


@functools.cache
def compute_by_graphs(config: DecoderConfig, count: int = 5) -> list[np.ndarray]:
    return compute_steps(config, NONE, count)


def compute_steps(config: DecoderConfig, operator: str, count: int = 5) -> list[np.ndarray]:
    """Return the outputs of a few steps of sequences of different lengths."""
    runner = CausalRunner(config, make_weights(config), slots=count, max_length=40, decode_operator=operator)
    assert (runner._step is None) == (operator == NONE)
    random = np.random.default_rng(5)

    def make(*shape: int) -> Any:
        return random.integers(0, 61, shape) if config.embeds else random.normal(0, 1, (*shape, 36)).astype(np.float32)

    lengths = np.array([5, 0, 12, 1, 16][:count], np.int32)
    for slot, length in enumerate(lengths):
        if length:
            runner.prefill(slot, make(length), 0)
    return [runner.decode(range(count), make(count), lengths + step) for step in range(3)]


def compare(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Need a C compiler, and compile nothing twice."""
    if compile_library() is None:
        pytest.skip("needs a C compiler")


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name in ("llama", "second stage") else pytest.mark.slow)
        for name, config in CONFIGS.items()
    ],
)
def test_operator_equals_graphs(config: DecoderConfig) -> None:
    compare(compute_steps(config, FLOAT32), compute_by_graphs(config), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_operator_equals_graphs_at_batch_size(count: int) -> None:
    compare(compute_steps(LLAMA, FLOAT32, count), compute_by_graphs(LLAMA, count), 1e-5)


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_int8_equals_float32_with_rounded_weights(name: str) -> None:
    config, library = CONFIGS[name], compile_library()
    assert library is not None
    weights = make_weights(config)
    rounded = {name: round_rows(array) if array.ndim == 2 else array for name, array in weights.items()}
    states = np.random.default_rng(7).normal(0, 1, (3, 36)).astype(np.float32)
    cache = Tensor(np.zeros((4, 3, config.kv_heads, 4, 10), np.float32))
    inputs = (states, np.zeros(3, np.int32), compute_rotations(config), cache)
    found = DecodeStep(config, weights, library, is_int8=True).compute(*inputs)
    expected = DecodeStep(config, rounded, library).compute(*inputs)
    compare(list(found), list(expected), 1e-5)
    compare(compute_steps(config, INT8), compute_by_graphs(config), 0.05)


def round_rows(matrix: np.ndarray) -> np.ndarray:
    rows, scales = quantize_rows(matrix)
    return rows * scales[:, None]


def test_rounded_rows_are_within_half_a_scale() -> None:
    matrix = np.random.default_rng(0).normal(0, 1, (6, 9)).astype(np.float32)
    matrix[2] = 0
    rows, scales = quantize_rows(matrix)
    assert rows.dtype == np.int8
    assert (np.abs(rows * scales[:, None] - matrix) <= scales[:, None] * 0.5001).all()
    assert np.abs(rows).max(1).tolist() == [127, 127, 0, 127, 127, 127]


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", "avx2 bmi1 bmi2 f16c fma movbe"])
def test_library_for_older_processor_equals_graphs(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor: 0\nflags\t\t: fpu {flags}\n")
    present = decode_library._CPUINFO.read_text() if decode_library._CPUINFO.exists() else ""
    if not set(flags.split()) <= set(present.split()):
        pytest.skip("needs a processor with AVX2")
    monkeypatch.setattr(decode_library, "_CPUINFO", cpuinfo)
    library = compile_library.__wrapped__()
    assert library is not None
    assert ("avx2" in library.name) == bool(flags)
    monkeypatch.setattr(decode_step, "compile_library", lambda: library)
    compare(compute_steps(LLAMA, FLOAT32), compute_by_graphs(LLAMA), 1e-5)
    compare(compute_steps(LLAMA, INT8), compute_by_graphs(LLAMA), 0.05)


@pytest.mark.slow
def test_library_of_image_is_loaded_without_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode_library, "SHIPPED", tmp_path / "operators")
    decode_library.main()
    built = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for flags in ("", *(" ".join(flags) for flags in decode_library._CPU_FLAGS.values())):
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags}\n")
        with monkeypatch.context() as patch:
            patch.setattr(decode_library, "_CPUINFO", tmp_path / "cpuinfo")
            assert str(compile_library.__wrapped__()) in built
    library = compile_library.__wrapped__()
    assert library is not None
    assert library.parent == tmp_path / "operators"
    assert sorted(map(str, library.parent.iterdir())) == sorted(built)
    monkeypatch.setattr(decode_step, "compile_library", lambda: library)
    compare(compute_steps(LLAMA, FLOAT32), compute_by_graphs(LLAMA), 1e-5)


def test_image_without_compiler_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_library, "SHIPPED", tmp_path / "operators")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^decode_step.c is not compiled: \[Errno 2\].*; install a C compiler"):
        decode_library.main()
    assert not list((tmp_path / "operators").iterdir())


@pytest.mark.parametrize(("operator", "level"), [(FLOAT32, logging.INFO), (INT8, logging.WARNING)])
def test_without_compiler_graphs_compute_steps(
    operator: str, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(decode_step, "compile_library", compile_library.__wrapped__)
    with caplog.at_level(logging.INFO):
        assert build_step(LLAMA, make_weights(LLAMA), operator) is None
    assert caplog.records[0].message.startswith("decode_step.c is not compiled: [Errno 2]")
    assert caplog.records[1].message == f"decode operator {operator} is not used: it is not compiled"
    assert caplog.records[1].levelno == level
    assert not list((tmp_path / "cache" / "kfp-mindspore" / "operators").iterdir())


def test_operator_is_not_used_with_unknown_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights(LLAMA)
    config = dataclasses.replace(LLAMA, attention_scale=0.2)
    assert build_step(config, weights, FLOAT32) is not None
    monkeypatch.setattr(decode_step, "_KNOWN", tuple(set(CONFIG_FIELDS) - {"attention_scale"}))
    assert build_step(LLAMA, weights, FLOAT32) is not None
    assert build_step(config, weights, FLOAT32) is None


CONFIG_FIELDS = [field.name for field in dataclasses.fields(DecoderConfig)]
