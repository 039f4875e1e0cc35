"""A fake Kubernetes API server over real HTTP: objects, lists, watches and logs in memory, with injected faults."""

from __future__ import annotations

import contextlib
import copy
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Document = dict[str, Any]
TICK_SECONDS = 0.02
_COLLECTIONS = frozenset(
    {
        *("msjobs", "pods", "services", "endpointslices", "events", "leases", "customresourcedefinitions", "things"),
        *("configmaps", "secrets", "persistentvolumeclaims", "workflows", "trainjobs", "rayjobs"),
        *("deployments", "servingruntimes", "clusterservingruntimes", "inferenceservices", "inferencegraphs"),
        *("horizontalpodautoscalers", "scaledobjects", "clusterstoragecontainers"),
        *("localqueues", "clusterqueues", "workloads", "resourceflavors"),
    }
)
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass
class RecordedRequest:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    body: Any = None


@dataclass
class Log:
    """A container's log; each line starts with its timestamp."""

    lines: list[str] = field(default_factory=list)
    ended: bool = False


class FakeApiServer:
    """Objects, watches and logs in memory.

    Attributes:
        requests: All requests, oldest first.
        faults: Functions that may respond to a request in its place, and return whether they did; tried in order.
        token: The accepted bearer token; empty for any.
        logs: Logs by pod; pods without one are waiting to start.
        kinds: Resources of API discovery by the path of their group and version.
    """

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.faults: list[Callable[[RecordedRequest, BaseHTTPRequestHandler], bool]] = []
        self.token = ""
        self.logs: dict[str, Log] = {}
        self.kinds = {
            "/apis/example.com/v1": [{"name": "things", "kind": "Thing", "namespaced": True}],
            _DEFINITIONS.rpartition("/")[0]: [
                {"name": "customresourcedefinitions", "kind": "CustomResourceDefinition", "namespaced": False}
            ],
        }
        self.changed = threading.Condition()
        self.version = 100
        self.oldest = 100
        self._objects: dict[str, dict[str, Document]] = {}
        self._history: list[tuple[int, str, str, Document]] = []
        self.epoch = 0
        self.break_mode = ""
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    # Changes of the cluster.

    def put(self, collection: str, document: Document) -> Document:
        """Store an object of a collection's path, such as `/api/v1/namespaces/default/pods`."""
        with self.changed:
            self.version += 1
            kept = self._objects.setdefault(collection, {})
            name = document["metadata"]["name"]
            document = copy.deepcopy(document)
            old = kept.get(name)
            document["metadata"].setdefault("uid", old["metadata"]["uid"] if old else f"uid-{self.version}")
            document["metadata"]["resourceVersion"] = str(self.version)
            if collection == _DEFINITIONS:
                document["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
            kept[name] = document
            self._record("MODIFIED" if old else "ADDED", collection, document)
            return document

    def remove(self, collection: str, name: str) -> None:
        """Delete an object."""
        with self.changed:
            self.version += 1
            document = self._objects[collection].pop(name)
            document["metadata"]["resourceVersion"] = str(self.version)
            self._record("DELETED", collection, document)

    def find(self, collection: str, name: str) -> Document | None:
        """Return an object, or None."""
        return self._objects.get(collection, {}).get(name)

    def write(self, pod: str, *lines: str, end: bool = False) -> None:
        """Append lines to a pod's log, and perhaps end it."""
        with self.changed:
            log = self.logs.setdefault(pod, Log())
            log.lines += lines
            log.ended = log.ended or end
            self.changed.notify_all()

    def compact(self) -> None:
        """Expire all older resource versions."""
        with self.changed:
            self.oldest = self.version
            self._history.clear()

    def break_streams(self, mode: str) -> None:
        """End all open watches and logs: by a `reset`, `half` a line, an `error` (410) in the stream, or `end`."""
        with self.changed:
            self.break_mode = mode
            self.epoch += 1
            self.changed.notify_all()

    def _record(self, kind: str, collection: str, document: Document) -> None:
        self._history.append((self.version, kind, collection, copy.deepcopy(document)))
        self.changed.notify_all()

    # The server.

    @contextlib.contextmanager
    def serve(self) -> Iterator[FakeApiServer]:
        """Serve on 127.0.0.1 for the length of a block."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        """Start, at the same port as before."""
        state = self

        class Handler(_Handler):
            server_state = state

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(TICK_SECONDS,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and reset open connections."""
        if self._server is not None:
            self.break_streams("reset")
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def write_kubeconfig(self, path: Path, user: Document | None = None, namespace: str = "") -> Path:
        """Write a kubeconfig for it."""
        context: Document = {"cluster": "small", "user": "me", **({"namespace": namespace} if namespace else {})}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "small",
            "clusters": [{"name": "small", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": user or {}}],
            "contexts": [{"name": "small", "context": context}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def count(self, method: str, word: str = "") -> int:
        """Return how many requests of a method had a word in their path or query."""
        return sum(1 for item in self.requests if item.method == method and word in f"{item.path}?{item.query}")


def respond_once(
    status: int,
    *,
    method: str = "",
    path: str = "",
    headers: dict[str, str] | None = None,
    reason: str = "",
    message: str = "",
    details: Document | None = None,
    times: int = 1,
) -> Callable[[RecordedRequest, BaseHTTPRequestHandler], bool]:
    """Return a fault that responds to the next requests with a Status."""
    left = [times]

    def fault(request: RecordedRequest, handler: BaseHTTPRequestHandler) -> bool:
        if not left[0] or method not in ("", request.method) or path not in request.path:
            return False
        left[0] -= 1
        send_status(handler, status, reason or "Fault", message or f"injected fault {status}", headers, details)
        return True

    return fault


def send_note_once(note: str, *, times: int = 1) -> Callable[[RecordedRequest, BaseHTTPRequestHandler], bool]:
    """Return a fault that responds to the next log requests as a kubelet that cannot read the log: 200 and a note."""
    left = [times]

    def fault(request: RecordedRequest, handler: BaseHTTPRequestHandler) -> bool:
        if not left[0] or not request.path.endswith("/log"):
            return False
        left[0] -= 1
        body = note.encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return fault


def reset_once(*, method: str, after: bool = False) -> Callable[[RecordedRequest, BaseHTTPRequestHandler], bool]:
    """Return a fault that resets the connection of the next request, before or after it was processed."""
    left = [1]

    def fault(request: RecordedRequest, handler: BaseHTTPRequestHandler) -> bool:
        if not left[0] or request.method != method:
            return False
        left[0] -= 1
        if after:
            real, handler.wfile = handler.wfile, _Nowhere()  # type: ignore[assignment]
            try:
                handler.process(request)  # type: ignore[attr-defined]
            finally:
                handler.wfile = real
        reset(handler)
        return True

    return fault


class _Nowhere:
    closed = False

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Break a connection, so that the other side sees a reset."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def send_json(
    handler: BaseHTTPRequestHandler, status: int, document: Document, headers: dict[str, str] | None = None
) -> None:
    """Respond with a document."""
    body = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def send_status(
    handler: BaseHTTPRequestHandler,
    status: int,
    reason: str,
    message: str,
    headers: dict[str, str] | None = None,
    details: Document | None = None,
) -> None:
    """Respond with a Status."""
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason}
    send_json(handler, status, {**document, "message": message, "details": details or {}}, headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_state: FakeApiServer

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        request = RecordedRequest(self.command, parts.path, query, token, body)
        self.server_state.requests.append(request)
        for fault in list(self.server_state.faults):
            if fault(request, self):
                return
        if self.server_state.token and token != self.server_state.token:
            send_status(self, 401, "Unauthorized", "Unauthorized")
            return
        self.process(request)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any

    def process(self, request: RecordedRequest) -> None:
        head, _, name = request.path.rpartition("/")
        if request.path.endswith("/log"):
            self._send_log(request, head.rpartition("/")[2])
        elif request.path == "/apis":
            names = {path.split("/")[2] for path in self.server_state.kinds if path.startswith("/apis/")}
            send_json(self, 200, {"kind": "APIGroupList", "groups": [{"name": name} for name in sorted(names)]})
        elif request.path in self.server_state.kinds:
            resources = self.server_state.kinds[request.path]
            send_json(self, 200, {"kind": "APIResourceList", "resources": resources})
        elif name in _COLLECTIONS:
            if request.method == "POST":
                self._create(request)
            elif request.query.get("watch"):
                self._watch(request)
            else:
                self._list(request)
        else:
            subresource = name if name == "status" else ""
            if subresource:
                head, _, name = head.rpartition("/")
            self._process_object(request, head, name, subresource)

    def _process_object(self, request: RecordedRequest, collection: str, name: str, subresource: str) -> None:
        state = self.server_state
        found = state.find(collection, name)
        if self.headers.get("Content-Type") == "application/apply-patch+yaml":
            if request.query.get("fieldManager"):
                send_json(self, 200 if found else 201, state.put(collection, _merge(found or {}, request.body)))
            else:
                send_status(self, 422, "Invalid", "fieldManager: Required value: is required for apply patch")
        elif found is None:
            send_status(self, 404, "NotFound", f'{name} "{name}" not found', details={"kind": "things", "name": name})
        elif request.method == "GET":
            send_json(self, 200, found)
        elif request.method == "PATCH":
            version = (request.body.get("metadata") or {}).get("resourceVersion")
            if version not in (None, found["metadata"]["resourceVersion"]):
                send_status(self, 409, "Conflict", "the object has been modified")
                return
            send_json(self, 200, state.put(collection, _merge(found, request.body)))
        elif request.method == "PUT":
            if request.body["metadata"].get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
                send_status(self, 409, "Conflict", "the object has been modified")
                return
            changed = {**found, "status": request.body.get("status")} if subresource else request.body
            send_json(self, 200, state.put(collection, changed))
        else:
            uid = ((request.body or {}).get("preconditions") or {}).get("uid")
            if uid not in (None, found["metadata"]["uid"]):
                send_status(self, 409, "Conflict", "the UID in the precondition does not match")
                return
            state.remove(collection, name)
            send_json(self, 200, {"kind": "Status", "status": "Success"})

    def _create(self, request: RecordedRequest) -> None:
        state = self.server_state
        name = request.body["metadata"]["name"]
        if state.find(request.path, name) is not None:
            send_status(self, 409, "AlreadyExists", f'"{name}" already exists')
            return
        manager = [{"manager": request.query.get("fieldManager", ""), "operation": "Update"}]
        metadata = {**request.body["metadata"], "managedFields": manager}
        metadata.pop("uid", None)
        document = {**request.body, "metadata": metadata}
        if request.path.endswith("/services"):
            document["spec"] = {**document["spec"], "clusterIP": "10.96.0.1"}
        send_json(self, 201, document if request.query.get("dryRun") else state.put(request.path, document))

    def _list(self, request: RecordedRequest) -> None:
        state = self.server_state
        with state.changed:
            # Without a namespace, the objects of all.
            head, _, plural = request.path.rpartition("/")
            items = [
                item
                for collection, objects in state._objects.items()
                if collection == request.path
                or (collection.startswith(f"{head}/namespaces/") and collection.endswith(f"/{plural}"))
                for item in objects.values()
                if _is_selected(item, request.query)
            ]
            start = int(request.query.get("continue") or 0)
            limit = int(request.query.get("limit") or 0) or len(items)
            metadata: Document = {"resourceVersion": str(state.version)}
            if start + limit < len(items):
                metadata["continue"] = str(start + limit)
            send_json(self, 200, {"kind": "List", "metadata": metadata, "items": items[start : start + limit]})

    def _watch(self, request: RecordedRequest) -> None:
        state = self.server_state
        version = int(request.query["resourceVersion"])
        epoch = state.epoch
        self._begin_stream("application/json")
        while True:
            # Also of a watch that began while the server stopped and outlives it.
            if version < state.oldest:
                self._send_event("ERROR", _expired())
                self._send_chunk(b"")
                return
            with state.changed:
                if epoch == state.epoch:
                    events = [entry for entry in state._history if entry[0] > version and entry[2] == request.path]
                    if not events:
                        state.changed.wait(0.5)
                        continue
                else:
                    events = []
            if epoch != state.epoch:
                self._break(state.break_mode)
                return
            for number, kind, _, document in events:
                version = number
                if _is_selected(document, request.query):
                    self._send_event(kind, document)

    def _send_log(self, request: RecordedRequest, pod: str) -> None:
        state = self.server_state
        if pod not in state.logs:
            send_status(self, 400, "BadRequest", f'container "mindspore" in pod "{pod}" is waiting to start')
            return
        log, sent, epoch = state.logs[pod], 0, state.epoch
        self._begin_stream("text/plain")
        since = request.query.get("sinceTime", "")
        while True:
            with state.changed:
                lines, ended = log.lines[sent:], log.ended
                if not lines and not ended and epoch == state.epoch:
                    state.changed.wait(0.5)
                    continue
            for line in lines:
                sent += 1
                stamp, _, text = line.partition(" ")
                if request.query.get("timestamps"):
                    if stamp[:19] >= since[:19]:
                        self._send_chunk(f"{line}\n".encode())
                else:
                    self._send_chunk(f"{text}\n".encode())
            if epoch != state.epoch:
                self._break(state.break_mode)
                return
            if ended or not request.query.get("follow"):
                self._send_chunk(b"")
                return

    def _begin_stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send_event(self, kind: str, document: Document) -> None:
        self._send_chunk(json.dumps({"type": kind, "object": document}).encode() + b"\n")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _break(self, mode: str) -> None:
        if mode == "error":
            self._send_event("ERROR", _expired())
            self._send_chunk(b"")
        elif mode == "half":
            self._send_chunk(b'{"type": "MODIFIED", "object": {"metadata": {"na')
            self._send_chunk(b"")
        elif mode == "end":
            self._send_chunk(b"")
        else:
            reset(self)


def _expired() -> Document:
    return {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def _is_selected(document: Document, query: dict[str, str]) -> bool:
    labels = document["metadata"].get("labels") or {}
    for selector, values in (("labelSelector", labels), ("fieldSelector", None)):
        for term in filter(None, query.get(selector, "").split(",")):
            key, _, wanted = term.partition("=")
            found = values.get(key) if values is not None else _get_field(document, key)
            if found != wanted:
                return False
    return True


def _get_field(document: Document, path: str) -> Any:
    """Return a field that the API server selects by: of the metadata, or of an event."""
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _merge(document: Document, patch: Document) -> Document:
    merged = copy.deepcopy(document)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merge(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged
