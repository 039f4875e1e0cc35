"""A worker of `run_parent` that serves files instead of models: the standard library, a real socket, real processes.

It is told by its first argument where its models are: `DIR/NAME` holds the text that model NAME answers. Next to them,
`NAME.fail` or `NAME.fail-INDEX` makes loading fail (in one worker), `NAME.die-INDEX` kills the process in the middle of
it, `NAME.stuck-INDEX` never ends; `start.exit` holds an exit code to end with at once, `start.error` a message to fail
with, `start.wait` delays being ready until it is removed. Every request is answered with JSON that names the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kfp_mindspore.errors import KfpMindSporeError, UserError
from mindsporeserver.workers.listener import Listener
from mindsporeserver.workers.parent import Attachment, attach


class Repository:
    def __init__(self, directory: Path, index: int) -> None:
        self.directory = directory
        self.place = index
        self.models: dict[str, str] = {}
        self.replaced: dict[str, str | None] = {}

    async def load(self, name: str) -> None:
        await self.reload(name)

    async def reload(self, name: str, version: str = "") -> None:
        if self._has(name, "die"):
            os.kill(os.getpid(), signal.SIGKILL)
        while self._has(name, "stuck"):
            await asyncio.sleep(0.01)
        if self._has(name, "fail") or (self.directory / f"{name}.fail").exists():
            raise UserError(f"model {name}: it is broken", hint="Mend it.")
        try:
            text = (self.directory / name).read_text()
        except FileNotFoundError:
            raise UserError(f"model {name}: no such model") from None
        self.replaced[name] = self.models.get(name)
        self.models[name] = text

    async def unload(self, name: str) -> None:
        if name not in self.models:
            raise UserError(f"model {name}: not loaded")
        if self._has(name, "fail"):
            raise KfpMindSporeError(f"model {name}: it is stuck")
        del self.models[name]

    async def settle(self, name: str) -> None:
        self.replaced.pop(name, None)

    async def revert(self, name: str) -> None:
        text = self.replaced.pop(name)
        assert text is not None
        self.models[name] = text

    async def index(self) -> list[dict[str, str]]:
        return [{"name": name, "version": text, "state": "READY", "reason": ""} for name, text in self.models.items()]

    def _has(self, name: str, what: str) -> bool:
        return (self.directory / f"{name}.{what}-{self.place}").exists()


class Server:
    def __init__(self, attachment: Attachment, directory: Path) -> None:
        self.attachment = attachment
        self.repository = Repository(directory, attachment.place.index)
        self.directory = directory
        self.ready = False
        self.open = 0
        self.connections = 0
        self.listener: Listener | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, over.set)
        tasks = [loop.create_task(self.attachment.serve(self.repository)), loop.create_task(self.start())]
        accepting = loop.create_task(self.attachment.wait_to_accept())
        await asyncio.wait([accepting, loop.create_task(over.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not over.is_set():
            self.listener = self.attachment.listen(self.make_protocol, count_open=lambda: self.connections)
            await over.wait()
            self.listener.close()
            await self.listener.wait_closed()
        while self.open:
            await asyncio.sleep(0.005)
        del tasks
        return 0

    async def start(self) -> None:
        while (self.directory / "start.wait").exists():
            await asyncio.sleep(0.005)
        for file in self.directory.iterdir():
            if "." not in file.name:
                await self.repository.load(file.name)
        # Before it is reported: from then on clients may be let in.
        self.ready = True
        await self.attachment.report_ready()

    def make_protocol(self) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(reader, self.answer)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                while await reader.readline() not in (b"\r\n", b""):
                    pass
                self.open += 1
                try:
                    status, body = await self.route(line.split()[1].decode())
                    content = json.dumps({"pid": os.getpid(), "index": self.attachment.place.index, **body}).encode()
                    crowded = self.listener is not None and self.listener.take_surplus()
                    head = b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n" % (status, len(content))
                    writer.write(head + b"Connection: close\r\n" * crowded + b"\r\n" + content)
                    await writer.drain()
                    if crowded:
                        break
                finally:
                    self.open -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def route(self, target: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            if parts.path == "/live":
                return 200, {}
            if parts.path == "/ready":
                return (200 if self.ready else 503), {}
            if parts.path == "/slow":
                (self.directory / f"slow.begun-{os.getpid()}").touch()
                await asyncio.sleep(float(query["seconds"]))
                return 200, {}
            if parts.path == "/hang":
                time.sleep(float(query["seconds"]))
                return 200, {}
            if parts.path == "/environment":
                return 200, {"environment": dict(os.environ), "grpc_port": self.attachment.place.grpc_port}
            if parts.path == "/index":
                return 200, {"models": await self.attachment.control.index()}
            if parts.path in ("/load", "/unload"):
                control = self.attachment.control
                await (control.load if parts.path == "/load" else control.unload)(query["name"])
                return 200, {}
            if parts.path == "/models":
                return 200, {"models": self.repository.models}
        except KfpMindSporeError as error:
            return 400, {"error": str(error), "kind": type(error).__name__}
        return 404, {}


def main() -> int:
    attachment = attach()
    assert attachment is not None
    directory = Path(sys.argv[1])
    with (directory / "started.log").open("a") as log:
        log.write(f"{attachment.place.index} {os.getpid()}\n")
    if (directory / "start.error").exists():
        attachment.report_failure(UserError((directory / "start.error").read_text()))
        return 2
    if (directory / "start.exit").exists():
        return int((directory / "start.exit").read_text())
    if (poison := directory / f"start.exit-{attachment.place.index}").exists():
        return int(poison.read_text())
    return asyncio.run(Server(attachment, directory).run())


if __name__ == "__main__":
    sys.exit(main())
