"""`python -m mindsporeserver`: the model server."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Sequence

from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.settings import LOG_LEVEL_VARIABLE
from mindsporeserver.observability.logs import configure_logging
from mindsporeserver.options import ServerFlags, build_parser, read_options
from mindsporeserver.workers import WorkerLink, run_workers


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and serve; return the exit code, 2 for a user mistake."""
    argv = sys.argv[1:] if argv is None else list(argv)
    # Errors only: MindSpore logs warnings about the graph at every start.
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "3")
    _set_temporary_directory()
    try:
        options = read_options(build_parser().parse_args(argv))
        configure_logging(options.log_format, config_file=options.log_config_file, configure=options.configure_logging)
        link = WorkerLink.from_environment()
        if link is None and options.workers > 1:
            return _run_workers(argv, options)
        # The workers' parent does without MindSpore.
        import_mindspore()
        from mindsporeserver.main import run_server

        run_server(options, link)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run_workers(argv: Sequence[str], options: ServerFlags) -> int:
    if options.reload_interval > 0:
        logging.getLogger("mindsporeserver").warning(
            "--reload_interval is 0 with --workers: every process serves the models of its start"
        )
    return run_workers(
        argv,
        workers=options.workers,
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port if options.enable_grpc else None,
        management_port=options.management_port,
        grace_period=options.drain_seconds + options.grace_period,
    )


def _set_temporary_directory() -> None:
    """Name a temporary directory where none can be written, such as on a read-only root without a volume at /tmp.

    A library that MindSpore imports reads the name at import, which raises FileNotFoundError otherwise.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = "/tmp"


if __name__ == "__main__":
    sys.exit(main())
