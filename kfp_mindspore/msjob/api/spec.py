"""An MSJob's fields, one dataclass for each object in the manifest; the CRD's schema is generated from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.kube.names import LABEL_KEY
from kfp_mindspore.msjob.api.manifest import deserialize, serialize
from kfp_mindspore.msjob.api.names import (
    API_VERSION,
    CLEAN_POD_POLICIES,
    CONTAINER_NAME,
    DEFAULT_BACKOFF_LIMIT,
    DEFAULT_CLEAN_POD_POLICY,
    DEFAULT_ELASTIC_GRACE_SECONDS,
    DEFAULT_GRACE_SECONDS,
    KIND,
    MANIFEST_RESTART_POLICY,
    RESTART_POLICIES,
    SUCCESS_POLICIES,
    WORKER,
    resolve_replica_type,
)
from kfp_mindspore.msjob.api.schema import limit
from kfp_mindspore.msjob.api.status import JobStatus


@dataclass
class SchedulingPolicy:
    """Gang scheduling for the job's pods, as `KubeflowOrgV1SchedulingPolicy`; the local backend ignores it.

    Attributes:
        min_available: Minimum number of pods that are scheduled together; default all.
        min_resources: The whole job's resources, name to quantity; default for Volcano the summed requests of
            min_available pods, for scheduler-plugins none.
        priority_class: The PodGroup's PriorityClass; Volcano only.
        queue: The PodGroup's queue; Volcano only.
        schedule_timeout_seconds: The PodGroup's scheduling timeout in seconds; scheduler-plugins only.
    """

    min_available: int | None = limit(minimum=1)
    min_resources: dict[str, Any] | None = limit(definition="Quantity")  # noqa: RUF009
    priority_class: str | None = None
    queue: str | None = None
    schedule_timeout_seconds: int | None = limit(minimum=0)


@dataclass
class ElasticPolicy:
    """Bounds on the worker count: while one is missing the job runs with fewer, and grows when it returns.

    Attributes:
        min_replicas: Minimum worker count; default 1.
        max_replicas: Maximum worker count; default the requested count.
        max_restarts: Maximum number of gang restarts, instead of backoffLimit; default backoffLimit.
        grace_seconds: Seconds that a missing worker may take to return before the job runs without it; default 30.
    """

    min_replicas: int | None = limit(minimum=1)
    max_replicas: int | None = limit(minimum=1)
    max_restarts: int | None = limit(minimum=0)
    grace_seconds: int | None = limit(minimum=0, default=DEFAULT_ELASTIC_GRACE_SECONDS)


@dataclass
class RunPolicy:
    """A job's deadline, restarts and clean-up, as `KubeflowOrgV1RunPolicy`.

    Attributes:
        active_deadline_seconds: Maximum run time in seconds; default no limit.
        backoff_limit: Maximum number of gang restarts; default 3.
        clean_pod_policy: Pods deleted at the end: `Running` (the default), `All` (with their logs) or `None`.
        managed_by: Controller that manages the job; the local backend ignores it.
        scheduling_policy: Gang scheduling for the job's pods.
        suspend: Whether the job is suspended, without any process.
        ttl_seconds_after_finished: Seconds until a finished job is deleted; default never.
    """

    active_deadline_seconds: int | None = limit(minimum=1, format="int64")
    backoff_limit: int | None = limit(minimum=0, default=DEFAULT_BACKOFF_LIMIT)
    clean_pod_policy: str | None = limit(enum=list(CLEAN_POD_POLICIES), default=DEFAULT_CLEAN_POD_POLICY)
    managed_by: str | None = None
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool | None = limit(default=False)
    ttl_seconds_after_finished: int | None = limit(minimum=0)

    def __post_init__(self) -> None:
        if self.scheduling_policy is not None:
            self.scheduling_policy = _parse_spec(SchedulingPolicy, self.scheduling_policy)


@dataclass
class ReplicaSpec:
    """One type's replicas, as `KubeflowOrgV1ReplicaSpec`.

    Attributes:
        replicas: Replica count; default 1.
        restart_policy: `Always`, `OnFailure`, `Never` (the default) or `ExitCode` (after retryable exit codes).
        template: The PodTemplateSpec, a dict as in YAML; its container `mindspore` runs the training.
    """

    replicas: int | None = limit(minimum=1, default=1)
    restart_policy: str | None = limit(enum=list(RESTART_POLICIES), default=MANIFEST_RESTART_POLICY)
    template: dict[str, Any] = limit(default_factory=dict, required=True, definition="PodTemplateSpec")  # noqa: RUF009

    def __post_init__(self) -> None:
        self.template = serialize(self.template)

    @property
    def container(self) -> dict[str, Any]:
        """The container `mindspore`."""
        containers = self.template.get("spec", {}).get("containers", [])
        found: dict[str, Any] = next((item for item in containers if item.get("name") == CONTAINER_NAME), {})
        return found

    @property
    def effective_restart_policy(self) -> str:
        """The restart policy, or the definition's default."""
        return self.restart_policy or MANIFEST_RESTART_POLICY

    @property
    def grace_seconds(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        seconds = self.template.get("spec", {}).get("terminationGracePeriodSeconds")
        return float(DEFAULT_GRACE_SECONDS if seconds is None else seconds)


@dataclass
class JobManifest:
    """A MindSpore training job.

    Attributes:
        metadata: Kubernetes object metadata, a dict as in YAML; `name` is a DNS label of at most 51 characters.
        ms_replica_specs: Replica type (`Scheduler`, `PS`, `Worker`) to its replicas. With more than one worker and no
            scheduler given, a scheduler runs the workers' template.
        run_policy: Deadline, restarts and clean-up.
        success_policy: Empty or None: the job succeeds with worker 0; `AllWorkers`: with all workers.
        enable_dynamic_worker: Stored for ms-operator.
        elastic_policy: Bounds on the worker count.
        warm_spares: Number of spare pods that have imported MindSpore and become members at the next restart;
            default 0; the local backend ignores it and forks members.
        topology_key: Node label, such as `topology.kubernetes.io/zone`: all the job's pods are scheduled to nodes with
            the same value; the local backend ignores it.
        status: Observed state, written by the backend.
    """

    metadata: dict[str, Any]
    ms_replica_specs: dict[str, ReplicaSpec]
    run_policy: RunPolicy | None = None
    success_policy: str | None = limit(enum=list(SUCCESS_POLICIES), default="")
    enable_dynamic_worker: bool | None = None
    elastic_policy: ElasticPolicy | None = None
    warm_spares: int | None = limit(minimum=0, default=0)
    topology_key: str | None = limit(pattern=f"^{LABEL_KEY}$", maxLength=317)
    status: JobStatus | None = None
    api_version: str = API_VERSION
    kind: str = KIND

    def __post_init__(self) -> None:
        self.metadata = serialize(self.metadata)
        self.ms_replica_specs = {
            resolve_replica_type(name) or name: _parse_spec(ReplicaSpec, spec)
            for name, spec in self.ms_replica_specs.items()
        }
        if self.run_policy is not None:
            self.run_policy = _parse_spec(RunPolicy, self.run_policy)
        if self.elastic_policy is not None:
            self.elastic_policy = _parse_spec(ElasticPolicy, self.elastic_policy)
        if self.status is not None:
            self.status = _parse_spec(JobStatus, self.status)

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self.metadata.get("namespace") or "default")

    @property
    def workers(self) -> int:
        """Requested worker count."""
        replicas = self.ms_replica_specs[WORKER].replicas
        return 1 if replicas is None else replicas

    def get_replica_spec(self, replica_type: str) -> ReplicaSpec:
        """Return a replica type's spec, by default the workers': MindSpore expects the same script in all roles."""
        return self.ms_replica_specs.get(replica_type) or self.ms_replica_specs[WORKER]

    @property
    def effective_run_policy(self) -> RunPolicy:
        """The run policy with its defaults."""
        policy = copy.copy(self.run_policy or RunPolicy())
        if policy.backoff_limit is None:
            policy.backoff_limit = DEFAULT_BACKOFF_LIMIT
        policy.clean_pod_policy = policy.clean_pod_policy or DEFAULT_CLEAN_POD_POLICY
        return policy

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest, a copy."""
        spec: dict[str, Any] = {
            "msReplicaSpecs": {name: serialize(item) for name, item in self.ms_replica_specs.items()}
        }
        options = {
            "runPolicy": self.run_policy,
            "successPolicy": self.success_policy,
            "enableDynamicWorker": self.enable_dynamic_worker,
            "elasticPolicy": self.elastic_policy,
            "warmSpares": self.warm_spares,
            "topologyKey": self.topology_key,
        }
        spec.update({name: serialize(value) for name, value in options.items() if value is not None})
        document = {"apiVersion": self.api_version, "kind": self.kind, "metadata": self.metadata, "spec": spec}
        if self.status is not None:
            document["status"] = self.status.to_dict()
        return copy.deepcopy(document)


def _parse_spec(kind: type[Any], value: Any) -> Any:
    return value if isinstance(value, kind) else kind(**deserialize(kind, serialize(value)))
