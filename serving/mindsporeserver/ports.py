"""The server's ports, bound before anything is loaded: a port in use ends the start at once and by name."""

from __future__ import annotations

import contextlib
import socket

from kfp_mindspore.errors import UserError


def bind_port(flag: str, host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Args:
        flag: The flag of the port, for messages.
        host: Address, or name, to listen on; one with a colon is IPv6.
        port: The port.
        shared: Whether other processes of this server bind the same port (SO_REUSEPORT).

    Raises:
        UserError: The port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        # SO_REUSEADDR and SO_REUSEPORT together would let another server take the port while nobody listens.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        # Inherited by connections. asyncio sets it only where a socket names its protocol, uvloop always.
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


def check_port(flag: str, host: str, port: int) -> None:
    """Check that no other server uses a port; gRPC and SO_REUSEPORT would share it without an error.

    Raises:
        UserError: The port cannot be used.
    """
    bind_port(flag, host, port).close()
