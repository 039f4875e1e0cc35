"""Changes of a node outside its namespaces, and their reversal: sysctls, directories, control groups."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from kfp_mindspore.files import read_json, write_json
from tests.cluster.infrastructure.paths import lock

# Hard-coded directories of kubelet, CNI plugins and the controller manager; each node mounts its own over them.
FIXED_PLACES = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/var/log/pods", "/tmp/hostpath_pv")
# Sysctls that a kubelet sets for the whole machine.
_TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# Shared by all caches of a machine, removed when it restarts.
_RECORD = Path("/run/kfp-mindspore-machine.json")
# Locked by the first process of each node, also of those in other network namespaces.
NODES = _RECORD.with_name("kfp-mindspore-nodes.lock")


@contextlib.contextmanager
def prepare_machine() -> Iterator[None]:
    """Record the sysctls that kubelets change and create mount points, while holding off `restore_machine`.

    The node must have locked `NODES` when the block ends: `restore_machine` identifies running nodes by it.
    """
    with lock(_RECORD.with_suffix(".lock")):
        _prepare()
        yield


def restore_machine() -> None:
    """Restore the state before the first node, unless another node still runs."""
    with lock(_RECORD.with_suffix(".lock")):
        if _RECORD.exists() and not _is_node_running():
            _restore()


def _is_node_running(seconds: float = 1) -> bool:
    """Return whether a node runs; the first process of a killed one ends a moment later."""
    deadline = time.monotonic() + seconds
    with NODES.open("ab") as file:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            time.sleep(0.02)
    return True


def _prepare() -> None:
    record = (
        read_json(_RECORD)
        if _RECORD.exists()
        else {"made": [], "settings": {name: Path("/proc/sys", name).read_text().strip() for name in _TUNABLES}}
    )
    missing = [place for place in FIXED_PLACES if not Path(place).exists()]
    write_json(_RECORD, {**record, "made": [*record["made"], *missing]})
    for place in missing:
        Path(place).mkdir(parents=True, exist_ok=True)


def _restore() -> None:
    record = read_json(_RECORD)
    for name, value in record["settings"].items():
        Path("/proc/sys", name).write_text(value)
    for place in record["made"]:
        with contextlib.suppress(OSError):
            Path(place).rmdir()
    _RECORD.unlink()


def make_cgroup(name: str) -> None:
    """Create the control group of a node's pods in every hierarchy."""
    for hierarchy in list_hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        # In cgroup v1 a new group has no CPUs, and no process can join until they are set.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / file).exists() and (group / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((hierarchy / file).read_text())


def remove_cgroup(name: str, seconds: float = 20) -> None:
    """Remove the control group of a node while its processes exit.

    Raises:
        TimeoutError: Processes are left.
    """
    deadline = time.monotonic() + seconds
    while left := [hierarchy / name for hierarchy in list_hierarchies() if (hierarchy / name).exists()]:
        for group in left:
            for path in [*sorted(group.rglob("*/"), reverse=True), group]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{left[0]} still has processes after {seconds:.0f} s")
        time.sleep(0.02)


def list_hierarchies() -> list[Path]:
    """Return the mount points of control groups."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in lines if words[2] in {"cgroup", "cgroup2"}]
