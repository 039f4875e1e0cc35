"""Access control: a file's bearer tokens, and routes that only the management port answers."""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import re
import time
from pathlib import Path

from kfp_mindspore.errors import UserError
from kfp_mindspore.files import read_secret_file
from mindsporeserver.errors import ManagementPortError, UnauthenticatedError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_MAX_FILE_BYTES = 1 << 16
# RFC 6750, section 2.1.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_HINT = "Write one token a line, several during a rotation, such as: openssl rand -hex 32 > tokens"


class Needs(enum.Flag):
    """A route's or method's requirements."""

    NOTHING = 0
    TOKEN = enum.auto()
    MANAGEMENT = enum.auto()


class TokenFile:
    """The accepted tokens, one a line, read again when the file changes.

    A file that cannot be read any more, or holds no token, accepts no token: an emptied file revokes all tokens.

    Args:
        path: The file.

    Raises:
        UserError: It cannot be read, or a line is no token; the message has the line's number, never the text.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = _identify(path)
        self._due = time.monotonic() + _POLL_SECONDS
        self._digests = _read_digests(path)

    def accepts(self, authorization: bytes) -> bool:
        """Return whether the value of an Authorization header contains a valid token."""
        self._refresh()
        scheme, _, token = authorization.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        # All are compared, each in constant time: the duration reveals nothing about a token.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == b"bearer" and any(matches)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _POLL_SECONDS
        identity = _identify(self._path)
        if identity == self._identity:
            return
        self._identity = identity
        try:
            self._digests = _read_digests(self._path)
        except UserError as error:
            self._digests = ()
            logger.error("no token is accepted: %s", error.message)
        else:
            logger.info("%s: token file: read again, %d tokens", self._path, len(self._digests))


class Access:
    """A port's access rules.

    Args:
        tokens: The accepted tokens; None requires none.
        management_port: Port that answers routes with `Needs.MANAGEMENT` instead of this one; None for this one.
    """

    def __init__(self, tokens: TokenFile | None = None, management_port: int | None = None) -> None:
        self._tokens = tokens
        self._management_port = management_port

    def check(self, needs: Needs, authorization: bytes | None) -> None:
        """Refuse a request without the right to a route.

        Args:
            needs: The route's requirements.
            authorization: The Authorization header's value; None without it.

        Raises:
            ManagementPortError: The route is answered on the management port only.
            UnauthenticatedError: A token is required, and there is none or another one.
        """
        if self._management_port is not None and Needs.MANAGEMENT in needs:
            raise ManagementPortError(self._management_port)
        if self._tokens is not None and Needs.TOKEN in needs and not self._tokens.accepts(authorization or b""):
            raise UnauthenticatedError(is_missing=authorization is None)


def _identify(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_digests(path: Path) -> tuple[bytes, ...]:
    content = read_secret_file(path, "token file", _MAX_FILE_BYTES)
    if len(content) == _MAX_FILE_BYTES:
        raise UserError(f"{path}: token file: must have less than {_MAX_FILE_BYTES} bytes", hint=_HINT)
    digests = []
    for number, line in enumerate(content.splitlines(), 1):
        if not (token := line.strip()):
            continue
        if not _TOKEN.fullmatch(token):
            raise UserError(
                f"{path}: token file: line {number}: a token must consist of letters, digits and -._~+/, and may end "
                "with =",
                hint=_HINT,
            )
        digests.append(hashlib.sha256(token).digest())
    if not digests:
        raise UserError(f"{path}: token file: must hold at least one token, found none", hint=_HINT)
    return tuple(digests)
