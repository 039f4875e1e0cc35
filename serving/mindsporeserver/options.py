"""Command-line flags: kserve.ModelServer's and vLLM's, under the same names, and this server's own."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.inference.logger import LoggerOptions, read_logger
from kfp_mindspore.options import Limits, list_options, option
from kfp_mindspore.settings import AUTO, DEVICES

_logger = logging.getLogger(__name__)

DEFAULT_MODEL_DIR = "/mnt/models"
# Flags that tune only kserve's application, and flags that KServe gives to vLLM.
_WITHOUT_EFFECT = {
    "max_threads": "one event loop serves gRPC",
    "max_asyncio_workers": "one executor thread runs the graphs, see --max_batch",
    "enable_latency_logging": "see --log_requests",
    "enable-lora": "--lora-modules enables adapters",
    "max-cpu-loras": "all adapters are loaded, see --max-loras",
    "enable-ssl-refresh": "restart the pod to load a renewed certificate",
    **dict.fromkeys(("disable-uvicorn-access-log", "disable-access-log-for-endpoints"), "see --log_requests"),
}
# Flags that must not be ignored silently.
_REFUSED = {
    "api-key": "use --token-file",
    "quantization": "weights are float32",
    "kv-transfer-config": "caches stay in this process",
    "speculative-config": "each token is computed by the model itself",
    **dict.fromkeys(
        ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
        "one process computes the whole model; raise the replicas",
    ),
    "access_log_format": "use --log_requests=all, with --log_format=json for JSON",
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


_PORT: Limits = {"minimum": 1, "maximum": 65535}
_SECONDS: Limits = {"minimum": 0, "exclusiveMaximum": math.inf}
_PATHS = ("model_repository", "download_dir", "model_key_file", "token_file")
_OFF = ("none", "false")
# Flags with two spellings; kserve has the first two with dashes.
_DASHED = (
    *("event_loop", "timeout_keep_alive", "token_file", "management_port", "device_id"),
    # vLLM's spelling.
    *("max_model_len", "max_num_seqs", "max_queue_tokens", "prefix_cache_mib"),
    *(
        "next_stage",
        "lora_modules",
        "max_loras",
        "max_lora_rank",
        "allow_runtime_lora_updating",
        "reasoning_parser",
        "decode_operator",
        "download_dir",
    ),
    *("served_model_name", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"),
)
# vLLM's names of flags that are kserve's or this server's.
_SYNONYMS = {"model_dir": "--model", "http_port": "--port", "grace_period": "--shutdown-timeout"}
_LISTS = ("lora_modules", "served_model_name")
_METAVARS = {
    **dict.fromkeys(("grpc_max_send_message_length", "grpc_max_receive_message_length"), "BYTES"),
    "model_dir": "[NAME=]PATH",
    "next_stage": "HOST:PORT",
    "logger": "JSON",
    "lora_modules": "NAME=PATH",
    "served_model_name": "NAME",
    **dict.fromkeys(("model_repository", "download_dir"), "DIR"),
    "management_port": "PORT",
    **dict.fromkeys(("log_config_file", "model_key_file", "token_file"), "FILE"),
    **{f"{prefix}ssl_{name}": "FILE" for prefix in ("", "grpc_") for name in ("certfile", "keyfile", "ca_certs")},
}
_VARIABLES = {"ssl_certfile": "KSERVE_TLS_CERT_FILE", "ssl_keyfile": "KSERVE_TLS_KEY_FILE"}
_MAX_LORAS = 4
_FIRST_OWN = "host"


@dataclass(frozen=True)
class ServerFlags:
    """Validated command line: kserve's flags, then from `host` on this server's own.

    Args:
        http_port: HTTP port.
        grpc_port: gRPC port.
        enable_grpc: Enable gRPC.
        enable_docs_url: Answer /openapi.json and the page /docs, and gRPC's server reflection.
        workers: Number of processes that serve the same fixed models on the same ports.
        model_name: Name of the model in URLs.
        event_loop: Event loop.
        timeout_keep_alive: Seconds before an idle HTTP connection is closed.
        grpc_max_send_message_length: Maximum size of a gRPC response. [no limit]
        grpc_max_receive_message_length: Maximum size of a gRPC request. [--max_request_bytes]
        configure_logging: Configure logging.
        log_config_file: Configuration of Python's logging: JSON, YAML or logging's own format.
        ssl_certfile: Certificate for HTTPS.
        ssl_keyfile: The private key.
        host: Listen address.
        model_dir: A model bundle, or a directory of numbered bundles (versions). Repeat with NAME= for several models;
            by default the name is --model_name. A URI such as s3://… needs the extra `storage`. A Hugging Face
            directory or a GGUF file is imported at the start, which needs the extra `lm`. [/mnt/models]
        served_model_name: In place of --model_name: the model's name, and further ones in the OpenAI protocol.
            [--model_name]
        download_dir: Directory for downloads and imports; an import is kept there for the next start. [the temporary
            directory]
        model_repository: Serve every model directory in DIR, including new ones.
        model_versions: Numbered versions to serve.
        max_batch: Most rows computed together, of one request or several.
        max_delay_ms: Maximum batching delay: a batch waits until it has as many requests as were recently in flight at
            once. A single client is never delayed; 0 disables the delay.
        max_queue: Maximum number of queued rows; further requests get 503.
        max_request_bytes: Maximum size of a request; larger ones get 413.
        request_timeout: Seconds before a queued request gets 503; 0 for no limit.
        transform_timeout: Timeout in seconds of a transform's preprocess or postprocess; then 500. 0 for no limit.
        max_model_len: Most tokens of a language model's prompt and answer. [the model's own limit, at most 2048]
        max_num_seqs: Answers that a language model computes together.
        max_queue_tokens: Most tokens, prompts and answers, that waiting requests to a language model may need; further
            requests get 429. [16 times max_num_seqs times max_model_len]
        prefix_cache_mib: Memory for the beginnings of a language model's prompts, in MiB; 0 disables the cache.
        next_stage: gRPC address where a split language model's second stage is served, see `lm split`.
        lora_modules: Adapters (LoRA) of the language model, in peft's format; requests choose them by `model`. Also as
            {"name": …, "path": …}; a second name of one path is the same adapter.
        max_loras: Most adapters loaded at once. [4 with adapters]
        max_lora_rank: Most rank of an adapter.
        allow_runtime_lora_updating: Answer /v1/load_lora_adapter and /v1/unload_lora_adapter.
        reasoning_parser: Send a chat's text between <think> and </think> as `reasoning_content`; both names do so.
        decode_operator: Of a language model, computes single tokens: this package's operator with weights in float32 or
            rounded to int8, where a C compiler is; none for MindSpore's operators.
        nonfinite: Handling of NaN and infinite inputs.
        reload_interval: Poll interval of the models' files in seconds; 0 disables reloading.
        allow_model_code: Run a transform.py of a model directory.
        model_key_file: Key of encrypted models. [environment variable MINDSPORE_MODEL_KEY]
        token_file: Bearer tokens, one a line, of which HTTP and gRPC requests must have one; the file is read again
            when it changes. Health and metrics need none.
        management_port: A second HTTP port, which alone answers load, unload and metrics. [--http_port]
        log_requests: Requests to log, one line each.
        logger: Log of requests and responses as CloudEvents, in JSON: {"url": …, "mode": …, "sample": …, "omit": …,
            "hash": …, "texts": …}, see a service's `logger`.
        log_format: Format of the log.
        tracing: Send OpenTelemetry traces; needs the extra `tracing`.
        ssl_ca_certs: CA certificates; REST clients must present a certificate that one of them signed.
        grpc_ssl_certfile: Certificate for gRPC. [plain text]
        grpc_ssl_keyfile: The private key.
        grpc_ssl_ca_certs: CA certificates; gRPC clients must present a certificate that one of them signed.
        drain_seconds: Seconds after SIGTERM for which new connections are accepted: a cluster may still route requests
            here.
        grace_period: Seconds for accepted requests to finish after SIGTERM.
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error; `auto` takes what
            $KFP_MINDSPORE_DEVICE names, else what MindSpore finds.
        device_id: Number of the device among those that this process sees. [local rank, else 0]
    """

    http_port: int = option(8080, **_PORT)
    grpc_port: int = option(8081, **_PORT)
    enable_grpc: bool = True
    enable_docs_url: bool = False
    workers: int = option(1, minimum=1)
    model_name: str = "model"
    event_loop: str = option("auto", enum=("auto", "asyncio", "uvloop"))
    timeout_keep_alive: int = 65
    grpc_max_send_message_length: int | None = None
    grpc_max_receive_message_length: int | None = None
    configure_logging: bool = True
    log_config_file: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    host: str = "0.0.0.0"
    model_dir: Sequence[str] = ()
    served_model_name: Sequence[str] = ()
    download_dir: Path | None = None
    model_repository: Path | None = None
    model_versions: str = option("latest", enum=("latest", "all"))
    max_batch: int = option(64, minimum=1)
    max_delay_ms: float = option(2.0, **_SECONDS)
    max_queue: int = option(1024, minimum=1)
    max_request_bytes: int = option(32 << 20, minimum=1)
    request_timeout: float = option(60.0, **_SECONDS)
    transform_timeout: float = option(60.0, **_SECONDS)
    max_model_len: int | None = option(None, minimum=16)
    max_num_seqs: int = option(8, minimum=1, maximum=16)
    max_queue_tokens: int | None = option(None, minimum=1)
    prefix_cache_mib: int = option(256, minimum=0)
    next_stage: str | None = None
    lora_modules: Sequence[str] = ()
    max_loras: int | None = option(None, minimum=1)
    max_lora_rank: int = option(16, minimum=1)
    allow_runtime_lora_updating: bool = False
    reasoning_parser: str = option("none", enum=("none", "qwen3", "deepseek_r1"))
    decode_operator: str = option("float32", enum=("float32", "int8", "none"))
    nonfinite: str = option("reject", enum=("reject", "allow"))
    reload_interval: float = option(1.0, **_SECONDS)
    allow_model_code: bool = False
    model_key_file: Path | None = None
    token_file: Path | None = None
    management_port: int | None = option(None, **_PORT)
    log_requests: str = option("failed", enum=("none", "failed", "all"))
    logger: str | None = None
    log_format: str = option("text", enum=("text", "json"))
    tracing: bool = False
    ssl_ca_certs: str | None = None
    grpc_ssl_certfile: str | None = None
    grpc_ssl_keyfile: str | None = None
    grpc_ssl_ca_certs: str | None = None
    drain_seconds: float = option(0.0, **_SECONDS)
    grace_period: int = option(30, minimum=0)
    device: str = option(AUTO, enum=DEVICES)
    device_id: int | None = option(None, minimum=0)

    @cached_property
    def model_dirs(self) -> Mapping[str, str]:
        """Directory or URI by model name.

        Raises:
            UserError: Two directories have the same model name.
        """
        values = self.model_dir or (() if self.model_repository else (DEFAULT_MODEL_DIR,))
        models: dict[str, str] = {}
        for value in values:
            name, separator, path = value.partition("=")
            # A URI may contain = in its query, a path in its directories' names.
            if not separator or "/" in name or not name:
                name, path = (self.served_model_name or (self.model_name,))[0], value
            # KServe appends a service's flags to the runtime's, which has the default.
            if models.get(name, DEFAULT_MODEL_DIR) != DEFAULT_MODEL_DIR:
                raise UserError(
                    f"--model_dir: {name!r} has two directories: {models[name]} and {path}",
                    hint="Give each model a name: --model_dir first=DIR --model_dir second=DIR",
                )
            models[name] = path
        return models

    @cached_property
    def lora_paths(self) -> Mapping[str, str]:
        """Adapter directory by name.

        Raises:
            UserError: A value is not NAME=PATH, a name has two directories, or there are more than `max_loras`.
        """
        paths: dict[str, str] = {}
        for name, path in map(_read_adapter, self.lora_modules):
            if name in paths:
                raise UserError(f"--lora-modules: {name!r} has two directories: {paths[name]} and {path}")
            if path not in paths.values():
                paths[name] = path
        if len(paths) > (most := self.max_loras or _MAX_LORAS):
            raise UserError(f"--lora-modules: at most {most} adapters, got {len(paths)}", hint="Raise --max-loras.")
        return paths

    @cached_property
    def log_options(self) -> LoggerOptions | None:
        """The options in `logger`; None without.

        Raises:
            ValidationError: Naming each field that is wrong.
        """
        return read_logger(self.logger, "--logger")

    @property
    def aliases(self) -> Mapping[str, str]:
        """Further names in the OpenAI protocol of the model and the adapters."""
        adapters = {path: name for name, path in self.lora_paths.items()}
        named = [(name, adapters[path]) for name, path in map(_read_adapter, self.lora_modules)]
        named += [(name, self.served_model_name[0]) for name in self.served_model_name]
        return {name: target for name, target in named if name != target}

    @property
    def adapter_limit(self) -> int:
        """Most adapters at once; 0 for a network without adapters."""
        return (self.max_loras or _MAX_LORAS) if self.lora_modules or self.allow_runtime_lora_updating else 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser for all flags."""
    parser = argparse.ArgumentParser("python -m mindsporeserver", allow_abbrev=False)
    group = parser.add_argument_group("KServe")
    for entry in list_options(ServerFlags):
        if entry.name == _FIRST_OWN:
            for flag in (*_WITHOUT_EFFECT, *_REFUSED):
                group.add_argument(f"--{flag}", nargs="?", const="true", help=argparse.SUPPRESS)
            group = parser.add_argument_group("MindSpore")
        flags = [f"--{entry.name}"]
        if entry.name in _DASHED:
            flags.insert(0, f"--{entry.name.replace('_', '-')}")
        if entry.name in _SYNONYMS:
            flags.append(_SYNONYMS[entry.name])
        settings: dict[str, Any] = {"metavar": _METAVARS.get(entry.name), "help": entry.description}
        if entry.kind is list:
            # vLLM's clients give several adapters to one flag.
            settings |= {"action": "extend", "nargs": "+"} if entry.name in _LISTS else {"action": "append"}
        else:
            settings |= {
                "default": os.environ.get(_VARIABLES.get(entry.name, ""), entry.default),
                "type": _read_bool if entry.kind is bool else entry.kind,
                "choices": entry.limits.get("enum"),
            }
        group.add_argument(*flags, **settings)
    return parser


