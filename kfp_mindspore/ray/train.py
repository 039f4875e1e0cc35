"""MindSporeTrainer: data-parallel MindSpore training on Ray Train's workers."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import ray
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.local.cores import list_cores
from kfp_mindspore.local.ports import list_free_ports
from kfp_mindspore.ray.session import use_train_session
from kfp_mindspore.ray.version import check_ray
from kfp_mindspore.settings import (
    ASCEND,
    AUTO,
    CORES_VARIABLE,
    DEVICE_VARIABLE,
    DEVICES,
    GPU,
    NODE_ID_VARIABLE,
    PEER_LOST_EXIT_CODE,
    REQUESTED_WORKERS_VARIABLE,
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SCHEDULER_ROLE,
    THREADS_VARIABLE,
    TOPOLOGY_DEFAULTS,
    WORKER_COUNT_VARIABLE,
    WORKER_ROLE,
)
from kfp_mindspore.training.distributed import init_distributed

_SHUTDOWN_SECONDS = 5.0
# Set in a worker whose group is shut down in order.
_is_over = threading.Event()


@dataclass
class MindSporeConfig(BackendConfig):
    """MindSpore's cluster on Ray Train's workers.

    Args:
        bind_cores: Whether several workers on a node are bound to equal shares of its cores. MindSpore's threads wait
            in loops: workers on the same cores delay each other.
        report_timeout: Seconds without a report of `fit`, from the loop's start on, after which a worker exits with
            code 76, a failure of FailureConfig; at least 1; None for no limit. Only for loops that use `fit`.
        preemption_steps: Steps after which `fit` looks for a preemption notice, besides epoch ends; 0 for epoch ends
            only. All workers wait for each other then.
        requested_workers: Workers whose result fewer workers reproduce; the trainer sets scaling_config's maximum.
        device: Each worker's device: `auto`, CPU, GPU or Ascend. `auto` is GPU or Ascend where a worker has Ray's
            resource `GPU` or `NPU`, else what MindSpore finds.
    """

    bind_cores: bool = True
    report_timeout: float | None = None
    preemption_steps: int = 0
    requested_workers: int = 1
    device: str = AUTO

    def __post_init__(self) -> None:
        errors = []
        if self.device not in DEVICES:
            errors.append(f"device: must be one of {', '.join(DEVICES)}, got {self.device!r}")
        if self.report_timeout is not None and not self.report_timeout >= 1:
            errors.append(f"report_timeout: must be None or at least 1 s, got {self.report_timeout}")
        if self.preemption_steps < 0:
            errors.append(f"preemption_steps: must be at least 0, got {self.preemption_steps}")
        if errors:
            raise ValidationError(errors, subject="MindSporeConfig")

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that starts and ends the cluster."""
        return MindSporeBackend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        """Context for each worker's train loop: `fit` reports to Ray."""
        return functools.partial(use_train_session, self.preemption_steps, self.report_timeout)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for Ray's state export."""
        return asdict(self)


class MindSporeTrainer(DataParallelTrainer):
    """Train with MindSpore on several Ray workers.

    `kfp_mindspore.training.fit` runs unchanged in the train loop: each step's batch is divided among the workers, each
    checkpoint is reported to Ray with its metrics, and after a failure training resumes from the last report. Another
    loop finds the variables of MindSpore's cluster (MS_ROLE …) set and calls `mindspore.communication.init`.

    Args:
        train_loop_per_worker: Function without arguments or with `train_loop_config`, run in each worker.
        train_loop_config: Its argument.
        mindspore_config: The cluster; default MindSporeConfig().
        scaling_config: Workers and their resources; `num_workers=(min, max)` trains with what is available, with the
            result of max workers.
        dataset_config: How `datasets` are divided.
        run_config: Name, storage path, failure and checkpoint policies.
        datasets: Ray Datasets by name, for `ray.train.get_dataset_shard`.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        mindspore_config: MindSporeConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: dict[str, Any] | None = None,
    ) -> None:
        scaling = scaling_config or ScalingConfig()
        requested = max(1, scaling.max_workers)
        config = mindspore_config or MindSporeConfig()
        if config.device == AUTO:
            config = replace(config, device=get_ray_device(scaling))
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=replace(config, requested_workers=requested),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
        )


class MindSporeBackend(Backend):
    """Starts MindSpore's scheduler beside rank 0 and prepares the workers.

    Ray shares one object per controller, which has one group at a time.
    """

    def __init__(self) -> None:
        self._scheduler: Any = None

    def on_start(self, worker_group: Any, backend_config: MindSporeConfig) -> None:
        """Start the cluster."""
        nodes = worker_group.execute(_describe_node)
        variables = {REQUESTED_WORKERS_VARIABLE: str(backend_config.requested_workers)}
        if backend_config.device != AUTO:
            variables[DEVICE_VARIABLE] = backend_config.device
        if len(nodes) > 1:
            self._scheduler, address = worker_group.execute_single(0, _start_scheduler, len(nodes))
            variables |= address
        shares = share_cores(nodes) if backend_config.bind_cores else [{} for _ in nodes]
        ray.get(
            [
                worker_group.execute_single_async(rank, _set_up_worker, {**variables, **share}, rank, self._scheduler)
                for rank, share in enumerate(shares)
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: MindSporeConfig) -> None:
        """End the scheduler; dead or blocked workers are not waited for."""
        if self._scheduler is not None:
            ended = worker_group.execute_async(_stop_watch)
            ray.wait(ended, num_returns=len(ended), timeout=_SHUTDOWN_SECONDS)
            ray.kill(self._scheduler)
            self._scheduler = None


class _SchedulerProcess:
    """MindSpore's scheduler in an actor, which Ray ends with its owner, rank 0."""

    def choose_address(self) -> tuple[str, int]:
        """Return an IP address and a free port; MindSpore refuses host names."""
        return ray.util.get_node_ip_address(), list_free_ports(1)[0]

    def serve(self, variables: Mapping[str, str]) -> None:
        """Serve the workers until they have exited."""
        os.environ.update(variables)
        try:
            init_distributed()
        except RuntimeError as error:
            raise SystemExit(f"MindSpore's scheduler has failed: {error}") from error

    def ping(self) -> None:
        """Return at once; never while the scheduler serves."""


