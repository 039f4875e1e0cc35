"""Two real ends of a channel: questions that overlap, errors that cross it, ends that go away."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore import errors
from kfp_mindspore.errors import (
    CorruptBundleError,
    KfpMindSporeError,
    MissingExtraError,
    NotFoundError,
    UserError,
    ValidationError,
    WaitTimeoutError,
)
from mindsporeserver.workers.attachment import VARIABLE, Attachment, Place, attach
from mindsporeserver.workers.control import Channel, ChannelClosedError, Revertible

Handler = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


async def refuse(action: str, arguments: Mapping[str, Any]) -> Any:
    raise AssertionError(f"nobody asked for {action} {arguments}")


@asynccontextmanager
async def connect(
    handler: Handler, on_tell: Callable[[str, Mapping[str, Any]], None] | None = None
) -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield the asking and the answering end."""
    ours, theirs = socket.socketpair()
    asking, answering = Channel(ours, refuse), Channel(theirs, handler, on_tell)
    tasks = [asyncio.ensure_future(end.run()) for end in (asking, answering)]
    try:
        yield asking, answering
    finally:
        asking.close()
        answering.close()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("error", "complaints"), [(ChannelClosedError("it is gone as well"), 0), (ZeroDivisionError("a bug"), 1)]
)
def test_only_a_bug_is_logged_when_the_other_end_went_before_its_answer(error: Exception, complaints: int) -> None:
    said: list[Mapping[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        begun, gone = asyncio.Event(), asyncio.Event()

        async def fail_late(action: str, arguments: Mapping[str, Any]) -> Any:
            begun.set()
            await gone.wait()
            raise error

        async with connect(fail_late) as (asking, answering):
            call = asyncio.ensure_future(asking.call("anything"))
            await begun.wait()
            answering.close()
            asking.close()
            gone.set()
            with pytest.raises(ChannelClosedError):
                await call

    asyncio.run(main())
    # What nobody has looked at is told when it is collected.
    gc.collect()
    assert len(said) == complaints


class TestCalls:
    def test_arguments_and_results(self) -> None:
        async def echo(action: str, arguments: Mapping[str, Any]) -> Any:
            return [action, dict(arguments)]

        async def main() -> None:
            async with connect(echo) as (asking, _):
                assert await asking.call("load", name="digits\n\x00é") == ["load", {"name": "digits\n\x00é"}]
                assert await asking.call("index") == ["index", {}]

        asyncio.run(main())

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.floats(0, 0.01), min_size=1, max_size=20))
    def test_answers_in_any_order_reach_who_asked(self, delays: list[float]) -> None:
        async def sleep(_: str, arguments: Mapping[str, Any]) -> Any:
            await asyncio.sleep(arguments["delay"])
            return arguments["number"]

        async def main() -> None:
            async with connect(sleep) as (asking, _):
                calls = [asking.call("sleep", number=number, delay=delay) for number, delay in enumerate(delays)]
                assert await asyncio.gather(*calls) == list(range(len(delays)))

        asyncio.run(main())

    def test_both_ends_may_ask_while_they_are_asked(self) -> None:
        async def main() -> None:
            ours, theirs = socket.socketpair()

            async def ask_back(_: str, arguments: Mapping[str, Any]) -> Any:
                return 0 if not arguments["depth"] else 1 + await right.call("down", depth=arguments["depth"] - 1)

            async def ask_forth(_: str, arguments: Mapping[str, Any]) -> Any:
                return 0 if not arguments["depth"] else 1 + await left.call("down", depth=arguments["depth"] - 1)

            left, right = Channel(ours, ask_forth), Channel(theirs, ask_back)
            tasks = [asyncio.ensure_future(end.run()) for end in (left, right)]
            assert await left.call("down", depth=50) == 50
            left.close()
            await asyncio.gather(*tasks)

        asyncio.run(main())

    def test_a_large_index(self) -> None:
        entries = [{"name": f"model{number}", "version": "1", "state": "READY"} for number in range(20_000)]

        async def answer(_: str, __: Mapping[str, Any]) -> Any:
            return entries

        async def main() -> None:
            async with connect(answer) as (asking, _):
                assert await asking.call("index") == entries

        asyncio.run(main())

    def test_no_answer_in_time_leaves_the_channel_usable(self) -> None:
        async def main() -> None:
            released = asyncio.Event()

            async def wait(_: str, arguments: Mapping[str, Any]) -> Any:
                if arguments:
                    await released.wait()
                return "late"

            async with connect(wait) as (asking, _):
                with pytest.raises(WaitTimeoutError, match=r"^load: no answer within 0\.05 s$"):
                    await asking.call("load", timeout=0.05, name="digits")
                released.set()
                assert await asking.call("load") == "late"

        asyncio.run(main())

    def test_told_in_order(self) -> None:
        heard: list[tuple[str, dict[str, Any]]] = []

        async def main() -> None:
            async def answer(_: str, __: Mapping[str, Any]) -> Any:
                return None

            async with connect(answer, lambda what, arguments: heard.append((what, dict(arguments)))) as (asking, _):
                await asking.call("begin")
                for number in range(3):
                    asking.tell("number", number=number)
                asking.tell("end")
                await asking.call("begin")

        asyncio.run(main())
        assert heard == [("number", {"number": number}) for number in range(3)] + [("end", {})]


