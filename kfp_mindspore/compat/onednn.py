"""Which instructions oneDNN, the library behind MindSpore's operators on CPUs, may use.

On a CPU with AVX-512, oneDNN 3.x computes convolutions of plain NCHW tensors, the layout that MindSpore uses,
by `jit_uni_ncsp:conv+ref:any`: it reorders each tensor by its unoptimised reference code. Limited to AVX2 it takes
`gemm:jit`, which was 5 times faster for LeNet-5 and 40 times for a ResNet-18 (docs/performance.md), while dense layers
lose about a quarter. `ONEDNN_VERBOSE=1` shows which one runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path

# Source: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
VARIABLE = "ONEDNN_MAX_CPU_ISA"
_OLD_VARIABLE = "DNNL_MAX_CPU_ISA"
_CPU_INFO = Path("/proc/cpuinfo")


def avoid_slow_convolutions(environment: MutableMapping[str, str] | None = None, cpu_info: Path = _CPU_INFO) -> bool:
    """Limit oneDNN to AVX2 on a CPU with AVX-512, unless the user chose a limit.

    It counts for the whole process and the processes below it, and must be called before MindSpore computes anything.

    Args:
        environment: Default `os.environ`.
        cpu_info: What lists the CPU's features.

    Returns:
        Whether the limit was set.
    """
    environment = os.environ if environment is None else environment
    if VARIABLE in environment or _OLD_VARIABLE in environment:
        return False
    try:
        features = cpu_info.read_text()
    except OSError:
        return False
    if " avx512f " not in features or " avx2 " not in features:
        return False
    environment[VARIABLE] = "AVX2"
    return True


def has_convolutions(operators: Iterable[str]) -> bool:
    """Tell whether a graph computes convolutions, by the names of its operators."""
    return any("conv" in operator.lower() for operator in operators)
