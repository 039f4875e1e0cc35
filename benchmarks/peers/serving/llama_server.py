"""llama.cpp's server: python llama_server.py PORT MODEL.gguf SLOTS LENGTH THREADS."""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main(port: int, model: str, slots: int, length: int, threads: int) -> None:
    """Serve a GGUF until the process is terminated."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port, params.n_parallel, params.n_ctx = port, slots, slots * length
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
