from __future__ import annotations

import pytest

from kfp_mindspore.kube.pod_schema import POD_TEMPLATE, build_pod_schema, list_fields, load_release
from tests.golden import pod_schema as source


def test_it_is_of_named_release() -> None:
    assert load_release()["release"] == source.RELEASE


def test_it_equals_content_of_release() -> None:
    module = source.download_module(offline=True)
    if module is None:
        pytest.skip(f"k8s.io/kubernetes {source.RELEASE} is not in Go's module cache: make pod-schema brings it")
    assert source.FILE.read_text() == source.render(module)


def test_fields_are_named_as_on_wire() -> None:
    assert {"image", "workingDir", "restartPolicyRules"} <= list_fields("Container")
    assert {"hostnameOverride", "resources", "schedulingGates"} <= list_fields("PodSpec")


def test_metadata_of_template_is_kept() -> None:
    metadata = build_pod_schema(POD_TEMPLATE)["properties"]["metadata"]["properties"]
    assert metadata["labels"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert metadata["annotations"] == metadata["labels"]
    assert metadata["creationTimestamp"]["nullable"] is True
    spec = build_pod_schema("EphemeralVolumeSource")["properties"]["volumeClaimTemplate"]["properties"]
    assert spec["metadata"]["properties"]["labels"] == metadata["labels"]


def test_quantities_and_ports_are_numbers_or_text() -> None:
    limits = build_pod_schema("ResourceRequirements")["properties"]["limits"]["additionalProperties"]
    port = build_pod_schema("HTTPGetAction")["properties"]["port"]
    assert limits["x-kubernetes-int-or-string"] is True
    assert port["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert port["description"]


def test_lists_that_pods_may_repeat_are_no_maps() -> None:
    container = build_pod_schema("Container")["properties"]
    assert container["env"]["x-kubernetes-list-type"] == "atomic"
    assert container["ports"]["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    assert container["ports"]["items"]["properties"]["protocol"]["default"] == "TCP"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("", ""),
        ("Name of the volume.", "Name of the volume"),
        ("Image name. More info: https://example.com", "Image name"),
        ("One sentence\nin two lines. Another.", "One sentence in two lines"),
        ("word " * 40, ("word " * 27).strip() + "…"),
    ],
)
def test_descriptions_are_short(text: str, short: str) -> None:
    assert source.shorten(text) == short
