"""A fake Kubeflow Pipelines server on 127.0.0.1 with the routes of kfp.Client for uploads and runs."""

from __future__ import annotations

import contextlib
import email
import email.policy
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class PipelinesServer(ThreadingHTTPServer):
    """Stores uploads and runs; each request of a run returns the next of `states`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = ""
        self.refusal: tuple[int, str, str] | None = None
        self.pipelines: dict[str, dict[str, Any]] = {}
        self.versions: list[dict[str, Any]] = []
        self.experiments: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.states: list[str | None] = ["SUCCEEDED"]
        self.tasks: list[dict[str, Any]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: PipelinesServer

    def do_GET(self) -> None:
        path, query = self._open()
        if path is None:
            return
        match path:
            case ["healthz"]:
                self._respond({"multi_user": False})
            case ["pipelines"]:
                self._respond({"pipelines": _filter(self.server.pipelines, query)})
            case ["experiments"]:
                self._respond({"experiments": _filter(self.server.experiments, query)})
            case ["runs", identifier] if identifier in self.server.runs:
                states = self.server.states
                state = states.pop(0) if len(states) > 1 else states[0]
                details = {"task_details": self.server.tasks} if state == "FAILED" else None
                run = {**self.server.runs[identifier], "state": state, "run_details": details}
                self._respond({key: value for key, value in run.items() if value is not None})
            case _:
                self._refuse(404, "not found: " + "/".join(path))

    def do_POST(self) -> None:
        path, query = self._open()
        if path is None:
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match path:
            case ["pipelines", "upload"]:
                name = query["name"]
                if name in self.server.pipelines:
                    self._refuse(409, f"pipeline {name} already exists")
                    return
                pipeline = {"pipeline_id": f"p{len(self.server.pipelines)}", "display_name": name, "name": name}
                self.server.pipelines[name] = {**pipeline, "package": self._read_file(body), "query": query}
                self._respond(pipeline)
            case ["pipelines", "upload_version"]:
                if any(version["display_name"] == query["name"] for version in self.server.versions):
                    self._refuse(400, f"The pipeline version {query['name']} already exist.")
                    return
                version = {
                    "pipeline_id": query["pipelineid"],
                    "pipeline_version_id": f"v{len(self.server.versions)}",
                    "display_name": query["name"],
                }
                self.server.versions.append({**version, "package": self._read_file(body)})
                self._respond(version)
            case ["experiments"]:
                name = json.loads(body)["display_name"]
                experiment = {"experiment_id": f"e{len(self.server.experiments)}", "display_name": name}
                self.server.experiments[name] = experiment
                self._respond(experiment)
            case ["runs"]:
                run = {**json.loads(body), "run_id": f"r{len(self.server.runs)}"}
                self.server.runs[run["run_id"]] = run
                self._respond(run)
            case _:
                self._refuse(404, "not found: " + "/".join(path))

    def _open(self) -> tuple[list[str] | None, dict[str, str]]:
        parts = urlsplit(self.path)
        self.server.paths.append(f"{self.command} {parts.path}")
        if self.server.refusal is not None:
            status, kind, text = self.server.refusal
            self._send(status, kind, text.encode())
            return None, {}
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._refuse(401, "Unauthorized: no valid token")
            return None, {}
        path = parts.path.removeprefix("/apis/v2beta1/").split("/")
        return path, {name: values[0] for name, values in parse_qs(parts.query).items()}

    def _read_file(self, body: bytes) -> str:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
        (part,) = message.iter_parts()
        content = part.get_content()
        return content if isinstance(content, str) else content.decode()

    def _respond(self, value: Any) -> None:
        self._send(200, "application/json", json.dumps(value).encode())

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, "application/json", json.dumps({"error_message": message, "code": status}).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Suppress the access log."""


def _filter(entries: dict[str, dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
    wanted = [predicate["stringValue"] for predicate in json.loads(query.get("filter", "{}")).get("predicates", [])]
    found = [entry for name, entry in entries.items() if not wanted or name in wanted]
    return [{key: value for key, value in entry.items() if key not in ("package", "query")} for entry in found]


@contextlib.contextmanager
def serve() -> Iterator[PipelinesServer]:
    """Run a server in the block."""
    with PipelinesServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
