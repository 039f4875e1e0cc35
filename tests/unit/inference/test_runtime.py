"""The serving runtime: against KServe's own schema, the restricted Pod Security Standard, and the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference import Service, build_inference_service
from kfp_mindspore.inference.runtime import build_serving_runtime
from kfp_mindspore.settings import PLACEHOLDER_SERVER_IMAGE
from mindsporeserver.options import build_parser, read_options
from tests.support.controllers.definitions import read_schema

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example.com/team/server@sha256:" + "0" * 64
KINDS = {"ClusterServingRuntime": None, "ServingRuntime": "team"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_format", ["mindspore", "mindspore-lm"])
def test_it_is_valid_for_kserve(kind: str, model_format: str) -> None:
    auto_select = model_format == "mindspore"
    runtime = build_serving_runtime(IMAGE, namespace=KINDS[kind], auto_select=auto_select, model_format=model_format)
    assert runtime["kind"] == kind
    jsonschema.Draft7Validator(read_schema(kind, "v1alpha1")).validate(runtime)


@pytest.mark.parametrize("file", ["runtime.yaml", "servingruntime.yaml", "lm-runtime.yaml", "lm-servingruntime.yaml"])
def test_committed_files_are_valid_for_kserve(file: str) -> None:
    runtime = yaml.safe_load((ROOT / "serving" / file).read_text())
    assert "namespace" not in runtime["metadata"]
    jsonschema.Draft7Validator(read_schema(runtime["kind"], "v1alpha1")).validate(runtime)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "containers", 0, "imagePulPolicy"], "Always"),
        (["spec", "containers", 0, "livenessProbe", "httpGet", "port"], None),
        (["spec", "supportedModelFormats", 0, "priority"], 0),
        (["spec", "containers", 0, "resources", "requests", "cpu"], "half"),
        (["spec", "protocolVersion"], ["v1"]),
    ],
)
def test_schema_finds_mistakes(path: list[Any], value: Any) -> None:
    runtime = build_serving_runtime(IMAGE)
    parent: Any = runtime
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(read_schema("ClusterServingRuntime", "v1alpha1")).validate(runtime)


def test_it_meets_restricted_pod_security_standard() -> None:
    spec = build_serving_runtime(IMAGE)["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not context.get("privileged")
    assert "hostIPC" not in spec
    assert all("hostPort" not in port for port in container.get("ports", []))
    # Each place that can be written is a volume of its own.
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
    assert all("emptyDir" in volumes[mount["name"]] for mount in container["volumeMounts"])


def test_inference_service_of_ours_gets_it() -> None:
    model = build_inference_service(Service("digits", "s3://models/digits"))["spec"]["predictor"]["model"]
    spec = build_serving_runtime(IMAGE)["spec"]
    formats = {entry["name"]: entry for entry in spec["supportedModelFormats"]}
    assert formats[model["modelFormat"]["name"]]["autoSelect"] is True
    assert model["modelFormat"].get("version") in (None, formats["mindspore"]["version"])
    assert model["protocolVersion"] in spec["protocolVersions"]


def test_its_arguments_are_flags_of_server() -> None:
    arguments = build_serving_runtime(IMAGE)["spec"]["containers"][0]["args"]
    assert arguments == [
        "--model_name={{.Name}}",
        "--model_dir=/mnt/models",
        "--http_port=8080",
        "--grpc_port=8081",
        "--drain_seconds=5",
        "--grace_period=20",
    ]


def test_commented_options_are_valid_for_kserve_and_flags_of_server() -> None:
    text = (ROOT / "serving" / "runtime.yaml").read_text()
    options = re.compile(r"^( *)# (- .*\n)", re.MULTILINE)
    runtime = yaml.safe_load(options.sub(r"\1\2", text))
    jsonschema.Draft7Validator(read_schema("ClusterServingRuntime", "v1alpha1")).validate(runtime)
    (container,) = runtime["spec"]["containers"]
    added = container["args"][len(build_serving_runtime(IMAGE)["spec"]["containers"][0]["args"]) :]
    assert added == ["--token-file=/etc/mindsporeserver/tokens", "--management-port=8082"]
    found = read_options(build_parser().parse_args([*container["args"]]))
    assert (found.token_file, found.management_port) == (Path("/etc/mindsporeserver/tokens"), 8082)
    volumes = {volume["name"]: volume for volume in runtime["spec"]["volumes"]}
    assert volumes["tokens"]["secret"] == {"secretName": "mindsporeserver-tokens", "defaultMode": 0o440}
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
        "tmp": "/tmp",
        "tokens": "/etc/mindsporeserver",
    }


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"image": ""}, "image: must be an image"),
        ({"image": "a b"}, "image: must be an image"),
        ({"namespace": "Team"}, "namespace: must be"),
        ({"namespace": ""}, "namespace: must be"),
        ({"name": "Server"}, "name: must be"),
        ({"name": "a" * 254}, "name: must be"),
    ],
)
def test_wrong_fields_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        build_serving_runtime(**{"image": IMAGE, **options})


def test_command_writes_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KFP_MINDSPORE_SERVER_IMAGE", raising=False)
    assert run(["service", "runtime"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (ROOT / "serving" / "runtime.yaml").read_text()
    assert f"{PLACEHOLDER_SERVER_IMAGE} has no digest" in captured.err

    assert run(["service", "runtime", "--image", IMAGE, "-n", "team", "--no-auto-select", "--name", "mine"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    expected = build_serving_runtime(IMAGE, namespace="team", auto_select=False, name="mine")
    assert yaml.safe_load(captured.out) == expected

    monkeypatch.setenv("KFP_MINDSPORE_SERVER_IMAGE", IMAGE)
    assert run(["service", "runtime", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == build_serving_runtime(IMAGE)


def test_runtime_of_language_models_has_its_own_name_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "runtime", "--image", IMAGE, "--model-format", "mindspore-lm"]) == 0
    runtime = yaml.safe_load(capsys.readouterr().out)
    assert runtime == build_serving_runtime(IMAGE, model_format="mindspore-lm")
    assert runtime["metadata"]["name"] == "kfp-mindspore-lm-server"
    assert runtime["spec"]["supportedModelFormats"][0]["name"] == "mindspore-lm"
    assert runtime["spec"]["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "16Gi"}}]
    with pytest.raises(ValidationError, match="model_format: must be one of mindspore, mindspore-lm, got 'onnx'"):
        build_serving_runtime(IMAGE, model_format="onnx")


def test_command_names_wrong_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "runtime", "--namespace", "Team"]) == 2
    assert "Error: serving runtime is invalid: namespace: must be" in capsys.readouterr().err
