"""Data parallelism: rank and world size from the MS_* environment, and collectives over all workers."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.mindir.environment import import_mindspore
from kfp_mindspore.settings import (
    CORES_VARIABLE,
    FIRST_STEP_FACTOR,
    HANG_EXIT_CODE,
    HEARTBEAT_VARIABLE,
    NODE_ID_VARIABLE,
    PARAMETER_SERVER_ROLE,
    PEER_LOST_EXIT_CODE,
    REQUESTED_WORKERS_VARIABLE,
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SCHEDULER_ROLE,
    SERVER_COUNT_VARIABLE,
    SIZE_VARIABLES,
    WORKER_COUNT_VARIABLE,
    WORKER_ROLE,
)
from kfp_mindspore.training.workers.rendezvous import PeerWatch, is_trainjob_gang, join_gang
from kfp_mindspore.training.workers.sampler import get_part
from kfp_mindspore.training.workers.watchdog import read_hang_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REQUIRED = (SCHEDULER_HOST_VARIABLE, SCHEDULER_PORT_VARIABLE, WORKER_COUNT_VARIABLE)
# Time-out of init() in seconds (MindSpore 2.9), by default 1800: until all members have joined.
_TIMEOUT_VARIABLE = "MS_TOPO_TIMEOUT"
# BatchNorm parameters that no optimizer trains.
_STATISTICS = ("moving_mean", "moving_variance")
_LOST_PEER = re.compile(
    r"Launch kernel failed.*(AllReduce|AllGather|Broadcast)|The state of the cluster is error.*abnormal nodes"
)


@dataclass(frozen=True)
class WorkerInfo:
    """This process's rank and world size.

    Args:
        rank: 0 to size - 1; rank 0 writes checkpoints and metrics.
        size: Worker count; 1 without a topology.
        requested: Workers that the job requests, at least `size`. An elastic job with fewer workers computes its
            batches in more pieces, so that neither a worker's memory nor the result changes.
    """

    rank: int = 0
    size: int = 1
    requested: int = 1

    @property
    def pieces(self) -> int:
        """Pieces in which a worker computes a share of a batch."""
        return max(-(-self.requested // self.size), 1)

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints, metrics and events."""
        return self.rank == 0


@lru_cache(maxsize=1)
def init_distributed() -> WorkerInfo:
    """Initialise MindSpore's dynamic cluster as MS_ROLE and its companions define it.

    Under Kubeflow Trainer's jax policy the variables are set from JAX_*, and rank 0 starts the scheduler.
    In the scheduler's role the call serves the workers until they have exited and then raises SystemExit(0): the
    scheduler runs the same script as the workers. Further calls return the same object.

    Returns:
        Rank and world size; rank 0 of 1 without MS_ROLE.

    Raises:
        UserError: The role is unknown, a variable that it needs is missing or no number, KFP_MINDSPORE_HANG_SECONDS
            is wrong, or another launcher's variables announce several processes and MS_ROLE is not set.
    """
    in_gang = not os.environ.get(ROLE_VARIABLE) and is_trainjob_gang(os.environ)
    if in_gang:
        join_gang(os.environ)
    role = os.environ.get(ROLE_VARIABLE)
    if not role:
        _refuse_lone_process(os.environ)
        bind_to_cores()
        return WorkerInfo(requested=_read_number(REQUESTED_WORKERS_VARIABLE, "1"))
    if role == PARAMETER_SERVER_ROLE or _read_number(SERVER_COUNT_VARIABLE, "0"):
        raise UserError(
            "the job has parameter servers, which MindSpore 2.9 cannot train with: it has no Cell.set_param_ps",
            hint="Train by allreduce: remove the PS replicas from the job; `fit` reduces the gradients of its workers.",
        )
    if role not in (SCHEDULER_ROLE, WORKER_ROLE):
        raise UserError(f"{ROLE_VARIABLE}: must be {SCHEDULER_ROLE} or {WORKER_ROLE}, got {role!r}")
    missing = [name for name in _REQUIRED if not os.environ.get(name)]
    if missing:
        raise UserError(f"{ROLE_VARIABLE} is {role}, but {', '.join(missing)} is not set")
    _read_number(WORKER_COUNT_VARIABLE, least=1)
    _read_number(SCHEDULER_PORT_VARIABLE, least=1, most=65535)
    requested = _read_number(REQUESTED_WORKERS_VARIABLE, "1")
    import_mindspore()
    from mindspore import communication

    _rendezvous(communication.init)
    bind_to_cores()
    if role == SCHEDULER_ROLE:
        # MindSpore 2.9 exits inside init(); a version that returns has finished serving too.
        raise SystemExit(0)
    size = communication.get_group_size()
    worker = WorkerInfo(rank=communication.get_rank(), size=size, requested=max(requested, size))
    if in_gang:
        _watch_peers(worker)
    return worker


