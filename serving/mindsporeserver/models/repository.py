"""The served models by name and version: loaded, replaced and unloaded while requests are answered."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_mindspore.compat.mindspore_import import get_device
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
from mindsporeserver.errors import NotReadyError, UnknownModelError, UnsupportedError, shorten_text
from mindsporeserver.models.model import BundleReplacedError
from mindsporeserver.models.served_model import ServedModel, TensorModel
from mindsporeserver.observability.metrics import ServerMetrics

logger = logging.getLogger(__name__)

# Valid in a URL and, with at most 255 bytes, in a directory's name without escapes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
DEFAULT_VERSION = "1"
# Retries for a load whose bundle was replaced in the meantime.
_ATTEMPTS = 5

Opener = Callable[[str, ModelBundle, str], ServedModel]


@dataclass(frozen=True)
class Sources:
    """Model directories.

    Args:
        models: Directory by name: a bundle, or numbered bundle directories, the versions.
        repository: Model repository: a directory with a directory per model; None without one.
        all_versions: Whether all versions are served; else the highest only.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    repository: Path | None = None
    all_versions: bool = False

    def list_names(self) -> list[str]:
        """Return the model names that exist now.

        Raises:
            UserError: The repository cannot be read.
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

    def list_bundles(self, name: str) -> dict[str, Path]:
        """Return each served version's directory, in ascending order.

        Raises:
            NotFoundError: There is no such model.
            UserError: The directory holds no bundle.
        """
        path = self.models.get(name)
        if path is None and self.repository is not None and _NAME.fullmatch(name):
            path = self.repository / name
        if path is None or not path.is_dir():
            where = f" ({path})" if name in self.models else ""
            raise NotFoundError(f"model {shorten_text(name)!r}: no such directory{where}")
        if (path / SIGNATURE_FILE).is_file():
            return {DEFAULT_VERSION: path}
        versions = sorted(
            (entry.name for entry in path.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir()), key=int
        )
        if not versions:
            # The error when opening it names what is missing.
            return {DEFAULT_VERSION: path}
        return {version: path / version for version in (versions if self.all_versions else versions[-1:])}


class Repository:
    """One process's models.

    Args:
        sources: The models' directories.
        opener: Returns a model, not loaded yet, from name, bundle and version.
        metrics: The process' metrics.
        check: Refuses a loaded model by a UserError; None for none.
    """

    def __init__(
        self,
        sources: Sources,
        opener: Opener,
        metrics: ServerMetrics,
        check: Callable[[ServedModel], None] | None = None,
    ) -> None:
        self.sources = sources
        self._check = check
        self.models: dict[str, ServedModel] = {}
        self.routes: dict[str, tuple[str, TensorModel]] = {}
        self.loaded = False
        self._opener = opener
        self._metrics = metrics
        self._versions: dict[str, dict[str, ServedModel]] = {}
        self._failures: dict[str, str] = {}
        self._unloaded: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Loaded at startup and not ready yet.
        self._awaited = set(sources.models)

    async def load_all(self) -> None:
        """Load all models at startup.

        Raises:
            UserError: A model given by the directory cannot be loaded, or no model in the repository.
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
        """Load or reload a model; the previous one answers until the new one is ready.

        A version whose signature has not changed is kept as it is, once the files' digests are verified.

        Raises:
            UserError: It cannot be loaded, or the files are damaged; the previous one stays.
        """
        async with self._lock(name):
            self._unloaded.discard(name)
            await self._load(name)

    async def reload(self, name: str) -> None:
        """Load a model as `load` does, unless it was unloaded by `unload`.

        Raises:
            UserError: It cannot be loaded; the previous one stays.
        """
        async with self._lock(name):
            if name not in self._unloaded:
                await self._load(name)

    async def unload(self, name: str) -> None:
        """Unload a model; accepted requests are answered.

        Raises:
            NotFoundError: It is not loaded.
        """
        async with self._lock(name):
            if name not in self._versions:
                raise NotFoundError(f"model {shorten_text(name)!r}: not loaded")
            self._unloaded.add(name)
            self._failures.pop(name, None)
            self._replace(name, {})
            self._metrics.forget_model(name)

    async def index(self) -> list[dict[str, str]]:
        """Return each model's name, version, state (READY, UNAVAILABLE) and reason, loaded or not."""
        entries = []
        for name in sorted({*self.sources.list_names(), *self._versions}):
            reason = self._failures.get(name, "")
            for version in self._versions.get(name, {}):
                entries.append({"name": name, "version": version, "state": "READY", "reason": reason})
            if name not in self._versions:
                reason = reason or ("unloaded" if name in self._unloaded else "")
                entries.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        return entries

    def get_model(self, name: str, version: str = "") -> ServedModel:
        """Return a model.

        Raises:
            UnknownModelError: There is no such model or version.
            NotReadyError: It is still being loaded at startup.
        """
        model = self._versions.get(name, {}).get(version) if version else self.models.get(name)
        if model is None and name in self._awaited:
            raise NotReadyError(name)
        if model is None:
            raise UnknownModelError(name, version if name in self.models else "")
        return model

    def get_graph_model(self, name: str, version: str = "") -> TensorModel:
        """Return a model that is served by V1, V2 and gRPC.

        Raises:
            UnknownModelError: There is no such model or version.
            NotReadyError: It is still being loaded at startup.
            UnsupportedError: It is a language model.
        """
        model = self.get_model(name, version)
        if not isinstance(model, TensorModel):
            raise UnsupportedError(f"model {name} is a language model: send POST to its routes below /openai/v1")
        return model

    def list_versions(self, name: str) -> list[str]:
        """Return a model's served versions, in ascending order."""
        return list(self._versions.get(name, {}))

    def expire(self) -> None:
        """Refuse all queued requests whose deadline has passed."""
        for versions in self._versions.values():
            for model in versions.values():
                model.expire()

    async def close(self) -> None:
        """Return when all accepted requests are answered."""
        await asyncio.gather(*(model.close() for versions in self._versions.values() for model in versions.values()))

    async def _load(self, name: str) -> None:
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

        try:
            models: dict[str, ServedModel] = await AsyncRetrying(
                reraise=True, retry=retry_if_exception_type(BundleReplacedError), stop=stop_after_attempt(_ATTEMPTS)
            )(self._open, name)
        except KfpMindSporeError as error:
            # A name that only a client has sent is neither stored nor used as a label.
            if not isinstance(error, NotFoundError) or name in self._versions or name in self.sources.models:
                self._failures[name] = error.message
                self._metrics.for_model(name).count_load("failed")
            raise
        self._metrics.for_model(name).count_load("ok")
        if device := get_device():
            self._metrics.set_device(device)
            logger.info("model %s: loaded on device %s", name, device)
        self._failures.pop(name, None)
        self._replace(name, models)

    async def _open(self, name: str) -> dict[str, ServedModel]:
        try:
            bundles = await asyncio.to_thread(self._read, name)
        except OSError as error:
            # An OSError's message has the server's path.
            raise KfpMindSporeError(f"model {name!r}: cannot be read: {error.strerror}") from error
        served = self._versions.get(name, {})
        models: dict[str, ServedModel] = {}
        try:
            for version, bundle in bundles.items():
                current = served.get(version)
                if current is not None and _is_same(current.bundle, bundle):
                    # Its files may be damaged under the same signature: the next start would fail.
                    await asyncio.to_thread(bundle.verify)
                    models[version] = current
                else:
                    models[version] = self._opener(name, bundle, version)
                    await models[version].open()
                    if self._check is not None:
                        self._check(models[version])
        except BaseException:
            for version, model in models.items():
                if model is not served.get(version):
                    self._close(model)
            raise
        return models

    def _read(self, name: str) -> dict[str, ModelBundle]:
        return {
            version: ModelBundle.open(path, verify=False) for version, path in self.sources.list_bundles(name).items()
        }

    def _replace(self, name: str, models: dict[str, ServedModel]) -> None:
        """Route requests to these versions from now on, and close all other models."""
        for model in self._versions.get(name, {}).values():
            if model not in models.values():
                self._close(model)
        self.routes = {path: route for path, route in self.routes.items() if route[1].name != name}
        if not models:
            self._versions.pop(name, None)
            self.models.pop(name, None)
            return
        self._versions[name] = models
        latest = next(reversed(models.values()))
        self.models[name] = latest
        if isinstance(latest, TensorModel):
            self.routes[f"/v1/models/{name}:predict"] = ("v1", latest)
            self.routes[f"/v2/models/{name}/infer"] = ("v2", latest)
        for version, model in models.items():
            if not isinstance(model, TensorModel):
                continue
            self.routes[f"/v2/models/{name}/versions/{version}/infer"] = ("v2", model)

    def _close(self, model: ServedModel) -> None:
        task = asyncio.get_running_loop().create_task(model.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _lock(self, name: str) -> asyncio.Lock:
        if name not in self._locks and len(self._locks) > len(self.sources.models) + 1000:
            self._locks = {held: lock for held, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())


def _is_same(first: ModelBundle, second: ModelBundle) -> bool:
    return first.path == second.path and first.signature == second.signature
