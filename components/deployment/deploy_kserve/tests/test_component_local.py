import json
import urllib.request

import pytest
from kfp import dsl

from kfp_mindspore.components.deployment.deploy_kserve import deploy_kserve


@pytest.mark.mindspore
def test_bundle_is_served_by_a_real_server(run_component, lifecycle) -> None:
    from kfp_mindspore.inference import InferenceClient

    client = InferenceClient()
    try:
        outputs = run_component(deploy_kserve, {"bundle": (dsl.Model, lifecycle.bundle)}, service_name="deployed")
        url = outputs.parameters["url"]
        assert outputs.parameters["name"] == "deployed"
        assert client.get("deployed").url == url
        with urllib.request.urlopen(f"{url}/v1/models/deployed", timeout=10) as answer:
            assert json.load(answer) == {"name": "deployed", "ready": True}
    finally:
        for service in client.list():
            client.delete(service.name)


def test_empty_directory_is_no_model(run_component, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match=r"empty: an empty directory: signature.json and model.mindir missing"):
        run_component(deploy_kserve, {"bundle": (dsl.Model, tmp_path / "empty")}, service_name="none")
