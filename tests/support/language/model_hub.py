"""The routes of Hugging Face's hub that `huggingface_hub.snapshot_download` calls, for models in a directory."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Handler, Server

_COMMIT = "0" * 40


class ModelHub(Server):
    """A hub.

    Args:
        directory: Has each model in a folder, `<owner>/<name>`.
        address: Address of this machine to listen on.
    """

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        super().__init__(_Hub, address)
        self.directory = directory
        self.requests: list[str] = []

    def list_files(self, model: str) -> list[Path]:
        """Return a model's files."""
        return sorted(filter(Path.is_file, (self.directory / model).rglob("*")))


class _Hub(Handler):
    protocol_version = "HTTP/1.1"
    server: ModelHub

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            root, files = self.server.directory / found[1], self.server.list_files(found[1])
            entries = [
                {"type": "file", "path": str(file.relative_to(root)), "size": file.stat().st_size, "oid": _digest(file)}
                for file in files
            ]
            self._respond_json(entries)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            root, files = self.server.directory / found[1], self.server.list_files(found[1])
            if not files:
                self.respond(404, headers={"X-Error-Code": "RepoNotFound"})
                return
            siblings = [{"rfilename": str(file.relative_to(root))} for file in files]
            self._respond_json({"id": found[1], "sha": _COMMIT, "siblings": siblings})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            file = self.server.directory / found[1] / found[2]
            if not file.is_file():
                self.respond(404, headers={"X-Error-Code": "EntryNotFound"})
                return
            self.respond(200, file.read_bytes(), {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": _COMMIT})
        else:
            self.respond(404)

    do_GET = do_HEAD = _answer

    def _respond_json(self, document: object) -> None:
        self.respond(200, json.dumps(document).encode(), {"Content-Type": "application/json"})


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
