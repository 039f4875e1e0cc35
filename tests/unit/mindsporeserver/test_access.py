"""Bearer tokens and the management port: the file of tokens, and a real server's answers by HTTP and gRPC."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from kfp_mindspore.errors import UserError
from kfp_mindspore.inference.predict import predict
from kfp_mindspore.inference.rest import ServiceRequestError
from kfp_mindspore.settings import SERVICE_TOKEN_VARIABLE
from mindsporeserver import access
from mindsporeserver.access import Access, Needs, TokenFile
from mindsporeserver.errors import ManagementPortError, UnauthenticatedError
from tests.support.ports import reserve_port
from tests.support.training.jobs import eventually

FIRST, SECOND, OTHER = "f1rst-" + "a" * 40, "2nd." + "b" * 40 + "==", "other" * 9
IMAGE = np.zeros((1, 1, 8, 8), np.float32)
V1 = {"instances": IMAGE.tolist()}
V2 = {"inputs": [{"name": "image", "shape": IMAGE.shape, "datatype": "FP32", "data": IMAGE.ravel().tolist()}]}


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return path


def bear(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {FIRST}", True),
        (f"bearer  {SECOND} ", True),
        (f"Bearer {OTHER}", False),
        (f"Bearer {FIRST}a", False),
        (f"Bearer {FIRST[:-1]}", False),
        (f"Bearer {FIRST} {SECOND}", False),
        (f"Basic {FIRST}", False),
        (FIRST, False),
        ("Bearer", False),
        ("Bearer ", False),
        ("", False),
        ("Bearer é", False),
    ],
)
def test_each_line_is_accepted_token(tmp_path: Path, header: str, expected: bool) -> None:
    tokens = TokenFile(write(tmp_path / "tokens", FIRST, "", f"  {SECOND}\t"))
    assert tokens.accepts(header.encode()) is expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold at least one token, found none"),
        (" \n\n", "must hold at least one token, found none"),
        (f"{FIRST}\ntwo words\n", "line 2: a token must consist of letters"),
        ("gehöim\n", "line 1: a token must consist of letters"),
        ("a\n" * (1 << 15), "must have less than 65536 bytes"),
    ],
)
def test_file_without_tokens_is_refused_without_showing_it(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(UserError) as caught:
        TokenFile(tmp_path / "tokens")
    assert f"{tmp_path}/tokens: token file: {message}" in caught.value.message
    assert not any(word in str(caught.value) for word in ("two words", "gehöim", FIRST))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokens: token file: No such file or directory"):
        TokenFile(tmp_path / "tokens")


def test_changed_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access, "_POLL_SECONDS", 0.0)
    file = write(tmp_path / "tokens", FIRST)
    tokens = TokenFile(file)

    def list_accepted() -> list[str]:
        return [token for token in (FIRST, SECOND) if tokens.accepts(f"Bearer {token}".encode())]

    assert list_accepted() == [FIRST]
    for lines in ([FIRST, SECOND], [SECOND], []):
        # As Kubernetes updates a mounted Secret: another file takes the place.
        write(tmp_path / "new", *lines).replace(file)
        assert list_accepted() == lines
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        f"no token is accepted: {file}: token file: must hold at least one token, found none"
    ]
    write(file, FIRST)
    assert list_accepted() == [FIRST]
    file.unlink()
    assert list_accepted() == []


def test_mode_that_others_can_read_is_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "tokens", FIRST)
    file.chmod(0o644)
    TokenFile(file)
    assert f"{file}: token file: its mode is 0644" in caplog.text


def test_rules_of_port(tmp_path: Path) -> None:
    tokens = TokenFile(write(tmp_path / "tokens", FIRST))
    good, bad = f"Bearer {FIRST}".encode(), f"Bearer {OTHER}".encode()
    both = Needs.TOKEN | Needs.MANAGEMENT
    Access().check(both, None)
    Access(tokens).check(both, good)
    Access(tokens).check(Needs.MANAGEMENT, None)
    Access(tokens, 8082).check(Needs.NOTHING, None)
    for header in (None, bad):
        with pytest.raises(UnauthenticatedError, match="none" if header is None else "not accepted") as caught:
            Access(tokens).check(both, header)
        assert FIRST not in caught.value.message
    for needs in (both, Needs.MANAGEMENT):
        with pytest.raises(ManagementPortError, match="on the management port only, 8082"):
            Access(tokens, 8082).check(needs, good)


@dataclasses.dataclass
class Guarded:
    server: Any
    management: Any
    tokens: Path


@pytest.fixture(scope="module")
def guarded(models: Path, start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    tokens = write(tmp_path_factory.mktemp("access") / "tokens", FIRST, SECOND)
    port = reserve_port()
    server = start_server(models / "free", "digits", f"--token-file={tokens}", f"--management-port={port}")
    server.wait("/v2/health/ready")
    return Guarded(server, dataclasses.replace(server, port=port), tokens)


REPOSITORY = "/v2/repository/models/digits"
# Path, body, whether a token is needed, and whether the management port alone answers.
ROUTES: list[tuple[str, Any, bool, bool]] = [
    ("/v1/models/digits:predict", V1, True, False),
    ("/v2/models/digits/infer", V2, True, False),
    ("/v2/models/digits/versions/1/infer", V2, True, False),
    ("/v1/models", None, True, False),
    ("/v2", None, True, False),
    ("/v2/models", None, True, False),
    ("/v2/models/digits", None, True, False),
    ("/v2/repository/index", {}, True, False),
    (f"{REPOSITORY}/load", {}, True, True),
    ("/metrics", None, False, True),
    ("/", None, False, False),
    ("/v1/models/digits", None, False, False),
    ("/v2/health/live", None, False, False),
    ("/v2/health/ready", None, False, False),
    ("/v2/models/digits/ready", None, False, False),
]


def request(server: Any, path: str, body: Any, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    import httpx

    method = "GET" if body is None else "POST"
    found = httpx.request(method, f"http://127.0.0.1:{server.port}{path}", json=body, headers=headers, timeout=30)
    return found.status_code, found.text, dict(found.headers)


@pytest.mark.mindspore
@pytest.mark.parametrize(("path", "body", "needs_token", "is_managed"), ROUTES)
def test_routes_by_http(guarded: Guarded, path: str, body: Any, needs_token: bool, is_managed: bool) -> None:
    for server, is_public in ((guarded.server, True), (guarded.management, False)):
        for headers, is_accepted in (({}, False), (bear(OTHER), False), (bear(FIRST), True), (bear(SECOND), True)):
            status, text, found = request(server, path, body, headers)
            if is_managed and is_public:
                assert (status, "on the management port only" in text) == (403, True), (path, headers, text)
            elif needs_token and not is_accepted:
                assert (status, found["www-authenticate"]) == (401, "Bearer"), (path, headers, text)
                assert FIRST not in text
            else:
                assert status == 200, (path, headers, text)


@pytest.mark.mindspore
@pytest.mark.parametrize("path", [f"{REPOSITORY}/unload", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_change_needs_management_port_and_token(guarded: Guarded, path: str) -> None:
    for server, headers, expected in (
        (guarded.server, bear(FIRST), 403),
        (guarded.management, {}, 401),
        (guarded.management, bear(OTHER), 401),
    ):
        status, text, _ = request(server, path, {}, headers)
        assert (status, "--allow-runtime-lora-updating" in text) == (expected, False)
        assert request(server, "/v1/models/digits:predict", V1, bear(FIRST))[0] == 200
    for action in ("unload", "load"):
        assert request(guarded.management, f"{REPOSITORY}/{action}", {}, bear(FIRST))[0] == 200


@pytest.mark.mindspore
def test_refused_requests_are_counted_and_logged(guarded: Guarded) -> None:
    assert request(guarded.server, "/v2/models/digits/infer", V2, bear(OTHER))[0] == 401
    metrics = request(guarded.management, "/metrics", None, {})[1]
    (line,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("mindsporeserver_request_failures_total") and 'reason="denied"' in line and "digits" in line
    ]
    assert float(line.split()[-1]) >= 1
    log = guarded.server.wait_for_log("status=401")
    assert not any(token in log for token in (FIRST, SECOND, OTHER))


@pytest.mark.mindspore
def test_methods_by_grpc(guarded: Guarded) -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="image", shape=IMAGE.shape, datatype="FP32")
    infer = pb.ModelInferRequest(model_name="digits", inputs=[tensor], raw_input_contents=[IMAGE.tobytes()])
    guarded_calls: list[tuple[str, Any]] = [
        ("ModelInfer", infer),
        ("ServerMetadata", pb.ServerMetadataRequest()),
        ("ModelMetadata", pb.ModelMetadataRequest(name="digits")),
    ]
    open_calls: list[tuple[str, Any]] = [
        ("ServerLive", pb.ServerLiveRequest()),
        ("ServerReady", pb.ServerReadyRequest()),
        ("ModelReady", pb.ModelReadyRequest(name="digits")),
    ]
    managed_calls: list[tuple[str, Any]] = [
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="digits")),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="digits")),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{guarded.server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)

        def call(method: str, message: Any, token: str = "") -> str:
            metadata = [("authorization", f"Bearer {token}")] if token else []
            try:
                getattr(stub, method)(message, metadata=metadata, timeout=30)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        statistics = channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")
        with pytest.raises(grpc.RpcError) as caught:
            statistics(b"", metadata=[("authorization", f"Bearer {FIRST}")], timeout=30)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for method, message in guarded_calls:
            assert [call(method, message, token) for token in ("", OTHER)] == ["UNAUTHENTICATED"] * 2, method
            assert [call(method, message, token) for token in (FIRST, SECOND)] == ["OK"] * 2, method
        for method, message in open_calls:
            assert call(method, message) == "OK", method
        for method, message in managed_calls:
            assert [call(method, message, token) for token in ("", FIRST)] == ["PERMISSION_DENIED"] * 2, method
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert health.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.mindspore
def test_clients_send_token_of_environment(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{guarded.server.port}"
    monkeypatch.setenv(SERVICE_TOKEN_VARIABLE, f"{SECOND}\n")
    assert predict(url, "digits", IMAGE)["output"].shape == (1, 10)
    monkeypatch.delenv(SERVICE_TOKEN_VARIABLE)
    with pytest.raises(ServiceRequestError, match="answered 401") as caught:
        predict(url, "digits", IMAGE)
    assert SERVICE_TOKEN_VARIABLE in caught.value.hint
    monkeypatch.setenv(SERVICE_TOKEN_VARIABLE, "two\nlines")
    with pytest.raises(UserError, match=f"{SERVICE_TOKEN_VARIABLE}: must be one token"):
        predict(url, "digits", IMAGE)


@pytest.mark.mindspore
def test_rotation_needs_no_restart(guarded: Guarded) -> None:
    third = "third" * 8
    write(guarded.tokens.with_name("new"), SECOND, third).replace(guarded.tokens)
    try:
        eventually(lambda: request(guarded.server, "/v2", None, bear(third))[0] == 200, 60)
        assert [request(guarded.server, "/v2", None, bear(token))[0] for token in (FIRST, SECOND)] == [401, 200]
    finally:
        write(guarded.tokens, FIRST, SECOND)
        eventually(lambda: request(guarded.server, "/v2", None, bear(FIRST))[0] == 200, 60)


@pytest.mark.mindspore
def test_server_does_not_start_without_tokens(models: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(models / "free", "digits", f"--token_file={write(tmp_path / 'empty')}")
    assert server.process.wait(60) == 2
    assert "token file: must hold at least one token" in server.log.read_text()
    assert os.fspath(tmp_path) in server.log.read_text()
