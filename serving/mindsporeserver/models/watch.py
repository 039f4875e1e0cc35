"""Reloads models whose files change on disk.

Files are compared by `stat`, not by notifications: inotify does not see other hosts' writes to a shared volume, and
watchfiles 1.3's polling (notify's PollWatcher) reports only files with a later modification time, so it misses a
rollback that moves an older bundle into place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import SIGNATURE_FILE
from mindsporeserver.models.repository import Repository, Sources

logger = logging.getLogger(__name__)

# Delay before a load is retried that failed for another reason than the bundle itself, such as an I/O error.
_RETRY_SECONDS = 10.0

# Each model file's inode, size, times and path; empty when its directory is missing, None when it has no bundle.
Fingerprint = frozenset[tuple[str, int, int, int, int]] | None


class ModelWatcher:
    """Polls the models' directories.

    Args:
        repository: Reloads a model with changed files, loads one that appears in a model repository and unloads one
            that disappears from it. A model given by its own directory is not unloaded.
        seconds: Interval between two polls. A model is reloaded once the files are unchanged for an interval, so that
            a bundle is not loaded while it is copied.
    """

    def __init__(self, repository: Repository, seconds: float) -> None:
        self._repository = repository
        self._sources = repository.sources
        self._seconds = seconds
        self._handled = list_fingerprints(self._sources)
        self._latest = self._handled.copy()
        self._retries: dict[str, float] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.poll()

    async def poll(self) -> None:
        """Compare the files with the previous poll and handle each model whose change has settled."""
        try:
            found = await asyncio.to_thread(list_fingerprints, self._sources)
        except (UserError, OSError) as error:
            # A volume that is unmounted for a while does not unload its models.
            logger.warning("models are not polled: %s", error)
            return
        found |= {name: frozenset() for name in self._handled if name not in found}
        latest, self._latest = self._latest, found
        for name, fingerprint in sorted(found.items()):
            is_due = name in self._retries and self._retries[name] <= time.monotonic()
            if fingerprint is None or fingerprint != latest.get(name, frozenset()):
                continue
            if is_due or fingerprint != self._handled.get(name, frozenset()):
                self._retries.pop(name, None)
                await self._handle(name, fingerprint)

    async def _handle(self, name: str, fingerprint: Fingerprint) -> None:
        is_new = not self._handled.get(name)
        self._handled[name] = fingerprint
        try:
            if fingerprint:
                await (self._repository.load(name) if is_new else self._repository.reload(name))
            elif name not in self._sources.models:
                del self._handled[name]
                await self._repository.unload(name)
        except NotFoundError:
            logger.debug("model %s: removed from disk, was not loaded", name)
        except UserError as error:
            logger.error("model %s: changed on disk and not loaded, the previous one is served: %s", name, error)
        except (KfpMindSporeError, OSError) as error:
            self._retries[name] = time.monotonic() + _RETRY_SECONDS
            logger.error("model %s: not loaded, retry in %g s: %s", name, _RETRY_SECONDS, error)


def list_fingerprints(sources: Sources) -> dict[str, Fingerprint]:
    """Return each model's fingerprint.

    Raises:
        UserError: The model repository cannot be read.
        OSError: A directory was removed in the meantime.
    """
    fingerprints: dict[str, Fingerprint] = {}
    for name in sources.list_names():
        try:
            directories = sources.list_bundles(name).values()
        except NotFoundError:
            fingerprints[name] = frozenset()
            continue
        bundles = [path for path in directories if (path / SIGNATURE_FILE).is_file()]
        files = frozenset(_identify(file) for path in bundles for file in path.iterdir())
        fingerprints[name] = files or None
    return fingerprints


def _identify(file: Path) -> tuple[str, int, int, int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return str(file), 0, 0, 0, 0
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
