"""llama.cpp's server in a pod, with flags of its own program, from the package xllamacpp alone."""

from __future__ import annotations

import argparse
import threading
from typing import Any


def main(words: list[str] | None = None) -> None:
    """Serve a GGUF until the process is terminated."""
    # Not among this project's packages.
    import xllamacpp  # type: ignore[import-not-found,unused-ignore]

    parser = argparse.ArgumentParser()
    for flag in ("--model", "--alias", "--host"):
        parser.add_argument(flag, required=True)
    for flag, default in (("--port", 8080), ("--ctx-size", 128)):
        parser.add_argument(flag, type=int, default=default)
    options = parser.parse_args(words)
    params: Any = xllamacpp.CommonParams()
    params.model.path, params.model_alias = options.model, {options.alias}
    params.hostnames, params.port, params.n_ctx = [options.host], options.port, options.ctx_size
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