def get_ray_device(scaling: ScalingConfig) -> str:
    """Return the device type of a worker's resources; Ray shows each worker its own devices, from 0."""
    resources = scaling.resources_per_worker or {}
    if resources.get("NPU"):
        return ASCEND
    return GPU if scaling.use_gpu else AUTO


def share_cores(nodes: Sequence[tuple[str, Sequence[int]]]) -> list[dict[str, str]]:
    """Divide each node's cores among its workers.

    Args:
        nodes: Node ID and core numbers by rank.

    Returns:
        Environment variables by rank; none for a worker alone on its node, or with less than a core.
    """
    counts = Counter(node for node, _ in nodes)
    used: dict[str, int] = defaultdict(int)
    found: list[dict[str, str]] = []
    for node, cores in nodes:
        share = len(cores) // counts[node]
        first = used[node]
        used[node] += share
        if counts[node] == 1 or not share:
            found.append({})
        else:
            own = cores[first : first + share]
            found.append({CORES_VARIABLE: ",".join(map(str, own)), THREADS_VARIABLE: str(share)})
    return found


def _describe_node() -> tuple[str, list[int]]:
    """Return this worker's node ID and its core numbers."""
    check_ray()
    return ray.get_runtime_context().get_node_id(), list_cores()


def _start_scheduler(workers: int) -> tuple[Any, dict[str, str]]:
    """Start the scheduler on this worker's node, in its runtime environment, and return it and its address."""
    place = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    scheduler = ray.remote(_SchedulerProcess).options(num_cpus=0, scheduling_strategy=place).remote()
    host, port = ray.get(scheduler.choose_address.remote())
    variables = {
        **TOPOLOGY_DEFAULTS,
        SCHEDULER_HOST_VARIABLE: host,
        SCHEDULER_PORT_VARIABLE: str(port),
        WORKER_COUNT_VARIABLE: str(workers),
    }
    scheduler.serve.remote({**variables, ROLE_VARIABLE: SCHEDULER_ROLE, NODE_ID_VARIABLE: "scheduler"})
    return scheduler, variables


def _set_up_worker(variables: Mapping[str, str], rank: int, scheduler: Any) -> None:
    """Set this worker's variables before MindSpore is imported, and watch the scheduler."""
    os.environ.update(variables)
    if scheduler is not None:
        os.environ.update({ROLE_VARIABLE: WORKER_ROLE, NODE_ID_VARIABLE: str(rank)})
        threading.Thread(target=_exit_with, args=(scheduler,), name="scheduler watch", daemon=True).start()


def _stop_watch() -> None:
    """Keep this worker alive when the scheduler ends, as its group is shut down."""
    _is_over.set()


def _exit_with(scheduler: Any) -> None:
    """End this process when the scheduler or its owner has died: a collective would wait for the time-out."""
    try:
        while True:
            ray.get(scheduler.ping.remote())
    except ray.exceptions.RayActorError:
        if not _is_over.is_set():
            print("MindSpore's scheduler or rank 0 is lost: ending this worker", file=sys.stderr, flush=True)
            os._exit(PEER_LOST_EXIT_CODE)
