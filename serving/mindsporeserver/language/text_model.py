"""The common base of served language and embedding models."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from kfp_mindspore.formats.bundle import ModelBundle
from mindsporeserver.errors import NotReadyError
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.models.served_model import RequestCounter, ServedModel
from mindsporeserver.observability.metrics import ModelMetrics


class TextModel(ServedModel):
    """Serves one bundle by the OpenAI protocol.

    Args:
        name: Name in requests.
        bundle: An opened bundle.
        version: The version.
        metrics: The model's metrics.
    """

    platform: ClassVar[str]

    def __init__(self, name: str, bundle: ModelBundle, version: str, metrics: ModelMetrics) -> None:
        super().__init__(name, bundle, version, metrics)
        self.created, self.max_length = int(time.time()), 0

    def describe(self) -> dict[str, Any]:
        """Return the model's V2 metadata; it has no tensors."""
        described: dict[str, Any] = {"name": self.name, "versions": [self.version], "platform": self.platform}
        return {**described, "inputs": [], "outputs": []}

    def describe_model(self) -> dict[str, Any]:
        """Return the model as the OpenAI protocol lists it."""
        described = {"id": self.name, "object": "model", "created": self.created, "owned_by": "mindsporeserver"}
        return {**described, "root": self.name, "parent": None, "max_model_len": self.max_length}

    def admit(self) -> RequestCounter:
        """Return the context of a request, which `close` waits for.

        Raises:
            NotReadyError: The model is loading or unloaded.
        """
        if not self.ready:
            raise NotReadyError(self.name)
        return self.requests


def build_length_error(message: str, param: str) -> LanguageError:
    """Return the error of a text with too many tokens.

    Args:
        message: What is too long, the limit and the count.
        param: The request's field.
    """
    return LanguageError(f"{param}: {message}", param, error_code="context_length_exceeded")


def check_queue(queued: int, needed: int, most: int) -> None:
    """Raise when waiting requests and a new one have too many tokens; a request alone always fits.

    Args:
        queued: Tokens of the waiting requests.
        needed: Tokens of the new one.
        most: Most tokens.

    Raises:
        LanguageError: The queue is full (429).
    """
    if queued and queued + needed > most:
        message = f"overloaded: waiting requests need {queued} tokens, the limit is {most}; retry later"
        raise LanguageError(message, status=429, error_code="rate_limit_exceeded", retry_after=1)
