from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference import Service
from kfp_mindspore.inference.service import ServiceState, ServiceStatus, list_service_errors, suggest_name


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "Digits"}, "name: must be at most 53"),
        ({"name": ""}, "name: must be at most 53"),
        ({"name": "1st"}, "name: must be"),
        ({"name": "a-"}, "name: must be"),
        ({"name": "a" * 54}, "name: must be"),
        ({"name": "../x"}, "name: must be"),
        ({"name": None}, "name: must be"),
        ({"namespace": "a/b"}, "namespace: must be at most 63"),
        ({"namespace": "_"}, "namespace: must be"),
        ({"model_dir": ""}, "model_dir: must be"),
        ({"replicas": 0}, "replicas: must be an integer ≥ 1, got 0"),
        ({"replicas": 1.5}, "replicas: must be an integer"),
        ({"replicas": True}, "replicas: must be an integer"),
        ({"port": 65536}, "port: must be an integer ≥ 0 and ≤ 65535, got 65536"),
        ({"grpc_port": -1}, "grpc_port: must be an integer ≥ 0"),
        ({"port": 9000, "grpc_port": 9000}, "grpc_port: must differ from port, got 9000 for both"),
        ({"host": ""}, "host: must be an address of this machine, got ''"),
        ({"server_args": "--max_batch=1"}, "server_args: must be a list of flags, got '--max_batch=1'"),
        ({"server_args": ["max_batch"]}, "server_args[0]: must be --flag or --flag=value, got 'max_batch'"),
        ({"server_args": ["--a", 1]}, "server_args[1]: must be --flag or --flag=value, got 1"),
        ({"server_args": ["--http-port=1"]}, "server_args[0]: --http-port follows from the service's own fields"),
        ({"server_args": ["--model_dir", "x"]}, "server_args[0]: --model_dir follows from the service's own fields"),
        ({"download": "git"}, "download: must be one of initializer, server, got 'git'"),
        ({"storage_secret": "store"}, "storage_secret: needs download='server'"),
        ({"pod_labels": {"kfp-mindspore/version": "1"}}, "pod_labels.kfp-mindspore/version: is reserved"),
        ({"pod_labels": {"kubernetes.io/hostname": "a"}}, "pod_labels.kubernetes.io/hostname: is reserved"),
        ({"pod_annotations": {"kfp-mindspore/service": "{}"}}, "pod_annotations.kfp-mindspore/service: is reserved"),
        ({"pod_annotations": {"sp-block": 128}}, "pod_annotations.sp-block: must be a string, got 128"),
        ({"min_replicas": 5, "max_replicas": 2}, "min_replicas: must be ≤ max_replicas (2), got 5"),
        ({"min_replicas": 2}, "min_replicas: needs max_replicas, which is 0 for a fixed count"),
        ({"scale_metric": "memory"}, "scale_metric: needs max_replicas"),
        ({"replicas": 2, "max_replicas": 4}, "replicas: is the count without max_replicas; set min_replicas, got 2"),
        ({"max_replicas": 4, "scale_metric": "rps"}, "scale_metric: must be one of cpu, memory, in_flight, waiting"),
        ({"max_replicas": 4, "scale_target": 101}, "scale_target: must be ≤ 100 percent for cpu, got 101"),
        ({"max_replicas": 4, "scale_metric": "in_flight"}, "prometheus: must be http://… or https://…"),
        (
            {"max_replicas": 4, "scale_metric": "waiting", "prometheus": "http://p"},
            "scale_metric: must be 'in_flight' for tensor models, got 'waiting'",
        ),
        ({"max_replicas": 4, "min_replicas": 0}, "min_replicas: 0 needs scale_metric 'in_flight'"),
        ({"tolerations": ["npu"]}, "tolerations.0: must be a dict, got 'npu'"),
        ({"tolerations": {"key": "npu"}}, "tolerations: must be a list, got {'key': 'npu'}"),
        ({"tolerations": [{"operater": "Exists"}]}, "tolerations[0].operater: unknown field; did you mean 'operator'?"),
        ({"tolerations": [{"tolerationSeconds": "60"}]}, "tolerations[0].tolerationSeconds: must be a whole number"),
        ({"volumes": {"adapters": {"emptyDir": {}}}}, "volumes: must be absolute paths, got 'adapters'"),
        ({"volumes": {"/mnt": "claim"}}, "volumes./mnt: must be a volume source"),
        ({"volumes": {"/mnt": {"emptydir": {}}}}, "volumes./mnt.emptydir: unknown volume source; did you mean 'empty"),
        ({"volumes": {"/mnt": {"persistentVolumeClaim": {}}}}, "volumes./mnt.persistentVolumeClaim.claimName: is req"),
        ({"env": {"A=B": "1"}}, "env: must be names without '=', got 'A=B'"),
        ({"env_from": ["store"]}, "env_from[0]: must be secret/NAME or configmap/NAME, got 'store'"),
        ({"env_from": ["secret/My_Store"]}, "env_from[0]: must be at most 253"),
        ({"image_pull_secrets": ["Pull"]}, "image_pull_secrets: must be at most 253"),
        ({"priority_class": "High!"}, "priority_class: must be at most 253"),
        ({"model_format": "gguf"}, "model_format: must be one of mindspore, mindspore-lm without runtime, got 'gguf'"),
        ({"model_format": "", "runtime": "llama"}, "model_format: must be one of mindspore, mindspore-lm without runt"),
        (
            {"model_format": "gguf", "runtime": "llama", "download": "server"},
            "download: must be 'initializer' for model_format 'gguf', got 'server'",
        ),
        ({"runtime": "Server!"}, "runtime: must be at most 253"),
        ({"model_name_flag": "alias", "runtime": "llama", "model_format": "gguf"}, "model_name_flag: must be --flag"),
        ({"model_name_flag": "--alias"}, "model_name_flag: is another server's, got model_format 'mindspore'"),
        ({"openai_path": "v1"}, "openai_path: must begin with a slash, got 'v1'"),
        ({"spread": "a zone"}, "spread: must be the key of a node's label"),
        (
            {"annotations": {"serving.kserve.io/autoscalerClass": "hpa"}},
            "annotations.serving.kserve.io/autoscalerClass",
        ),
        ({"resources": []}, "resources: must be an object"),
        ({"resources": {"limit": {}}}, "resources.limit: unknown field, expected requests or limits"),
        ({"resources": {"limits": "2"}}, "resources.limits: must be an object of quantities"),
        ({"resources": {"limits": {"cpu": "two"}}}, "resources.limits.cpu: must be a quantity such as 500m, 2 or 4Gi"),
    ],
)
def test_wrong_field_is_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(expected)) as caught:
        Service(**{"name": "digits", "model_dir": "model", **changes}).validate()
    assert caught.value.exit_code == 2


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Service("X", "", replicas=0, port=-1).validate()
    assert [error.partition(":")[0] for error in caught.value.errors] == ["name", "model_dir", "replicas", "port"]


