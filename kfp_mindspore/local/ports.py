"""This machine's ports."""

from __future__ import annotations

import contextlib
import socket


def is_port_free(port: int) -> bool:
    """Return whether a server could listen on a port now, on any address on this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections in TIME_WAIT do not occupy a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def list_free_ports(count: int) -> list[int]:
    """Return different ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        # All sockets stay open until the last is bound, so that no port is returned twice.
        probes = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind(("0.0.0.0", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
