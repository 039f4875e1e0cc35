"""oneDNN's instruction set, which computes MindSpore's operators on CPUs.

For oneDNN 3.x in MindSpore 2.9: on a CPU with AVX-512 it computes convolutions on plain NCHW tensors, MindSpore's
layout, by `jit_uni_ncsp:conv+ref:any`, which reorders each tensor by unoptimised reference code. Limited to AVX2 it
selects `gemm:jit`, which was 5 times faster for LeNet-5 and 40 times for a ResNet-18 (docs/performance.md), while dense
layers lose about a quarter. `ONEDNN_VERBOSE=1` prints the selected implementation.
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
    """Limit oneDNN to AVX2 on a CPU with AVX-512, unless the user has set a limit.

    The limit applies to this process and the children, and must be set before MindSpore computes anything.

    Args:
        environment: Default `os.environ`.
        cpu_info: File with the CPU's features.

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
    """Return whether a graph computes convolutions, by the operators' names."""
    return any("conv" in operator.lower() for operator in operators)
