"""The server's ports, bound before anything is loaded: a port in use ends the start at once and by name."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

from kfp_mindspore.errors import UserError

# asm-generic/socket.h; Python's socket has no name for it.
_SO_ATTACH_FILTER = 26
# Classic BPF (code, jumps, operand): load the TCP flags, mask SYN and ACK, drop a SYN alone, accept all else.
_DROP_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def bind_port(flag: str, host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Args:
        flag: The port's flag, for messages.
        host: Address, or name, to listen on; one with a colon is IPv6.
        port: The port.
        shared: Whether this server's other processes bind the same port (SO_REUSEPORT); it is protected from other
            servers while one listens.

    Raises:
        UserError: The port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        # In both modes: a connection in TIME_WAIT keeps its listener's options, and only an option that both have lets
        # the next server bind, with as many workers or another number.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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


def stop_handshakes(listener: socket.socket) -> None:
    """Ignore further clients on a listening socket; connections in the queue, or about to be, can be accepted.

    Without it, each connection that is established between the last `accept` and `close` is reset with the request.
    Linux only: elsewhere such connections are lost.
    """
    if sys.platform == "linux":
        code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
        program = ctypes.create_string_buffer(code, len(code))
        filtering = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
        with contextlib.suppress(OSError):  # a sandbox without socket filters
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtering)


def check_port(flag: str, host: str, port: int) -> None:
    """Check that no other server uses a port; gRPC and SO_REUSEPORT would share it without an error.

    Raises:
        UserError: The port cannot be used.
    """
    bind_port(flag, host, port).close()
