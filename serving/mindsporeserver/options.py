"""The command line: the flags of kserve.ModelServer, defined here by the same names, and our own."""

from __future__ import annotations

import argparse
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError

_logger = logging.getLogger(__name__)

DEFAULT_MODEL_DIR = "/mnt/models"
# kserve's flags that only tune its own application.
_WITHOUT_EFFECT = {
    "max_threads": "one event loop serves gRPC",
    "max_asyncio_workers": "one thread computes, see --max_batch",
    "enable_latency_logging": "see --log_requests",
}
# kserve's flags that a user would miss if they were ignored.
_REFUSED = {
    "access_log_format": "--log_requests=all writes a line per request, --log_format=json as JSON",
    "enable_docs_url": "there is no Swagger page",
    **dict.fromkeys(
        (
            "protocol",
            "predictor_host",
            "predictor_protocol",
            "predictor_use_ssl",
            "predictor_request_timeout_seconds",
            "predictor_request_retries",
            "enable_predictor_health_check",
        ),
        "this server is a predictor, not a transformer",
    ),
}


@dataclass(frozen=True)
class Options:
    """The command line, checked; what a flag means is said by its help.

    Args:
        model_dirs: Directory or URI by model name.
    """

    host: str
    http_port: int
    grpc_port: int
    enable_grpc: bool
    grpc_max_send_message_length: int | None
    grpc_max_receive_message_length: int | None
    event_loop: str
    timeout_keep_alive: int
    workers: int
    model_dirs: Mapping[str, str]
    model_repository: Path | None
    model_versions: str
    max_batch: int
    max_delay_ms: float
    max_queue: int
    max_request_bytes: int
    request_timeout: float
    transform_timeout: float
    nonfinite: str
    reload_interval: float
    allow_model_code: bool
    model_key_file: Path | None
    log_requests: str
    log_format: str
    log_config_file: str | None
    configure_logging: bool
    tracing: bool
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_ca_certs: str | None
    grpc_ssl_certfile: str | None
    grpc_ssl_keyfile: str | None
    grpc_ssl_ca_certs: str | None
    grace_period: int


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    parser = argparse.ArgumentParser("python -m mindsporeserver", allow_abbrev=False)
    _add_kserve_arguments(parser)
    add_arguments(parser)
    return parser


