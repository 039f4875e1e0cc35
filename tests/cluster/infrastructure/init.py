"""First process of a node's namespaces: when it exits, the kernel kills every process in them.

Run as a script in new mount, network and process namespaces: `init.py DIRECTORY STORES LEASE NODES MOUNT_POINT…`. It
mounts directories of the node over hard-coded ones, locks the file of running nodes and the first free image store,
writes `init.json` with the store when ready, and exits when the lease is released; without a lease (an empty word) it
runs until it is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/send_redirects": "0",
    # Refused connections are reported by ICMP; rate limiting would leave clients hanging.
    "net/ipv4/icmp_ratelimit": "0",
}


def main() -> None:
    """Set up the namespaces and wait."""
    directory, stores, lease = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    # Shared by all nodes; opened before the mount below hides it.
    running = Path(sys.argv[4]).open("ab")  # noqa: SIM115 (open until this process exits)
    fcntl.flock(running, fcntl.LOCK_SH)
    # containerd, runc and network namespaces keep state at hard-coded paths below /run.
    _call("mount", "--make-rshared", "/")
    _call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for place in sys.argv[5:]:
        own = directory / "places" / Path(place).name
        own.mkdir(parents=True)
        _call("mount", "--bind", str(own), place)
    _call("ip", "link", "set", "lo", "up")
    for name, value in _SYSCTLS.items():
        Path("/proc/sys", name).write_text(value)
    store, _held = _take_store(stores)
    report = directory / "init.json"
    report.with_suffix(".partial").write_text(json.dumps({"store": str(store)}))
    report.with_suffix(".partial").replace(report)
    # Orphans are reparented to this process; ignoring SIGCHLD reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if lease:
        with Path(lease).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return
    while True:
        signal.pause()


def _take_store(stores: Path) -> tuple[Path, IO[bytes]]:
    for number in range(100):
        store = stores / str(number)
        store.mkdir(parents=True, exist_ok=True)
        file = (store / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return store, file
    sys.exit(f"{stores}: all image stores are in use")


def _call(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    os.umask(0o022)
    main()
