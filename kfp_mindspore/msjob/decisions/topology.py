"""A job's topology: its members' names, ranks, ports and MS_* variables. Pure; used by all backends."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_mindspore.msjob.api.names import (
    CONTROLLER_LABELS,
    DEFAULT_PORT,
    JOB_LABEL,
    PARAMETER_SERVER,
    PORT_NAME,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    ROLE_LABEL,
    SCHEDULER,
    WORKER,
)
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.elastic import get_requested_workers
from kfp_mindspore.settings import (
    CORES_VARIABLE,
    NODE_ID_VARIABLE,
    PARAMETER_SERVER_ROLE,
    REQUESTED_WORKERS_VARIABLE,
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SCHEDULER_ROLE,
    SERVER_COUNT_VARIABLE,
    TOPOLOGY_DEFAULTS,
    WORKER_COUNT_VARIABLE,
    WORKER_ROLE,
)

ROLES = {SCHEDULER: SCHEDULER_ROLE, PARAMETER_SERVER: PARAMETER_SERVER_ROLE, WORKER: WORKER_ROLE}
# Topology variables that a template cannot set; it can set TOPOLOGY_DEFAULTS.
VARIABLES = (
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    WORKER_COUNT_VARIABLE,
    SERVER_COUNT_VARIABLE,
    NODE_ID_VARIABLE,
    REQUESTED_WORKERS_VARIABLE,
    CORES_VARIABLE,
)


@dataclass(frozen=True)
class Endpoints:
    """The scheduler address.

    Attributes:
        host: An IP address; MindSpore accepts no name.
        port: 1024–65535.
        bind_host: The address the scheduler itself binds, when it is not `host`.
    """

    host: str
    port: int
    bind_host: str = ""


@dataclass(frozen=True)
class Member:
    """One process in a job, a pod on a cluster.

    Attributes:
        name: `<job>-<scheduler|ps|worker>-<index>`.
        replica_type: `Scheduler`, `PS` or `Worker`.
        index: Index within the type. A worker's index is its rank.
        environment: The MS_* variables; none for a job with one worker.
        labels: The pod's labels.
    """

    name: str
    replica_type: str
    index: int
    environment: dict[str, str]
    labels: dict[str, str]


@dataclass(frozen=True)
class Topology:
    """A job's members.

    Attributes:
        members: Scheduler first, then parameter servers, then workers by rank.
        scheduler_port: The port the scheduler listens on; None for a job with one worker.
    """

    members: tuple[Member, ...]
    scheduler_port: int | None


def is_standalone(job: JobManifest, workers: int | None = None) -> bool:
    """Return whether a job is one plain process: one worker and no parameter server.

    Args:
        job: The job.
        workers: Worker count; default the requested number.
    """
    return (workers or get_requested_workers(job)) == 1 and PARAMETER_SERVER not in job.ms_replica_specs


def get_scheduler_port(job: JobManifest, default: int = DEFAULT_PORT) -> int:
    """Return the scheduler's port on a cluster: the container port `msjob-port` in its template, or the default."""
    container = job.get_replica_spec(SCHEDULER).container
    named = (port for port in container.get("ports") or [] if port.get("name") == PORT_NAME)
    return next((int(port["containerPort"]) for port in named), default)


def build_topology(spec: JobManifest, endpoints: Endpoints, workers: int | None = None) -> Topology:
    """Compute a job's topology.

    A job with one worker is one process without MS_*. Otherwise a scheduler is added. An elastic job's workers have the
    requested worker count in a separate variable.

    Args:
        spec: A valid job.
        endpoints: The scheduler's address.
        workers: This attempt's worker count; default the requested count.
    """
    requested = get_requested_workers(spec)
    workers = workers or requested
    standalone = is_standalone(spec, workers)
    servers = 0
    if PARAMETER_SERVER in spec.ms_replica_specs:
        replicas = spec.ms_replica_specs[PARAMETER_SERVER].replicas
        servers = 1 if replicas is None else replicas
    members = []
    for kind, count in ((SCHEDULER, 0 if standalone else 1), (PARAMETER_SERVER, servers), (WORKER, workers)):
        for index in range(count):
            environment: dict[str, str] = {}
            if not standalone:
                host = endpoints.bind_host or endpoints.host if kind == SCHEDULER else endpoints.host
                environment = {
                    ROLE_VARIABLE: ROLES[kind],
                    SCHEDULER_HOST_VARIABLE: host,
                    SCHEDULER_PORT_VARIABLE: str(endpoints.port),
                    WORKER_COUNT_VARIABLE: str(workers),
                    **TOPOLOGY_DEFAULTS,
                }
                if servers:
                    environment[SERVER_COUNT_VARIABLE] = str(servers)
                # An integer fixes the rank, also across restarts. The other roles only need a unique value.
                environment[NODE_ID_VARIABLE] = str(index) if kind == WORKER else f"{kind.lower()}-{index}"
            if spec.elastic_policy is not None and kind == WORKER:
                environment[REQUESTED_WORKERS_VARIABLE] = str(requested)
            members.append(
                Member(
                    name=f"{spec.name}-{kind.lower()}-{index}",
                    replica_type=kind,
                    index=index,
                    environment=environment,
                    labels=make_labels(spec.name, kind, index),
                )
            )
    return Topology(tuple(members), None if standalone else endpoints.port)


def make_labels(job_name: str, replica_type: str, index: int) -> dict[str, str]:
    """Return a member's pod labels; worker 0 is the job's master."""
    labels = {
        **CONTROLLER_LABELS,
        JOB_LABEL: job_name,
        REPLICA_TYPE_LABEL: replica_type.lower(),
        REPLICA_INDEX_LABEL: str(index),
    }
    return {**labels, ROLE_LABEL: "master"} if replica_type == WORKER and index == 0 else labels
