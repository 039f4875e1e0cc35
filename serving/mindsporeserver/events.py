"""CloudEvents around V1 requests, as kserve's own application reads and writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import orjson

from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols.v1 import parse_json

STRUCTURED = "application/cloudevents+json"


def is_event(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request is a CloudEvent, binary (`ce-` headers) or structured.

    Args:
        headers: At least the request's `ce-id` and `content-type`, where present.
    """
    return b"ce-id" in headers or headers.get(b"content-type", b"").startswith(STRUCTURED.encode())


class RequestEvent:
    """A request's event.

    Args:
        headers: All request headers.
        body: The body.

    Raises:
        InvalidRequestError: It is no valid event.
    """

    def __init__(self, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        # A 0.1 s import that other servers do without.
        from cloudevents.exceptions import GenericException
        from cloudevents.http import from_http

        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self._is_binary = "ce-id" in texts
        # The library's own parser accepts lone surrogates, which no answer can quote, and reads any JSON value's keys.
        document = parse_json(body)
        if texts.get("content-type", "").startswith(STRUCTURED) and not isinstance(document, dict):
            raise InvalidRequestError("body: not a valid CloudEvent: must be a JSON object")
        try:
            event = from_http(texts, body, data_unmarshaller=(lambda _: document) if self._is_binary else None)
        except (GenericException, ValueError, TypeError) as error:
            raise InvalidRequestError(f"body: not a valid CloudEvent: {error}") from None
        except RecursionError:
            # An event without ce-specversion: the library reads its body with Python's json module.
            raise InvalidRequestError("body: not a valid CloudEvent: nested too deeply") from None
        self._attributes = dict(event.get_attributes())
        self.payload: Any = event.get_data()

    def encode(self, model: str, content: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Return the response event's headers and body.

        Args:
            model: The model's name, in the event's source.
            content: The response as JSON.
        """
        from cloudevents.http import CloudEvent, to_binary, to_structured

        # kserve's own variables.
        attributes = {}
        if os.environ.get("CE_MERGE", "false").lower() == "true":
            replaced = ("id", "time", "datacontenttype") if self._is_binary else ("id", "time")
            attributes = {name: value for name, value in self._attributes.items() if name not in replaced}
        attributes["type"] = os.environ.get("CE_TYPE", "io.kserve.inference.response")
        attributes["source"] = os.environ.get("CE_SOURCE", f"io.kserve.inference.{model}")
        event = CloudEvent(attributes, orjson.loads(content))
        headers, body = (to_binary if self._is_binary else to_structured)(event)
        headers["content-type"] = "application/json" if self._is_binary else STRUCTURED
        return [(name.lower().encode(), str(value).encode()) for name, value in headers.items()], body
