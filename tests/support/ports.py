"""Ports for servers that must be told one before they start."""

from __future__ import annotations

import socket

_held: list[socket.socket] = []


def reserve_port() -> int:
    """Return a port of 127.0.0.1 that stays reserved until this process ends; connections to it are refused.

    The kernel gives it to no other socket that asks for a free port, and to no outgoing connection. A server that names
    it and sets SO_REUSEADDR can listen on it, and so can the next one.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return int(held.getsockname()[1])
