"""From the command line to a running server, in this process."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import tempfile
from pathlib import Path

from kfp_mindspore.compat.onednn import avoid_slow_convolutions
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import DUAL_KIND, EMBEDDING_KIND, FIRST_STAGE_KIND, SECOND_STAGE_KIND, ModelBundle
from kfp_mindspore.mindir.devices import is_lost, use_device
from kfp_mindspore.mindir.graph.encryption import read_model_key
from kfp_mindspore.settings import CPU
from mindsporeserver.access import TokenFile
from mindsporeserver.bodies import RequestLimits
from mindsporeserver.language.embedding import DualEncoderModel, EmbeddingModel
from mindsporeserver.language.metrics import LanguageFamilies
from mindsporeserver.language.model import LanguageModel, LanguageSettings, is_language_bundle, load_runner
from mindsporeserver.language.stage_model import StageModel
from mindsporeserver.models.batcher import Limits
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.model import MindSporeModel, ModelSettings
from mindsporeserver.models.repository import Repository, Sources
from mindsporeserver.models.served_model import ServedModel
from mindsporeserver.models.source_import import find_source, import_source
from mindsporeserver.models.storage import resolve_model
from mindsporeserver.models.transform_executor import TransformExecutor
from mindsporeserver.observability.logs import RequestLog
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.options import ServerFlags
from mindsporeserver.ports import bind_port, check_port
from mindsporeserver.request_log.event_log import make_check, open_log
from mindsporeserver.server import Server, ServerOptions
from mindsporeserver.state import ServerState
from mindsporeserver.telemetry import Telemetry
from mindsporeserver.tls import check_certificates
from mindsporeserver.workers import WorkerLink

logger = logging.getLogger(__name__)

_SWITCH_SECONDS = 1e-4
_EMBEDDERS = {EMBEDDING_KIND: EmbeddingModel, DUAL_KIND: DualEncoderModel}
# Downloads and imports, below --download_dir or the directory for temporary files.
_CACHE = "mindsporeserver-models"


def run_server(options: ServerFlags, link: WorkerLink | None) -> None:
    """Serve until a signal arrives.

    Args:
        options: The command line.
        link: The connection to the parent when this is one of several workers, else None.

    Raises:
        UserError: A flag, a device, a model or a port cannot be used.
    """
    sources = _list_sources(options)
    device = use_device(options.device, options.device_id)
    if device != CPU and link is not None:
        raise UserError(
            f"--workers: must be 1 on {device}, got {options.workers}: each process needs a device of its own",
            hint="Raise the replicas instead.",
        )
    is_shared = options.model_repository is not None or len(sources.models) > 1
    # The instruction set is chosen once a process, and the first model may have no convolutions. Language models have
    # none, and lose 15 to 27 % by the limit.
    if device == CPU and is_shared and not has_only_language_models(sources) and avoid_slow_convolutions():
        logger.info("oneDNN is limited to AVX2 for convolutions, which slows language models down")
    server_options = _build_options(options, link)
    settings = ModelSettings(
        max_batch=options.max_batch,
        limits=Limits(max_queue=options.max_queue, max_delay_seconds=options.max_delay_ms / 1000),
        finite=options.nonfinite == "reject",
        allow_code=options.allow_model_code,
        key=read_model_key(options.model_key_file, os.environ),
    )
    # The event loop and the graph thread switch for every batch: with Python's 5 ms the graph waited for the loop
    # longer than it computed.
    sys.setswitchinterval(_SWITCH_SECONDS)
    language = LanguageSettings(
        max_model_len=options.max_model_len or 0,
        max_num_seqs=options.max_num_seqs,
        max_queue_tokens=options.max_queue_tokens or 0,
        prefix_cache_bytes=options.prefix_cache_mib << 20,
        max_loras=options.adapter_limit,
        max_lora_rank=options.max_lora_rank,
        next_stage=options.next_stage or "",
        allow_lora_updates=options.allow_runtime_lora_updating,
        separates_reasoning=options.reasoning_parser != "none",
        decode_operator=options.decode_operator,
    )
    check_stages(options, sources)
    # Kept by model name, so that a reloaded model has the adapters that were loaded meanwhile.
    adapters = _assign_adapters(options, sources)
    metrics, graphs, families = ServerMetrics(), InferenceExecutor(), LanguageFamilies()
    # As many transforms at once as there are cores: each may decode hundreds of megabytes.
    code = TransformExecutor(os.cpu_count() or 1, options.transform_timeout)

    def open_model(name: str, bundle: ModelBundle, version: str) -> ServedModel:
        if bundle.signature.kind in _EMBEDDERS:
            return _EMBEDDERS[bundle.signature.kind](
                *(name, bundle),
                version=version,
                max_queue_tokens=language.max_queue_tokens,
                executor=graphs,
                metrics=metrics,
            )
        if bundle.signature.kind == SECOND_STAGE_KIND:
            return StageModel(
                *(name, bundle),
                version=version,
                slots=language.max_num_seqs,
                max_length=language.max_model_len,
                executor=graphs,
                metrics=metrics,
            )
        if is_language_bundle(bundle):
            return LanguageModel(
                *(name, bundle),
                version=version,
                settings=dataclasses.replace(language, lora_modules=adapters.setdefault(name, {})),
                executor=graphs,
                metrics=metrics,
                families=families,
                load_runner=load_runner,
            )
        return MindSporeModel(
            name, bundle, version=version, settings=settings, executor=graphs, metrics=metrics, transforms=code
        )

    tracing = None
    if options.tracing:
        from mindsporeserver.observability.tracing import Tracing

        tracing = Tracing("mindsporeserver")
    log = open_log(options.log_options, metrics)
    repository = Repository(sources, open_model, metrics, make_check(log))
    telemetry = Telemetry(RequestLog(options.log_requests), metrics, tracing)
    is_fixed = link is not None
    state = ServerState(repository, graphs, metrics, telemetry, aliases=options.aliases, log=log, is_fixed=is_fixed)
    Server(state, server_options, link, is_lost=None if device == CPU else is_lost).serve()


def _assign_adapters(options: ServerFlags, sources: Sources) -> dict[str, dict[str, str]]:
    """Return the adapters of the command line by model name."""
    if not options.lora_paths:
        return {}
    names = sources.list_names()
    if taken := sorted(options.lora_paths.keys() & set(names)):
        raise UserError(f"--lora-modules: {taken[0]!r} is a model's name", hint="Choose another name for the adapter.")
    models = [
        name
        for name in names
        if any(is_language_bundle(ModelBundle.open(path, verify=False)) for path in sources.list_bundles(name).values())
    ]
    if len(models) != 1:
        raise UserError(f"--lora-modules: needs exactly one language model, found {', '.join(models) or 'none'}")
    return {models[0]: dict(options.lora_paths)}


def check_stages(options: ServerFlags, sources: Sources) -> None:
    """Refuse flags that a language model cut at a layer does not have.

    Args:
        options: The command line.
        sources: The models.

    Raises:
        UserError: A flag is missing or not supported; the message names it.
    """
    bundles = [path for name in sources.list_names() for path in sources.list_bundles(name).values()]
    kinds = {ModelBundle.open(path, verify=False).signature.kind for path in bundles}
    if options.next_stage and kinds != {FIRST_STAGE_KIND}:
        raise UserError(f"--next-stage: needs one model of the kind {FIRST_STAGE_KIND}, found {', '.join(kinds)}")
    if FIRST_STAGE_KIND in kinds and not options.next_stage:
        raise UserError(
            f"--model_dir: a model of the kind {FIRST_STAGE_KIND} needs a second server",
            hint="Serve its second stage, and give that server's gRPC address: --next-stage HOST:PORT",
        )
    if kinds & {FIRST_STAGE_KIND, SECOND_STAGE_KIND}:
        if options.workers > 1:
            raise UserError(f"--workers: must be 1 for a model's stage, which has one cache, got {options.workers}")
        if options.adapter_limit:
            raise UserError("--lora-modules: a model's stages have no adapters")


def has_only_language_models(sources: Sources) -> bool:
    """Return whether all models are language models, which have no convolutions."""
    bundles = [path for name in sources.list_names() for path in sources.list_bundles(name).values()]
    opened = [ModelBundle.open(path, verify=False) for path in bundles]
    return all(bundle.signature.is_language_model for bundle in opened)


def _list_sources(options: ServerFlags) -> Sources:
    cache = (options.download_dir or Path(tempfile.gettempdir())) / _CACHE
    models = {name: resolve_model(value, cache) for name, value in options.model_dirs.items()}
    # Before the sockets: the server is not ready until its models are bundles.
    for name, path in models.items():
        if (source := find_source(path)) is not None:
            models[name] = import_source(source, cache)
    sources = Sources(models, options.model_repository, all_versions=options.model_versions == "all")
    # A mistake is reported before anything else starts.
    sources.list_names()
    for name in models:
        for path in sources.list_bundles(name).values():
            ModelBundle.open(path, verify=False)
    return sources


def _build_options(options: ServerFlags, link: WorkerLink | None) -> ServerOptions:
    http_tls = check_certificates(options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs)
    grpc_tls = check_certificates(
        options.grpc_ssl_certfile, options.grpc_ssl_keyfile, options.grpc_ssl_ca_certs, prefix="grpc_ssl"
    )
    tokens = TokenFile(options.token_file) if options.token_file is not None else None
    http_socket = bind_port("--http_port", options.host, options.http_port, shared=link is not None)
    grpc_port = options.grpc_port if options.enable_grpc else None
    if grpc_port is not None and link is None:
        check_port("--grpc_port", options.host, grpc_port)
    management_socket = None
    if options.management_port is not None:
        management_socket = bind_port(
            "--management_port", options.host, options.management_port, shared=link is not None
        )
    send, receive = options.grpc_max_send_message_length, options.grpc_max_receive_message_length
    return ServerOptions(
        options.host,
        http_socket,
        grpc_port,
        http_tls,
        grpc_tls,
        limits=RequestLimits(max_bytes=options.max_request_bytes, timeout_seconds=options.request_timeout),
        max_send_bytes=-1 if send is None else send,
        max_receive_bytes=receive,
        event_loop=options.event_loop,
        keep_alive_seconds=options.timeout_keep_alive,
        drain_seconds=options.drain_seconds,
        grace_period=options.grace_period,
        watch_seconds=options.reload_interval if link is None else 0.0,
        tokens=tokens,
        management_socket=management_socket,
        has_docs=options.enable_docs_url,
    )
