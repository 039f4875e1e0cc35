"""What the command line says: kserve's own flags and ours."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError

DEFAULT_MODEL_DIR = "/mnt/models"


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our flags to kserve's."""
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
    if found.get("access_log_format"):
        # kserve hands it to a middleware of its own application, which the hot routes do not pass through.
        errors.append(
            "--access_log_format: is not offered; --log_requests=all writes a line a request, --log_format=json as JSON"
        )
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