class TestErrors:
    @pytest.mark.parametrize(
        ("raised", "expected"),
        [
            (UserError("model digits: broken", hint="Mend it."), UserError),
            (NotFoundError("no such model"), NotFoundError),
            (CorruptBundleError("sha256 must be a, is b", log=["one", "two"]), CorruptBundleError),
            (ValidationError(["a: must be 1", "b: must be 2"]), UserError),
            (MissingExtraError("mindspore", "serving"), UserError),
            (WaitTimeoutError("too late"), WaitTimeoutError),
            (KfpMindSporeError("it failed"), KfpMindSporeError),
            (ChannelClosedError("gone"), KfpMindSporeError),
        ],
    )
    def test_cross_as_what_they_are(self, raised: KfpMindSporeError, expected: type[KfpMindSporeError]) -> None:
        async def fail(_: str, __: Mapping[str, Any]) -> Any:
            raise raised

        async def main() -> None:
            async with connect(fail) as (asking, _):
                with pytest.raises(KfpMindSporeError) as caught:
                    await asking.call("load", timeout=5)
                assert type(caught.value) is expected
                assert (caught.value.message, caught.value.hint, caught.value.log, caught.value.exit_code) == (
                    raised.message,
                    raised.hint,
                    raised.log,
                    raised.exit_code,
                )

        asyncio.run(main())

    def test_every_error_of_the_house_crosses(self) -> None:
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        assert len(kinds) > 8

        async def main() -> None:
            for kind in kinds:
                arguments = {ValidationError: (["wrong"],), MissingExtraError: ("kfp", "pipelines")}.get(
                    kind, ("text",)
                )

                async def fail(_: str, __: Mapping[str, Any], kind: Any = kind, arguments: Any = arguments) -> Any:
                    raise kind(*arguments)

                async with connect(fail) as (asking, _):
                    with pytest.raises(KfpMindSporeError) as caught:
                        await asking.call("load")
                    assert caught.value.exit_code == kind.exit_code

        asyncio.run(main())

    def test_a_bug_is_answered_and_logged(self) -> None:
        logged: list[dict[str, Any]] = []

        async def fail(_: str, __: Mapping[str, Any]) -> Any:
            raise ZeroDivisionError("by zero")

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
            async with connect(fail) as (asking, _):
                with pytest.raises(KfpMindSporeError, match=r"^ZeroDivisionError: by zero$"):
                    await asking.call("load")

        asyncio.run(main())
        assert [type(context["exception"]) for context in logged] == [ZeroDivisionError]


class TestEnds:
    def test_who_waits_when_the_other_end_goes(self) -> None:
        async def main() -> None:
            async def stay(_: str, __: Mapping[str, Any]) -> Any:
                await asyncio.sleep(60)

            async with connect(stay) as (asking, answering):
                calls = [asyncio.ensure_future(asking.call("load", name=str(number))) for number in range(3)]
                await asyncio.sleep(0)
                answering.close()
                for call in calls:
                    with pytest.raises(ChannelClosedError, match="the process ended before it answered"):
                        await call
                with pytest.raises(ChannelClosedError, match="the process at the other end is gone"):
                    await asking.call("load")
                asking.tell("nothing")
                asking.ping()

        asyncio.run(main())

    @pytest.mark.parametrize("rest", [b"", b'{"id": 1, "res', b'{"id": 1, "result": 2}'])
    def test_an_end_that_is_cut_off_in_a_line(self, rest: bytes) -> None:
        async def main() -> None:
            ours, theirs = socket.socketpair()
            channel = Channel(ours, refuse)
            running = asyncio.ensure_future(channel.run())
            call = asyncio.ensure_future(channel.call("load"))
            await asyncio.sleep(0.01)
            theirs.sendall(rest)
            theirs.close()
            with pytest.raises(ChannelClosedError):
                await call
            await running

        asyncio.run(main())

    def test_pings_are_answered_by_the_loop(self) -> None:
        async def main() -> None:
            async with connect(refuse) as (asking, _):
                while asking.unanswered_pings == 0:
                    asking.ping()
                    assert asking.unanswered_pings <= 1
                    await asyncio.sleep(0)
                for _ in range(1000):
                    if not asking.unanswered_pings:
                        break
                    await asyncio.sleep(0.001)
                assert asking.unanswered_pings == 0

        asyncio.run(main())

    def test_pings_to_one_that_hangs_are_counted(self) -> None:
        async def main() -> None:
            ours, theirs = socket.socketpair()
            channel = Channel(ours, refuse)
            running = asyncio.ensure_future(channel.run())
            await asyncio.sleep(0.01)
            for _ in range(5):
                channel.ping()
            assert channel.unanswered_pings == 5
            # One question at a time: what hangs for long finds no heap of them.
            theirs.setblocking(False)
            assert theirs.recv(1000) == b'{"ping": 1}\n'
            theirs.close()
            await running

        asyncio.run(main())


