"""KServe's agent, which logs in a service's pods, as a process between clients and the server: no cluster is needed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.inference import Service, build_inference_service
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import KSERVE_AGENT, get_binaries
from tests.support.controllers.kserve_cluster import skip_without_kserve
from tests.support.http_server import Handler, Server
from tests.support.ports import reserve_port
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store
from tests.support.serving.model_servers import ModelServer
from tests.support.training.jobs import eventually

pytestmark = pytest.mark.mindspore

REQUESTS = 200
TYPES = ("org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response")


@pytest.fixture(scope="module")
def agent() -> Path:
    skip_without_kserve()
    return Path(start(lambda: get_binaries(KSERVE_AGENT))) / "kserve-agent"


@pytest.fixture(scope="module")
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with ModelServer(tmp_path_factory.mktemp("server"), {"digits": models / "free"}) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        yield store


class Agent:
    """The agent with the arguments that KServe's webhook makes of a service's `predictor.logger`.

    Args:
        program: The agent.
        logger: The service's options.
        port: The server's port.
        environment: The container's environment.
        log: File for its output.
    """

    def __init__(
        self, program: Path, logger: dict[str, Any], port: int, environment: dict[str, str], log: Path
    ) -> None:
        service = Service("digits", "s3://b/m", namespace="team", service_account="store", logger=logger)
        spec = build_inference_service(service)["spec"]["predictor"]["logger"]
        self.port = reserve_port()
        arguments = {
            "log-url": spec["url"],
            "source-uri": "digits-predictor-0",
            "log-mode": spec["mode"],
            "inference-service": "digits",
            "namespace": "team",
            "endpoint": "default",
            "component": "predictor",
            "component-port": str(port),
            "port": str(self.port),
            "log-marshaller-port": str(marshaller := reserve_port()),
            "log-marshaller-url": f"http://localhost:{marshaller}/marshal",
        }
        if storage := spec.get("storage"):
            arguments |= {"log-store-path": storage["path"], "log-store-format": storage["parameters"]["format"]}
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [program, *(word for name, value in arguments.items() for word in (f"--{name}", value))],
            env={**os.environ, "SERVING_READINESS_PROBE": "", **environment},
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Agent:
        try:
            eventually(self._is_ready, 30)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        # It drains for 30 s after SIGTERM.
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None
        # Probes are not logged.
        headers = {"User-Agent": "kube-probe/1.34", "K-Network-Probe": "queue"}
        try:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}/", headers=headers), timeout=5)
        except OSError:
            return False
        return True


def ask(port: int, number: int) -> tuple[str, bytes, bytes]:
    """Send one request; return its ID and both bodies."""
    pixels = np.full((1, 1, 8, 8), number / REQUESTS, np.float32).tolist()
    body, request_id = json.dumps({"instances": pixels}).encode(), f"request-{number}"
    event = {"ce-id": request_id, "ce-specversion": "1.0", "ce-type": "digits", "ce-source": "test"}
    headers = {"Content-Type": "application/json", **event}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models/digits:predict", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return request_id, body, response.read()


def ask_all(port: int) -> dict[tuple[str, str], Any]:
    """Send all requests; return the bodies by ID and event type."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(port, number), range(REQUESTS)))
    assert len({answer for _, _, answer in answers}) > REQUESTS // 2
    return {(key, kind): json.loads(body) for key, *bodies in answers for kind, body in zip(TYPES, bodies, strict=True)}


def test_agent_in_a_store_has_each_body_once(
    agent: Path, served: ModelServer, store: ObjectStore, tmp_path: Path
) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": store.key,
        "AWS_SECRET_ACCESS_KEY": store.secret,
        "AWS_ENDPOINT_URL": store.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "S3_USER_VIRTUAL_BUCKET": "false",
    }
    with Agent(agent, {"url": f"s3://{BUCKET}/requests"}, served.port, environment, tmp_path / "log") as proxy:
        expected = ask_all(proxy.port)
        eventually(lambda: len(store.list("requests/")) >= len(expected), 600)
        keys = store.list("requests/")
    # By the agent's own rule: prefix, namespace, service, component, path.
    assert {key.rpartition("/")[0] for key in keys} == {"requests/team/digits/predictor/log"}
    records = [json.loads(store.get(key)) for key in keys]
    found = {(one["id"], one["reqType"]): json.loads(base64.b64decode(one["bytes"])) for one in records}
    assert len(records) == len(found) == len(expected)
    assert found == expected


class Receiver:
    """An endpoint for events in binary mode."""

    def __init__(self) -> None:
        self.events: list[tuple[dict[str, str], bytes]] = []
        events = self.events

        class Recorder(Handler):
            def do_POST(self) -> None:
                events.append(({name.lower(): value for name, value in self.headers.items()}, self.read_body()))
                self.respond(200)

        self.server = Server(Recorder)


def test_server_sends_what_the_agent_sends(agent: Path, models: Path, served: ModelServer, tmp_path: Path) -> None:
    by_agent, by_server = Receiver(), Receiver()
    attributes = {"inferenceservicename": "digits", "namespace": "team"}
    flag = "--logger=" + json.dumps({"url": by_server.server.url, "attributes": attributes})
    try:
        with (
            Agent(agent, {"url": by_agent.server.url}, served.port, {}, tmp_path / "log") as proxy,
            ModelServer(tmp_path / "server", {"digits": models / "free"}, flag) as server,
        ):
            server.wait_ready()
            expected = [ask_all(port) for port in (proxy.port, server.port)]
            for receiver in (by_agent, by_server):
                eventually(lambda receiver=receiver: len(receiver.events) >= 2 * REQUESTS, 600)
    finally:
        by_agent.server.close()
        by_server.server.close()
    names = ("specversion", "inferenceservicename", "namespace", "component", "endpoint")
    for receiver, bodies in zip((by_agent, by_server), expected, strict=True):
        assert len(receiver.events) == 2 * REQUESTS
        assert {(head["ce-id"], head["ce-type"]): json.loads(body) for head, body in receiver.events} == bodies
        assert {tuple(head[f"ce-{name}"] for name in names) for head, _ in receiver.events} == {
            ("1.0", "digits", "team", "predictor", "default")
        }
        assert {head["content-type"] for head, _ in receiver.events} == {"application/json"}
        assert all(head["ce-time"].endswith("Z") and head["ce-source"] for head, _ in receiver.events)


def test_agents_requests_wait_for_a_slow_store(agent: Path, served: ModelServer, tmp_path: Path) -> None:
    """The reason for `"writer": "server"`; once upstream has fixed it, the documentation changes."""

    class Slow(Handler):
        def do_PUT(self) -> None:
            self.read_body()
            time.sleep(0.5)
            self.respond(200)

    slow = Server(Slow)
    environment = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": slow.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "S3_USER_VIRTUAL_BUCKET": "false",
    }
    try:
        with Agent(agent, {"url": "s3://bucket/log"}, served.port, environment, tmp_path / "log") as proxy:
            for number in range(60):
                ask(proxy.port, number)
            began = time.monotonic()
            ask(proxy.port, 60)
            assert time.monotonic() - began > 0.4
    finally:
        slow.close()