def _add_kserve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("KServe").add_argument
    add("--http_port", default=8080, type=int, help="The HTTP port.")
    add("--grpc_port", default=8081, type=int, help="The gRPC port.")
    add("--enable_grpc", default=True, type=_read_bool, help="Whether gRPC is served.")
    add("--workers", default=1, type=int, help="Processes that serve the same models on the same ports.")
    add("--model_name", default="model", help="The name of the model in URLs.")
    add("--event-loop", "--event_loop", default="auto", choices=["auto", "asyncio", "uvloop"], help="The event loop.")
    add(
        "--timeout-keep-alive",
        "--timeout_keep_alive",
        default=65,
        type=int,
        help="Seconds that an HTTP connection may wait for its next request.",
    )
    add("--grpc_max_send_message_length", type=int, metavar="BYTES", help="Most bytes of a gRPC response. [no limit]")
    add(
        "--grpc_max_receive_message_length",
        type=int,
        metavar="BYTES",
        help="Most bytes of a gRPC request. [--max_request_bytes]",
    )
    add("--configure_logging", default=True, type=_read_bool, help="Whether the server sets up logging.")
    add("--log_config_file", metavar="FILE", help="Configuration of Python's logging: JSON, YAML or its own format.")
    variable = os.environ.get
    add("--ssl_certfile", default=variable("KSERVE_TLS_CERT_FILE"), metavar="FILE", help="Certificate for HTTPS.")
    add("--ssl_keyfile", default=variable("KSERVE_TLS_KEY_FILE"), metavar="FILE", help="Its private key.")
    for flag in (*_WITHOUT_EFFECT, *_REFUSED):
        add(f"--{flag}", nargs="?", const="true", help=argparse.SUPPRESS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that kserve does not have."""
    add = parser.add_argument_group("MindSpore").add_argument
    add("--host", default="0.0.0.0", help="The address to listen on.")
    add(
        "--model_dir",
        action="append",
        metavar="[NAME=]PATH",
        help="A model bundle, or numbered directories of bundles (versions). Repeat it with names for several models; "
        f"without a name it is --model_name's. A URI such as s3://… needs the extra `storage`. [{DEFAULT_MODEL_DIR}]",
    )
    add("--model_repository", metavar="DIR", help="Serve every model directory in DIR, and those that appear in it.")
    add("--model_versions", default="latest", choices=["latest", "all"], help="Which numbered versions are served.")
    add("--max_batch", default=64, type=int, help="Most rows that are computed at once.")
    add(
        "--max_delay_ms",
        default=2.0,
        type=float,
        help="How long a batch waits at most for as many requests as were lately in flight at once; a single client "
        "never waits, and 0 is for nobody to wait.",
    )
    add("--max_queue", default=1024, type=int, help="Rows that may wait for the graph; over it requests get 503.")
    add("--max_request_bytes", default=32 << 20, type=int, help="Most bytes of a request; over it requests get 413.")
    add("--request_timeout", default=60.0, type=float, help="Seconds a request may wait for the graph; 0 for ever.")
    add(
        "--transform_timeout",
        default=60.0,
        type=float,
        help="Seconds that a transform's preprocess or postprocess may take for a request; over it, 500. 0 for ever.",
    )
    add("--nonfinite", default="reject", choices=["reject", "allow"], help="What becomes of NaN and infinite inputs.")
    add(
        "--reload_interval",
        default=1.0,
        type=float,
        help="Seconds between two looks for a changed model; 0 never looks.",
    )
    add(
        "--allow_model_code",
        default=False,
        type=_read_bool,
        help="Whether a transform.py in a model directory may be run.",
    )
    add(
        "--model_key_file",
        metavar="FILE",
        help="The key of encrypted models; default is the environment variable MINDSPORE_MODEL_KEY.",
    )
    add(
        "--log_requests",
        default="failed",
        choices=["none", "failed", "all"],
        help="Which requests are logged, in one line each.",
    )
    add("--log_format", default="text", choices=["text", "json"], help="How the log looks.")
    add("--tracing", default=False, type=_read_bool, help="Send OpenTelemetry traces; needs the extra `tracing`.")
    add("--ssl_ca_certs", metavar="FILE", help="REST clients must have a certificate of one of these authorities.")
    add("--grpc_ssl_certfile", metavar="FILE", help="Certificate of the gRPC server; without it gRPC is plain text.")
    add("--grpc_ssl_keyfile", metavar="FILE", help="Its private key.")
    add("--grpc_ssl_ca_certs", metavar="FILE", help="gRPC clients must have a certificate of one of these authorities.")
    add("--grace_period", default=30, type=int, help="Seconds that accepted requests have to finish at SIGTERM.")


def read_options(arguments: argparse.Namespace) -> Options:
    """Check the command line.

    Raises:
        ValidationError: Naming each flag that is wrong.
        UserError: `--model_dir` does not say which model is meant.
    """
    found: dict[str, Any] = vars(arguments)
    errors = []
    for flag, least in (
        ("workers", 1),
        ("max_batch", 1),
        ("max_queue", 1),
        ("max_request_bytes", 1),
        ("grace_period", 0),
    ):
        if found[flag] < least:
            errors.append(f"--{flag}: must be at least {least}, got {found[flag]}")
    for flag in ("max_delay_ms", "request_timeout", "transform_timeout", "reload_interval"):
        if not (0 <= found[flag] < math.inf):
            errors.append(f"--{flag}: must be 0 or more, got {found[flag]}")
    errors += [
        f"--{flag}: is not supported: {reason}"
        for flag, reason in _REFUSED.items()
        if str(found[flag]).lower() not in ("none", "false")
    ]
    for flag, reason in _WITHOUT_EFFECT.items():
        if found[flag] is not None:
            _logger.warning("--%s has no effect: %s", flag, reason)
    ports = ["http_port", *(["grpc_port"] if found["enable_grpc"] else [])]
    for flag in ports:
        if not 0 < found[flag] < 65536:
            errors.append(f"--{flag}: must be 1 to 65535, got {found[flag]}")
    if len(ports) == 2 and found["http_port"] == found["grpc_port"]:
        errors.append(f"--grpc_port: must be another than --http_port, got {found['grpc_port']} for both")
    if errors:
        raise ValidationError(errors)
    repository = found.get("model_repository")
    directories = found.get("model_dir") or ([] if repository else [DEFAULT_MODEL_DIR])
    key_file = found.get("model_key_file")
    return Options(
        **{
            name: found[name]
            for name in Options.__dataclass_fields__
            if name not in ("model_dirs", "model_repository", "model_key_file")
        },
        model_dirs=_read_model_dirs(directories, found["model_name"]),
        model_repository=Path(repository) if repository else None,
        model_key_file=Path(key_file) if key_file else None,
    )


def _read_model_dirs(values: list[str], model_name: str) -> dict[str, str]:
    models: dict[str, str] = {}
    for value in values:
        name, separator, path = value.partition("=")
        # A URI may hold = in its query, a path in its directories' names.
        if not separator or "/" in name or not name:
            name, path = model_name, value
        if name in models:
            raise UserError(
                f"--model_dir: {name!r} is given twice: {models[name]} and {path}",
                hint="Give each model a name: --model_dir first=DIR --model_dir second=DIR",
            )
        models[name] = path
    return models


def _read_bool(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return values[text.lower()]
