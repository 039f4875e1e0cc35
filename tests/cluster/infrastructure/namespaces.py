"""Namespaces in which a whole node lives, so that nothing of it is seen or left outside.

Processes, mounts, network devices, addresses and packet filters of a node belong to its namespaces, and these to one
first process (`init.py`). Ending it ends them all. The machine itself has only one end of a network link, which goes
with the other, and what `machine.py` puts back.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.files import read_json, write_json
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.machine import DEVICE, FIXED_PLACES
from tests.cluster.infrastructure.paths import INFRASTRUCTURE

_INIT = INFRASTRUCTURE / "init.py"
# Second bytes of 10.x/16, of which a node takes one.
_NETWORKS = range(200, 250)


@dataclass(frozen=True)
class Network:
    """A node's addresses, all in one 10.x/16.

    Args:
        number: The x.
    """

    number: int

    @property
    def node(self) -> str:
        """The node's own address, as pods and this machine reach it."""
        return f"10.{self.number}.254.1"

    @property
    def outside(self) -> str:
        """This machine's address, as the node and its pods reach it."""
        return f"10.{self.number}.254.2"

    @property
    def pods(self) -> str:
        """Addresses of pods."""
        return f"10.{self.number}.0.0/24"

    @property
    def services(self) -> str:
        """Addresses of Services."""
        return f"10.{self.number}.128.0/18"

    @property
    def first_service(self) -> str:
        """The address of the Service `kubernetes`."""
        return f"10.{self.number}.128.1"

    @property
    def dns(self) -> str:
        """The address of the cluster's DNS."""
        return f"10.{self.number}.128.10"


@dataclass(frozen=True)
class Namespaces:
    """Namespaces that are set up.

    Args:
        pid: Their first process, as this machine sees it.
        store: The store of images that is theirs while they live.
        network: Their addresses.
    """

    pid: int
    store: Path
    network: Network

    @property
    def enter(self) -> tuple[str, ...]:
        """The words before a command that runs inside; they fork, and leave with the command's exit code."""
        return "nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"

    def call(self, *command: str, seconds: float = 120) -> str:
        """Run a command inside and return its output.

        Raises:
            RuntimeError: It failed; the message has its errors.
        """
        return call(*self.enter, *command, seconds=seconds)


def create_namespaces(directory: Path, stores: Path, lease: Path | None) -> Namespaces:
    """Start the first process, link its network to this machine, and record the network in `network.json`.

    Args:
        directory: The cluster's.
        stores: Where stores of images are.
        lease: The namespaces end when nobody holds this; None keeps them.
    """
    daemons = Daemons(directory)
    unshare = ["unshare", "--mount", "--net", "--pid", "--mount-proc", "--propagation=slave", "--kill-child"]
    words = [str(directory), str(stores), str(lease or ""), *FIXED_PLACES]
    daemons.start("init", [*unshare, sys.executable, str(_INIT), *words])
    report = directory / "init.json"
    daemons.wait_ready("init", report.exists)
    pid = find_init(directory)
    network = _link(pid)
    write_json(directory / "network.json", {"number": network.number})
    return open_namespaces(directory)


def open_namespaces(directory: Path) -> Namespaces:
    """Return the namespaces of a running cluster's directory."""
    store = Path(read_json(directory / "init.json")["store"])
    network = Network(read_json(directory / "network.json")["number"])
    return Namespaces(find_init(directory), store, network)


def find_init(directory: Path) -> int:
    """Return the first process's number."""
    parent = Daemons(directory).find("init").process.pid
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def remove_link(directory: Path) -> None:
    """Remove this machine's end of the link at once; the kernel would do it a little after the last process."""
    record = directory / "network.json"
    if record.exists():
        with contextlib.suppress(RuntimeError):
            call("ip", "link", "delete", _name_device(read_json(record)["number"]))


def call(*command: str, seconds: float = 120) -> str:
    """Run a command and return its output.

    Raises:
        RuntimeError: It failed; the message has its errors.
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=seconds
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} left with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _link(pid: int) -> Network:
    """Link this machine with the namespaces by a pair of devices, in the first 10.x/16 that is free."""
    taken = call("ip", "-4", "route", "show", "table", "all")
    for number in _NETWORKS:
        device = _name_device(number)
        if f"10.{number}." in taken:
            continue
        # The name is the claim: two that start at once cannot both have it.
        with contextlib.suppress(RuntimeError):
            call("ip", "link", "add", device, "type", "veth", "peer", "name", "outside", "netns", str(pid))
            network = Network(number)
            _configure(network, device, pid)
            return network
    raise RuntimeError("no free network: all of 10.200/16 to 10.249/16 are in use")


def _name_device(number: int) -> str:
    return f"{DEVICE}{number}"


def _configure(network: Network, device: str, pid: int) -> None:
    inside: Sequence[str] = ("nsenter", "--target", str(pid), "--net", "--")
    call("ip", "addr", "add", f"{network.outside}/30", "dev", device)
    call("ip", "link", "set", device, "up")
    call(*inside, "ip", "addr", "add", f"{network.node}/30", "dev", "outside")
    call(*inside, "ip", "link", "set", "outside", "up")
    call("ip", "route", "add", f"10.{network.number}.0.0/16", "via", network.node)
    # A connection to a Service needs a route to exist before the packet filter rewrites its destination.
    call(*inside, "ip", "route", "add", network.services, "dev", "outside")
