"""A Model Registry on 127.0.0.1 that checks requests and builds responses by the client's own OpenAPI models."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class RegistryServer(ThreadingHTTPServer):
    """Registered models, versions and artifacts in memory.

    `failures` is the number of GET requests that get 503; paths of another version than `api` get 404.
    """

    daemon_threads = True

    def __init__(self) -> None:
        """Bind a free port."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.models: list[dict] = []
        self.versions: list[dict] = []
        self.artifacts: list[dict] = []
        self.failures = 0
        self.api = "v1"
        self.refuses_artifacts = False
        self.writes: list[str] = []

    def add(self, table: list[dict], entry: dict) -> dict:
        """Store an entry under a new ID; IDs are texts of integers, as in the registry."""
        entry["id"] = str(1 + len(self.models) + len(self.versions) + len(self.artifacts))
        table.append(entry)
        return entry


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        from mr_openapi import models

        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        if self.server.failures:
            self.server.failures -= 1
            return self._respond(503, {"code": "503", "message": "starting"})
        match self._get_route(address.path):
            case ["registered_models"]:
                page = {"items": [], "nextPageToken": "", "pageSize": 0, "size": 0}
                models.RegisteredModelList.from_dict(page)
                return self._respond(200, page)
            case ["registered_model"]:
                found = [entry for entry in self.server.models if entry["name"] == query["name"]]
                return self._respond_one(models.RegisteredModel, found)
            case ["model_version"]:
                found = [
                    entry
                    for entry in self.server.versions
                    if entry["name"] == query["name"] and entry["registeredModelId"] == query["parentResourceId"]
                ]
                return self._respond_one(models.ModelVersion, found)
            case ["model_versions", identifier, "artifacts"]:
                found = [entry["artifact"] for entry in self.server.artifacts if entry["version"] == identifier]
                page = {"items": found, "nextPageToken": "", "pageSize": len(found), "size": len(found)}
                models.ArtifactList.from_dict(page)
                return self._respond(200, page)
        return self._respond(404, {"code": "404", "message": f"no route {address.path}"})

    def do_POST(self) -> None:
        from mr_openapi import models

        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        route = self._get_route(self.path)
        self.server.writes.append(route[-1])
        match route:
            case ["registered_models"]:
                entry = models.RegisteredModelCreate.from_dict(body).to_dict()
                if any(other["name"] == entry["name"] for other in self.server.models):
                    return self._respond(409, {"code": "409", "message": f"{entry['name']} already exists"})
                return self._respond(201, self.server.add(self.server.models, entry))
            case ["model_versions"]:
                entry = models.ModelVersionCreate.from_dict(body).to_dict()
                if entry["registeredModelId"] not in [model["id"] for model in self.server.models]:
                    return self._respond(404, {"code": "404", "message": "no such registered model"})
                return self._respond(201, self.server.add(self.server.versions, entry))
            case ["model_versions", identifier, "artifacts"]:
                if self.server.refuses_artifacts:
                    return self._respond(400, {"code": "400", "message": "uri: not accepted"})
                artifact = models.Artifact.from_dict(body).actual_instance.to_dict()
                self.server.add(self.server.artifacts, entry := {"version": identifier, "artifact": artifact})
                artifact["id"] = entry["id"]
                return self._respond(201, artifact)
        return self._respond(404, {"code": "404", "message": f"no route {self.path}"})

    def _get_route(self, path: str) -> list[str]:
        prefix = f"/api/model_registry/{self.server.api}/"
        return path.removeprefix(prefix).split("/") if path.startswith(prefix) else [path]

    def _respond_one(self, kind: type, found: list[dict]) -> None:
        if not found:
            return self._respond(404, {"code": "404", "message": "no entity found"})
        return self._respond(200, json.loads(kind.from_dict(found[0]).to_json()))

    def _respond(self, status: int, body: dict) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serve():
    """Run a registry and yield it."""
    server = RegistryServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
