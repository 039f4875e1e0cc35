import pytest
from kfp import dsl

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.mindspore
def test_deployed_bundle_passes_the_smoke_test(run_component, lifecycle) -> None:
    from kfp_mindspore.components import deploy_kserve, smoke_test
    from kfp_mindspore.inference import InferenceClient

    client = InferenceClient()
    bundle = {"bundle": (dsl.Model, lifecycle.bundle)}
    try:
        deployed = run_component(deploy_kserve, bundle, service_name="deployed").parameters
        assert deployed["name"] == "deployed"
        assert client.get("deployed").url == deployed["url"]
        outputs = run_component(smoke_test, bundle, url=deployed["url"], model_name="deployed").parameters
        assert outputs["samples"] == 32
        assert outputs["max_abs_diff"] <= 1e-5
        assert outputs["prediction"] in map(str, range(10))
        assert outputs["label"] in map(str, range(10))
    finally:
        for service in client.list():
            client.delete(service.name)


def test_empty_directory_is_refused(run_component, tmp_path) -> None:
    from kfp_mindspore.components import deploy_kserve

    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match=r"empty: an empty directory: signature.json and model.mindir missing"):
        run_component(deploy_kserve, {"bundle": (dsl.Model, tmp_path / "empty")}, service_name="none")
