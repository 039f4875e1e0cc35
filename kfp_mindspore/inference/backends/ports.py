"""Ports of this machine."""

from __future__ import annotations

import contextlib
import socket


def is_port_free(port: int) -> bool:
    """Tell whether a server could listen on a port now, on any address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port with nothing but connections that were closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def list_free_ports(count: int) -> list[int]:
    """Return different ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        # All are held until the last is found, so that none is found twice.
        probes = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind(("0.0.0.0", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
