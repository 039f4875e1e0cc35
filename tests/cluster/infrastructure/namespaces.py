"""Linux namespaces of a node.

Processes, mounts, network devices, addresses and packet filters of a node belong to its namespaces, which end with
their first process (`init.py`). The host has only one end of a veth pair, which is removed with the other end, and the
changes that `machine.py` reverts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.files import read_json, write_json
from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.machine import FIXED_PLACES, NODES
from tests.cluster.infrastructure.paths import INFRASTRUCTURE

_INIT = INFRASTRUCTURE / "init.py"
# Prefix of nodes' network devices in this network namespace.
_DEVICE = "kfpms"
# The x of 10.x/16; one per node.
_NETWORKS = range(200, 250)


@dataclass(frozen=True)
class Network:
    """Addresses of a node in one 10.x/16.

    Args:
        number: The x.
    """

    number: int

    @property
    def node(self) -> str:
        """Address of the node."""
        return f"10.{self.number}.254.1"

    @property
    def outside(self) -> str:
        """Address of this machine for the node and its pods."""
        return f"10.{self.number}.254.2"

    @property
    def pods(self) -> str:
        """CIDR of pods."""
        return f"10.{self.number}.0.0/24"

    @property
    def services(self) -> str:
        """CIDR of Services."""
        return f"10.{self.number}.128.0/18"

    @property
    def first_service(self) -> str:
        """Address of the Service `kubernetes`."""
        return f"10.{self.number}.128.1"

    @property
    def dns(self) -> str:
        """Address of the cluster's DNS."""
        return f"10.{self.number}.128.10"


@dataclass(frozen=True)
class Namespaces:
    """Running namespaces.

    Args:
        pid: Id of their first process on this machine.
        store: Directory of the image store that they lock.
        network: Their addresses.
    """

    pid: int
    store: Path
    network: Network

    @property
    def enter(self) -> tuple[str, ...]:
        """Command prefix that runs a command inside; it forks and returns the exit code."""
        return "nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"

    def call(self, *command: str, seconds: float = 120) -> str:
        """Run a command inside and return its output.

        Raises:
            RuntimeError: It failed; the message holds its errors.
        """
        return call(*self.enter, *command, seconds=seconds)


def create_namespaces(directory: Path, stores: Path, lease: Path | None) -> Namespaces:
    """Start the first process, connect its network to this machine and record it in `network.json`.

    Args:
        directory: Directory of the cluster.
        stores: Directory of image stores.
        lease: The namespaces end when this lease is released; None for a persistent cluster.
    """
    daemons = Daemons(directory)
    unshare = ["unshare", "--mount", "--net", "--pid", "--mount-proc", "--propagation=slave", "--kill-child"]
    words = [str(directory), str(stores), str(lease or ""), str(NODES), *FIXED_PLACES]
    daemons.start("init", [*unshare, sys.executable, str(_INIT), *words])
    report = directory / "init.json"
    daemons.wait_ready("init", report.exists)
    pid = get_init_pid(directory)
    network = _link(pid)
    write_json(directory / "network.json", {"number": network.number, "namespace": _read_namespace()})
    return open_namespaces(directory)


def open_namespaces(directory: Path) -> Namespaces:
    """Return the namespaces of a running cluster's directory."""
    store = Path(read_json(directory / "init.json")["store"])
    network = Network(read_json(directory / "network.json")["number"])
    return Namespaces(get_init_pid(directory), store, network)


def get_init_pid(directory: Path) -> int:
    """Return the id of the first process."""
    parent = Daemons(directory).get("init").process.pid
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def remove_link(directory: Path) -> None:
    """Remove this machine's end of the veth pair now; the kernel does it with a delay after the last process."""
    file = directory / "network.json"
    record = read_json(file) if file.exists() else {}
    # In another network namespace the name is another node's.
    if record.get("namespace") == _read_namespace():
        with contextlib.suppress(RuntimeError):
            call("ip", "link", "delete", _name_device(record["number"]))


def _link(pid: int) -> Network:
    """Connect the namespaces by a veth pair, in the first free 10.x/16."""
    taken = call("ip", "-4", "route", "show", "table", "all")
    for number in _NETWORKS:
        device = _name_device(number)
        if f"10.{number}." in taken:
            continue
        # Creation of the device reserves the network: only one of several concurrent starts succeeds.
        with contextlib.suppress(RuntimeError):
            call("ip", "link", "add", device, "type", "veth", "peer", "name", "outside", "netns", str(pid))
            network = Network(number)
            _configure(network, device, pid)
            return network
    raise RuntimeError("no free network: all of 10.200/16 to 10.249/16 are in use")


def _read_namespace() -> str:
    """Return the identity of this process's network namespace."""
    return str(Path("/proc/self/ns/net").readlink())


def _name_device(number: int) -> str:
    return f"{_DEVICE}{number}"


def _configure(network: Network, device: str, pid: int) -> None:
    inside: Sequence[str] = ("nsenter", "--target", str(pid), "--net", "--")
    call("ip", "addr", "add", f"{network.outside}/30", "dev", device)
    call("ip", "link", "set", device, "up")
    call(*inside, "ip", "addr", "add", f"{network.node}/30", "dev", "outside")
    call(*inside, "ip", "link", "set", "outside", "up")
    call("ip", "route", "add", f"10.{network.number}.0.0/16", "via", network.node)
    # Without a route to its address the kernel drops a packet before iptables can rewrite its destination.
    call(*inside, "ip", "route", "add", network.services, "dev", "outside")
