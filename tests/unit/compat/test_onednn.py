"""The choice of instructions, on the features of several CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.compat.onednn import VARIABLE, avoid_slow_convolutions, has_convolutions

AVX512 = "flags\t\t: fpu sse4_2 avx avx2 avx512f avx512vl \n"
AVX2 = "flags\t\t: fpu sse4_2 avx avx2 bmi2 \n"


@pytest.mark.parametrize(
    ("features", "environment", "chosen"),
    [
        (AVX512, {}, "AVX2"),
        (AVX512, {VARIABLE: "AVX512_CORE"}, "AVX512_CORE"),
        (AVX512, {"DNNL_MAX_CPU_ISA": "ALL"}, None),
        (AVX2, {}, None),
        ("", {}, None),
    ],
)
def test_the_limit_is_set_where_it_helps_and_nobody_chose(
    tmp_path: Path, features: str, environment: dict[str, str], chosen: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(features)
    before = dict(environment)
    assert avoid_slow_convolutions(environment, tmp_path / "cpuinfo") == (environment != before)
    assert environment.get(VARIABLE) == chosen


def test_no_limit_where_the_features_are_not_known(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    assert not avoid_slow_convolutions(environment, tmp_path / "missing")
    assert environment == {}


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        ({"Conv2D": 2, "ReLU": 1}, True),
        ({"Conv2DBackpropInput": 1}, True),
        ({"MatMul": 3, "BiasAdd": 1}, False),
        ({}, False),
    ],
)
def test_convolutions_are_told_by_their_names(operators: dict[str, int], expected: bool) -> None:
    assert has_convolutions(operators) is expected
