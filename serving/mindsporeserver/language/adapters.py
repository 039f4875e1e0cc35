"""A language model's adapters (LoRA): loaded and unloaded while requests are answered."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.runner import Runner
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.served_model import RequestCounter

logger = logging.getLogger(__name__)

# As models' names: valid in a URL, and in a metric's list with commas.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_SERIAL = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded adapter.

    Args:
        name: Name in requests; empty for the base model.
        path: The directory.
        number: The number in the runner; 0 for the base model.
        key: The part of the prefix cache's keys, another one each time it is loaded.
    """

    name: str = ""
    path: str = ""
    number: int = 0
    key: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    requests: RequestCounter = field(default_factory=RequestCounter)


BASE = Adapter()


class Adapters:
    """A model's adapters, used in the event loop.

    Args:
        runner: The network.
        executor: The process' executor.
        most: Most adapters at once.
        paths: Directories by name, changed by `load` and `unload`: the model's next version loads these.
    """

    def __init__(self, runner: Runner, executor: InferenceExecutor, most: int, paths: MutableMapping[str, str]) -> None:
        self.loaded: dict[str, Adapter] = {}
        self._runner, self._executor, self._paths = runner, executor, paths
        self._held: list[Adapter | None] = [None] * most
        self._lock = asyncio.Lock()

    async def load(self, name: str, path: str) -> Adapter:
        """Load an adapter; running answers wait only while it is copied.

        Args:
            name: The name.
            path: The directory.

        Raises:
            LanguageError: The name is taken or invalid, or all places are in use.
            UserError: The directory holds no adapter for this model; the message names the field.
        """
        async with self._lock:
            if name in self.loaded or not _NAME.fullmatch(name):
                expected = f"must match {_NAME.pattern}" if name not in self.loaded else "is loaded already"
                raise LanguageError(f"lora_name: {expected}, got {shorten_text(name)!r}", "lora_name")
            # An unloaded adapter keeps its place until its last answer is finished.
            free = (index for index, held in enumerate(self._held) if held is None or not self._is_used(held))
            if (place := next(free, None)) is None:
                raise LanguageError(
                    f"lora_name: at most {len(self._held)} adapters (--max-loras), all are loaded or still answer",
                    "lora_name",
                )
            store = await asyncio.to_thread(self._runner.read_adapter, Path(path))
            await asyncio.wrap_future(self._executor.call(store, place + 1))
            adapter = Adapter(name, path, place + 1, f"{next(_SERIAL)}")
            self._held[place] = self.loaded[name] = adapter
            self._paths[name] = path
            logger.info("adapter %s: loaded from %s", name, path)
            return adapter

    def unload(self, name: str) -> None:
        """Accept no further requests to an adapter; the running ones are answered.

        Raises:
            LanguageError: It is not loaded (404).
        """
        if self.loaded.pop(name, None) is None:
            what = f"lora_name: adapter {shorten_text(name)!r} does not exist"
            raise LanguageError(what, "lora_name", status=404, error_code="model_not_found")
        self._paths.pop(name, None)
        logger.info("adapter %s: unloaded", name)

    def _is_used(self, adapter: Adapter) -> bool:
        return self.loaded.get(adapter.name) is adapter or not adapter.requests.is_idle
