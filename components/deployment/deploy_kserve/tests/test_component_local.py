import dataclasses
import shutil

import pytest
from kfp import dsl

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.mindspore
def test_smoke_test_of_deployment(run_component, lifecycle, tmp_path) -> None:
    """Smoke test of a deployment."""
    from kfp_mindspore.components import deploy_kserve
    from kfp_mindspore.inference import InferenceClient

    client = InferenceClient()
    bundle = {"bundle": (dsl.Model, lifecycle.bundle)}
    spoiled = {"bundle": (dsl.Model, rewrite(lifecycle.bundle, tmp_path / "spoiled", 1))}
    options = {"service_name": "deployed", "smoke_samples": 32}
    try:
        with pytest.raises(RuntimeError, match="The service was deleted: there was no version before it"):
            run_component(deploy_kserve, spoiled, **options)
        assert not client.list()
        outputs = run_component(deploy_kserve, bundle, **options).parameters
        assert (outputs["name"], outputs["deployed"]) == ("deployed", True)
        assert outputs["verdict"].startswith("version 1 serves; 32 samples tested, largest difference ")
        assert outputs["prediction"] in map(str, range(10))
        assert outputs["label"] in map(str, range(10))
        with pytest.raises(RuntimeError, match="The model of version 1 was deployed again"):
            run_component(deploy_kserve, spoiled, **options)
        status = client.get("deployed")
        assert (status.version, status.model, status.ready) == (3, str(lifecycle.bundle), True)
    finally:
        for service in client.list():
            client.delete(service.name)


@pytest.mark.mindspore
def test_canary_is_promoted_or_rolled_back(run_component, lifecycle, tmp_path) -> None:
    """Canary is promoted or rolled back."""
    from kfp_mindspore.components import deploy_kserve, rollback_kserve, smoke_test
    from kfp_mindspore.inference import InferenceClient

    client = InferenceClient()
    bundle = {"bundle": (dsl.Model, lifecycle.bundle)}
    spoiled = {"bundle": (dsl.Model, rewrite(lifecycle.bundle, tmp_path / "spoiled", 1))}
    options = {"service_name": "canary", "canary": 50}
    try:
        assert run_component(deploy_kserve, bundle, **options).parameters["version"] == 1
        # An equal bundle is no rollout, wherever it is.
        copy = tmp_path / "copy"
        shutil.copytree(lifecycle.bundle, copy)
        assert run_component(deploy_kserve, {"bundle": (dsl.Model, copy)}, **options).parameters["version"] == 1
        # Within the tolerance, with another digest.
        other = {"bundle": (dsl.Model, rewrite(lifecycle.bundle, tmp_path / "other", 1e-6))}
        promoted = run_component(deploy_kserve, other, **options)
        assert promoted.parameters["version"] == 2
        assert "agreement 1.0000" in promoted.log
        with pytest.raises(RuntimeError, match="The canary was rolled back; version 2 serves on"):
            run_component(deploy_kserve, spoiled, **options)
        status = client.get("canary")
        outputs = run_component(smoke_test, other, url=status.url, model_name="canary").parameters
        assert outputs["samples"] == 32
        assert outputs["max_abs_diff"] <= 1e-5
        assert (status.version, status.canary, status.ready) == (2, None, True)
        rolled_back = run_component(rollback_kserve, service_name="canary", version=2).parameters
        assert (rolled_back["version"], rolled_back["model"]) == (3, status.previous)
        # A retried step.
        assert run_component(rollback_kserve, service_name="canary", version=2).parameters == rolled_back
    finally:
        for service in client.list():
            client.delete(service.name)


def rewrite(bundle, path, offset):
    """Copy a bundle with verified outputs that differ from the model's."""
    from kfp_mindspore.formats.bundle import ModelBundle, write_bundle

    opened = ModelBundle.open(bundle)
    verified = opened.read_verified()
    with write_bundle(path) as writer:
        for name in opened.signature.files:
            (writer.directory / name).write_bytes((bundle / name).read_bytes())
        outputs = {name: array + offset for name, array in verified.outputs.items()}
        writer.write_verified(dataclasses.replace(verified, outputs=outputs))
        writer.sign(opened.signature)
    return path


def test_empty_directory_is_refused(run_component, tmp_path) -> None:
    """Empty directory is refused."""
    from kfp_mindspore.components import deploy_kserve

    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match=r"empty: an empty directory: signature.json and model.mindir missing"):
        run_component(deploy_kserve, {"bundle": (dsl.Model, tmp_path / "empty")}, service_name="none")
