"""`python language_server.py DIR FLAGS…`: a model server whose language model `chat` is a decoder in NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

from numpy_decoder import NumpyDecoder, write_decoder_bundle

from kfp_mindspore.formats.bundle import ModelBundle
from mindsporeserver.bodies import RequestLimits
from mindsporeserver.language.metrics import LanguageFamilies
from mindsporeserver.language.model import LanguageModel, LanguageSettings
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.repository import Repository, Sources
from mindsporeserver.observability.logs import RequestLog, configure_logging
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.options import ServerFlags, build_parser, read_options
from mindsporeserver.ports import bind_port
from mindsporeserver.request_log.event_log import open_log
from mindsporeserver.server import Server, ServerOptions
from mindsporeserver.state import ServerState
from mindsporeserver.telemetry import Telemetry


def serve(options: ServerFlags, directory: Path) -> None:
    configure_logging("text")
    metrics, executor, families = ServerMetrics(), InferenceExecutor(), LanguageFamilies()
    settings = LanguageSettings(
        *(options.max_model_len or 256, options.max_num_seqs, options.max_queue_tokens or 0),
        max_loras=options.adapter_limit,
        lora_modules=dict(options.lora_paths),
        allow_lora_updates=options.allow_runtime_lora_updating,
        separates_reasoning=options.reasoning_parser != "none",
        decode_operator=options.decode_operator,
    )
    size = write_decoder_bundle(directory)

    def open_model(name: str, bundle: ModelBundle, version: str) -> LanguageModel:
        return LanguageModel(
            *(name, bundle),
            version=version,
            settings=settings,
            executor=executor,
            metrics=metrics,
            families=families,
            load_runner=lambda _, length, settings: NumpyDecoder(
                size, slots=settings.max_num_seqs, max_length=length, poison=size - 1
            ),
        )

    repository = Repository(Sources({"chat": directory}), open_model, metrics)
    state = ServerState(
        *(repository, executor, metrics, Telemetry(RequestLog("failed"), metrics)),
        aliases=options.aliases,
        log=open_log(options.log_options, metrics),
    )
    socket = bind_port("--http_port", "127.0.0.1", options.http_port, shared=False)
    limits = RequestLimits(timeout_seconds=options.request_timeout)
    served = {"limits": limits, "grace_period": options.grace_period, "has_docs": options.enable_docs_url}
    Server(state, ServerOptions("127.0.0.1", socket, None, **served)).serve()


if __name__ == "__main__":
    serve(read_options(build_parser().parse_args(sys.argv[2:])), Path(sys.argv[1]))
