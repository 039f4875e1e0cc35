from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.inference import rest
from tests.support.http_server import Handler, Server

ANSWERS: dict[str, tuple[int, str]] = {
    "/v2/models/yes/ready": (200, '{"name": "yes", "ready": true}'),
    "/v2/models/no/ready": (200, '{"name": "no", "ready": false}'),
    "/v2/models/loading/ready": (503, '{"error": "loading"}'),
    "/text": (200, "hello  there"),
    "/long": (500, "x" * 2000),
    "/v1/models/odd:predict": (200, '{"prediction": 1}'),
    "/v2/models/odd/infer": (200, '{"outputs": [1]}'),
    "/v1/models/good:predict": (200, '{"predictions": [[1.5]]}'),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Answers(Handler):
        def do_GET(self) -> None:
            self.read_body()
            status, text = ANSWERS.get(self.path, (404, '{"error": "not found"}'))
            self.respond(status, text.encode())

        do_POST = do_GET

    with Server(Answers) as server:
        yield server.url


@pytest.mark.parametrize(("name", "expected"), [("yes", True), ("no", False), ("loading", False), ("other", False)])
def test_readiness(url: str, name: str, expected: bool) -> None:
    assert rest.is_ready(url, name) is expected


def test_server_that_does_not_listen_is_not_ready(free_port: int) -> None:
    assert rest.is_ready(f"http://127.0.0.1:{free_port}", "yes") is False


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/nothing", 404, 'answered 404: {"error": "not found"}'),
        ("/text", 200, "answered no JSON: hello there"),
        ("/long", 500, "x…"),
    ],
)
def test_unexpected_responses_are_reported(url: str, path: str, status: int, message: str) -> None:
    with pytest.raises(rest.ServiceRequestError) as caught:
        rest.request_json("GET", url + path)
    assert caught.value.status == status
    assert message in caught.value.message
    assert path in caught.value.message


def test_missing_response_is_reported(free_port: int) -> None:
    with pytest.raises(rest.ServiceRequestError, match=r"no answer .*refused") as caught:
        rest.request_json("GET", f"http://127.0.0.1:{free_port}/")
    assert caught.value.status == 0


def test_route_is_waited_for() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        # Connections are refused until it listens.
        assert not rest.wait_for_route(address, seconds=0)
        timer = threading.Timer(0.3, server.listen)
        timer.start()
        assert rest.wait_for_route(address, seconds=60)
        timer.join()


def test_malformed_responses_are_refused(url: str) -> None:
    assert rest.predict_v1(url, "good", [[1]]) == [[1.5]]
    with pytest.raises(rest.ServiceRequestError, match=r'no list of predictions: \{"prediction": 1\}'):
        rest.predict_v1(url, "odd", [[1]])
    with pytest.raises(rest.ServiceRequestError, match="no list of outputs"):
        rest.infer_v2(url, "odd", [])


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host/", "http://", ""])
def test_no_address(url: str) -> None:
    with pytest.raises(UserError, match="url: must be http://host:port"):
        rest.request_json("GET", url)


def test_proxies_are_not_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert rest.is_ready(url, "yes")
    assert json.dumps(rest.request_json("GET", f"{url}/v2/models/yes/ready")["ready"]) == "true"
