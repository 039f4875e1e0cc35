"""The MSJob API's constants: group, kinds, resource, labels, condition types and limits."""

from __future__ import annotations

from kfp_mindspore.kube.resources import Resource

GROUP = "mindspore.gitee.com"
API_VERSION = f"{GROUP}/v1"
FIRST_API_VERSION = "kubeflow.org/v1"
KIND = "MSJob"
PLURAL = "msjobs"
SINGULAR = "msjob"
SHORT_NAME = "msj"
MSJOBS = Resource(GROUP, API_VERSION.rpartition("/")[2], PLURAL, KIND)

CONTAINER_NAME = "mindspore"
PORT_NAME = "msjob-port"
DEFAULT_PORT = 2222
DEFAULT_BACKOFF_LIMIT = 3
DEFAULT_GRACE_SECONDS = 30
DEFAULT_ELASTIC_GRACE_SECONDS = 30
# Of a manifest without one; what this package builds has DEFAULT_RESTART_POLICY.
MANIFEST_RESTART_POLICY = "Never"
DEFAULT_RESTART_POLICY = "ExitCode"
DEFAULT_CLEAN_POD_POLICY = "Running"
MAXIMUM_NAME = 51
MINIMUM_PORT = 1024
MAXIMUM_PORT = 65535

SCHEDULER = "Scheduler"
PARAMETER_SERVER = "PS"
WORKER = "Worker"
REPLICA_TYPES = (SCHEDULER, PARAMETER_SERVER, WORKER)

RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
CLEAN_POD_POLICIES = ("All", "Running", "None")
SUCCESS_POLICIES = ("", "AllWorkers")

CREATED = "Created"
RUNNING = "Running"
RESTARTING = "Restarting"
SUSPENDED = "Suspended"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
CONDITIONS = (CREATED, RUNNING, RESTARTING, SUSPENDED, SUCCEEDED, FAILED)

OPERATOR_LABEL = "training.kubeflow.org/operator-name"
# Of all pods of MSJobs.
CONTROLLER_LABELS = {OPERATOR_LABEL: "msjob-controller"}
JOB_LABEL = "training.kubeflow.org/job-name"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"
ATTEMPT_LABEL = "training.kubeflow.org/attempt"
ROLE_LABEL = "training.kubeflow.org/job-role"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# RFC 3339 time, in UTC, after which the operator fails an unfinished job: the client that submitted it renews it.
LEASE_ANNOTATION = "training.kubeflow.org/lease-expires"
# Of the definition: the package that generated it.
VERSION_LABEL = "app.kubernetes.io/version"
# Labels and annotations of pods that the operator sets.
RESERVED_PREFIXES = ("training.kubeflow.org/", f"{GROUP}/")


def resolve_replica_type(text: str) -> str | None:
    """Return the replica type for a case-insensitive name, such as `Worker` for `worker`, or None."""
    return next((name for name in REPLICA_TYPES if name.lower() == text.lower()), None)