@lru_cache(maxsize=1)
def _watch_peers(worker: WorkerInfo) -> PeerWatch:
    # float32 holds a port exactly. Cached, so that the connections live as long as the process.
    return PeerWatch(worker.rank, worker.size, lambda number: int(sum_values(worker, [number])[0]))


def _refuse_lone_process(environ: Mapping[str, str]) -> None:
    """Raise a UserError where a launcher announces several processes: each would train alone and write the output."""
    announced = {name: environ[name] for name in SIZE_VARIABLES if environ.get(name, "1") not in ("", "1")}
    if announced:
        found = ", ".join(f"{name}={value}" for name, value in announced.items())
        raise UserError(
            f"{found} announces several processes, but {ROLE_VARIABLE} is not set: each of them would train alone",
            hint="Start the script with the entry point that sets MindSpore's variables from the launcher's: "
            "python -m kfp_mindspore.podside.launchers -- python train.py",
        )


def bind_to_cores() -> None:
    """Bind all threads in this process to the cores that the local backend chose for it, if it chose any.

    MindSpore's threads wait in loops: workers on the same cores starve each other, and so do trials. Called after
    init(), whose threads register faster on all cores.
    """
    cores = os.environ.get(CORES_VARIABLE)
    if cores and sys.platform == "linux":
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread.name), {int(core) for core in cores.split(",")})


def _rendezvous(init: Callable[[], None]) -> None:
    """Run init(), and exit with HANG_EXIT_CODE if members are still missing after three times the hang seconds."""
    seconds = read_hang_seconds(os.environ) * FIRST_STEP_FACTOR
    # A supervisor that reads heartbeats names the missing member.
    if seconds and HEARTBEAT_VARIABLE not in os.environ:
        os.environ.setdefault(_TIMEOUT_VARIABLE, str(math.ceil(seconds)))
    limit = os.environ.get(_TIMEOUT_VARIABLE, "")
    start = time.monotonic()
    try:
        init()
    except RuntimeError:
        # MindSpore 2.9 raises the same error for several causes.
        if not limit.isdigit() or time.monotonic() - start < int(limit):
            raise
        size, role = os.environ[WORKER_COUNT_VARIABLE], os.environ[ROLE_VARIABLE]
        address = f"{os.environ[SCHEDULER_HOST_VARIABLE]}:{os.environ[SCHEDULER_PORT_VARIABLE]}"
        print(
            f"{role} {os.environ.get(NODE_ID_VARIABLE, '')}: the rendezvous of {size} workers with the scheduler at "
            f"{address} is incomplete after {limit} s: a member has not started, hangs or cannot connect",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HANG_EXIT_CODE)


def sum_values(worker: WorkerInfo, values: Any) -> NDArray[Any]:
    """Return float32 values summed over all workers; collective."""
    import numpy as np
    from mindspore import Tensor, ops

    # AllReduce of float64 blocks forever on CPU (MindSpore 2.9).
    own = np.asarray(values, np.float32)
    return own if worker.size == 1 else ops.AllReduce()(Tensor(own)).asnumpy()


