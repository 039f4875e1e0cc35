"""The limit of oneDNN's instruction set, by the features of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
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
def test_limit_is_set_on_avx512_unless_user_set_one(
    tmp_path: Path, features: str, environment: dict[str, str], chosen: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(features)
    before = dict(environment)
    assert avoid_slow_convolutions(environment, tmp_path / "cpuinfo") == (environment != before)
    assert environment.get(VARIABLE) == chosen


def test_no_limit_without_cpu_features(tmp_path: Path) -> None:
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
def test_convolutions_are_recognised_by_name(operators: dict[str, int], expected: bool) -> None:
    assert has_convolutions(operators) is expected


CONVOLVE = """
import kfp_mindspore
import numpy as np
from mindspore import Tensor, nn
nn.Conv2d(1, 6, 3)(Tensor(np.ones((8, 1, 8, 8), np.float32))).asnumpy()
"""


@pytest.mark.mindspore
@pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists() or " avx512f " not in Path("/proc/cpuinfo").read_text(),
    reason="the fault occurs on CPUs with AVX-512",
)
def test_fault_upstream_convolutions_reorder_by_reference_code() -> None:
    environment = {**os.environ, VARIABLE: "DEFAULT", "ONEDNN_VERBOSE": "1", "GLOG_v": "4"}
    done = subprocess.run(
        [sys.executable, "-c", CONVOLVE], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    convolutions = [line for line in done.stdout.splitlines() if ",convolution," in line]
    assert convolutions
    assert any("ref:any" in line for line in convolutions), "fixed upstream: delete the patch"
