"""A state directory: what clients and one job's or service's supervisor share, each file written whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.files import read_json, write_json
from kfp_mindspore.local.process import ProcessIdentity

_RESERVE_BYTES = 64 * 1024


@dataclass(frozen=True)
class StateDirectory:
    """A directory with a supervisor's state.

    Attributes:
        path: The directory; it may not exist.
    """

    path: Path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other clients; the lock file is a hidden sibling, so that it survives the directory."""
        # Imported here: supervisors take no lock, and start faster without it.
        from filelock import FileLock

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            yield

    def read(self, name: str) -> Any:
        """Return a JSON file's content.

        Raises:
            UserError: It is missing or damaged.
        """
        return read_json(self.path / name)

    def write(self, name: str, document: Any) -> None:
        """Write a JSON file; when the disk is full, in the space reserved by `reserve`."""
        try:
            write_json(self.path / name, document)
        except OSError:
            if not self._reserve_file.exists():
                raise
            self._reserve_file.unlink()
            write_json(self.path / name, document)

    def reserve(self) -> None:
        """Reserve disk space for the last state."""
        self._reserve_file.write_bytes(b"\0" * _RESERVE_BYTES)

    def read_supervisor(self) -> ProcessIdentity | None:
        """Return the supervisor's identity; None before it was started."""
        try:
            return ProcessIdentity.from_dict(self.read("supervisor.json"))
        except UserError:
            return None

    def write_supervisor(self, identity: ProcessIdentity) -> None:
        """Write the supervisor's identity."""
        self.write("supervisor.json", identity.to_dict())

    def remove(self) -> None:
        """Remove the directory."""
        files.remove_directory(self.path)

    @property
    def _reserve_file(self) -> Path:
        return self.path / "reserve"
