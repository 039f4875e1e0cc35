"""`python -m mindsporeserver`: kserve's own flags and ours."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.settings import LOG_LEVEL_VARIABLE
from mindsporeserver.options import add_arguments, read_options

_URI = "://"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and serve; return the exit code, 2 for a mistake in what was asked for."""
    argv = sys.argv[1:] if argv is None else list(argv)
    # Errors only: MindSpore writes its warnings about the graph at every start.
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "3")
    # kserve's choice of a response class, at nearly every request.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    # A number too large for float32 becomes infinite, which is looked for afterwards.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"mindsporeserver\.tensors")
    from mindsporeserver.workers.attachment import attach

    attachment = attach()
    try:
        if attachment is None and _count_workers(argv) > 1:
            return _run_parent(argv)
        from mindsporeserver.main import run_server

        return run_server(argv, attachment)
    except KfpMindSporeError as error:
        if attachment is not None:
            attachment.report_failure(error)
        else:
            print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


def _count_workers(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--workers", type=int, default=1)
    try:
        return int(parser.parse_known_args(argv)[0].workers)
    except argparse.ArgumentError:
        # The whole parser says it better.
        return 1


def _run_parent(argv: Sequence[str]) -> int:
    from mindsporeserver.models.watch import BundleWatch
    from mindsporeserver.observability.logs import configure_logging
    from mindsporeserver.workers.parent import Patience, run_parent

    # What the parent needs of kserve's flags, whose parser costs a second to import: workers check all of them.
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--http_port", type=int, default=8080)
    parser.add_argument("--grpc_port", type=int, default=8081)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--enable_grpc", type=_read_flag, default=True)
    parser.add_argument("--model_name", default="model")
    parser.add_argument("--configure_logging", type=_read_flag, default=True)
    parser.add_argument("--log_config_file")
    for name in ("ssl_certfile", "ssl_keyfile"):
        parser.add_argument(f"--{name}")
    add_arguments(parser)
    options = read_options(parser.parse_known_args(argv)[0])
    configure_logging(options.log_format, config_file=options.log_config_file, configure=options.configure_logging)
    watch = None
    if options.reload_interval > 0:
        local = {name: path for name, path in options.model_dirs.items() if _URI not in path}
        watch = BundleWatch(local, options.model_repository)
    return run_parent(
        argv,
        workers=options.workers,
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port if options.enable_grpc else None,
        watch=watch,
        watch_seconds=options.reload_interval,
        # Longer than a worker itself waits for what is in flight.
        patience=Patience(grace=options.grace_period + 10.0),
    )


def _read_flag(text: str) -> bool:
    return text.lower() in ("true", "1", "yes", "y", "on", "t")


if __name__ == "__main__":
    sys.exit(main())
