"""Objects of the operator: pods, Services and PodGroups."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.kube.quantities import format_quantity, max_resources, parse_quantity, sum_resources
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.decisions.topology import VARIABLES
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import PodView
from kfp_mindspore.operator.decisions.pods import build_pod, list_members, merge_env
from kfp_mindspore.operator.decisions.services import build_endpoint_slice, build_pod_group, build_service, get_address
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.settings import TOPOLOGY_DEFAULTS
from tests.support.kube.simulated_cluster import Cluster, make_job

CONTAINER_CONTEXT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_CONTEXT = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CRDS = Path(__file__).parents[4].parent / "shared" / "crds"
HOST, PORT = "10.96.0.7", 2222


def make_pods(document: dict[str, Any], options: OperatorOptions | None = None) -> dict[str, dict[str, Any]]:
    job = MSJob.from_dict(document)
    host = HOST if job.workers > 1 else ""
    return {
        member.name: build_pod(
            job, member, workers=job.workers, host=host, attempt=2, restarts=1, options=options or OperatorOptions()
        )
        for member in list_members(job, host, PORT)
    }


def read_env(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod["spec"]["containers"][0]["env"]}


def find_template(job: dict[str, Any], kind: str = "Worker") -> dict[str, Any]:
    template: dict[str, Any] = job["spec"]["msReplicaSpecs"][kind]["template"]
    return template


def test_ms_variables_names_and_labels() -> None:
    pods = make_pods(make_job(2))
    assert list(pods) == ["digits-scheduler-0", "digits-worker-0", "digits-worker-1"]
    assert read_env(pods["digits-worker-1"]) == {
        "MS_ROLE": "MS_WORKER",
        "MS_SCHED_HOST": HOST,
        "MS_SCHED_PORT": "2222",
        "MS_WORKER_NUM": "2",
        **TOPOLOGY_DEFAULTS,
        "MS_NODE_ID": "1",
    }
    assert read_env(pods["digits-scheduler-0"])["MS_SCHED_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    metadata = pods["digits-worker-0"]["metadata"]
    assert metadata["labels"] == {
        "training.kubeflow.org/operator-name": "msjob-controller",
        "training.kubeflow.org/job-name": "digits",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
        "training.kubeflow.org/attempt": "2",
        "sidecar.istio.io/inject": "false",
    }
    assert metadata["annotations"] == {
        "mindspore.gitee.com/restarts": "1",
        "mindspore.gitee.com/workers": "2",
        "mindspore.gitee.com/scheduler-host": HOST,
        "sidecar.istio.io/inject": "false",
    }
    assert metadata["namespace"] == "team"
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "mindspore.gitee.com/v1",
            "kind": "MSJob",
            "name": "digits",
            "uid": "job-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_single_worker_keeps_its_variables() -> None:
    job = make_job(1)
    env = [{"name": "MS_WORKER_NUM", "value": "4"}]
    find_template(job)["spec"]["containers"][0]["env"] = env
    pod = make_pods(job)["digits-worker-0"]
    assert pod["spec"]["containers"][0]["env"] == [*env, {"name": "KFP_MINDSPORE_PROGRESS", "value": "-"}]
    assert "mindspore.gitee.com/scheduler-host" not in pod["metadata"]["annotations"]


def test_template_is_not_modified() -> None:
    job = make_job(2)
    template = find_template(job)
    template["metadata"] = {
        "labels": {"team": "vision", "training.kubeflow.org/job-name": "other"},
        "annotations": {"prometheus.io/scrape": "true", "sidecar.istio.io/inject": "true"},
    }
    template["spec"] |= {"restartPolicy": "Always", "somethingNewer": {"a": 1}, "nodeSelector": {"npu": "910"}}
    template["spec"]["containers"].append({"name": "proxy", "image": "p"})
    before = copy.deepcopy(job)
    pod = make_pods(job)["digits-worker-1"]
    assert job == before
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["labels"]["training.kubeflow.org/job-name"] == "digits"
    assert pod["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "true", "who says so himself gets it"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["somethingNewer"] == {"a": 1}
    assert pod["spec"]["containers"][1] == {"name": "proxy", "image": "p", "securityContext": CONTAINER_CONTEXT}
    assert pod["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("pod", "container", "pod_after", "container_after"),
    [
        ({}, {}, POD_CONTEXT, CONTAINER_CONTEXT),
        (
            {"runAsUser": 65532, "supplementalGroups": [4]},
            {"readOnlyRootFilesystem": True},
            {**POD_CONTEXT, "runAsUser": 65532, "fsGroup": 65532, "supplementalGroups": [4]},
            {**CONTAINER_CONTEXT, "readOnlyRootFilesystem": True},
        ),
        (
            {"fsGroup": 100, "seccompProfile": {"type": "Unconfined"}},
            {"capabilities": {"add": ["IPC_LOCK"]}},
            {**POD_CONTEXT, "fsGroup": 100, "seccompProfile": {"type": "Unconfined"}},
            {**CONTAINER_CONTEXT, "capabilities": {"add": ["IPC_LOCK"]}},
        ),
        # Root by the template: no field is added.
        ({"runAsUser": 0}, {}, {"runAsUser": 0}, None),
        ({"runAsNonRoot": False}, {}, {"runAsNonRoot": False}, None),
        ({}, {"privileged": True}, None, {"privileged": True}),
        ({}, {"runAsUser": 0}, None, {"runAsUser": 0}),
    ],
)
def test_pods_are_restricted_where_template_has_no_value(
    pod: dict[str, Any], container: dict[str, Any], pod_after: Any, container_after: Any
) -> None:
    job = make_job(2)
    spec = find_template(job)["spec"]
    spec["initContainers"] = [{"name": "data", "image": "d"}]
    if pod:
        spec["securityContext"] = pod
    if container:
        spec["containers"][0]["securityContext"] = container
    before = copy.deepcopy(job)
    for built in make_pods(job).values():
        assert built["spec"].get("securityContext") == pod_after
        assert built["spec"]["containers"][0].get("securityContext") == container_after
        is_root = None in (pod_after, container_after)
        assert built["spec"]["initContainers"][0].get("securityContext") == (None if is_root else CONTAINER_CONTEXT)
        assert built["spec"]["automountServiceAccountToken"] is False
    for built in make_pods(job, OperatorOptions(pod_security="none")).values():
        assert built["spec"].get("securityContext") == (pod or None)
        assert built["spec"]["containers"][0].get("securityContext") == (container or None)
        assert "automountServiceAccountToken" not in built["spec"]
    assert job == before


def test_template_may_mount_service_account_token() -> None:
    job = make_job(1)
    find_template(job)["spec"]["automountServiceAccountToken"] = True
    assert make_pods(job)["digits-worker-0"]["spec"]["automountServiceAccountToken"] is True


def test_istio_option() -> None:
    metadata = make_pods(make_job(2), OperatorOptions(istio_sidecar=True))["digits-worker-0"]["metadata"]
    assert "sidecar.istio.io/inject" not in {**metadata["labels"], **metadata["annotations"]}


def test_scheduler_from_worker_template_requests_no_devices() -> None:
    job = make_job(2)
    container = find_template(job)["spec"]["containers"][0]
    container["resources"] = {"limits": {"huawei.com/Ascend910": "8", "memory": "1Gi"}}
    pods = make_pods(job)
    assert pods["digits-scheduler-0"]["spec"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}
    assert pods["digits-worker-0"]["spec"]["containers"][0]["resources"] == container["resources"]
    job["spec"]["msReplicaSpecs"]["Scheduler"] = {"template": copy.deepcopy(find_template(job))}
    assert make_pods(job)["digits-scheduler-0"]["spec"]["containers"][0]["resources"] == container["resources"]


def test_topology_key_adds_pod_affinity() -> None:
    job = make_job(2)
    job["spec"]["topologyKey"] = "topology.kubernetes.io/zone"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"cache": "digits"}}}
    find_template(job)["spec"]["affinity"] = {"nodeAffinity": {}, "podAffinity": {required: [own]}}
    affinity = make_pods(job)["digits-worker-1"]["spec"]["affinity"]
    assert affinity["nodeAffinity"] == {}
    assert affinity["podAffinity"][required] == [
        own,
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "digits"}},
        },
    ]


@given(
    theirs=st.lists(
        st.fixed_dictionaries({"name": st.sampled_from([*VARIABLES, "GLOG_v", "DATA"]), "value": st.text(max_size=3)}),
        max_size=6,
    )
)
def test_member_variables_are_first_and_unique(theirs: list[dict[str, Any]]) -> None:
    ours = {"MS_ROLE": "MS_SCHED", "MS_SCHED_HOST": "status.podIP", "MS_NODE_ID": "scheduler-0"}
    env = merge_env(ours, theirs)
    assert [item["name"] for item in env[:3]] == list(ours)
    assert env[1] == {"name": "MS_SCHED_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert env[3:] == [item for item in theirs if item["name"] not in VARIABLES]
    assert merge_env({}, theirs) == theirs


def test_service_manifest() -> None:
    service = build_service(MSJob.from_dict(make_job(2)), 3333)
    assert service["metadata"]["name"] == "digits-scheduler-0"
    assert "clusterIP" not in service["spec"], "the API server gives one"
    assert service["spec"]["ports"][0]["port"] == 3333
    assert "selector" not in service["spec"], "or Kubernetes would write endpoints of its own"


@pytest.mark.parametrize(("address", "family"), [("10.244.0.5", "IPv4"), ("fd00::5", "IPv6")])
def test_endpoint_slice_manifest(address: str, family: str) -> None:
    job = MSJob.from_dict(make_job(2))
    service, scheduler = build_service(job, 3333), PodView("digits-scheduler-0", "pod-uid")
    made = build_endpoint_slice(job, scheduler, address, 3333)
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert made["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "msjob-controller"
    assert made["metadata"]["ownerReferences"] == service["metadata"]["ownerReferences"]
    assert made["addressType"] == family
    (endpoint,) = made["endpoints"]
    assert endpoint["addresses"] == [address]
    assert endpoint["conditions"]["ready"] is True, "the members look for it before its pod is ready"
    assert endpoint["targetRef"] == {"kind": "Pod", "namespace": "team", "name": "digits-scheduler-0", "uid": "pod-uid"}
    (port,), (theirs,) = made["ports"], service["spec"]["ports"]
    assert (port["name"], port["port"]) == (theirs["name"], theirs["targetPort"])


@pytest.mark.parametrize(
    ("cluster_ip", "addresses", "found"),
    [
        ("10.96.0.1", ("10.244.0.5", "fd00::5"), "10.244.0.5"),
        ("fd00:96::1", ("10.244.0.5", "fd00::5"), "fd00::5"),
        ("10.96.0.1", ("fd00::5",), ""),
        ("10.96.0.1", (), ""),
    ],
)
def test_scheduler_address_has_family_of_service(cluster_ip: str, addresses: tuple[str, ...], found: str) -> None:
    assert get_address(PodView("digits-scheduler-0", "u", addresses=addresses), cluster_ip) == found


POLICY = {"queue": "research", "priorityClass": "high", "scheduleTimeoutSeconds": 60, "minAvailable": 9}


# The sum of two workers and a scheduler. Scheduler-plugins gets none: see the scenario of gang scheduling.
SUM = {"cpu": "3750m", "huawei.com/Ascend910": "16", "memory": str(3 << 30)}


@pytest.mark.parametrize(
    ("gang", "crd", "spec"),
    [
        (
            "volcano",
            "podgroups.scheduling.volcano.sh",
            {"queue": "research", "priorityClassName": "high", "minResources": SUM},
        ),
        ("scheduler-plugins", "podgroups.scheduling.x-k8s.io", {"scheduleTimeoutSeconds": 60}),
    ],
)
def test_pod_groups(gang: Any, crd: str, spec: dict[str, Any]) -> None:
    document = make_job(2, schedulingPolicy=POLICY)
    find_template(document)["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "500m"},
        "limits": {"cpu": "2", "memory": "1Gi", "huawei.com/Ascend910": 8},
    }
    find_template(document)["spec"]["initContainers"] = [{"name": "data", "resources": {"requests": {"cpu": "1.25"}}}]
    job, options = MSJob.from_dict(document), OperatorOptions(gang_scheduler=gang)
    group = build_pod_group(job, list_members(job, HOST, PORT), options)
    assert group["spec"] == {"minMember": 3, **spec}
    told_job = MSJob.from_dict(make_job(2, schedulingPolicy={**POLICY, "minResources": {"cpu": "1"}}))
    told = build_pod_group(told_job, list_members(told_job, HOST, PORT), options)
    assert told["spec"] == {"minMember": 3, **spec, "minResources": {"cpu": "1"}}
    pod = make_pods(document, options)["digits-worker-0"]
    assert pod["spec"]["schedulerName"] == options.scheduler_name
    if gang == "volcano":
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    else:
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]
    path = CRDS / f"{crd}.json"
    if not path.is_file():
        pytest.skip(f"the published {crd}.json is not at hand to validate against")
    version = json.loads(path.read_text())["spec"]["versions"][0]
    assert group["apiVersion"].endswith(f"/{version['name']}")
    schema = version["schema"]["openAPIV3Schema"]
    jsonschema.validate(group, schema)
    assert set(group["spec"]) <= set(schema["properties"]["spec"]["properties"])


@pytest.mark.parametrize("gang", ["volcano", "scheduler-plugins"])
def test_pods_wait_for_admission(gang: Any) -> None:
    cluster = Cluster(make_job(2), OperatorOptions(gang_scheduler=gang))
    cluster.settle()
    assert cluster.pod_group is not None
    if gang == "volcano":
        assert cluster.pods == {}
        cluster.pod_group["status"] = {"phase": "Inqueue"}
        cluster.settle()
    assert len(cluster.pods) == 3
    cluster.change_spec(suspend=True)
    cluster.settle()
    assert cluster.pod_group is None


def test_status_fields_are_in_crd() -> None:
    cluster = Cluster(make_job(2, backoffLimit=0)).start()
    cluster.exit("digits-worker-1", 1, message="ValueError")
    cluster.settle()
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    full = {**cluster.status, "waiting": "x"}
    assert {"failure", "attempt", "restarts", "state", "workers", "observedGeneration"} <= set(full)
    jsonschema.validate(full, forbid_others(schema))


def forbid_others(schema: Any) -> Any:
    """Return a schema under which a field that the API server would prune is an error."""
    if isinstance(schema, list):
        return [forbid_others(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: forbid_others(value) for key, value in schema.items()}
    return {**changed, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else changed


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("1", "1"),
        ("500m", "500m"),
        ("1.5", "1500m"),
        ("2Ki", "2048"),
        ("1e3", "1000"),
        ("3k", "3000"),
        ("1n", "1m"),
        (2, "2"),
    ],
)
def test_quantities(text: Any, spelled: str) -> None:
    number = parse_quantity(text)
    assert number is not None
    assert format_quantity(number) == spelled


@pytest.mark.parametrize("text", ["", "one", "1 Gi", "1Gb", None, [], "e3"])
def test_invalid_quantities_count_as_zero(text: Any) -> None:
    assert parse_quantity(text) is None
    assert sum_resources([{"cpu": text}, {"cpu": "1"}]) == {"cpu": "1"}
    assert max_resources([{"cpu": text}, {"cpu": "1"}]) == {"cpu": "1"}


@pytest.mark.parametrize(
    ("arguments", "message"), [({"gang_scheduler": "yarn"}, "yarn"), ({"failure_grace_seconds": 0}, "≥ 1")]
)
def test_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OperatorOptions(**arguments)


@pytest.mark.parametrize(
    ("own", "seconds"),
    [
        ([], {"not-ready": 30, "unreachable": 30}),
        ([{"key": "npu", "operator": "Exists"}], {"not-ready": 30, "unreachable": 30}),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 5}], {"unreachable": 30}),
        ([{"operator": "Exists"}], {}),
    ],
)
def test_members_leave_lost_node_after_30_seconds(own: list[dict[str, Any]], seconds: dict[str, int]) -> None:
    job = make_job(2)
    find_template(job)["spec"]["tolerations"] = own
    tolerations = make_pods(job)["digits-worker-1"]["spec"]["tolerations"]
    assert tolerations[: len(own)] == own
    assert {item["key"].rpartition("/")[2]: item["tolerationSeconds"] for item in tolerations[len(own) :]} == seconds
