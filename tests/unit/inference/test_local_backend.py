"""LocalServingBackend with the tiny server, without faults; tests/faults has those."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, ProcessFailedError, UserError, ValidationError, WaitTimeoutError
from kfp_mindspore.inference import InferenceClient, KServeBackend, LocalServingBackend, Service
from kfp_mindspore.inference.rest import is_ready, request_json
from kfp_mindspore.inference.service import ServiceState
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.settings import CALLER_TMPDIR_VARIABLE, EVENTS_VARIABLE, STEP_VARIABLE
from mindsporeserver.options import build_parser
from tests.support.serving.tiny_server import SERVER_FLAGS

Eventually = Callable[..., Any]


def test_deploy_get_list_stop_delete(local_services: Any) -> None:
    client = local_services.connect()
    status = local_services.deploy()
    assert (status.name, status.namespace, status.state, status.version) == ("digits", "default", "Ready", 1)
    assert (status.restarts, status.message, status.warnings) == (0, "", ())
    assert status.model == str(local_services.root / "bundle")
    assert local_services.request_pid(status) == status.pid
    assert is_ready(status.url, "digits")
    assert client.get("digits") == status
    assert client.list() == [status]
    assert client.wait_ready("digits", timeout=0) == status

    stopped = client.stop("digits")
    assert (stopped.state, stopped.pid, stopped.message) == ("Stopped", None, "stopped")
    assert local_services.find_processes() == []
    assert client.stop("digits") == stopped
    assert client.list() == [stopped]
    assert "tiny server of digits starts" in list(client.logs("digits"))

    client.delete("digits")
    assert client.list() == []
    assert [path.name for path in (local_services.home / "services/default").iterdir()] == [".digits.lock"]
    for call in (client.get, client.stop, client.delete, client.logs):
        with pytest.raises(NotFoundError, match="service digits does not exist in namespace default"):
            call("digits")


def test_another_process_lists_and_stops_service(local_services: Any) -> None:
    status = local_services.deploy()
    code = (
        "import json; from kfp_mindspore.inference import InferenceClient; c = InferenceClient();"
        "print(json.dumps([s.to_dict() for s in c.list()])); c.stop('digits')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [status.to_dict()]
    assert local_services.connect().get("digits").state is ServiceState.STOPPED
    assert local_services.find_processes() == []


def test_process_that_deployed_it_may_end(local_services: Any) -> None:
    local_services.make_bundle()
    code = (
        "import sys; from kfp_mindspore.inference import *;"
        "client = InferenceClient(LocalServingBackend(command=sys.argv[2:]));"
        "s = client.deploy(Service('digits', sys.argv[1])); print(s.pid)"
    )
    server = [sys.executable, str(Path(__file__).parents[2] / "support" / "serving" / "tiny_server.py")]
    done = subprocess.run(
        [sys.executable, "-c", code, str(local_services.root / "bundle"), *server],
        capture_output=True,
        text=True,
        check=True,
    )
    status = local_services.connect().get("digits")
    assert status.ready
    assert local_services.request_pid(status) == int(done.stdout)


def test_namespaces(local_services: Any) -> None:
    local_services.deploy()
    local_services.deploy(namespace="team")
    client = local_services.connect()
    assert [status.namespace for status in client.list()] == ["default"]
    assert [status.namespace for status in client.list("team")] == ["team"]
    assert [status.namespace for status in client.list(all_namespaces=True)] == ["default", "team"]
    client.delete("digits", "team")
    assert client.get("digits").ready


@pytest.mark.parametrize("name", ["../digits", "a/b", "", "Digits"])
def test_names_that_are_no_names_never_reach_disk(local_services: Any, name: str) -> None:
    with pytest.raises(ValidationError, match="name: must be"):
        local_services.connect().delete(name)


def test_requested_ports(local_services: Any, free_port: int) -> None:
    status = local_services.deploy(port=free_port)
    assert status.url == f"http://127.0.0.1:{free_port}"
    assert status.grpc_url not in ("127.0.0.1:0", f"127.0.0.1:{free_port}")


@pytest.mark.parametrize(
    ("host", "asked", "reachable"),
    [
        ("127.0.0.1", "127.0.0.1", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.2", True),
        ("::1", "[::1]", False),
    ],
)
def test_address_to_listen_on(local_services: Any, host: str, asked: str, reachable: bool) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 here")
    status = local_services.deploy(host=host)
    port = status.url.rpartition(":")[2]
    assert status.url == f"http://{asked}:{port}"
    assert status.grpc_url.startswith(f"{asked}:")
    assert is_ready(status.url, "digits")
    # 127.0.0.2 is this machine as well, and stands here for its other addresses.
    assert is_ready(f"http://127.0.0.2:{port}", "digits") is reachable


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_flags_of_server(local_services: Any, free_port: int) -> None:
    flags = ("--max_batch=32", "--nonfinite=allow")
    status = local_services.deploy(server_args=flags, port=free_port)
    assert request_json("GET", f"{status.url}/pid")["others"] == list(flags)
    # They stay when the new version gets the old one's port.
    status = local_services.deploy(server_args=flags[:1], port=free_port)
    assert (status.version, request_json("GET", f"{status.url}/pid")["others"]) == (2, ["--max_batch=32"])


def test_tiny_server_refuses_flags_that_real_server_refuses(local_services: Any) -> None:
    assert set(SERVER_FLAGS) <= set(build_parser().format_help().split())
    with pytest.raises(ProcessFailedError, match="exit code 2"):
        local_services.deploy(server_args=("--max_btach=32",))


@pytest.mark.parametrize("flag", ["--ssl_certfile=x.crt", "--ssl-keyfile=x.key"])
def test_https_is_refused_at_once(local_services: Any, flag: str) -> None:
    with pytest.raises(UserError, match=rf"server_args: {flag.partition('=')[0]}: must not be set on this machine"):
        local_services.deploy(server_args=(flag,))
    assert local_services.connect().list() == []


def test_ignored_fields_are_warned_of(local_services: Any, caplog: pytest.LogCaptureFixture) -> None:
    status = local_services.deploy(replicas=3, resources={"limits": {"cpu": "1"}})
    expected = ("replicas: 3 requested, this machine runs 1", "resources: not enforced on this machine")
    assert (status.warnings, status.replicas) == (expected, 1)
    assert [record.getMessage() for record in caplog.records] == [f"service digits: {text}" for text in expected]


def test_options_of_clusters_are_warned_of_where_server_would_miss_them(local_services: Any) -> None:
    ignored = {"tolerations": [{"operator": "Exists"}], "node_selector": {"a": "b"}, "priority_class": "high"}
    status = local_services.deploy(
        max_replicas=4, env_from=["secret/tokens"], volumes={"/mnt": {"emptyDir": {}}}, **ignored
    )
    assert status.warnings == (
        "max_replicas: 4 requested, this machine runs 1",
        "env_from: not set on this machine, which has no Secrets; set env",
        "volumes: not mounted on this machine",
    )


def test_server_has_environment_of_service(local_services: Any) -> None:
    def read_environment(status: Any) -> list[str]:
        return Path(f"/proc/{status.pid}/environ").read_text().split("\0")

    status = local_services.deploy(env={"OMP_NUM_THREADS": 3})
    assert "OMP_NUM_THREADS=3" in read_environment(status)
    status = local_services.connect().update("digits", {"env": {"OMP_NUM_THREADS": "4"}})
    assert (status.version, status.options) == (2, {"env": {"OMP_NUM_THREADS": "4"}})
    assert "OMP_NUM_THREADS=4" in read_environment(status)


def test_new_version_replaces_old_one(local_services: Any) -> None:
    old = local_services.deploy()
    new_bundle = local_services.make_bundle("other")
    new = local_services.connect().deploy(Service("digits", new_bundle))
    assert (new.version, new.model, new.ready) == (2, str(new_bundle), True)
    assert local_services.request_pid(new) == new.pid != old.pid
    assert not is_ready(old.url, "digits")
    # The old one is stopped, and kept for a rollback.
    assert sorted(path.name for path in (local_services.home / "services/default/digits/versions").iterdir()) == [
        "1",
        "2",
    ]
    assert len(local_services.find_processes()) == 2


def test_old_version_serves_until_new_one_is_ready(local_services: Any) -> None:
    old = local_services.deploy()
    over = threading.Event()
    states: list[bool] = []

    def ask() -> None:
        while not over.is_set():
            states.append(local_services.connect().get("digits").ready)

    thread = threading.Thread(target=ask)
    thread.start()
    new = local_services.deploy()
    over.set()
    thread.join()
    assert new.version == old.version + 1
    assert states
    assert all(states)


def test_new_version_keeps_requested_port(local_services: Any, free_port: int) -> None:
    old = local_services.deploy(port=free_port)
    new = local_services.deploy(port=free_port)
    assert (new.version, new.url) == (2, old.url)
    assert local_services.request_pid(new) == new.pid != old.pid
    assert len(local_services.find_processes()) == 2


def test_deployed_bundle_survives_removal_of_its_directory(local_services: Any, eventually: Eventually) -> None:
    status = local_services.deploy()
    local_services.make_bundle()
    local_services.open_bundle().mindir.unlink()
    os.kill(status.pid, signal.SIGKILL)
    assert eventually(lambda: (now := local_services.connect().get("digits")).ready and now).restarts == 1


def test_stopped_service_is_deployed_again(local_services: Any) -> None:
    local_services.deploy()
    local_services.connect().stop("digits")
    assert local_services.deploy().version == 2


def test_logs_are_followed_until_service_is_finished(local_services: Any) -> None:
    local_services.deploy()
    client = local_services.connect()
    lines: list[str] = []
    first = threading.Event()

    def follow() -> None:
        for line in client.logs("digits", follow=True):
            lines.append(line)
            first.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(10)
    client.stop("digits")
    thread.join(10)
    assert not thread.is_alive()
    assert lines[0] == "tiny server of digits starts"
    assert list(client.logs("digits", lines=1)) == lines[-1:]
    assert list(client.logs("digits", lines=0)) == []


def test_log_that_grows_is_moved_away(local_services: Any, eventually: Eventually) -> None:
    status = local_services.deploy()
    log = Path(status.log)
    with log.open("ab") as file:
        file.truncate((32 << 20) + 1)
    eventually(lambda: log.stat().st_size < 1000)
    assert log.with_name("server.log.1").stat().st_size > 32 << 20
    assert local_services.connect().get("digits").ready


def test_service_is_no_part_of_step_that_deployed_it(
    local_services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, str(file))
    monkeypatch.setenv(STEP_VARIABLE, "deploy")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of-the-run"))
    monkeypatch.setenv(CALLER_TMPDIR_VARIABLE, str(tmp_path))
    status = local_services.deploy()
    environment = Path(f"/proc/{status.pid}/environ").read_bytes()
    assert b"KFP_MINDSPORE_EVENTS" not in environment
    assert b"KFP_MINDSPORE_STEP" not in environment
    assert f"TMPDIR={tmp_path}\0".encode() in environment, "the run's own is removed at its end"
    assert not file.exists(), "starting a server is no work of the step: a run counts it as overhead"


def test_waiting_for_service_that_never_becomes_ready(local_services: Any) -> None:
    local_services.deploy()
    client = local_services.connect()
    client.stop("digits")
    with pytest.raises(ProcessFailedError, match="service digits: Stopped: stopped") as caught:
        client.wait_ready("digits", timeout=10)
    assert caught.value.log[0] == "tiny server of digits starts"


def test_not_ready_in_time(local_services: Any) -> None:
    with pytest.raises(WaitTimeoutError, match=r"service digits: not ready within 0\.5 s") as caught:
        local_services.deploy("--never-ready", wait_seconds=0.5)
    assert caught.value.exit_code == 1
    assert local_services.find_processes() == []
    assert local_services.connect().list() == []


def test_server_that_starts_slowly_is_waited_for_while_it_uses_cpu(local_services: Any) -> None:
    assert local_services.deploy("--busy=6", wait_seconds=4).ready


def test_waiting_for_busy_server_is_bounded(local_services: Any) -> None:
    with pytest.raises(
        WaitTimeoutError, match=r"not ready within 1 s and 4 s more; its server used .* s of CPU"
    ) as caught:
        local_services.deploy("--busy=1000", wait_seconds=1)
    assert caught.value.log == ("tiny server of digits starts",)
    assert local_services.find_processes() == []


def test_server_that_stops_answering_is_not_ready(local_services: Any) -> None:
    status = local_services.deploy()
    os.kill(status.pid, signal.SIGSTOP)
    hung = local_services.connect().get("digits")
    assert (hung.state, hung.message) == ("NotReady", "its server does not answer")
    with pytest.raises(WaitTimeoutError, match="NotReady: its server does not answer"):
        local_services.connect().wait_ready("digits", timeout=0)
    os.kill(status.pid, signal.SIGCONT)
    assert local_services.connect().wait_ready("digits", timeout=10) == status


@pytest.mark.parametrize("uri", ["s3://bucket/model", "file:///tmp/model"])
def test_uri_is_for_cluster(local_services: Any, uri: str) -> None:
    with pytest.raises(UserError, match="model_dir: must be a directory of this machine, got"):
        local_services.connect().deploy(Service("digits", uri))


def test_backend_is_chosen_by_name(local_services: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(InferenceClient().backend, LocalServingBackend)
    assert isinstance(InferenceClient("kubernetes").backend, KServeBackend)
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "moon")
    with pytest.raises(UserError, match="KFP_MINDSPORE_BACKEND: must be 'local' or 'kubernetes', got 'moon'"):
        InferenceClient()


def test_port_with_listener_is_not_free(free_port: int) -> None:
    from kfp_mindspore.local.ports import is_port_free, list_free_ports

    assert is_port_free(free_port)
    with socket.create_server(("127.0.0.1", free_port)):
        assert not is_port_free(free_port)
    assert len(set(list_free_ports(20))) == 20


def test_process_that_reuses_supervisors_pid_is_not_terminated(local_services: Any) -> None:
    from kfp_mindspore.inference.backends.state import ServiceDirectory, VersionState

    local_services.deploy()
    local_services.connect().stop("digits")
    version = ServiceDirectory(local_services.home / "services/default/digits").current
    assert version is not None
    state = version.read_state()
    assert state is not None
    # This process has the number, as after a restart of the machine, and must not be ended.
    version.write_state(VersionState(ServiceState.READY, ProcessIdentity(os.getpid(), "another boot")))
    status = local_services.connect().get("digits")
    assert (status.state, status.message) == ("Failed", f"its supervisor (process {os.getpid()}) was killed")
    assert local_services.connect().stop("digits").state is ServiceState.STOPPED
