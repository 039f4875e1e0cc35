"""Command-line flags: kserve.ModelServer's, under the same names, and this server's own."""

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
# kserve's flags that tune only its own application.
_WITHOUT_EFFECT = {
    "max_threads": "one event loop serves gRPC",
    "max_asyncio_workers": "one executor thread runs the graphs, see --max_batch",
    "enable_latency_logging": "see --log_requests",
}
# kserve's flags that must not be ignored silently.
_REFUSED = {
    "access_log_format": "use --log_requests=all, with --log_format=json for JSON",
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
class ServerFlags:
    """Validated command line; each flag's help describes it.

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
    token_file: Path | None
    management_port: int | None
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
    drain_seconds: float
    grace_period: int


def build_parser() -> argparse.ArgumentParser:
    """Return the parser for all flags."""
    parser = argparse.ArgumentParser("python -m mindsporeserver", allow_abbrev=False)
    _add_kserve_arguments(parser)
    add_arguments(parser)
    return parser


def _add_kserve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("KServe").add_argument
    add("--http_port", default=8080, type=int, help="HTTP port.")
    add("--grpc_port", default=8081, type=int, help="gRPC port.")
    add("--enable_grpc", default=True, type=_read_bool, help="Enable gRPC.")
    add(
        "--workers", default=1, type=int, help="Number of processes that serve the same fixed models on the same ports."
    )
    add("--model_name", default="model", help="Name of the model in URLs.")
    add("--event-loop", "--event_loop", default="auto", choices=["auto", "asyncio", "uvloop"], help="Event loop.")
    add(
        "--timeout-keep-alive",
        "--timeout_keep_alive",
        default=65,
        type=int,
        help="Seconds before an idle HTTP connection is closed.",
    )
    add("--grpc_max_send_message_length", type=int, metavar="BYTES", help="Maximum size of a gRPC response. [no limit]")
    add(
        "--grpc_max_receive_message_length",
        type=int,
        metavar="BYTES",
        help="Maximum size of a gRPC request. [--max_request_bytes]",
    )
    add("--configure_logging", default=True, type=_read_bool, help="Configure logging.")
    add(
        "--log_config_file",
        metavar="FILE",
        help="Configuration of Python's logging: JSON, YAML or logging's own format.",
    )
    variable = os.environ.get
    add("--ssl_certfile", default=variable("KSERVE_TLS_CERT_FILE"), metavar="FILE", help="Certificate for HTTPS.")
    add("--ssl_keyfile", default=variable("KSERVE_TLS_KEY_FILE"), metavar="FILE", help="Its private key.")
    for flag in (*_WITHOUT_EFFECT, *_REFUSED):
        add(f"--{flag}", nargs="?", const="true", help=argparse.SUPPRESS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this server's flags."""
    add = parser.add_argument_group("MindSpore").add_argument
    add("--host", default="0.0.0.0", help="Listen address.")
    add(
        "--model_dir",
        action="append",
        metavar="[NAME=]PATH",
        help="A model bundle, or a directory of numbered bundles (versions). Repeat with NAME= for several models; by "
        f"default the name is --model_name. A URI such as s3://… needs the extra `storage`. [{DEFAULT_MODEL_DIR}]",
    )
    add("--model_repository", metavar="DIR", help="Serve every model directory in DIR, including new ones.")
    add("--model_versions", default="latest", choices=["latest", "all"], help="Numbered versions to serve.")
    add("--max_batch", default=64, type=int, help="Maximum number of rows of a batch.")
    add(
        "--max_delay_ms",
        default=2.0,
        type=float,
        help="Maximum batching delay: a batch waits until it has as many requests as were recently in flight at once. "
        "A single client is never delayed; 0 disables the delay.",
    )
    add("--max_queue", default=1024, type=int, help="Maximum number of queued rows; further requests get 503.")
    add("--max_request_bytes", default=32 << 20, type=int, help="Maximum size of a request; larger ones get 413.")
    add("--request_timeout", default=60.0, type=float, help="Seconds before a queued request gets 503; 0 for no limit.")
    add(
        "--transform_timeout",
        default=60.0,
        type=float,
        help="Timeout in seconds of a transform's preprocess or postprocess; then 500. 0 for no limit.",
    )
    add("--nonfinite", default="reject", choices=["reject", "allow"], help="Handling of NaN and infinite inputs.")
    add(
        "--reload_interval",
        default=1.0,
        type=float,
        help="Poll interval of the models' files in seconds; 0 disables reloading.",
    )
    add(
        "--allow_model_code",
        default=False,
        type=_read_bool,
        help="Run a transform.py of a model directory.",
    )
    add(
        "--model_key_file",
        metavar="FILE",
        help="Key of encrypted models. [environment variable MINDSPORE_MODEL_KEY]",
    )
    add(
        "--token-file",
        "--token_file",
        metavar="FILE",
        help="Bearer tokens, one a line, of which HTTP and gRPC requests must have one; the file is read again when it "
        "changes. Health and metrics need none.",
    )
    add(
        "--management-port",
        "--management_port",
        type=int,
        metavar="PORT",
        help="A second HTTP port, which alone answers load, unload and metrics. [--http_port]",
    )
    add(
        "--log_requests",
        default="failed",
        choices=["none", "failed", "all"],
        help="Requests to log, one line each.",
    )
    add("--log_format", default="text", choices=["text", "json"], help="Format of the log.")
    add("--tracing", default=False, type=_read_bool, help="Send OpenTelemetry traces; needs the extra `tracing`.")
    add(
        "--ssl_ca_certs",
        metavar="FILE",
        help="CA certificates; REST clients must present a certificate of one of them.",
    )
    add("--grpc_ssl_certfile", metavar="FILE", help="Certificate for gRPC. [plain text]")
    add("--grpc_ssl_keyfile", metavar="FILE", help="Its private key.")
    add(
        "--grpc_ssl_ca_certs",
        metavar="FILE",
        help="CA certificates; gRPC clients must present a certificate of one of them.",
    )
    add(
        "--drain_seconds",
        default=0.0,
        type=float,
        help="Seconds after SIGTERM for which new connections are accepted: a cluster may still route requests here.",
    )
    add("--grace_period", default=30, type=int, help="Seconds for accepted requests to finish after SIGTERM.")


def read_options(arguments: argparse.Namespace) -> ServerFlags:
    """Validate the command line.

    Raises:
        ValidationError: A flag is invalid; the message names each.
        UserError: Two `--model_dir` values have the same model name.
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
    for flag in ("max_delay_ms", "request_timeout", "transform_timeout", "reload_interval", "drain_seconds"):
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
    ports: dict[int, str] = {}
    for flag in ("http_port", "grpc_port", "management_port"):
        port = found[flag]
        if port is None or (flag == "grpc_port" and not found["enable_grpc"]):
            continue
        if not 0 < port < 65536:
            errors.append(f"--{flag}: must be 1 to 65535, got {port}")
        elif port in ports:
            errors.append(f"--{flag}: must differ from --{ports[port]}, got {port} for both")
        ports[port] = flag
    if errors:
        raise ValidationError(errors)
    repository = found.get("model_repository")
    directories = found.get("model_dir") or ([] if repository else [DEFAULT_MODEL_DIR])
    paths: dict[str, Any] = {
        name: Path(found[name]) if found[name] else None for name in ("model_key_file", "token_file")
    }
    return ServerFlags(
        **{
            name: found[name]
            for name in ServerFlags.__dataclass_fields__
            if name not in ("model_dirs", "model_repository", *paths)
        },
        model_dirs=_read_model_dirs(directories, found["model_name"]),
        model_repository=Path(repository) if repository else None,
        **paths,
    )


def _read_model_dirs(values: list[str], model_name: str) -> dict[str, str]:
    models: dict[str, str] = {}
    for value in values:
        name, separator, path = value.partition("=")
        # A URI may contain = in its query, a path in its directories' names.
        if not separator or "/" in name or not name:
            name, path = model_name, value
        # KServe appends a service's flags to the runtime's, which has the default.
        if models.get(name, DEFAULT_MODEL_DIR) != DEFAULT_MODEL_DIR:
            raise UserError(
                f"--model_dir: {name!r} has two directories: {models[name]} and {path}",
                hint="Give each model a name: --model_dir first=DIR --model_dir second=DIR",
            )
        models[name] = path
    return models


def _read_bool(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return values[text.lower()]
