"""MSJobs that client, JSON schema and a real API server accept, and ones that all of them refuse."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

DELETED = object()
SPECS = "spec.msReplicaSpecs"
WORKER = f"{SPECS}.Worker"
POD = f"{WORKER}.template.spec"
CONTAINER = f"{POD}.containers[0]"
POLICY = "spec.runPolicy"


@dataclass(frozen=True)
class Invalid:
    """A change that makes the base job invalid.

    Attributes:
        name: For people.
        changes: Path to value, `DELETED` to take the field out.
        client: Message of the client before it sends.
        server: A part of the API server's message.
        by_rule: Whether a CEL rule refuses it, which JSON schema lacks.
    """

    name: str
    changes: dict[str, Any]
    client: str
    server: str
    by_rule: bool = False

    def build(self) -> dict[str, Any]:
        """Return the invalid job."""
        job = build_job()
        for path, value in self.changes.items():
            job = put(job, path, value)
        return job


def build_template(**fields: Any) -> dict[str, Any]:
    """Return a pod template with a container `mindspore`."""
    return {"spec": {"containers": [{"name": "mindspore", "image": "example.com/train:1", **fields}]}}


def build_job(name: str = "digits", **specs: Any) -> dict[str, Any]:
    """Return a valid job, of one worker unless replica specs by type are given."""
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": name},
        "spec": {"msReplicaSpecs": specs or {"Worker": {"replicas": 1, "template": build_template()}}},
    }


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of a document with one field changed, added or deleted."""
    changed = copy.deepcopy(document)
    *parents, last = [int(word) if word.isdigit() else word for word in re.findall(r"[^.\[\]]+", path)]
    place: Any = changed
    for word in parents:
        place = place.setdefault(word, {}) if isinstance(place, dict) else place[word]
    if value is DELETED:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return changed


# Jobs of ms-operator's users: accepted by its published CRD, by ours and by the client.
VALID: dict[str, dict[str, Any]] = {
    "one-worker": build_job("one-worker"),
    "scheduler-and-workers": build_job(
        "scheduler-and-workers",
        Scheduler={"replicas": 1, "restartPolicy": "Never", "template": build_template()},
        Worker={"replicas": 4, "restartPolicy": "Never", "template": build_template(command=["python", "train.py"])},
    ),
    "parameter-servers": build_job(
        "parameter-servers",
        Scheduler={"replicas": 1, "template": build_template()},
        PS={"replicas": 2, "template": build_template()},
        Worker={"replicas": 2, "template": build_template()},
    ),
    "lower-case": build_job(
        "lower-case",
        scheduler={"replicas": 1, "template": build_template()},
        worker={"replicas": 2, "template": build_template()},
    ),
    "upper-case": build_job(
        "upper-case",
        SCHEDULER={"replicas": 1, "template": build_template()},
        ps={"replicas": 1, "template": build_template()},
        WORKER={"replicas": 2, "template": build_template()},
    ),
    "no-replicas": build_job("no-replicas", Worker={"template": build_template()}),
    "all-policies": put(
        put(build_job("all-policies"), "spec.successPolicy", "AllWorkers"),
        POLICY,
        {
            "activeDeadlineSeconds": 3600,
            "backoffLimit": 0,
            "cleanPodPolicy": "All",
            "ttlSecondsAfterFinished": 0,
            "schedulingPolicy": {
                "minAvailable": 2,
                "minResources": {"cpu": "500m", "memory": "1Gi", "huawei.com/Ascend910": 8},
                "priorityClass": "high",
                "queue": "training",
            },
        },
    ),
    "empty-policies": put(put(build_job("empty-policies"), "spec.successPolicy", ""), POLICY, {}),
    "dynamic-worker": put(build_job("dynamic-worker"), "spec.enableDynamicWorker", True),
    **{
        f"restart-{policy.lower()}": put(build_job(f"restart-{policy.lower()}"), f"{WORKER}.restartPolicy", policy)
        for policy in ("Always", "OnFailure", "Never", "ExitCode")
    },
    "longest-name": build_job("a" * 51),
    "rich-pod": build_job(
        "rich-pod",
        Worker={
            "replicas": 2,
            "restartPolicy": "ExitCode",
            "template": {
                "spec": {
                    "nodeSelector": {"accelerator": "ascend"},
                    "tolerations": [{"key": "npu", "operator": "Exists", "effect": "NoSchedule"}],
                    "terminationGracePeriodSeconds": 0,
                    "imagePullSecrets": [{"name": "registry"}],
                    "securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
                    "initContainers": [{"name": "fetch", "image": "example.com/fetch:1"}],
                    "containers": [
                        {
                            "name": "mindspore",
                            "image": "example.com/train:1",
                            "command": ["python", "train.py"],
                            "env": [
                                {"name": "SEED", "value": "1"},
                                {"name": "SEED", "value": "2"},
                                {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                            ],
                            "ports": [
                                {"name": "msjob-port", "containerPort": 2222},
                                {"name": "web", "containerPort": 80, "protocol": "TCP"},
                            ],
                            "resources": {"limits": {"cpu": 2, "memory": "4Gi", "huawei.com/Ascend910": "8"}},
                            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                            "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5},
                            "readinessProbe": {"tcpSocket": {"port": 80}},
                        },
                        {"name": "sidecar", "image": "example.com/logs:1"},
                    ],
                    "volumes": [
                        {"name": "data", "persistentVolumeClaim": {"claimName": "digits"}},
                        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
                    ],
                    "affinity": {
                        "podAntiAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "weight": 1,
                                    "podAffinityTerm": {
                                        "topologyKey": "kubernetes.io/hostname",
                                        "labelSelector": {"matchLabels": {"app": "digits"}},
                                    },
                                }
                            ]
                        }
                    },
                }
            },
        },
    ),
}

