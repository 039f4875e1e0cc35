"""The models that are served, by name and version: loaded, replaced and unloaded while requests are answered."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
from mindsporeserver.errors import NotReadyError, UnknownModelError
from mindsporeserver.models.model import BundleReplacedError, MindSporeModel
from mindsporeserver.observability.metrics import Metrics

logger = logging.getLogger(__name__)

# What stands in a URL and in a directory's name without escapes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
DEFAULT_VERSION = "1"
# A bundle that is replaced while it is loaded is loaded again.
_ATTEMPTS = 5

Opener = Callable[[str, ModelBundle, str], MindSporeModel]


@dataclass(frozen=True)
class Sources:
    """Where models are.

    Args:
        models: Directory by name: a bundle, or numbered directories of bundles, the versions.
        repository: A directory of such directories, each of which is a model; None without one.
        all_versions: Whether all versions are served; else the highest only.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    repository: Path | None = None
    all_versions: bool = False

    def list_names(self) -> list[str]:
        """Return the names of the models that are there now.

        Raises:
            UserError: The repository is no directory.
        """
        names = list(self.models)
        if self.repository is not None:
            try:
                found = sorted(entry.name for entry in self.repository.iterdir() if entry.is_dir())
            except OSError as error:
                raise UserError(
                    f"--model_repository: {self.repository} cannot be read: {error.strerror}",
                    hint="Name a directory of models, each a directory of its own.",
                ) from None
            names += [name for name in found if _NAME.fullmatch(name) and name not in self.models]
        return names

    def find_bundles(self, name: str) -> dict[str, Path]:
        """Return the directory of each version that is to be served, the lowest first.

        Raises:
            NotFoundError: There is no such model.
            UserError: Its directory holds no bundle.
        """
        path = self.models.get(name)
        if path is None and self.repository is not None and _NAME.fullmatch(name):
            path = self.repository / name
        if path is None or not path.is_dir():
            where = f" ({path})" if path is not None else ""
            raise NotFoundError(f"model {name!r}: no such directory{where}")
        if (path / SIGNATURE_FILE).is_file():
            return {DEFAULT_VERSION: path}
        versions = sorted(
            (entry.name for entry in path.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir()), key=int
        )
        if not versions:
            # Opening it says best what is missing.
            return {DEFAULT_VERSION: path}
        return {version: path / version for version in (versions if self.all_versions else versions[-1:])}


