"""Data parallelism: rank and number of workers from the MS_* environment, and collectives over all workers."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.environment import import_mindspore
from kfp_mindspore.settings import (
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SCHEDULER_ROLE,
    WORKER_COUNT_VARIABLE,
    WORKER_ROLE,
)

_REQUIRED = (SCHEDULER_HOST_VARIABLE, SCHEDULER_PORT_VARIABLE, WORKER_COUNT_VARIABLE)


@dataclass(frozen=True)
class WorkerInfo:
    """Rank and world size of this process.

    Args:
        rank: 0 to size - 1; rank 0 writes checkpoints and metrics.
        size: Number of workers; 1 without a topology.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints, metrics and events."""
        return self.rank == 0

    def get_shard(self, samples: int) -> slice:
        """Return this worker's part of a batch of `samples`, which `size` divides."""
        part = samples // self.size
        return slice(self.rank * part, (self.rank + 1) * part)


@lru_cache(maxsize=1)
def init_distributed() -> WorkerInfo:
    """Initialise MindSpore's dynamic cluster as MS_ROLE and its companions define it.

    In the scheduler's role the call serves the workers until they have exited and then raises SystemExit(0): the
    scheduler runs the same script as the workers. Further calls return the same object.

    Returns:
        Rank and number of workers; rank 0 of 1 without MS_ROLE.

    Raises:
        UserError: The role is unknown, or a variable that it needs is missing.
    """
    role = os.environ.get(ROLE_VARIABLE)
    if not role:
        return WorkerInfo()
    if role not in (SCHEDULER_ROLE, WORKER_ROLE):
        raise UserError(f"{ROLE_VARIABLE}: must be {SCHEDULER_ROLE} or {WORKER_ROLE}, got {role!r}")
    missing = [name for name in _REQUIRED if not os.environ.get(name)]
    if missing:
        raise UserError(f"{ROLE_VARIABLE} is {role}, but {', '.join(missing)} is not set")
    import_mindspore()
    from mindspore import communication

    communication.init()
    if role == SCHEDULER_ROLE:
        # MindSpore 2.9 exits inside init(); a version that returns has finished serving too.
        raise SystemExit(0)
    return WorkerInfo(rank=communication.get_rank(), size=communication.get_group_size())


def broadcast_parameters(worker: WorkerInfo, parameters: Iterable[Any]) -> None:
    """Set the floating-point parameters of every worker to rank 0's values; collective."""
    if worker.size == 1:
        return
    import numpy as np
    from mindspore import Tensor, ops

    for parameter in parameters:
        values = parameter.asnumpy()
        if np.issubdtype(values.dtype, np.floating):
            own = values.astype(np.float32) if worker.is_writer else np.zeros(values.shape, np.float32)
            parameter.set_data(Tensor(ops.AllReduce()(Tensor(own)).asnumpy(), parameter.dtype))


def check_agreement(worker: WorkerInfo, subject: str, value: str) -> None:
    """Compare a value with rank 0's; collective.

    Raises:
        UserError: This worker has another value, such as another newest checkpoint because no volume is shared.
    """
    if worker.size == 1:
        return
    import numpy as np
    from mindspore import Tensor, ops

    # float32 holds integers up to 2^24 exactly.
    own = float(zlib.crc32(value.encode()) % (1 << 24))
    sent = own if worker.is_writer else 0.0
    if float(ops.AllReduce()(Tensor(np.array([sent], np.float32))).asnumpy()[0]) != own:
        raise UserError(
            f"worker {worker.rank} of {worker.size}: {subject} is {value!r}, and worker 0 has another",
            hint="All workers need the same directories: mount one shared volume.",
        )
