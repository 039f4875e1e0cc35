"""The generated CustomResourceDefinition on a real API server: validation, defaults, explain, rules, scale."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ApiRequest
from kfp_mindspore.kube.resources import DEFINITIONS
from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.names import MSJOBS
from tests.cluster.infrastructure.api_server import Api
from tests.support.kube.msjob_cases import UPDATES, VALID, VALID_HERE, Update, build_job, put

# What `kubectl apply` leaves on an object that it applies by the client's side.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def ask(api_server: Api, path: str, accept: str = "application/json") -> Any:
    """Return the API server's response to a GET."""
    with api_server.client() as client:
        response = client.call_api(
            path, "GET", header_params={"Accept": accept}, auth_settings=["BearerToken"], _preload_content=False
        )[0]
        return json.loads(response.data)


def test_api_server_accepts_whole_definition(crd_cluster: Cluster) -> None:
    stored = crd_cluster.get(DEFINITIONS, "msjobs.mindspore.gitee.com")
    conditions = {item["type"]: (item["status"], item.get("message")) for item in stored["status"]["conditions"]}
    assert conditions["Established"][0] == "True"
    # A schema that is not structural, or a rule over budget, would be named here.
    assert "NonStructuralSchema" not in conditions, conditions["NonStructuralSchema"]
    sent, kept = build_crd()["spec"], stored["spec"]
    assert kept["versions"][0]["schema"] == sent["versions"][0]["schema"]
    assert kept["versions"][0]["additionalPrinterColumns"] == sent["versions"][0]["additionalPrinterColumns"]
    assert kept["names"]["shortNames"] == ["msj"]


def test_definition_fits_client_side_apply(crd_cluster: Cluster) -> None:
    text = json.dumps(build_crd(), separators=(",", ":")) + "\n"
    name = "msjobs.mindspore.gitee.com"
    applied = crd_cluster.patch(DEFINITIONS, name, "", {"metadata": {"annotations": {LAST_APPLIED: text}}})
    assert applied["metadata"]["annotations"][LAST_APPLIED] == text
    crd_cluster.patch(DEFINITIONS, name, "", {"metadata": {"annotations": {LAST_APPLIED: None}}})
    with pytest.raises(ValidationError, match="Too long"):
        crd_cluster.patch(DEFINITIONS, name, "", {"metadata": {"annotations": {LAST_APPLIED: text + " " * 262_144}}})


@pytest.mark.parametrize("document", [*VALID.values(), *VALID_HERE.values()], ids=[*VALID, *VALID_HERE])
def test_valid_jobs_are_stored_unchanged(crd_cluster: Cluster, module_namespace: str, document: dict[str, Any]) -> None:
    crd_cluster.create(MSJOBS, document, module_namespace)
    stored = crd_cluster.get(MSJOBS, document["metadata"]["name"], module_namespace)
    assert contains(stored["spec"], document["spec"])
    # Read by the types, it is the same job.
    assert contains(MSJob.from_dict(stored).to_dict()["spec"], MSJob.from_dict(document).to_dict()["spec"])