# Fields that ms-operator's CRD lacks: accepted by ours and by the client.
VALID_HERE: dict[str, dict[str, Any]] = {
    "suspended": put(build_job("suspended"), f"{POLICY}.suspend", True),
    "managed-by": put(build_job("managed-by"), f"{POLICY}.managedBy", "kueue.x-k8s.io/multikueue"),
    "schedule-timeout": put(build_job("schedule-timeout"), f"{POLICY}.schedulingPolicy.scheduleTimeoutSeconds", 60),
    "elastic": put(build_job("elastic"), "spec.elasticPolicy", {"minReplicas": 1, "maxReplicas": 8}),
    "topology-key": put(build_job("topology-key"), "spec.topologyKey", "topology.kubernetes.io/zone"),
    "template-metadata": put(
        build_job("template-metadata"),
        f"{WORKER}.template.metadata",
        {"labels": {"team": "vision"}, "annotations": {"sidecar.istio.io/inject": "true"}, "creationTimestamp": None},
    ),
    "pod-resources": put(build_job("pod-resources"), f"{POD}.resources", {"limits": {"cpu": "2"}}),
    "restartable-init": put(
        build_job("restartable-init"),
        f"{POD}.initContainers",
        [{"name": "proxy", "image": "example.com/proxy:1", "restartPolicy": "Always"}],
    ),
}

_NAME = "metadata.name: must be lower-case letters, digits and '-', starting with a letter and not ending with '-'"

