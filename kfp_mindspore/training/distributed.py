"""Data parallelism: who this process is, from the MS_* environment, and what the members agree on."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.training.environment import import_mindspore

_REQUIRED = ("MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM")


@dataclass(frozen=True)
class Membership:
    """This process's place among the workers of a job.

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

    def share(self, samples: int) -> slice:
        """Return this worker's part of a batch of `samples`, which `size` divides."""
        part = samples // self.size
        return slice(self.rank * part, (self.rank + 1) * part)


_membership: Membership | None = None


def join() -> Membership:
    """Join the cluster that MS_ROLE and its companions describe; without MS_ROLE this process trains alone.

    In the scheduler's role it serves until the workers have left and then ends the process with code 0: the scheduler
    runs the same script as the workers. Further calls return the same membership.

    Returns:
        This process's rank and the number of workers.

    Raises:
        UserError: The role is unknown, or a variable that it needs is missing.
    """
    global _membership
    if _membership is None:
        _membership = _join()
    return _membership


def _join() -> Membership:
    role = os.environ.get("MS_ROLE")
    if not role:
        return Membership()
    if role not in ("MS_SCHED", "MS_WORKER"):
        raise UserError(f"MS_ROLE: must be MS_SCHED or MS_WORKER, got {role!r}")
    missing = [name for name in _REQUIRED if not os.environ.get(name)]
    if missing:
        raise UserError(f"MS_ROLE is {role}, but {', '.join(missing)} is not set")
    import_mindspore()
    from mindspore import communication

    communication.init()
    if role == "MS_SCHED":
        # MindSpore ends a scheduler inside init(); should a version return instead, its work is done too.
        raise SystemExit(0)
    return Membership(rank=communication.get_rank(), size=communication.get_group_size())


def adopt_parameters(membership: Membership, parameters: Iterable[Any]) -> None:
    """Give every worker rank 0's values of the floating-point parameters; collective."""
    if membership.size == 1:
        return
    import numpy as np
    from mindspore import Tensor, ops

    chosen = [parameter for parameter in parameters if np.issubdtype(parameter.asnumpy().dtype, np.floating)]
    flat = np.concatenate([parameter.asnumpy().astype(np.float32).ravel() for parameter in chosen])
    if not membership.is_writer:
        flat = np.zeros_like(flat)
    flat = ops.AllReduce()(Tensor(flat)).asnumpy()
    offset = 0
    for parameter in chosen:
        size = int(np.prod(parameter.shape, dtype=np.int64))
        values = flat[offset : offset + size].reshape(parameter.shape)
        parameter.set_data(Tensor(values, parameter.dtype))
        offset += size


def check_agreement(membership: Membership, subject: str, value: str) -> None:
    """Compare a value with rank 0's; collective.

    Raises:
        UserError: This worker has another value, such as another newest checkpoint because no volume is shared.
    """
    if membership.size == 1:
        return
    import numpy as np
    from mindspore import Tensor, ops

    # float32 holds integers up to 2^24 exactly.
    own = float(zlib.crc32(value.encode()) % (1 << 24))
    sent = own if membership.is_writer else 0.0
    if float(ops.AllReduce()(Tensor(np.array([sent], np.float32))).asnumpy()[0]) != own:
        raise UserError(
            f"worker {membership.rank} of {membership.size}: {subject} is {value!r}, and worker 0 has another",
            hint="All workers need the same directories: mount one shared volume.",
        )