class Repository:
    """Loads from `Sources`, and answers whom a name or a path means.

    Args:
        sources: Where models are.
        opener: Makes a model of name, bundle and version, not loaded yet.
        metrics: The process' metrics.
        keeps: Whether what a load replaced is kept until `settle` or `revert`, as other processes may fail.
    """

    def __init__(self, sources: Sources, opener: Opener, metrics: Metrics, *, keeps: bool = False) -> None:
        self.sources = sources
        self.models: dict[str, MindSporeModel] = {}
        self.routes: dict[str, tuple[str, MindSporeModel]] = {}
        self.loaded = False
        self._opener = opener
        self._metrics = metrics
        self._keeps = keeps
        self._versions: dict[str, dict[str, MindSporeModel]] = {}
        self._replaced: dict[str, dict[str, MindSporeModel]] = {}
        self._failures: dict[str, str] = {}
        self._unloaded: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Known from the command line and not loaded yet.
        self._awaited = set(sources.models)

    async def load_all(self) -> None:
        """Load what is there at the start.

        Raises:
            UserError: A model that was named cannot be loaded, or none of a repository's can.
        """
        failures: list[KfpMindSporeError] = []
        names = self.sources.list_names()
        self._awaited.update(names)
        for name in names:
            try:
                await self.load(name)
            except KfpMindSporeError as error:
                if name in self.sources.models:
                    raise
                logger.error("model %s: not loaded: %s", name, error.message)
                failures.append(error)
            finally:
                self._awaited.discard(name)
        if failures and not self._versions:
            raise failures[0]
        self.loaded = True

    async def load(self, name: str) -> None:
        """Load a model, or load it again; requests are answered by what was there until the new one is ready.

        Raises:
            UserError: It cannot be loaded; what was served is untouched.
        """
        async with self._lock(name):
            self._unloaded.discard(name)
            await self._load(name)

    async def reload(self, name: str, version: str = "") -> None:
        """Load what changed in a model's directory.

        Args:
            name: The model; one that was unloaded by `unload` stays so.
            version: The version that changed; default all of them.

        Raises:
            UserError: It cannot be loaded; what was served is untouched.
        """
        async with self._lock(name):
            if name not in self._unloaded:
                await self._load(name)

    async def unload(self, name: str) -> None:
        """Serve a model no longer; requests that were accepted are answered.

        Raises:
            NotFoundError: It is not served.
        """
        async with self._lock(name):
            if name not in self._versions:
                raise NotFoundError(f"model {name!r}: not loaded")
            self._unloaded.add(name)
            self._failures.pop(name, None)
            self._replace(name, {})
            self._metrics.forget_model(name)

    async def index(self) -> list[dict[str, str]]:
        """Return name, version, state (READY, UNAVAILABLE) and reason of each model that is loaded or could be."""
        entries = []
        for name in sorted({*self.sources.list_names(), *self._versions}):
            reason = self._failures.get(name, "")
            for version in self._versions.get(name, {}):
                entries.append({"name": name, "version": version, "state": "READY", "reason": reason})
            if name not in self._versions:
                reason = reason or ("unloaded" if name in self._unloaded else "")
                entries.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        return entries

    async def settle(self, name: str) -> None:
        """Let go what the last load of a model replaced."""
        for model in self._replaced.pop(name, {}).values():
            self._close(model)

    async def revert(self, name: str) -> None:
        """Serve again what the last load of a model replaced; nothing when it replaced nothing."""
        previous = self._replaced.pop(name, None)
        if previous is None:
            return
        current = self._versions.get(name, {})
        for model in previous.values():
            model.ready = True
        self._set(name, previous)
        for model in current.values():
            if model not in previous.values():
                self._close(model)

    def find(self, name: str, version: str = "") -> MindSporeModel:
        """Return a model.

        Raises:
            UnknownModelError: It is not served.
            NotReadyError: It is loaded at this moment, for the first time.
        """
        model = self._versions.get(name, {}).get(version) if version else self.models.get(name)
        if model is None and name in self._awaited:
            raise NotReadyError(name)
        if model is None:
            raise UnknownModelError(name, version if name in self.models else "")
        return model

    def list_versions(self, name: str) -> list[str]:
        """Return the versions of a model that are served, the lowest first."""
        return list(self._versions.get(name, {}))

    def expire(self) -> None:
        """Answer the requests in all queues whose time is over."""
        for versions in (*self._versions.values(), *self._replaced.values()):
            for model in versions.values():
                model.expire()

    async def close(self) -> None:
        """Answer what was accepted."""
        await asyncio.gather(*(model.close() for versions in self._versions.values() for model in versions.values()))

    async def _load(self, name: str) -> None:
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    models = await self._open(name)
                except BundleReplacedError:
                    if attempt == _ATTEMPTS - 1:
                        raise
                else:
                    break
        except KfpMindSporeError as error:
            # No name that a client makes up is remembered or becomes a label.
            if not isinstance(error, NotFoundError) or name in self._versions or name in self.sources.models:
                self._failures[name] = error.message
                self._metrics.for_model(name).count_load("failed")
            raise
        self._metrics.for_model(name).count_load("ok")
        self._failures.pop(name, None)
        self._replace(name, models)

    async def _open(self, name: str) -> dict[str, MindSporeModel]:
        bundles = await asyncio.to_thread(self._read, name)
        models = {}
        for version, bundle in bundles.items():
            held = self._versions.get(name, {}).get(version)
            if held is not None and _is_same(held.bundle, bundle):
                models[version] = held
            else:
                models[version] = self._opener(name, bundle, version)
                await models[version].open()
        return models

    def _read(self, name: str) -> dict[str, ModelBundle]:
        return {
            version: ModelBundle.open(path, verify=False) for version, path in self.sources.find_bundles(name).items()
        }

    def _replace(self, name: str, models: dict[str, MindSporeModel]) -> None:
        previous = self._versions.get(name, {})
        self._set(name, models)
        gone = {version: model for version, model in previous.items() if model not in models.values()}
        if not self._keeps:
            for model in gone.values():
                self._close(model)
            return
        for model in self._replaced.pop(name, {}).values():
            if model not in previous.values():
                self._close(model)
        self._replaced[name] = previous

    def _set(self, name: str, models: dict[str, MindSporeModel]) -> None:
        self.routes = {path: route for path, route in self.routes.items() if route[1].name != name}
        if not models:
            self._versions.pop(name, None)
            self.models.pop(name, None)
            return
        self._versions[name] = models
        latest = next(reversed(models.values()))
        self.models[name] = latest
        self.routes[f"/v1/models/{name}:predict"] = ("v1", latest)
        self.routes[f"/v2/models/{name}/infer"] = ("v2", latest)
        for version, model in models.items():
            self.routes[f"/v2/models/{name}/versions/{version}/infer"] = ("v2", model)

    def _close(self, model: MindSporeModel) -> None:
        task = asyncio.get_running_loop().create_task(model.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _lock(self, name: str) -> asyncio.Lock:
        if name not in self._locks and len(self._locks) > len(self.sources.models) + 1000:
            self._locks = {held: lock for held, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())


def _is_same(first: ModelBundle, second: ModelBundle) -> bool:
    return first.path == second.path and first.signature == second.signature
