"""Notices that bundles were replaced, appeared or disappeared, without MindSpore and without reading them all the time.

A poll looks at one file a bundle, signature.json, which names the digests of the others. Only where that one is another
than before, by inode, size and times, are the files read; a bundle is reported when all of them have their digests, so
never in the middle of a copy, and not when it was replaced by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle

logger = logging.getLogger("mindsporeserver.watch")

# A directory is away for a moment while it is replaced: only what is missing twice is gone.
_MISSES = 2
# Two changes within a tick of the file system's clock look like one: what is as young as this is read again.
_SETTLED_NS = 2_000_000_000
_RETRY_SECONDS = (5.0, 60.0)

_Identity = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Change:
    """What happened to a model.

    Args:
        name: The model.
        kind: `changed`: its directory holds another bundle, or other versions; `added` and `removed`: its directory
            appeared in, or disappeared from, a model repository.
    """

    name: str
    kind: Literal["changed", "added", "removed"]


class Reloading(Protocol):
    """What `follow` acts on: one process's repository, or all workers."""

    async def load(self, name: str) -> None:
        """Load a model that appeared."""

    async def unload(self, name: str) -> None:
        """Unload a model that disappeared."""

    async def reload(self, name: str) -> None:
        """Load a model that changed; a failure leaves what was served untouched."""


class BundleWatch:
    """Compares model directories with what they held at the last poll; at first, with what they hold now.

    A directory is a bundle, or holds versions: bundles in directories whose names are numbers. A model whose directory
    disappears is not reported, unless the directory belongs to a repository.

    Args:
        models: Model directories by model name.
        repository: A directory of model directories, each named after its model; names that begin with a dot are
            left out.
    """

    def __init__(self, models: Mapping[str, Path | str] | None = None, repository: Path | str | None = None) -> None:
        self._models = {name: _Model(Path(path)) for name, path in (models or {}).items()}
        self._fixed = frozenset(self._models)
        self._repository = None if repository is None else Path(repository)
        self._discover()
        for model in self._models.values():
            # What the server loads at its start is checked there.
            model.look(verify=False)
        self._reported = {name: state for name, model in self._models.items() if (state := model.state)}

    def poll(self) -> list[Change]:
        """Return what changed since the last poll, by name; blocks while the files of a new bundle are read."""
        self._discover()
        changes = []
        for name, model in sorted(self._models.items()):
            model.look()
            known, state = self._reported.get(name), model.state
            if state and state != known:
                self._reported[name] = state
                changes.append(Change(name, "changed" if known or name in self._fixed else "added"))
            elif name not in self._fixed and model.is_gone:
                del self._models[name]
                if self._reported.pop(name, None):
                    changes.append(Change(name, "removed"))
        return changes

    def _discover(self) -> None:
        for path in _list_directories(self._repository) if self._repository else ():
            if not path.name.startswith(".") and path.name not in self._models:
                self._models[path.name] = _Model(path)


class _Model:
    """A model directory, with the bundle or the bundles in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bundles: dict[str, _Bundle] = {}
        self._misses: dict[str, int] = {}
        self._absences = 0

    @property
    def is_gone(self) -> bool:
        """Whether the directory is away, and not only for the moment in which it is replaced."""
        return self._absences >= _MISSES

    @property
    def state(self) -> dict[str, str]:
        """The digests of the bundles that were whole, by version; the version of a bundle without any is empty."""
        return {version: bundle.digest for version, bundle in self._bundles.items() if bundle.digest}

    def look(self, *, verify: bool = True) -> None:
        """Look at the directory again."""
        found = dict(self._list_versions())
        for version, path in found.items():
            self._misses[version] = 0
            self._bundles.setdefault(version, _Bundle(path)).look(verify=verify)
        for version in set(self._misses) - set(found):
            self._misses[version] += 1
            if self._misses[version] >= _MISSES:
                self._bundles.pop(version, None)
        if self.path.exists():
            self._absences = 0
        elif self.path.parent.is_dir():
            # A repository that is away itself, such as a volume, has not lost its models.
            self._absences += 1

    def _list_versions(self) -> Iterator[tuple[str, Path]]:
        if (self.path / SIGNATURE_FILE).exists():
            yield "", self.path
            return
        versions = [path for path in _list_directories(self.path) if path.name.isdecimal()]
        if versions:
            yield from ((path.name, path) for path in versions)
        elif self.path.exists():
            # Being written, or deleted: as good as what was there, until it is gone.
            yield from ((version, bundle.path) for version, bundle in self._bundles.items())


class _Bundle:
    """One bundle; `digest` is that of its signature when it was last whole, empty when it never was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = ""
        self._identity: _Identity | None = None
        self._refused: tuple[_Identity | None, ...] = ()

    def look(self, *, verify: bool) -> None:
        """Read the bundle if it is another than before."""
        file = self.path / SIGNATURE_FILE
        identity = _identify(file)
        if identity is None or (identity == self._identity and _is_settled(identity)):
            return
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            if digest == self.digest:
                self._identity = identity
                return
            bundle = ModelBundle.open(self.path, verify=False)
            files = tuple(_identify(self.path / name) for name in (SIGNATURE_FILE, *bundle.signature.files))
            if files == self._refused:
                return
            if verify:
                self._refused = files if all(map(_is_settled, files)) else ()
                bundle.verify()
                if files != tuple(_identify(self.path / name) for name in (SIGNATURE_FILE, *bundle.signature.files)):
                    self._refused = ()
                    return
        except (UserError, OSError):
            # Half written, or half deleted.
            return
        self.digest, self._identity, self._refused = digest, identity, ()


async def follow(watch: BundleWatch, seconds: float, target: Reloading) -> None:
    """Poll for ever, and load, unload and reload what changed, one model after the other.

    What a model's bundle is to blame for is logged and not tried again before it changes; any other failure is tried
    again after 5 seconds, then at growing intervals of up to a minute.

    Args:
        watch: What is polled, in a thread.
        seconds: Pause between polls.
        target: What loads.
    """
    actions = {"changed": target.reload, "added": target.load, "removed": target.unload}
    again: dict[str, tuple[Change, float, float]] = {}
    while True:
        await asyncio.sleep(seconds)
        changes = {change.name: (change, _RETRY_SECONDS[0]) for change in await asyncio.to_thread(watch.poll)}
        for name, (change, due, delay) in list(again.items()):
            if name in changes:
                del again[name]
            elif due <= time.monotonic():
                changes[name] = (change, delay)
        for name, (change, delay) in changes.items():
            again.pop(name, None)
            try:
                await actions[change.kind](name)
            except UserError as error:
                if change.kind == "removed" and isinstance(error, NotFoundError):
                    # A client had it unloaded before.
                    continue
                logger.error("model %s: %s on disk, but what was served stays: %s", name, change.kind, error)
            except KfpMindSporeError as error:
                logger.error("model %s: %s on disk, tried again in %g s: %s", name, change.kind, delay, error)
                again[name] = (change, time.monotonic() + delay, min(2 * delay, _RETRY_SECONDS[1]))
            else:
                logger.info("model %s: %s on disk, and served so", name, change.kind)


def _list_directories(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _identify(file: Path) -> _Identity | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_settled(identity: _Identity | None) -> bool:
    return identity is not None and time.time_ns() - identity[4] > _SETTLED_NS
