import hashlib

import pytest
from kfp import dsl

from ..component import register_model
from .registry_server import serve

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.fixture
def registry():
    """Run a registry."""
    with serve() as server:
        yield server


@pytest.fixture
def register(registry, lifecycle, local_home):
    """Register the digits bundle under an address in a bucket."""

    def call(uri="s3://bucket/digits/", **arguments):
        class Bundle(dsl.Model):
            path = str(lifecycle.bundle)

        given = {"model_name": "digits", "registry": registry.url, **arguments}
        return register_model.python_func(bundle=Bundle(uri=uri), **given)

    return call


def test_model_version_and_artifact_are_created(register, registry, lifecycle) -> None:
    """Model version and artifact are created."""
    model_id, version_id, version = register(
        author="team", description="first", service_account_name="reader", properties={"accuracy": 0.97}
    )
    digest = hashlib.sha256((lifecycle.bundle / "model.mindir").read_bytes()).hexdigest()
    (model,), (made,), (artifact,) = registry.models, registry.versions, registry.artifacts
    assert (model["id"], model["name"], model["owner"]) == (model_id, "digits", "team")
    assert (made["id"], made["name"], made["author"]) == (version_id, version, "team")
    assert version == digest[:12]
    assert made["description"] == "first"
    assert made["customProperties"]["sha256"]["string_value"] == digest
    assert made["customProperties"]["accuracy"]["double_value"] == 0.97
    assert artifact["version"] == version_id
    assert artifact["artifact"]["uri"] == "s3://bucket/digits/"
    assert artifact["artifact"]["modelFormatName"] == "mindspore"
    assert artifact["artifact"]["serviceAccountName"] == "reader"


def test_repeated_registration_changes_nothing(register, registry) -> None:
    """Repeated registration changes nothing."""
    first = register()
    writes = list(registry.writes)
    assert register() == first
    assert registry.writes == writes


def test_registration_completes_after_refused_artifact(register, registry) -> None:
    """Registration completes after a refused artifact."""
    from kfp_mindspore.errors import KfpMindSporeError

    registry.refuses_artifacts = True
    with pytest.raises(KfpMindSporeError, match=r"answered 400: .*uri: not accepted"):
        register()
    registry.refuses_artifacts = False
    register()
    assert [len(registry.models), len(registry.versions), len(registry.artifacts)] == [1, 1, 1]


def test_version_of_another_bundle_is_refused(register, registry) -> None:
    """Version of another bundle is refused."""
    from kfp_mindspore.errors import AlreadyExistsError

    register(version="1")
    with pytest.raises(AlreadyExistsError, match="version 1 exists with s3://bucket/digits/"):
        register(version="1", uri="s3://bucket/other/")


def test_registry_of_older_api_is_used(register, registry, capsys) -> None:
    """The same messages are sent to the paths of API v1alpha3."""
    registry.api = "v1alpha3"
    assert register(version="1") == register(version="1")
    assert [len(registry.models), len(registry.versions), len(registry.artifacts)] == [1, 1, 1]
    assert f"{registry.url} (API v1alpha3): model digits" in capsys.readouterr().out


def test_server_without_known_api_is_named(register, registry) -> None:
    """The error has the paths that were tried, and nothing is written."""
    from kfp_mindspore.errors import KfpMindSporeError

    registry.api = "v2"
    known = "has neither /api/model_registry/v1/ nor /api/model_registry/v1alpha3/"
    with pytest.raises(KfpMindSporeError, match=known):
        register()
    assert registry.writes == []


@pytest.mark.parametrize("value", [["a"], {"b": 1}, None])
def test_property_that_is_no_text_or_number_is_refused(register, registry, value) -> None:
    """The error names the property, and nothing is written."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match=r"properties\.tags: must be text or a number, got"):
        register(properties={"tags": value})
    assert registry.writes == []


def test_unavailable_registry_is_retried(register, registry) -> None:
    """Unavailable registry is retried."""
    registry.failures = 2
    assert register(version="1")[2] == "1"


def test_unreachable_registry_is_named(register) -> None:
    """Unreachable registry is named."""
    from kfp_mindspore.errors import KfpMindSporeError

    with pytest.raises(KfpMindSporeError, match=r"http://127\.0\.0\.1:9: no answer"):
        register(registry="http://127.0.0.1:9")


@pytest.mark.parametrize("registry_address", ["", "registry:8080"])
def test_cluster_run_needs_address(register, monkeypatch, registry_address) -> None:
    """Cluster run needs an address."""
    from kfp_mindspore.errors import UserError

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    with pytest.raises(UserError, match="registry: "):
        register(registry=registry_address)
