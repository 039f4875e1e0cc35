"""Start Triton with a model repository of the model in triton_model, as `python triton_server.py HTTP_PORT GRPC_PORT`.

The C++ server and the Python backend's stubs come with nvidia-pytriton; the stub is linked to the shared library of the
interpreter's version, which Debian's Python has and builds with a static library do not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
specification = importlib.util.find_spec("pytriton")
assert specification is not None
assert specification.origin is not None
SERVER = Path(specification.origin).parent / "tritonserver"

if __name__ == "__main__":
    repository = Path("repository").absolute()
    shutil.copytree(HERE / "triton_model", repository / "model", dirs_exist_ok=True)
    stubs = SERVER / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    # Triton searches the backend's directory for the stub.
    shutil.copy(stubs / "triton_python_backend_stub", SERVER / "backends" / "python")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), sysconfig.get_path("purelib")])
    argv = [
        str(SERVER / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={SERVER / 'backends'}",
        "--http-address=127.0.0.1",
        f"--http-port={sys.argv[1]}",
        f"--grpc-port={sys.argv[2]}",
        "--allow-metrics=false",
        "--log-info=false",
    ]
    os.execv(argv[0], argv)
