"""What a parent does with its workers together: the same models in all of them, whoever loads and whoever fails.

A change is made in one worker first: what is wrong with a model is found there, and nothing has to be brought back.
Then in the others; a reload in one after the other, so that the rest serve at full speed meanwhile. For as long as this
takes the workers differ. When one fails, those that have the new model return to what they had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from kfp_mindspore.errors import KfpMindSporeError, WaitTimeoutError
from mindsporeserver.workers.control import ChannelClosedError
from mindsporeserver.workers.worker import Worker

logger = logging.getLogger("mindsporeserver.workers")

_READY = "READY"
_INDEX_SECONDS = 30.0


class Fleet:
    """The workers that serve, and what clients had them load and unload.

    Args:
        call_seconds: How long a worker may take to load, unload or reload a model.
    """

    def __init__(self, call_seconds: float) -> None:
        self._call_seconds = call_seconds
        self._lock = asyncio.Lock()
        self._workers: dict[int, Worker] = {}
        self._loaded: set[str] = set()
        self._unloaded: set[str] = set()
        self._started = asyncio.Event()
        self.ever_ready = False

    @property
    def members(self) -> list[Worker]:
        """The workers that serve the same models, by index."""
        return [worker for _, worker in sorted(self._workers.items()) if worker.joined and not worker.leaving]

    def enlist(self, worker: Worker) -> None:
        """Take in a process that was just started, in place of the one that had its index."""
        self._workers[worker.index] = worker

    def dismiss(self, worker: Worker) -> None:
        """Forget a process that ended."""
        if self._workers.get(worker.index) is worker:
            del self._workers[worker.index]
        self._look()

    async def join(self, worker: Worker) -> None:
        """Bring a worker that has loaded the models of the command line to what the others serve, and count it in."""
        async with self._lock:
            try:
                # Its directory may be gone by now, and then it was not loaded at all.
                for name in sorted(self._unloaded & await self._list_ready(worker)):
                    await worker.call("unload", self._call_seconds, name=name)
                for name in sorted(self._loaded):
                    await worker.call("load", self._call_seconds, name=name)
            except KfpMindSporeError as error:
                worker.retire(f"it cannot serve what the others serve: {error.message}")
                raise
            worker.count_in()
            self.ever_ready = True
        logger.info("worker %d (process %d) is ready", worker.index, worker.pid)
        self._look()

    async def load(self, name: str) -> None:
        """Load a model in every worker or in none.

        Raises:
            KfpMindSporeError: What a worker said; the workers serve what they served before.
        """
        await self._started.wait()
        async with self._lock:
            await self._replace("load", name)
            self._loaded.add(name)
            self._unloaded.discard(name)

    async def reload(self, name: str) -> None:
        """Load what is in a model's directory now, in one worker after the other, unless it was unloaded.

        Raises:
            KfpMindSporeError: What a worker said; the workers serve what they served before.
        """
        await self._started.wait()
        async with self._lock:
            if name not in self._unloaded:
                await self._replace("reload", name)

    async def unload(self, name: str) -> None:
        """Unload a model in every worker.

        Raises:
            KfpMindSporeError: What a worker said; the model is served as before.
        """
        await self._started.wait()
        async with self._lock:
            members = self._get_members()
            await self._tell_all("unload", name, members[:1], undo="load")
            await self._tell_all("unload", name, members[1:], undo="load", done=members[:1])
            self._loaded.discard(name)
            self._unloaded.add(name)

    async def index(self, asking: Worker) -> list[dict[str, str]]:
        """Return the models of all workers: READY where it is in every one.

        Args:
            asking: The only one that answers when none is ready.
        """
        workers = self.members or [asking]
        answers = await asyncio.gather(
            *(worker.call("index", _INDEX_SECONDS) for worker in workers), return_exceptions=True
        )
        lists = {}
        for worker, answer in zip(workers, answers, strict=True):
            if isinstance(answer, list):
                lists[worker.index] = answer
            elif not isinstance(answer, KfpMindSporeError):
                raise answer
        return merge_indexes(lists)

    async def _replace(self, action: str, name: str) -> None:
        members = self._get_members()
        held = name in await self._list_ready(members[0])
        undo = "revert" if held else "unload"
        # One first, and then: loading together is quicker, reloading one by one keeps the others at full speed.
        groups = [members[:1], members[1:]] if action == "load" else [[member] for member in members]
        done: list[Worker] = []
        for group in groups:
            await self._tell_all(action, name, group, undo=undo, done=done)
            done += group
        for member in done:
            await self._settle(member, name)

    async def _tell_all(
        self, action: str, name: str, workers: Sequence[Worker], *, undo: str, done: Sequence[Worker] = ()
    ) -> None:
        """Have workers do something at once; when one fails, have those that did it, and `done`, undo it."""
        answers = await asyncio.gather(
            *(worker.call(action, self._call_seconds, name=name) for worker in workers), return_exceptions=True
        )
        failures: list[tuple[Worker, KfpMindSporeError]] = []
        succeeded = list(done)
        for worker, answer in zip(workers, answers, strict=True):
            if isinstance(answer, KfpMindSporeError):
                failures.append((worker, answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                succeeded.append(worker)
        for worker, error in failures:
            if isinstance(error, WaitTimeoutError):
                # It may still do it: nobody knows what this process serves.
                worker.retire(f"{action} of model {name}: {error.message}")
        if failures:
            for worker in succeeded:
                await self._undo(worker, undo, name)
            worker, error = failures[0]
            raise _add_place(error, worker) if succeeded else error

    async def _undo(self, worker: Worker, undo: str, name: str) -> None:
        try:
            await worker.call(undo, self._call_seconds, name=name)
        except ChannelClosedError:
            # Its successor starts with what the others have.
            pass
        except KfpMindSporeError as error:
            worker.retire(f"{undo} of model {name}: {error.message}")

    async def _settle(self, worker: Worker, name: str) -> None:
        try:
            await worker.call("settle", self._call_seconds, name=name)
        except KfpMindSporeError as error:
            logger.debug("worker %d keeps the earlier model %s: %s", worker.index, name, error.message)

    async def _list_ready(self, worker: Worker) -> set[str]:
        return {entry["name"] for entry in await worker.call("index", _INDEX_SECONDS) if entry["state"] == _READY}

    def _get_members(self) -> list[Worker]:
        members = self.members
        if not members:
            raise ChannelClosedError("no worker is ready", hint="Try again when /v2/health/ready answers 200.")
        return members

    def _look(self) -> None:
        """Let those accept who may: who accepts must not be found unready after another was found ready."""
        workers = self._workers.values()
        first = [worker for worker in workers if worker.accepts and not worker.joined]
        if not first:
            for worker in self.members:
                worker.let_accept()
        if self.ever_ready and all(worker.joined for worker in workers):
            self._started.set()


def merge_indexes(lists: Mapping[int, Iterable[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Merge what workers say of their models.

    Args:
        lists: The entries (name, version, state, reason) by worker.

    Returns:
        One entry a model and version; of one that is not READY everywhere, the first that is not, with the worker.
    """
    merged: dict[tuple[str, str], dict[str, str]] = {}
    seen: dict[tuple[str, str], set[int]] = {}
    for worker, entries in lists.items():
        for entry in entries:
            key = (entry["name"], entry.get("version", ""))
            seen.setdefault(key, set()).add(worker)
            known = merged.get(key)
            if known is None or (known["state"] == _READY and entry["state"] != _READY):
                merged[key] = dict(entry)
                if entry["state"] != _READY and len(lists) > 1:
                    merged[key]["reason"] = f"worker {worker}: {entry.get('reason', '')}".removesuffix(": ")
    for key, entry in merged.items():
        missing = sorted(set(lists) - seen[key])
        if missing and entry["state"] == _READY:
            entry["state"], entry["reason"] = "UNAVAILABLE", f"not loaded in worker {missing[0]}"
    return list(merged.values())


def _add_place(error: KfpMindSporeError, worker: Worker) -> KfpMindSporeError:
    return type(error)(f"worker {worker.index}: {error.message}", hint=error.hint, log=error.log)
