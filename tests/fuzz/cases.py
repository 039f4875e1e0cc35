"""One thing to send, and how it is kept in a file."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.serving.serving_client import INFER

KINDS = ("v1", "v2", "binary", "grpc", "http", "files", "rows")


@dataclass(frozen=True)
class Case:
    """A request.

    Args:
        kind: One of KINDS.
        path: The target, or a gRPC method; empty when `body` is all that is sent, on a connection of its own.
        body: The bytes of the body or of the gRPC message.
        method: HTTP's method.
        headers: Names and values; a Content-Length is added unless one is among them.
        origin: How it was made, such as `seed 7, v1 12`.
    """

    kind: str
    path: str
    body: bytes
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    origin: str = ""

    @property
    def is_grpc(self) -> bool:
        return self.kind == "grpc" or (self.kind == "rows" and self.path == INFER)

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, str] = {"base64": base64.b64encode(self.body).decode()}
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            pass
        else:
            if text.isprintable():
                body = {"text": text}
        return {
            "kind": self.kind,
            "method": self.method,
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "body": body,
            "origin": self.origin,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Case:
        body = value["body"]
        return cls(
            kind=value["kind"],
            path=value["path"],
            body=body["text"].encode() if "text" in body else base64.b64decode(body["base64"]),
            method=value["method"],
            headers=tuple((name, text) for name, text in value["headers"]),
            origin=value.get("origin", ""),
        )


def read_cases(files: Iterable[Path]) -> list[Case]:
    """Read the cases of files that hold one JSON object a line, each a case or something with a `case`."""
    cases = []
    for file in files:
        for line in file.read_text().splitlines():
            if line.strip():
                value = json.loads(line)
                cases.append(Case.from_dict(value.get("case", value)))
    return cases