INVALID: tuple[Invalid, ...] = (
    # Names.
    Invalid("long name", {"metadata.name": "a" * 52}, "metadata.name: must have at most 51 characters, got 52", "metadata.name: must have at most 51 characters", by_rule=True),  # noqa: E501
    Invalid("name of a digit", {"metadata.name": "1digits"}, f"{_NAME}, got '1digits'", _NAME, by_rule=True),
    Invalid("name with a dot", {"metadata.name": "digits.v1"}, f"{_NAME}, got 'digits.v1'", _NAME, by_rule=True),
    # The whole.
    Invalid("no spec", {"spec": DELETED}, "spec: is required", "spec: Required value"),
    Invalid("misspelt spec", {"spec.runpolicy": {}}, "spec.runpolicy: unknown field; did you mean 'runPolicy'?", 'unknown field "spec.runpolicy"'),  # noqa: E501
    Invalid("no replica specs", {SPECS: DELETED}, f"{SPECS}: is required", f"{SPECS}: Required value"),
    Invalid("replica specs in a list", {SPECS: [{"replicas": 1}]}, f"{SPECS}: must be a mapping, got a list", f'unknown field "{SPECS}[0].replicas"'),  # noqa: E501
    Invalid("success of some", {"spec.successPolicy": "AnyWorker"}, "spec.successPolicy: must be one of '', 'AllWorkers', got 'AnyWorker'", 'spec.successPolicy: Unsupported value: "AnyWorker"'),  # noqa: E501
    Invalid("dynamic worker in words", {"spec.enableDynamicWorker": "yes"}, "spec.enableDynamicWorker: must be true or false, got 'yes'", "spec.enableDynamicWorker: Invalid value"),  # noqa: E501
    Invalid("elastic upside down", {"spec.elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}}, "spec.elasticPolicy.minReplicas: must be ≤ maxReplicas (2), got 3", "minReplicas: must be at most maxReplicas", by_rule=True),  # noqa: E501
    Invalid("topology key with spaces", {"spec.topologyKey": "my zone"}, "spec.topologyKey: must be the key of a node's label, such as 'topology.kubernetes.io/zone', got 'my zone'", "spec.topologyKey: Invalid value"),  # noqa: E501
    # Replica types.
    Invalid("unknown replica type", {f"{SPECS}.Master": {"template": build_template()}}, f"{SPECS}.Master: unknown replica type, must be one of Scheduler, PS, Worker", "unknown replica type, must be one of Scheduler, PS, Worker", by_rule=True),  # noqa: E501
    Invalid("one type twice", {f"{SPECS}.worker": {"template": build_template()}}, f"{SPECS}.worker: the same as Worker; give each replica type once", "give each replica type once", by_rule=True),  # noqa: E501
    Invalid("no worker", {SPECS: {"Scheduler": {"template": build_template()}}}, f"{WORKER}: is required; a job without a worker would never end", "Worker: is required; a job without a worker would never end", by_rule=True),  # noqa: E501
    Invalid("two schedulers", {f"{SPECS}.Scheduler": {"replicas": 2, "template": build_template()}}, f"{SPECS}.Scheduler.replicas: must be 1, got 2", "Scheduler.replicas: must be 1", by_rule=True),  # noqa: E501
    Invalid("two schedulers in lower case", {f"{SPECS}.scheduler": {"replicas": 2, "template": build_template()}}, f"{SPECS}.Scheduler.replicas: must be 1, got 2", "Scheduler.replicas: must be 1", by_rule=True),  # noqa: E501
    Invalid("no workers at all", {f"{WORKER}.replicas": 0}, f"{WORKER}.replicas: must be ≥ 1, got 0", f"{WORKER}.replicas: Invalid value: 0"),  # noqa: E501
    Invalid("replicas in quotes", {f"{WORKER}.replicas": "2"}, f"{WORKER}.replicas: must be a whole number ≥ 1, got '2'", f"{WORKER}.replicas: Invalid value"),  # noqa: E501
    Invalid("unknown restart policy", {f"{WORKER}.restartPolicy": "always"}, f"{WORKER}.restartPolicy: must be one of 'Always', 'OnFailure', 'Never', 'ExitCode', got 'always'", f'{WORKER}.restartPolicy: Unsupported value: "always"'),  # noqa: E501
    # Pod templates.
    Invalid("no template", {f"{WORKER}.template": DELETED}, f"{WORKER}.template: is required", f"{WORKER}.template: Required value"),  # noqa: E501
    Invalid("no pod", {POD: DELETED}, f"{POD}: is required", f"{POD}: Required value"),
    Invalid("no containers", {f"{POD}.containers": DELETED}, f"{POD}.containers: must be a list of at least one container", f"{POD}.containers: Required value"),  # noqa: E501
    Invalid("container of another name", {f"{CONTAINER}.name": "main"}, f"{POD}.containers: must have one named 'mindspore', got main", "template.spec.containers: must have one named 'mindspore'", by_rule=True),  # noqa: E501
    Invalid("command in one line", {f"{CONTAINER}.command": "python train.py"}, f"{CONTAINER}.command: must be a list of text, got 'python train.py'", f"{CONTAINER}.command: Invalid value"),  # noqa: E501
    Invalid("number as argument", {f"{CONTAINER}.args": ["--epochs", 2]}, f"{CONTAINER}.args[1]: must be text (put it in quotes), got 2", f"{CONTAINER}.args[1]: Invalid value"),  # noqa: E501
    Invalid("number as variable", {f"{CONTAINER}.env": [{"name": "SEED", "value": 42}]}, f"{CONTAINER}.env[0].value: must be text (put it in quotes), got 42", f"{CONTAINER}.env[0].value: Invalid value"),  # noqa: E501
    Invalid("misspelt field of a container", {f"{CONTAINER}.imagePullPolcy": "Always"}, f"{CONTAINER}.imagePullPolcy: unknown field; did you mean 'imagePullPolicy'?", f'unknown field "{CONTAINER}.imagePullPolcy"'),  # noqa: E501
    # The run policy.
    Invalid("negative limit", {f"{POLICY}.backoffLimit": -1}, f"{POLICY}.backoffLimit: must be ≥ 0, got -1", f"{POLICY}.backoffLimit: Invalid value: -1"),  # noqa: E501
    Invalid("no time at all", {f"{POLICY}.activeDeadlineSeconds": 0}, f"{POLICY}.activeDeadlineSeconds: must be ≥ 1, got 0", f"{POLICY}.activeDeadlineSeconds: Invalid value: 0"),  # noqa: E501
    Invalid("deadline with a unit", {f"{POLICY}.activeDeadlineSeconds": "10m"}, f"{POLICY}.activeDeadlineSeconds: must be a whole number ≥ 1, got '10m'", f"{POLICY}.activeDeadlineSeconds: Invalid value"),  # noqa: E501
    Invalid("unknown clean-up", {f"{POLICY}.cleanPodPolicy": "none"}, f"{POLICY}.cleanPodPolicy: must be one of 'All', 'Running', 'None', got 'none'", f'{POLICY}.cleanPodPolicy: Unsupported value: "none"'),  # noqa: E501
    Invalid("suspended by a number", {f"{POLICY}.suspend": 1}, f"{POLICY}.suspend: must be true or false, got 1", f"{POLICY}.suspend: Invalid value"),  # noqa: E501
    Invalid("nobody to start with", {f"{POLICY}.schedulingPolicy": {"minAvailable": 0}}, f"{POLICY}.schedulingPolicy.minAvailable: must be ≥ 1, got 0", f"{POLICY}.schedulingPolicy.minAvailable: Invalid value: 0"),  # noqa: E501
)  # fmt: skip


@dataclass(frozen=True)
class Update:
    """A change of a job that is there already.

    Attributes:
        name: For people.
        changes: Path to value, `DELETED` to take the field out.
        server: A part of the API server's message; empty when it accepts the change.
        suspended: Whether the job is suspended before the change.
    """

    name: str
    changes: dict[str, Any]
    server: str = ""
    suspended: bool = False

    def build(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the job before and after."""
        before = put(build_job("digits", **copy.deepcopy(_REPLICAS)), f"{POLICY}.suspend", self.suspended)
        before = put(before, f"{POLICY}.managedBy", "kueue.x-k8s.io/multikueue")
        after = before
        for path, value in self.changes.items():
            after = put(after, path, value)
        return before, after


_REPLICAS = {
    "Scheduler": {"replicas": 1, "restartPolicy": "OnFailure", "template": build_template()},
    "PS": {"replicas": 1, "restartPolicy": "OnFailure", "template": build_template()},
    "Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": build_template()},
}
_REST = "cannot change unless the job is suspended"

UPDATES: tuple[Update, ...] = (
    Update("more workers", {f"{WORKER}.replicas": 4}),
    Update("suspend", {f"{POLICY}.suspend": True}),
    Update("resume", {f"{POLICY}.suspend": False}, suspended=True),
    Update("other limits", {f"{POLICY}.backoffLimit": 9, f"{POLICY}.activeDeadlineSeconds": 60}),
    Update("label", {"metadata.labels": {"team": "vision"}}),
    Update("elastic policy", {"spec.elasticPolicy": {"minReplicas": 1}}),
    Update("other image", {f"{CONTAINER}.image": "example.com/train:2"}, f"msReplicaSpecs: template {_REST}"),
    Update("other image at rest", {f"{CONTAINER}.image": "example.com/train:2"}, suspended=True),
    Update(
        "placed by a queue",
        {f"{POD}.nodeSelector": {"pool": "a"}, f"{POLICY}.suspend": False},
        suspended=True,
    ),
    Update("no parameter server", {f"{SPECS}.PS": DELETED}, f"msReplicaSpecs: replica types {_REST}"),
    Update("no parameter server at rest", {f"{SPECS}.PS": DELETED}, suspended=True),
    Update("more parameter servers", {f"{SPECS}.PS.replicas": 2}, f"replicas of any type but Worker {_REST}"),
    Update("other restart policy", {f"{WORKER}.restartPolicy": "Never"}, f"restartPolicy {_REST}"),
    Update("other success policy", {"spec.successPolicy": "AllWorkers"}, f"successPolicy: {_REST}"),
    Update("dynamic worker", {"spec.enableDynamicWorker": True}, f"enableDynamicWorker: {_REST}"),
    Update("other topology", {"spec.topologyKey": "rack"}, f"topologyKey: {_REST}"),
    Update("other manager", {f"{POLICY}.managedBy": "example.com/me"}, "managedBy: cannot change"),
    Update("no manager", {f"{POLICY}.managedBy": DELETED}, "managedBy: cannot change", suspended=True),
)
