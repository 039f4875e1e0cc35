"""kserve.ModelServer with an honest readiness, and 400 where it would say 422 or 500 about malformed requests."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady, ServerNotReady
from kserve.logging import logger, trace_logger
from kserve.model_server import ModelServer, app
from kserve.protocol.dataplane import DataPlane

from mindsporeserver.model import MindSporeModel


class _DataPlane(DataPlane):  # type: ignore[misc]
    async def ready(self) -> bool:
        """Tell whether every model is loaded and warm; kserve's own says yes at once."""
        models = self._model_registry.get_models()
        return bool(models) and all(model.ready for model in models.values())

    def decode(self, *arguments: Any, **options: Any) -> Any:
        """Decode as kserve does, but call what cannot be decoded the client's mistake."""
        try:
            return super().decode(*arguments, **options)
        except KeyError as error:
            raise InvalidInput(f"body: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"body: {error}") from None


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # A body may be JSON or bytes, and each form says what is wrong with it: only the JSON one is meant.
    details = [detail for detail in error.errors() if "bytes" not in detail["loc"]] or error.errors()
    texts = [
        f"{'.'.join(str(part) for part in detail['loc'] if part != 'InferenceRequest')}: {detail['msg']}"
        + (f", got {detail['input']!r:.80}" if detail["type"] != "missing" else "")
        for detail in details
    ]
    return JSONResponse(status_code=400, content={"error": "; ".join(texts)})


class _ClientMistakes(logging.Filter):
    """Logs what a client did wrong as one line, not as a stack trace of the server, and early questions not at all."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ServerNotReady | ModelNotReady):
            return False
        if isinstance(error, InvalidInput | ModelNotFound):
            record.msg, record.args, record.exc_info = f"refused: {error}", None, None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class _Probes(logging.Filter):
    """Logs no questions about readiness: three lines each, some times a second, would hide what matters."""

    _pattern = re.compile(r"GET \S*/(ready|live) HTTP|^kserve\.io\.\S*\.(ready|live): ")

    def filter(self, record: logging.LogRecord) -> bool:
        return self._pattern.search(record.getMessage()) is None


def build_server(**options: Any) -> ModelServer:
    """Make a server.

    Args:
        **options: kserve.ModelServer's own, such as http_port and grpc_port; default what the command line says.
    """
    # A server of language models costs 0.6 s to import and is registered only when it can be imported.
    sys.modules.setdefault("kserve.protocol.rest.openai.config", None)  # type: ignore[arg-type]
    server = ModelServer(**options)
    logger.addFilter(_ClientMistakes())
    for chatty in (logging.getLogger("uvicorn.access"), trace_logger):
        chatty.addFilter(_Probes())
    server.dataplane = _DataPlane(model_registry=server.registered_models)
    app.add_exception_handler(RequestValidationError, _refuse)
    return server


def serve(server: ModelServer, model: MindSporeModel) -> None:
    """Serve a model until a signal comes; requests get 503 until it is loaded and warm."""
    # kserve registers only models that say they are ready; `model.start` takes it back until the graph is loaded.
    model.ready = True
    try:
        server.start([model])
    finally:
        model.stop()
