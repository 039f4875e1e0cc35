"""`python -m mindsporeserver`: kserve's own flags and two of ours."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import warnings

from kfp_mindspore.bundle import ModelBundle
from kfp_mindspore.errors import KfpMindSporeError, UserError
from mindsporeserver.startup import light_imports


def main() -> int:
    """Parse the command line and serve; return the exit code, 2 for a mistake in what was asked for."""
    # Errors only: MindSpore writes its warnings about the graph at every start.
    os.environ.setdefault("GLOG_v", "3")
    # kserve's choice of a response class, at nearly every request.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    with light_imports():
        from kserve.model_server import parser as kserve_parser

        from mindsporeserver.model import MindSporeModel
        from mindsporeserver.server import build_server, serve
    parser = argparse.ArgumentParser("python -m mindsporeserver", parents=[kserve_parser], conflict_handler="resolve")
    parser.add_argument("--model_dir", default="/mnt/models", help="The model bundle: a directory with model.mindir.")
    parser.add_argument("--max_batch", default=64, type=int, help="Most rows that are computed at once.")
    arguments = parser.parse_args()
    try:
        bundle = ModelBundle.open(arguments.model_dir, verify=False)
        if arguments.max_batch < 1:
            raise UserError(f"--max_batch: must be at least 1, got {arguments.max_batch}")
        if arguments.workers != 1:
            raise UserError(
                f"--workers: must be 1, got {arguments.workers}: one process holds the graph",
                hint="For more throughput run more replicas.",
            )
        _check_port("--http_port", arguments.http_port)
        if arguments.enable_grpc:
            _check_port("--grpc_port", arguments.grpc_port)
        model = MindSporeModel(arguments.model_name, bundle, max_batch=arguments.max_batch)
        serve(build_server(), model)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _check_port(flag: str, port: int) -> None:
    # gRPC would share a taken port without a word, and uvicorn notices one only after the imports.
    if not 0 < port < 65536:
        raise UserError(f"{flag}: must be 1 to 65535, got {port}")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            raise UserError(f"{flag}: port {port} cannot be used: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