class _Models:
    """What one worker serves; `Revertible` as the real repository."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def load(self, name: str) -> None:
        self.done.append(f"load {name}")

    async def unload(self, name: str) -> None:
        self.done.append(f"unload {name}")

    async def reload(self, name: str, version: str = "") -> None:
        self.done.append(f"reload {name}")

    async def index(self) -> list[dict[str, str]]:
        return [{"name": "digits", "version": "1", "state": "READY", "reason": ""}]


class _RevertibleModels(_Models):
    async def settle(self, name: str) -> None:
        self.done.append(f"settle {name}")

    async def revert(self, name: str) -> None:
        self.done.append(f"revert {name}")


def make_place(http: socket.socket, control: socket.socket, **changes: Any) -> Place:
    place = {
        "index": 1,
        "workers": 2,
        "parent": os.getppid(),
        "http_fd": http.detach(),
        "control_fd": control.detach(),
        "counts": "/nowhere",
        "grpc_port": None,
        "accept_at_once": False,
    }
    return Place(**{**place, **changes})


class TestAttachment:
    def test_none_without_a_parent(self) -> None:
        assert attach({}) is None

    def test_of_a_parent_that_is_gone(self) -> None:
        place = Place(0, 2, 1 << 22, 0, 1, "/nowhere", None, True)
        code = "from mindsporeserver.workers.attachment import attach; attach(); print('alive')"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **place.to_environment()}, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (137, "")

    def test_the_place_is_not_handed_on(self) -> None:
        place = Place(0, 2, os.getpid(), 0, 1, "/nowhere", 8081, True)
        environment = place.to_environment()
        assert Place(**json.loads(environment[VARIABLE])) == place
        code = (
            "import os; from mindsporeserver.workers.attachment import Attachment, attach; "
            "Attachment.__init__ = lambda self, place: setattr(self, 'place', place); "
            "print(attach().place.grpc_port, 'MINDSPORESERVER_WORKER' in os.environ)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
        )
        assert done.stdout == "8081 False\n", done.stderr

    @pytest.mark.parametrize("models", [_Models(), _RevertibleModels()])
    def test_does_what_the_parent_asks(self, models: _Models, monkeypatch: pytest.MonkeyPatch) -> None:
        ended: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "kill", lambda pid, number: ended.append((pid, number)))

        async def main() -> None:
            ours, theirs = socket.socketpair()
            joined = asyncio.Event()

            async def answer(action: str, arguments: Mapping[str, Any]) -> Any:
                assert (action, dict(arguments)) == ("join", {})
                joined.set()

            parent = Channel(ours, answer)
            attachment = Attachment(make_place(socket.socket(), theirs))
            tasks = [asyncio.ensure_future(parent.run()), asyncio.ensure_future(attachment.serve(models))]
            accepting = asyncio.ensure_future(attachment.wait_to_accept())
            await attachment.report_ready()
            assert joined.is_set()
            assert not accepting.done()
            parent.tell("accept")
            await accepting
            for action in ("load", "reload", "unload"):
                assert await parent.call(action, name="digits") is None
            assert await parent.call("index") == await models.index()
            for action in ("settle", "revert"):
                if isinstance(models, Revertible):
                    await parent.call(action, name="digits")
                else:
                    with pytest.raises(KfpMindSporeError, match=f"^{action}: this worker cannot do that$"):
                        await parent.call(action, name="digits")
            with pytest.raises(KfpMindSporeError, match=r"^dance: this worker cannot do that$"):
                await parent.call("dance", name="digits")
            assert not ended
            parent.close()
            await asyncio.gather(*tasks)
            attachment.http_socket.close()

        asyncio.run(main())
        assert models.done[:3] == ["load digits", "reload digits", "unload digits"]
        # Its parent has gone, which on Linux it would not live to see.
        assert ended == [(os.getpid(), 15)]

    def test_a_failure_is_reported_without_a_loop(self) -> None:
        ours, theirs = socket.socketpair()
        attachment = Attachment(make_place(socket.socket(), theirs))
        attachment.report_failure(UserError("model digits: broken", hint="Mend it."))
        assert json.loads(ours.recv(1000)) == {"tell": "failure", "with": {"message": "model digits: broken\nMend it."}}
        ours.close()
        attachment.report_failure(UserError("nobody hears this"))
        attachment.http_socket.close()