def gather_rows(worker: WorkerInfo, value: Any, samples: int) -> Any:
    """Return all workers' rows in sample order; collective.

    Args:
        worker: Rank and world size.
        value: Tensor with one or more rows per sample in this worker's part of the batch, or a tuple, list or dict with
            such tensors. A tensor without a row per sample is returned unchanged.
        samples: All workers' samples.
    """
    import numpy as np
    from mindspore import Tensor, ops

    if isinstance(value, dict):
        return {name: gather_rows(worker, item, samples) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(gather_rows(worker, item, samples) for item in value)
    parts = [get_part(samples, rank, worker.size) for rank in range(worker.size)]
    counts = [part.stop - part.start for part in parts]
    rows = value.asnumpy()
    own = max(counts[worker.rank], 1)
    if not rows.ndim or len(rows) % own:
        return value
    factor = len(rows) // own
    # AllGather needs equal shapes, and has no bool and no integers below 32 bits on CPU (MindSpore 2.9).
    small = rows.dtype.kind == "b" or (rows.dtype.kind in "iu" and rows.dtype.itemsize < 4)
    sent = np.zeros((max(counts) * factor, *rows.shape[1:]), np.int32 if small else rows.dtype)
    sent[: len(rows)] = rows
    received = ops.AllGather()(Tensor(sent)).asnumpy().reshape(worker.size, *sent.shape)
    chosen = [block[: count * factor] for block, count in zip(received, counts, strict=True)]
    return Tensor(np.concatenate(chosen).astype(rows.dtype))


def average_statistics(worker: WorkerInfo, network: Any) -> None:
    """Set BatchNorm's running statistics to their mean over all workers; collective.

    Each worker updates them from its own samples, and their mean is closer to one worker's statistics than any.
    """
    if worker.size == 1:
        return
    from mindspore import Tensor

    for _, cell in network.cells_and_names():
        for name in _STATISTICS:
            statistic = getattr(cell, name, None)
            if statistic is not None:
                mean = sum_values(worker, statistic.asnumpy()) / worker.size
                statistic.set_data(Tensor(mean, statistic.dtype))


def broadcast_parameters(worker: WorkerInfo, parameters: Iterable[Any]) -> None:
    """Set every worker's floating-point parameters to rank 0's values; collective."""
    if worker.size == 1:
        return
    import numpy as np
    from mindspore import Tensor

    for parameter in parameters:
        values = parameter.asnumpy()
        if np.issubdtype(values.dtype, np.floating):
            own = values.astype(np.float32) if worker.is_writer else np.zeros(values.shape, np.float32)
            parameter.set_data(Tensor(sum_values(worker, own), parameter.dtype))


def check_agreement(worker: WorkerInfo, subject: str, value: str) -> None:
    """Compare a value with rank 0's; collective.

    Raises:
        UserError: This worker has another value, such as another newest checkpoint because no volume is shared.
    """
    if worker.size == 1:
        return
    # float32 holds integers up to 2^24 exactly.
    own = float(zlib.crc32(value.encode()) % (1 << 24))
    sent = own if worker.is_writer else 0.0
    if float(sum_values(worker, [sent])[0]) != own:
        raise UserError(
            f"worker {worker.rank} of {worker.size}: {subject} is {value!r}, and worker 0 has another",
            hint="All workers need the same directories: mount one shared volume.",
        )


def compute_straggler(seconds: Sequence[float], factor: float = 1.5, least: float = 0.005) -> int | None:
    """Return the slowest rank if it exceeds the others' median, else None.

    Args:
        seconds: Step seconds by rank, without waiting for the others.
        factor: Ratio that is exceeded.
        least: Difference in seconds that is exceeded; smaller ones are noise.
    """
    slow = max(range(len(seconds)), key=seconds.__getitem__)
    others = statistics.median([*seconds[:slow], *seconds[slow + 1 :]])
    return slow if seconds[slow] > max(factor * others, others + least) else None


@contextlib.contextmanager
def exit_if_peer_is_lost(worker: WorkerInfo, before: Callable[[], None]) -> Iterator[None]:
    """End the process with a lost peer's exit code when a collective fails in the block.

    No checkpoint is begun: some parameters may have been updated by the failed step and others not. os._exit, because
    the cluster's destructor may wait another 10 s for the peer.

    Args:
        worker: Rank and world size.
        before: Called before the exit, such as to await the checkpoint that is being written.
    """
    try:
        yield
    except RuntimeError as error:
        if worker.size == 1 or not is_lost_peer(error):
            raise
        print(
            f"worker {worker.rank} of {worker.size}: a peer is lost, a collective has failed; "
            f"exiting with code {PEER_LOST_EXIT_CODE}",
            file=sys.stderr,
        )
        try:
            before()
        except KfpMindSporeError as failure:
            print(f"Error: {failure}", file=sys.stderr)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(PEER_LOST_EXIT_CODE)


def is_lost_peer(error: Exception) -> bool:
    """Return whether an error comes from a collective whose peer has not answered."""
    return bool(_LOST_PEER.search(str(error)))


def _read_number(variable: str, default: str = "", *, least: int = 0, most: int | None = None) -> int:
    value = os.environ.get(variable) or default
    if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
        limits = f"of at least {least}" if most is None else f"of {least} to {most}"
        raise UserError(f"{variable}: must be a number {limits}, got {value!r}")
    return int(value)
