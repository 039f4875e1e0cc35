from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
import yaml

from kfp_mindspore.errors import (
    AlreadyExistsError,
    KfpMindSporeError,
    ProcessFailedError,
    UserError,
    ValidationError,
    WaitTimeoutError,
)
from kfp_mindspore.runs import remote, server, sources

SOURCE = """
from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def count(number: int) -> int:
    return number + 1

@dsl.pipeline(name="counting")
def counting(number: int = 1, name: str = "x"):
    first = count(number=number)
    with dsl.If(first.output > 1):
        count(number=first.output)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("remote") / "counting.py"
    file.write_text(SOURCE)
    return sources.compile_text(str(file))


@pytest.fixture
def client(pipelines_server: Any) -> remote.RemoteClient:
    return remote.RemoteClient(pipelines_server.url)


def test_upload_stores_the_compiled_pipeline(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    uploaded = client.upload(package, description="counts")
    assert uploaded == remote.UploadedPipeline(
        "counting", "p0", "", "", f"{pipelines_server.url}/#/pipelines/details/p0"
    )
    stored = pipelines_server.pipelines["counting"]
    assert stored["package"] == package
    assert stored["query"] == {"name": "counting", "description": "counts"}


def test_second_upload_creates_a_version(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    client.upload(package)
    second = client.upload(package, version="two")
    assert (second.pipeline_id, second.version_id, second.version) == ("p0", "v0", "two")
    assert second.url.endswith("/#/pipelines/details/p0/version/v0")
    assert client.upload(package).version.startswith("counting ")
    assert [version["package"] for version in pipelines_server.versions] == [package, package]


def test_upload_of_the_same_pipeline_is_refused(client: remote.RemoteClient, package: str) -> None:
    client.upload(package)
    client.upload(package)
    with pytest.raises(AlreadyExistsError, match=r"version 'counting [0-9a-f]{12}': already exists"):
        client.upload(package)


def test_upload_with_name_and_namespace(pipelines_server: Any, package: str) -> None:
    client = remote.RemoteClient(pipelines_server.url + "/", namespace="team-a")
    assert client.upload(package, name="other").name == "other"
    assert pipelines_server.pipelines["other"]["query"]["namespace"] == "team-a"


def test_run_converts_arguments(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package, {"number": "5"}, name="first", experiment="mine", pipeline_root="s3://b/r")
    assert (run.run_id, run.name, run.state) == ("r0", "first", "PENDING")
    started = pipelines_server.runs["r0"]
    assert started["runtime_config"] == {"parameters": {"number": 5}, "pipeline_root": "s3://b/r"}
    assert started["experiment_id"] == pipelines_server.experiments["mine"]["experiment_id"]
    assert started["pipeline_spec"]["pipelineInfo"]["name"] == "counting"
    assert client.run(package, experiment="mine").name.startswith("counting 20")
    assert len(pipelines_server.experiments) == 1


def test_caching_is_disabled_in_conditions(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    client.run(package, cache=False)
    spec = pipelines_server.runs["r0"]["pipeline_spec"]
    dags = [spec["root"], *(part for part in spec["components"].values() if "dag" in part)]
    options = [task.get("cachingOptions") for part in dags for task in part["dag"]["tasks"].values()]
    assert len(options) == 3
    assert not any((option or {}).get("enableCache") for option in options)


def test_wait_reports_each_state_once(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    pipelines_server.states[:] = [None, "PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    seen: list[str] = []
    done = client.wait(run.run_id, interval=0.01, on_state=lambda run: seen.append(run.state))
    assert seen == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert done.is_finished


@pytest.mark.parametrize(
    ("state", "message"),
    [("FAILED", "ended FAILED in step train"), ("CANCELED", "ended CANCELED"), ("SKIPPED", "ended SKIPPED")],
)
def test_failed_run_names_its_steps(
    client: remote.RemoteClient, pipelines_server: Any, package: str, state: str, message: str
) -> None:
    run = client.run(package, name="bad")
    pipelines_server.tasks = [
        {"display_name": "root", "state": "FAILED"},
        {"display_name": "train", "state": "FAILED", "pod_name": "train-1"},
        {"display_name": "load", "state": "SUCCEEDED", "pod_name": "load-1"},
    ]
    pipelines_server.states[:] = [state]
    with pytest.raises(ProcessFailedError, match=f"^run bad {message}$|^run bad {message}\n"):
        client.wait(run.run_id, interval=0.01)


def test_wait_times_out(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    pipelines_server.states[:] = ["RUNNING"]
    start = time.monotonic()
    with pytest.raises(WaitTimeoutError, match=r"still RUNNING after 0.2 s"):
        client.wait(run.run_id, timeout=0.2, interval=60)
    assert time.monotonic() - start < 5


def test_unknown_run_is_an_error(client: remote.RemoteClient) -> None:
    with pytest.raises(KfpMindSporeError, match="get the run: HTTP 404 Not Found: not found: runs/nothing"):
        client.get_run("nothing")


def test_invalid_arguments_are_refused_before_any_request(
    client: remote.RemoteClient, pipelines_server: Any, package: str
) -> None:
    with pytest.raises(ValidationError, match=r"number: must be an integer, got 'many'; .*did you mean name\?"):
        client.run(package, {"number": "many", "nam": "y"})
    assert not pipelines_server.runs


def test_token_is_sent_with_every_request(pipelines_server: Any, package: str) -> None:
    pipelines_server.token = "abc"
    with pytest.raises(KfpMindSporeError, match="connect: HTTP 401 Unauthorized: Unauthorized: no valid token") as it:
        remote.RemoteClient(pipelines_server.url)
    assert "KFP_TOKEN" in it.value.hint
    assert remote.RemoteClient(pipelines_server.url, token="abc").upload(package).pipeline_id == "p0"


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((200, "text/html", "<html>Log in</html>"), "healthz: expected JSON from Kubeflow Pipelines, got text/html"),
        ((302, "text/html", ""), "connect: HTTP 302 Found"),
        ((404, "text/html", "<html>nothing</html>"), "connect: HTTP 404 Not Found"),
        ((503, "text/plain", "upstream connect error"), "HTTP 503 Service Unavailable: upstream connect error"),
    ],
)
def test_other_servers_are_refused(pipelines_server: Any, refusal: tuple[int, str, str], message: str) -> None:
    pipelines_server.refusal = refusal
    with pytest.raises(KfpMindSporeError, match=message) as caught:
        remote.RemoteClient(pipelines_server.url)
    assert caught.value.exit_code == 1
    assert pipelines_server.paths == ["GET /apis/v2beta1/healthz"]


def test_refused_request_is_an_error(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    pipelines_server.refusal = (403, "application/json", json.dumps({"error_message": "not in namespace"}))
    for act in (client.upload, client.run):
        with pytest.raises(KfpMindSporeError, match="HTTP 403 Forbidden: not in namespace"):
            act(package)


def test_unreachable_server_fails_without_retries(free_port: int) -> None:
    start = time.monotonic()
    with pytest.raises(KfpMindSporeError, match=rf"127.0.0.1:{free_port}: no response .*Connection refused") as caught:
        remote.RemoteClient(f"http://127.0.0.1:{free_port}")
    assert caught.value.exit_code == 1
    # kfp.Client alone takes 25 s.
    assert time.monotonic() - start < 10


def test_first_request_times_out() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(KfpMindSporeError, match=r"no response from Kubeflow Pipelines .*timed out"),
    ):
        remote.RemoteClient(f"http://127.0.0.1:{silent.getsockname()[1]}", connect_seconds=0.2)


def test_lost_connection_is_an_error(pipelines_server: Any, package: str) -> None:
    client = remote.RemoteClient(pipelines_server.url)
    pipelines_server.shutdown()
    pipelines_server.socket.close()
    with pytest.raises(KfpMindSporeError, match=r"upload: .*Connection refused"):
        client.upload(package)


@pytest.mark.parametrize(
    ("host", "result"),
    [
        ("kubeflow.example.com/pipeline", "https://kubeflow.example.com/pipeline"),
        (" http://127.0.0.1:8888/ ", "http://127.0.0.1:8888"),
        ("https://x", "https://x"),
    ],
)
def test_host_is_normalised(host: str, result: str) -> None:
    assert server.check_host(host) == result


@pytest.mark.parametrize("host", ["", "  ", "ftp://x", "http://", "://x"])
def test_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(UserError, match=r"^host: "):
        server.check_host(host)


def test_placeholder_images_are_refused(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    text = package.replace("python:3.11", "kfp-mindspore.invalid/python:placeholder")
    for act in (client.upload, client.run):
        with pytest.raises(UserError, match="counting: its steps have no image") as caught:
            act(text)
        assert "--image" in caught.value.hint
    assert not pipelines_server.pipelines


@pytest.mark.parametrize("text", ["", "a: 1", "[1]", "{"])
def test_invalid_pipeline_is_refused(client: remote.RemoteClient, text: str) -> None:
    with pytest.raises(UserError, match=r"^pipeline: "):
        client.upload(text)


def test_disable_caching_keeps_other_documents(package: str) -> None:
    documents = list(yaml.safe_load_all(remote.disable_caching(package + "\n---\nplatforms: {}\n")))
    assert documents[1] == {"platforms": {}}
    assert documents[0]["pipelineInfo"]["name"] == "counting"
