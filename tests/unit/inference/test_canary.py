"""The cases of every serving backend, on this machine; and its traffic splitter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from kfp_mindspore.errors import UserError
from kfp_mindspore.inference import LocalServingBackend, Service
from kfp_mindspore.inference.backends.versions import end_version
from kfp_mindspore.inference.rest import ServiceRequestError, infer_v2, predict_v1, request_json
from kfp_mindspore.inference.service import ServiceState
from kfp_mindspore.inference.splitter import build_application
from kfp_mindspore.local.lease import Lease
from tests.support.http_server import Handler, Server
from tests.support.serving.serving_cases import CASES, FIRST, NAME, SECOND, ServingEnvironment


class LocalEnvironment(ServingEnvironment):
    """Tiny servers of this machine."""

    failure = "service digits: its server ended with exit code 2"
    wait_seconds = 20

    def __init__(self, local_services: Any) -> None:
        self.local_services = local_services
        self.client = local_services.connect()
        for model in (FIRST, SECOND, "broken"):
            local_services.make_bundle(model)

    def locate(self, model: str) -> str:
        return str(self.local_services.root / model)

    def identify(self, url: str) -> str:
        (found,) = predict_v1(url, NAME, [[0.0] * 4])
        return str(found)


@pytest.fixture
def world(local_services: Any) -> LocalEnvironment:
    return LocalEnvironment(local_services)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(case: Callable[[ServingEnvironment], None], world: LocalEnvironment) -> None:
    case(world)


def test_splitter_routes_by_body(world: LocalEnvironment) -> None:
    world.deploy(FIRST)
    canary = world.deploy(SECOND, canary=99).canary
    assert canary is not None
    tensor = {"name": "image", "shape": [1, 4], "datatype": "FP32", "data": [0.0] * 4}
    found = {infer_v2(canary.traffic_url, NAME, [tensor])["model"]["data"][0] for _ in range(20)}
    assert SECOND in found
    # KServe's router ignores the path.
    assert request_json("POST", canary.traffic_url, {"instances": [[0.0] * 4]})["predictions"][0] in (FIRST, SECOND)
    with pytest.raises(ServiceRequestError, match=r"answered 404: .*instances"):
        request_json("POST", canary.traffic_url, {"rows": []})


def test_splitter_reports_server_that_does_not_respond(free_port: int) -> None:
    address = f"http://127.0.0.1:{free_port}"
    client = TestClient(build_application(NAME, address, address, 50))
    response = client.post("/", json={"instances": [[0.0]]})
    assert (response.status_code, address in response.json()["error"]) == (502, True)


def test_splitter_forwards_token_only() -> None:
    found: list[dict[str, str]] = []

    class Refusal(Handler):
        def do_POST(self) -> None:
            found.append({name.lower(): value for name, value in self.headers.items()})
            self.read_body()
            self.respond(401)

    with Server(Refusal) as server:
        client = TestClient(build_application(NAME, server.url, server.url, 50))
        for headers in ({}, {"Authorization": "Bearer a", "Cookie": "b"}):
            assert client.post("/", json={"instances": [[0.0]]}, headers=headers).status_code == 401
    assert [headers.get("authorization") for headers in found] == [None, "Bearer a"]
    assert not any("cookie" in headers for headers in found)


def test_canary_ends_with_its_run(world: LocalEnvironment, eventually: Callable[..., Any], tmp_path: Path) -> None:
    world.deploy(FIRST)
    with Lease.hold(tmp_path / "lease") as lease:
        canary = world.client.deploy(Service(NAME, world.locate(SECOND)), lease=lease, canary=50).canary
        assert canary is not None
        before = len(world.local_services.find_processes())
    # The canary's server and both supervisors; the splitter's command line has no path.
    eventually(lambda: len(world.local_services.find_processes()) == before - 3)
    with pytest.raises(ServiceRequestError, match="no answer"):
        world.identify(canary.traffic_url)
    assert world.client.get(NAME).ready
    assert world.client.rollback(NAME).canary is None


def test_canary_without_splitter_is_reported_and_removed(world: LocalEnvironment) -> None:
    world.deploy(FIRST)
    backend = world.client.backend
    assert isinstance(backend, LocalServingBackend)
    world.deploy(SECOND, canary=10)
    splitter = backend._get_hidden(NAME, world.client.namespace, "traffic")
    assert splitter.current is not None
    # As a deployment leaves it that is killed between the start of the canary and of its splitter.
    end_version(splitter.current)
    splitter.remove()
    canary = world.client.get(NAME).canary
    assert canary is not None
    assert (canary.state, canary.message) == (ServiceState.FAILED, "it has no traffic splitter")
    assert world.client.rollback(NAME).canary is None


def test_service_without_canary_is_not_rolled_back(world: LocalEnvironment) -> None:
    world.deploy(FIRST)
    world.deploy(SECOND)
    with pytest.raises(UserError, match="has no canary"):
        world.client.finish_canary(NAME, world.locate(SECOND))
    assert world.client.get(NAME).model == world.locate(SECOND)


def test_promoted_canary_keeps_requested_port(world: LocalEnvironment, free_port: int) -> None:
    status = world.deploy(FIRST, port=free_port)
    world.deploy(SECOND, canary=10)
    promoted = world.client.promote(NAME, world.wait_seconds)
    assert (promoted.url, world.identify(promoted.url)) == (status.url, SECOND)
    rolled_back = world.client.rollback(NAME, world.wait_seconds)
    assert (rolled_back.url, world.identify(rolled_back.url)) == (status.url, FIRST)
