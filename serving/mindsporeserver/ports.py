"""The ports that several workers share."""

from __future__ import annotations

import contextlib
import socket

from kfp_mindspore.errors import UserError

# As many as the kernel allows wait here for a worker.
_BACKLOG = 4096


def bind_http(host: str, port: int) -> socket.socket:
    """Return a listening socket for all workers: what waits in it outlives any of them.

    Args:
        host: Address, or name, to listen on; one with a colon is IPv6.
        port: 0 takes a free one.

    Raises:
        UserError: The port cannot be used.
    """
    listener = _bind("--http_port", host, port)
    listener.listen(_BACKLOG)
    return listener


def reserve_grpc(host: str, port: int) -> socket.socket:
    """Return a bound socket that keeps others off a port on which workers listen with SO_REUSEPORT.

    Args:
        host: Address, or name, to listen on.
        port: 0 takes a free one.

    Raises:
        UserError: The port cannot be used.
    """
    # Another server may share its port as we do ours, and would then get half of our clients: look without sharing.
    if port:
        _bind("--grpc_port", host, port).close()
    return _bind("--grpc_port", host, port, shared=True)


def _bind(flag: str, host: str, port: int, *, shared: bool = False) -> socket.socket:
    if not 0 <= port < 65536:
        raise UserError(f"{flag}: must be 1 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        # What shares its port does not also say REUSEADDR: others that say it could take the port while nobody listens.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        # Inherited by each connection. (asyncio sets it only where a socket names its protocol, uvloop always.)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            bound.bind((host, port))
        except socket.gaierror as error:
            raise UserError(f"--host: {host!r} is no address of this machine: {error.strerror}") from None
        except OSError as error:
            raise UserError(f"{flag}: port {port} cannot be used on {host}: {error.strerror}") from None
        bound.setblocking(False)
        stack.pop_all()
        return bound
