"""`kfp-mindspore service` and `kfp-mindspore serve`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.cli.service import _format_age
from kfp_mindspore.inference import InferenceClient, Service
from kfp_mindspore.inference.rest import is_ready, request_json
from kfp_mindspore.inference.service import ServiceState, ServiceStatus

TINY_SERVER = Path(__file__).parents[2] / "support" / "serving" / "tiny_server.py"


def read_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    "arguments",
    [
        ["create"],
        ["list"],
        ["describe"],
        ["promote"],
        ["rollback"],
        ["stop"],
        ["delete"],
        ["logs"],
        ["runtime"],
        ["drift"],
        [],
    ],
)
def test_every_command_has_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", *arguments, "--help"]) == 0
    assert "kfp-mindspore service" in capsys.readouterr().out


def test_serve_has_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    assert "Example: kfp-mindspore serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--max-model-len", "64"],
        ["--max-loras", "2"],
        ["--lora-modules", "a=."],
        ["--allow-runtime-lora-updating"],
        ["--reasoning-parser", "qwen3"],
        ["--decode-operator", "int8"],
    ],
)
def test_serve_refuses_options_of_language_models(
    words: list[str], local_services: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(local_services.make_bundle()), *words]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {words[0]}: is for language models, ")


def test_no_services(local_services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "list"]) == 0
    assert capsys.readouterr().out == "No services in namespace default.\n"
    assert run(["service", "list", "-A"]) == 0
    assert capsys.readouterr().out == "No services.\n"
    assert run(["service", "list", "--json"]) == 0
    assert read_json(capsys) == {"items": []}


def test_life_of_service(local_services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = local_services.deploy(replicas=2)
    local_services.deploy(name="other", namespace="team")
    assert run(["service", "list"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "STATE", "URL", "VERSION", "CANARY", "RESTARTS", "AGE"]
    assert row.split()[:5] == ["digits", "Ready", status.url, "1", "0"]
    assert run(["service", "list", "--all-namespaces"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["default", "digits"],
        ["team", "other"],
    ]
    assert run(["service", "list", "--json"]) == 0
    assert read_json(capsys) == {"items": [status.to_dict()]}

    assert run(["service", "describe", "digits"]) == 0
    text = capsys.readouterr().out
    for part in (
        "Ready",
        status.url,
        str(status.pid),
        status.log,
        "option     replicas: 2",
        "warning    replicas: 2 requested",
    ):
        assert part in text
    assert run(["service", "describe", "digits", "--json"]) == 0
    assert read_json(capsys) == status.to_dict()

    assert run(["service", "logs", "digits", "--lines", "1"]) == 0
    assert capsys.readouterr().out.startswith("listening on ")

    assert run(["service", "stop", "digits"]) == 0
    assert capsys.readouterr().out == "digits: stopped\n"
    assert run(["service", "describe", "digits"]) == 0
    assert "Stopped: stopped" in capsys.readouterr().out
    assert run(["service", "stop", "digits", "--json"]) == 0
    assert read_json(capsys)["state"] == "Stopped"
    assert run(["service", "delete", "digits"]) == 0
    assert capsys.readouterr().out == "digits: deleted\n"
    assert run(["service", "delete", "other", "-n", "team", "--json"]) == 0
    assert read_json(capsys) == {"name": "other", "namespace": "team", "deleted": True}


def test_update_sends_given_options_only(local_services: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mock.create_autospec(InferenceClient, instance=True)
    client.update.return_value = local_services.deploy()
    monkeypatch.setattr("kfp_mindspore.cli.service.InferenceClient", lambda *_: client)
    toleration = '{"key": "npu", "operator": "Exists"}'
    options = ["--max-replicas", "4", "--toleration", toleration, "--env", "A=1", "--env", "B=2", "--wait", "9"]
    assert run(["service", "update", "digits", *options]) == 0
    changes = {
        "max_replicas": 4,
        "tolerations": ({"key": "npu", "operator": "Exists"},),
        "env": {"A": "1", "B": "2"},
    }
    client.update.assert_called_once_with("digits", changes, 9.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "give the options to change"),
        (["--toleration", "npu"], "must be JSON, got 'npu'"),
        (["--toleration", '"npu"'], "tolerations.0: must be a dict, got 'npu'"),
        (["--min-replicas", "4", "--max-replicas", "2"], "min_replicas: must be ≤ max_replicas (2), got 4"),
    ],
)
def test_wrong_update_changes_nothing(
    local_services: Any, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    local_services.deploy()
    assert run(["service", "update", "digits", *options]) == 2
    assert expected in capsys.readouterr().err
    assert local_services.connect().get("digits").version == 1


def test_canary_is_shown_promoted_and_rolled_back(local_services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    local_services.deploy()
    service = Service("digits", local_services.make_bundle("other"), digest="sha256:2", run="run-1")
    canary = local_services.connect().deploy(service, canary=10).canary
    assert run(["service", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[4] == "10%"
    assert run(["service", "describe", "digits"]) == 0
    shown = capsys.readouterr().out
    assert f"canary     10% Ready\n           model {service.model_dir}, url {canary.url}\n" in shown
    assert f"traffic    {canary.traffic_url}\n" in shown
    assert run(["service", "describe", "digits", "--json"]) == 0
    assert read_json(capsys)["canary"]["state"] == "Ready"
    # The command has the real server, which cannot load a tiny bundle: the service and its canary stay.
    assert run(["service", "promote", "digits"]) == 2
    assert "service digits: its server ended" in capsys.readouterr().err
    assert run(["service", "rollback", "digits"]) == 0
    assert capsys.readouterr().out.startswith(f"digits: version 1 serves {local_services.root / 'bundle'} at http://")
    assert run(["service", "rollback", "digits"]) == 2
    assert "has neither a canary nor a version before" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["describe", "stop", "delete", "logs"])
def test_unknown_service(local_services: Any, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(["service", command, "digits"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("Error: service digits does not exist in namespace default\n")
    assert "kfp-mindspore service list" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("backend", ["kubernetes", "kserve"])
def test_cluster_needs_kubeconfig(
    backend: str,
    local_services: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert run(["service", "list", "--backend", backend]) == 2
    assert f"{tmp_path / 'missing'} does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (86400 * 3 + 5, "3d"), (-5, "0s")]
)
def test_ages(seconds: float, expected: str) -> None:
    status = ServiceStatus("a", "b", ServiceState.READY, "", "", "", created=time.time() - seconds)
    assert _format_age(status) == expected


def serve(local_services: Any, *arguments: str, flags: str = "") -> subprocess.Popen[str]:
    """Run the serve command with the tiny server."""
    code = (
        "import functools, sys; from kfp_mindspore.cli import main, serve;"
        "serve.LocalServingBackend = functools.partial("
        "serve.LocalServingBackend, command=sys.argv[1].split(), max_restarts=0);"
        "main.main(sys.argv[2:])"
    )
    server = f"{sys.executable} {TINY_SERVER} {flags}"
    words = ["serve", str(local_services.root / "bundle"), "--port", "0", "--grpc-port", "0", *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", code, server, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_serve_ends_cleanly(local_services: Any, number: int, code: int) -> None:
    local_services.make_bundle()
    process = serve(local_services, "--json", "--name", "cats")
    assert process.stdout is not None
    status = json.loads(process.stdout.readline())
    assert (status["name"], status["ready"]) == ("cats", True)
    assert is_ready(status["url"], "cats")
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code
    assert out == ""
    assert "tiny server of cats starts\n" in err
    assert err.endswith("Stopping cats.\n")
    assert "Traceback" not in err
    assert local_services.find_processes() == []
    assert local_services.connect().list() == []


def test_serve_hands_flags_to_server(local_services: Any, tmp_path: Path) -> None:
    local_services.make_bundle()
    key = tmp_path / "key"
    key.touch()
    process = serve(
        local_services, "--json", "--host", "127.0.0.3", "--workers", "2", "--max-batch", "16", "--nonfinite", "allow",
        "--allow-model-code", "--key-file", os.path.relpath(key),
    )  # fmt: skip
    assert process.stdout is not None
    status = json.loads(process.stdout.readline())
    assert status["url"].startswith("http://127.0.0.3:")
    assert request_json("GET", f"{status['url']}/pid")["others"] == [
        "--workers=2",
        "--max_batch=16",
        "--nonfinite=allow",
        "--allow_model_code=true",
        f"--model_key_file={key}",
    ]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_serve_prints_address(local_services: Any) -> None:
    local_services.make_bundle()
    process = serve(local_services)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("bundle is ready at http://127.0.0.1:")
    assert local_services.connect().get("bundle").url in first
    # Ended from another terminal.
    assert run(["service", "stop", "bundle"]) == 0
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert err.endswith("bundle: stopped.\n")
    assert local_services.connect().list() == []


def test_serve_fails_when_its_server_does(local_services: Any) -> None:
    local_services.make_bundle()
    process = serve(local_services, "--json")
    assert process.stdout is not None
    os.kill(json.loads(process.stdout.readline())["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    error = json.loads(err.splitlines()[-1])["error"]
    assert error["message"] == "service bundle: its server was ended by signal 9 (SIGKILL): not restarted again"
    assert "tiny server of bundle starts" in error["log"]
    assert local_services.connect().list() == []


# A server's 2 is a user's mistake, such as a key file that holds no key.
@pytest.mark.parametrize(("ended", "code"), [(4, 1), (2, 2)])
def test_serve_fails_when_its_server_cannot_start(local_services: Any, ended: int, code: int) -> None:
    local_services.make_bundle()
    process = serve(local_services, flags=f"--fail={ended}")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (code, "")
    assert err.splitlines() == [
        f"Error: service bundle: its server ended with exit code {ended}",
        "  | tiny server of bundle starts",
        "  | the disk is on fire",
    ]


@pytest.mark.parametrize("keeps_port", [False, True])
def test_serve_keeps_service_that_replaced_it(local_services: Any, keeps_port: bool) -> None:
    local_services.make_bundle()
    process = serve(local_services)
    assert process.stdout is not None
    process.stdout.readline()
    # On the same port the old server ends before the new one is the service.
    port = int(local_services.connect().get("bundle").url.rpartition(":")[2]) if keeps_port else 0
    status = local_services.deploy(name="bundle", port=port)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert err.endswith("bundle was replaced by version 2.\n")
    assert local_services.connect().get("bundle") == status


def test_serve_refuses_name_of_running_service(local_services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = local_services.deploy()
    assert run(["serve", str(local_services.root / "bundle"), "--name", "digits"]) == 2
    err = capsys.readouterr().err
    assert f"service digits: already running at {status.url}" in err
    assert "kfp-mindspore service stop digits" in err


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.mkdir(), "an empty directory: signature.json and model.mindir missing"),
        (lambda path: None, "no such model directory"),
        (lambda path: path.touch(), "a file, where a model directory is needed"),
    ],
)
def test_serve_requires_bundle(
    local_services: Any, capsys: pytest.CaptureFixture[str], make: Any, expected: str
) -> None:
    path = local_services.root / "model"
    make(path)
    assert run(["serve", str(path)]) == 2
    assert f"Error: {path}: {expected}" in capsys.readouterr().err


def test_serve_refuses_flipped_bit(local_services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = local_services.make_bundle() / "model.mindir"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    assert run(["serve", str(file.parent)]) == 2
    assert f"Error: {file}: sha256 must be" in capsys.readouterr().err


def test_serve_refuses_adapter_without_name(local_services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = local_services.make_bundle()
    assert run(["serve", str(bundle), "--lora-modules", "adapter"]) == 2
    assert "Error: --lora-modules: must be NAME=PATH, got 'adapter'" in capsys.readouterr().err
    assert run(["serve", str(bundle), "--lora-modules", "support=none"]) == 2
    assert "Error: --lora-modules: support: none: no such directory" in capsys.readouterr().err


def test_serve_names_port_in_use(local_services: Any, free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = local_services.make_bundle()
    with socket.create_server(("127.0.0.1", free_port)):
        assert run(["serve", str(bundle), "--port", str(free_port)]) == 2
    assert f"Error: service bundle: port {free_port} is taken by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "65536"],
        ["--name", "Digits"],
        ["--port", "9000", "--grpc-port", "9000"],
        ["--host", ""],
        ["--workers", "0"],
        ["--key-file", "/none"],
    ],
)
def test_serve_names_wrong_option(local_services: Any, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert run(["serve", str(local_services.make_bundle()), *options]) == 2
    assert options[0].strip("-") in capsys.readouterr().err


def test_create_deploys_service_and_its_next_version(
    local_services: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfp_mindspore.cli.service.InferenceClient", lambda *arguments: local_services.connect())
    bundle = str(local_services.make_bundle("first"))
    assert run(["service", "create", "digits", bundle, "--replicas", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"digits: version 1 serves {bundle} at http://127.0.0.1:")
    assert run(["service", "create", "digits", bundle, "--canary", "10", "--json"]) == 0
    assert read_json(capsys)["canary"]["state"] == "Ready"
    assert run(["service", "create", "digits", bundle, "--canary", "20", "--backend", "local"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"digits: {bundle} is a canary and gets 20% of the requests to http://127.0.0.1:")
    assert lines[1:] == [
        "End it: kfp-mindspore service promote digits -n default --backend local",
        "    or: kfp-mindspore service rollback digits -n default --backend local",
    ]
    assert run(["service", "create", "digits", bundle]) == 2
    refusal = capsys.readouterr().err
    assert "has a canary" in refusal
    assert "kfp-mindspore service promote digits -n default --backend local, or rollback." in refusal
    assert run(["service", "create", "other", bundle, "--canary", "20"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "It is the first version, which has no canary."
    assert run(["service", "describe", "missing", "-n", "default"]) == 2
    assert "kfp-mindspore service list -A --backend local" in capsys.readouterr().err
    assert run(["service", "create", "Digits", bundle]) == 2
    assert "service Digits is invalid: name: must be" in capsys.readouterr().err
    assert run(["service", "create", "digits", bundle, "--server-arg", "max_batch=3"]) == 2
    assert "server_args" in capsys.readouterr().err
