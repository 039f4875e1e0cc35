"""decode_step.c as a shared library: compiled at first use, or for an image without a compiler.

`python -m kfp_mindspore.lm.network.decode_library` compiles it for every instruction set into a folder beside this
module, where it is found first.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

FUNCTION = "decode_step"
SOURCE = Path(__file__).with_name("decode_step.c")
# An image's libraries.
SHIPPED = Path(__file__).with_name("operators")
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


@functools.cache
def compile_library() -> Path | None:
    """Return the library for this processor, compiled unless the image or the user's cache has it.

    None without a C compiler.
    """
    target = _detect_target(_CPUINFO)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kfp-mindspore", "operators")
    for folder in (SHIPPED, cache):
        if (library := folder / _name_library(target)).is_file():
            return library
    try:
        return _compile(target, cache)
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("%s", _describe(error))
        return None


def main() -> None:
    """Compile the library for each instruction set of this machine's architecture."""
    try:
        for target in _TARGETS if platform.machine() == "x86_64" else ("",):
            print(_compile(target, SHIPPED))
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{_describe(error)}; install a C compiler with OpenMP, such as gcc 11 or newer")


def _compile(target: str, folder: Path) -> Path:
    library = folder / _name_library(target)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        built = Path(directory, library.name)
        command = [*_list_command(target), "-o", str(built), str(SOURCE), "-lm"]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMPILE_SECONDS)
        built.replace(library)
    return library


def _list_command(target: str) -> list[str]:
    return ["cc", *_FLAGS, *_TARGETS[target]]


def _name_library(target: str) -> str:
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(_list_command(target)).encode()).hexdigest()[:16]
    return f"{FUNCTION}-{target or platform.machine()}-{digest}.so"


def _describe(error: OSError | subprocess.SubprocessError) -> str:
    log = (getattr(error, "stderr", None) or "").strip().splitlines()
    return f"{SOURCE.name} is not compiled: {log[-1] if log else error}"


def _detect_target(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    return next((target for target, needed in _CPU_FLAGS.items() if needed <= flags), "")


if __name__ == "__main__":
    main()