@pytest.mark.parametrize("quantity", ["500m", 2, 0.5, "4Gi", "1e3", "100k"])
def test_quantities_of_kubernetes_are_accepted(quantity: Any) -> None:
    Service("digits", "model", resources={"requests": {"cpu": quantity}, "limits": {}}).validate()


def test_numbers_of_pipelines_become_those_of_kubernetes() -> None:
    toleration = {"key": "npu", "operator": "Exists", "tolerationSeconds": 60.0}
    volumes = {"/mnt/config": {"configMap": {"name": "a", "defaultMode": 292.0}}}
    service = Service(
        "d", "m", env={"THREADS": 2.0}, node_selector={"rack": 3}, tolerations=[toleration], volumes=volumes
    )
    service.validate()
    assert (service.env, service.node_selector) == ({"THREADS": "2"}, {"rack": "3"})
    values = service.tolerations[0]["tolerationSeconds"], service.volumes["/mnt/config"]["configMap"]["defaultMode"]
    assert [(type(value), value) for value in values] == [(int, 60), (int, 292)]


@pytest.mark.parametrize(
    ("path", "expected"), [("out/Digits/", "digits"), ("a/My_Model.v2", "my-model-v2"), ("/", "model"), ("01", "model")]
)
def test_name_is_made_from_directory(path: str, expected: str) -> None:
    assert suggest_name(path) == expected


@given(st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=80))
def test_name_made_from_any_directory_is_valid(name: str) -> None:
    assert list_service_errors(suggest_name(f"/models/{name}"), "default") == []


@pytest.mark.parametrize(
    ("state", "ready", "over"),
    [
        (ServiceState.STARTING, False, False),
        (ServiceState.READY, True, False),
        (ServiceState.NOT_READY, False, False),
        (ServiceState.RESTARTING, False, False),
        (ServiceState.FAILED, False, True),
        (ServiceState.STOPPED, False, True),
    ],
)
def test_ready_and_finished_follow_from_state(state: ServiceState, ready: bool, over: bool) -> None:
    status = ServiceStatus("digits", "default", state, "http://127.0.0.1:1", "127.0.0.1:2", "model", warnings=("a",))
    assert (status.ready, status.is_finished) == (ready, over)
    value = json.loads(json.dumps(status.to_dict()))
    assert (value["state"], value["ready"], value["warnings"]) == (str(state), ready, ["a"])
