"""From the command line to a running server, in this process."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.compat.onednn import avoid_slow_convolutions
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.encryption import read_model_key
from mindsporeserver.lazy_imports import light_imports, settle_temporary_directory
from mindsporeserver.models.storage import resolve_model
from mindsporeserver.models.watch import BundleWatch
from mindsporeserver.options import Options, add_arguments, read_options
from mindsporeserver.ports import bind_http, reserve_grpc
from mindsporeserver.tls import check_certificates

with light_imports():
    from kserve.model_server import parser as kserve_parser

    from mindsporeserver.models.batcher import Limits
    from mindsporeserver.models.code import CodeThreads
    from mindsporeserver.models.graphs import GraphThread
    from mindsporeserver.models.model import MindSporeModel, ModelSettings
    from mindsporeserver.models.repository import Repository, Sources
    from mindsporeserver.observability.logs import RequestLog, configure_logging
    from mindsporeserver.observability.metrics import Metrics
    from mindsporeserver.protocols.asgi import RequestLimits
    from mindsporeserver.server import Listening, Server

if TYPE_CHECKING:
    from mindsporeserver.workers.attachment import Attachment

_SWITCH_SECONDS = 1e-4
# Where URIs are downloaded to, below the directory for temporary files.
_CACHE = "mindsporeserver-models"


def run_server(argv: Sequence[str], attachment: Attachment | None) -> int:
    """Serve until a signal comes.

    Args:
        argv: The flags.
        attachment: This worker's place among others, or None.

    Returns:
        The exit code, 0.

    Raises:
        UserError: A flag, a model or a port cannot be used.
    """
    settle_temporary_directory()
    parser = argparse.ArgumentParser("python -m mindsporeserver", parents=[kserve_parser], conflict_handler="resolve")
    add_arguments(parser)
    options = read_options(parser.parse_args(argv))
    configure_logging(options.log_format, config_file=options.log_config_file, configure=options.configure_logging)
    sources = _find_sources(options)
    if options.model_repository is not None or len(sources.models) > 1:
        # Which instructions are used is decided once a process, and the first model may have no convolutions.
        avoid_slow_convolutions()
    listening = _listen(options, attachment)
    settings = ModelSettings(
        max_batch=options.max_batch,
        limits=Limits(max_queue=options.max_queue, max_delay_seconds=options.max_delay_ms / 1000),
        finite=options.nonfinite == "reject",
        allow_code=options.allow_model_code,
        key=read_model_key(options.model_key_file, os.environ),
    )
    # The event loop and the graph thread hand the interpreter to each other for every batch: with Python's 5 ms the
    # graph waited for the loop longer than it computed.
    sys.setswitchinterval(_SWITCH_SECONDS)
    metrics, graphs = Metrics(), GraphThread()
    # As many transforms at once as there are cores: what one of them decodes may take hundreds of megabytes.
    code = CodeThreads(os.cpu_count() or 1, options.transform_timeout)

    def open_model(name: str, bundle: ModelBundle, version: str) -> MindSporeModel:
        return MindSporeModel(
            name, bundle, version=version, settings=settings, thread=graphs, metrics=metrics, code=code
        )

    repository = Repository(sources, open_model, metrics, keeps=attachment is not None)
    watch = None
    if attachment is None and options.reload_interval > 0:
        watch = BundleWatch(sources.models, sources.repository)
    tracer = None
    if options.tracing:
        from mindsporeserver.observability.tracing import build_tracer

        tracer = build_tracer("mindsporeserver")
    server = Server(
        repository,
        graphs,
        listening,
        limits=RequestLimits(max_bytes=options.max_request_bytes, timeout_seconds=options.request_timeout),
        metrics=metrics,
        log=RequestLog(options.log_requests),
        tracer=tracer,
        attachment=attachment,
        watch=watch,
        watch_seconds=options.reload_interval,
        grace_period=options.grace_period,
    )
    server.serve()
    return 0


def _find_sources(options: Options) -> Sources:
    cache = Path(tempfile.gettempdir()) / _CACHE
    models = {name: resolve_model(value, cache) for name, value in options.model_dirs.items()}
    sources = Sources(models, options.model_repository, all_versions=options.model_versions == "all")
    # A mistake is told before anything else is begun.
    sources.list_names()
    for name in models:
        for path in sources.find_bundles(name).values():
            ModelBundle.open(path, verify=False)
    return sources


def _listen(options: Options, attachment: Attachment | None) -> Listening:
    rest_tls = check_certificates(options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs)
    grpc_tls = check_certificates(
        options.grpc_ssl_certfile, options.grpc_ssl_keyfile, options.grpc_ssl_ca_certs, prefix="grpc_ssl"
    )
    if attachment is not None:
        place = attachment.place
        return Listening(options.host, attachment.http_socket, place.grpc_port, rest_tls, grpc_tls)
    http_socket = bind_http(options.host, options.http_port)
    grpc_port = options.grpc_port if options.enable_grpc else None
    if grpc_port is not None:
        # gRPC itself would share a taken port without a word.
        reserve_grpc(options.host, grpc_port).close()
    return Listening(options.host, http_socket, grpc_port, rest_tls, grpc_tls)