def read_options(arguments: argparse.Namespace) -> ServerFlags:
    """Validate the command line.

    Raises:
        ValidationError: A flag is invalid; the message names each.
        UserError: Two `--model_dir` values have the same model name.
    """
    found: dict[str, Any] = vars(arguments)
    errors = [
        f"--{error}"
        for entry in list_options(ServerFlags)
        if entry.kind in (int, float) and (entry.name != "grpc_port" or found["enable_grpc"])
        for error in entry.list_errors(found[entry.name])
    ]
    errors += [
        f"--{flag}: is not supported: {reason}"
        for flag, reason in _REFUSED.items()
        if str(found[flag.replace("-", "_")]).lower() not in (*_OFF, *(("1",) if flag.endswith("-size") else ()))
    ]
    for flag, reason in _WITHOUT_EFFECT.items():
        if found[flag.replace("-", "_")] is not None:
            _logger.warning("--%s has no effect: %s", flag, reason)
    ports: dict[int, str] = {}
    for flag in ("http_port", "grpc_port", "management_port"):
        port = found[flag]
        if port is None or (flag == "grpc_port" and not found["enable_grpc"]):
            continue
        if port in ports:
            errors.append(f"--{flag}: must differ from --{ports[port]}, got {port} for both")
        ports[port] = flag
    if errors:
        raise ValidationError(errors)
    values = {name: found[name] for name in ServerFlags.__dataclass_fields__}
    values |= {name: Path(found[name]) if found[name] else None for name in _PATHS}
    values |= {name: found[name] or () for name in ("model_dir", *_LISTS)}
    flags = ServerFlags(**values)
    # Two directories for one model or adapter are a command line error.
    flags.model_dirs, flags.lora_paths, flags.log_options  # noqa: B018
    return flags


def _read_adapter(text: str) -> tuple[str, str]:
    """Return an adapter's name and directory."""
    # KServe's llmisvc controller quotes JSON for a shell, which does not run here.
    value = text.removeprefix("'").removesuffix("'")
    name, _, path = value.partition("=")
    if value.startswith("{"):
        try:
            entry = json.loads(value)
            name, path = str(entry["name"]), str(entry["path"])
        except (ValueError, KeyError, TypeError):
            name = ""
    if not name or not path:
        raise UserError(f"--lora-modules: must be NAME=PATH, got {text!r}")
    return name, path


def _read_bool(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return values[text.lower()]