def contains(whole: Any, part: Any) -> bool:
    """Return whether a document contains another; the server adds defaults and drops `null`."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            value is None or (key in whole and contains(whole[key], value)) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def test_defaults(crd_cluster: Cluster, module_namespace: str) -> None:
    job = build_job("defaults", Worker={"template": {"spec": {"containers": [{"name": "mindspore", "image": "a"}]}}})
    spec = crd_cluster.create(MSJOBS, job, module_namespace)["spec"]
    assert spec["runPolicy"] == {"backoffLimit": 3, "cleanPodPolicy": "Running", "suspend": False}
    assert spec["successPolicy"] == ""
    assert (spec["msReplicaSpecs"]["Worker"]["replicas"], spec["msReplicaSpecs"]["Worker"]["restartPolicy"]) == (
        1,
        "Never",
    )


def test_status_subresource(crd_cluster: Cluster, module_namespace: str) -> None:
    crd_cluster.create(MSJOBS, build_job("status"), module_namespace)
    ignored = crd_cluster.patch(MSJOBS, "status", module_namespace, {"status": {"state": "Running"}})
    assert "status" not in ignored
    status = {
        "state": "Running",
        "workers": "1/1",
        "restarts": 2,
        "failure": {"pod": "status-worker-0", "exitCode": 137, "reason": "OOMKilled", "log": ["a", "b"], "attempt": 1},
        "conditions": [{"type": "Running", "status": "True", "reason": "JobRunning", "message": "It runs."}],
        "replicaStatuses": {"Worker": {"active": 1, "selector": "training.kubeflow.org/job-name=status"}},
    }
    change = {"status": status, "spec": {"successPolicy": "AllWorkers"}}
    written = crd_cluster.patch(MSJOBS, "status", module_namespace, change, subresource="status")
    assert (written["status"], written["spec"]["successPolicy"]) == (status, "")


def test_scale_subresource(crd_cluster: Cluster, module_namespace: str) -> None:
    crd_cluster.create(MSJOBS, build_job("scale"), module_namespace)
    selector = "training.kubeflow.org/job-name=scale"
    status = {"status": {"replicaStatuses": {"Worker": {"active": 1, "selector": selector}}}}
    crd_cluster.patch(MSJOBS, "scale", module_namespace, status, subresource="status")
    crd_cluster.patch(MSJOBS, "scale", module_namespace, {"spec": {"replicas": 3}}, subresource="scale")
    path = MSJOBS.get_path(module_namespace, "scale", "scale")
    scale = crd_cluster.request(ApiRequest("get", "msjobs/scale", "scale", module_namespace), "GET", path)
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 1, "selector": selector})
    stored = crd_cluster.get(MSJOBS, "scale", module_namespace)
    assert stored["spec"]["msReplicaSpecs"]["Worker"]["replicas"] == 3
    with pytest.raises(ValidationError, match="replicas: Invalid value: 0"):
        crd_cluster.patch(MSJOBS, "scale", module_namespace, {"spec": {"replicas": 0}}, subresource="scale")


def test_printer_columns(api_server: Api, crd_cluster: Cluster, module_namespace: str) -> None:
    crd_cluster.create(MSJOBS, build_job("table"), module_namespace)
    status = {"state": "Running", "workers": "1/1", "restarts": 2, "progress": {"percentage": 45}}
    crd_cluster.patch(MSJOBS, "table", module_namespace, {"status": status}, subresource="status")
    table = ask(api_server, MSJOBS.get_path(module_namespace, "table"), "application/json;as=Table;v=v1;g=meta.k8s.io")
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns == ["Name", "State", "Workers", "Restarts", "Progress", "Age"]
    assert table["rows"][0]["cells"][:5] == ["table", "Running", "1/1", 2, 45]


def test_every_field_has_description(api_server: Api, crd_cluster: Cluster) -> None:
    """Read the same document as `kubectl explain`."""
    schemas = ask(api_server, "/openapi/v3/apis/mindspore.gitee.com/v1")["components"]["schemas"]
    schema = schemas["com.gitee.mindspore.v1.MSJob"]
    policy = schema["properties"]["spec"]["properties"]["runPolicy"]["properties"]
    assert policy["backoffLimit"]["description"].startswith("Maximum number of gang restarts")
    assert all(field.get("description") for field in policy.values())
    worker = schema["properties"]["spec"]["properties"]["msReplicaSpecs"]["additionalProperties"]
    container = worker["properties"]["template"]["properties"]["spec"]["properties"]["containers"]["items"]
    assert container["properties"]["image"]["description"]


def test_short_name_and_categories(api_server: Api, crd_cluster: Cluster) -> None:
    resources = ask(api_server, "/apis/mindspore.gitee.com/v1")["resources"]
    found = {item["name"]: item for item in resources}
    assert set(found) == {"msjobs", "msjobs/status", "msjobs/scale"}
    assert (found["msjobs"]["shortNames"], found["msjobs"]["categories"]) == (["msj"], ["all", "kubeflow"])


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name)
@pytest.mark.parametrize("was", ["", "Created"], ids=["no status", "a status"])
@pytest.mark.parametrize("sent", ["", "Running"], ids=["alone", "beside another status"])
def test_updates_are_validated(crd_cluster: Cluster, module_namespace: str, case: Update, was: str, sent: str) -> None:
    before, after = (copy.deepcopy(document) for document in case.build())
    name = "-".join(("update", *case.name.split(), was.lower() or "new", sent.lower() or "alone"))
    seen = crd_cluster.create(MSJOBS, put(before, "metadata.name", name), module_namespace)
    if was:
        seen = crd_cluster.patch(MSJOBS, name, module_namespace, {"status": {"state": was}}, subresource="status")
    after = put(after, "metadata.name", name)
    after["metadata"]["resourceVersion"] = seen["metadata"]["resourceVersion"]
    if sent:
        # Only writes of the status subresource change the status; others are validated without it.
        after["status"] = {"state": sent}
    request = ApiRequest("update", MSJOBS.full_name, name, module_namespace)
    path = MSJOBS.get_path(module_namespace, name)
    if not case.server:
        changed = crd_cluster.request(request, "PUT", path, None, after)
        assert contains(changed["spec"], after["spec"])
        assert changed.get("status") == ({"state": was} if was else None)
        return
    with pytest.raises(ValidationError) as refused:
        crd_cluster.request(request, "PUT", path, None, after)
    assert case.server in str(refused.value)
