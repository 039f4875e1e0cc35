"""Real parents with real workers, small ones (tests/support/tiny_worker.py), that are killed, hung and broken."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.local.process import ProcessIdentity
from mindsporeserver.ports import bind_http, reserve_grpc
from mindsporeserver.workers.fleet import merge_indexes
from mindsporeserver.workers.shared import count_cores, fold_metrics, hold_metrics_directory, read_metrics, share_cores

TINY_WORKER = Path(__file__).parents[3] / "support" / "tiny_worker.py"
Eventually = Callable[..., Any]

_PARENT = """
import json, logging, sys
from mindsporeserver.models.watch import BundleWatch
from mindsporeserver.workers.parent import Patience, run_parent
options = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
if options.pop("show_modules", False):
    import asyncio
    heavy = {"numpy", "kserve", "mindspore", "uvicorn", "fastapi", "grpc", "prometheus_client"} & set(sys.modules)
    print("heavy", sorted(heavy), flush=True)
if "repository" in options:
    options["watch"] = BundleWatch(repository=options.pop("repository"))
options["patience"] = Patience(**options.pop("patience", {}))
sys.exit(run_parent(options.pop("argv"), **options))
"""


class Parent:
    """A parent process with tiny workers, and a client of theirs."""

    def __init__(self, directory: Path, workers: int = 2, **options: Any) -> None:
        self.directory = directory
        self.models = directory / "models"
        self.models.mkdir(exist_ok=True)
        self.write("digits", "one")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = directory / "log"
        self._options = {
            "argv": [str(self.models)],
            "workers": workers,
            "host": "127.0.0.1",
            "http_port": self.port,
            "grpc_port": None,
            "child_command": [sys.executable, str(TINY_WORKER)],
            **options,
        }

    def start(self, environment: dict[str, str] | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PARENT, json.dumps(self._options)],
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )

    def write(self, name: str, text: str = "") -> Path:
        file = self.models / name
        file.write_text(text)
        return file

    def ask(self, path: str, timeout: float = 20) -> tuple[int, dict[str, Any]]:
        """Ask over a connection of its own."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def ask_all(self, path: str) -> dict[int, dict[str, Any]]:
        """Ask until every worker has answered; connections are held, so that they are spread over all."""
        count, found = self._options["workers"], {}
        with ExitStack() as stack:
            for _ in range(20 * count):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
                stack.enter_context(closing(connection))
                connection.request("GET", path)
                body = json.loads(connection.getresponse().read())
                found[body["index"]] = body
                if len(found) == count:
                    return dict(sorted(found.items()))
        raise AssertionError(f"only workers {list(found)} answered")

    def list_started(self) -> list[tuple[int, int]]:
        """Return index and process number of each worker that was started, oldest first."""
        file = self.models / "started.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def read_log(self) -> str:
        return self.log.read_text()

    def count_ready(self) -> int:
        return self.read_log().count("is ready")

    def wait_ready(self, eventually: Eventually, count: int = 2) -> None:
        eventually(lambda: self.count_ready() >= count or self.process.poll() is not None)
        assert self.process.poll() is None, self.read_log()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for _, pid in self.list_started():
            # Started by this test's parent; the kernel kills them with it.
            assert wait_gone(pid)


def wait_gone(pid: int) -> bool:
    identity = ProcessIdentity.of(pid)
    return identity is None or identity.wait(10)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[..., Parent]]:
    with ExitStack() as stack:

        def start(workers: int = 2, before: dict[str, str] | None = None, **options: Any) -> Parent:
            environment = options.pop("environment", None)
            new = Parent(tmp_path, workers, **options)
            for name, text in (before or {}).items():
                new.write(name, text)
            new.start(environment)
            stack.callback(new.close)
            return new

        yield start


class TestStart:
    def test_workers_share_the_port_and_the_connections(self, parent: Any, eventually: Eventually) -> None:
        started = parent(show_modules=True)
        started.wait_ready(eventually)
        with ExitStack() as stack:
            answers = []
            for _ in range(16):
                connection = http.client.HTTPConnection("127.0.0.1", started.port, timeout=20)
                stack.enter_context(closing(connection))
                connection.request("GET", "/ready")
                answers.append(json.loads(connection.getresponse().read())["index"])
        # One more or less where a worker wakes up late.
        assert 5 <= answers.count(0) <= 11
        assert "heavy []" in started.read_log()

    def test_the_parent_is_small(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        kilobytes = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        assert kilobytes < 40_000

    def test_the_first_answers_live_before_it_is_ready_and_no_other_answers_until_it_is(
        self, parent: Any, eventually: Eventually
    ) -> None:
        started = parent(before={"start.wait": ""})
        eventually(lambda: len(started.list_started()) == 2)
        assert [started.ask("/live")[1]["index"] for _ in range(10)] == [0] * 10
        assert started.ask("/ready")[0] == 503
        (started.models / "start.wait").unlink()
        started.wait_ready(eventually)
        assert list(started.ask_all("/ready")) == [0, 1]
        # Whoever answers from now on is ready.
        assert {started.ask("/ready")[0] for _ in range(20)} == {200}

    def test_what_waits_before_a_worker_runs_is_answered(self, parent: Any) -> None:
        started = parent()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                status, _ = started.ask("/live")
            except ConnectionRefusedError:
                continue
            break
        # Accepted by the kernel as soon as the parent listened, answered once a worker was there.
        assert status == 200

    def test_a_mistake_is_told_once(self, parent: Any) -> None:
        started = parent(workers=3, before={"start.error": "model digits: it is broken"})
        assert started.process.wait(20) == 2, started.read_log()
        assert started.read_log().count("Error: model digits: it is broken") == 1
        assert "Traceback" not in started.read_log()

    def test_a_worker_that_ends_before_any_was_ready_ends_the_server(self, parent: Any) -> None:
        started = parent(before={"start.exit": "7"})
        assert started.process.wait(20) == 7
        assert "Error: worker" in started.read_log()
        assert "ended with exit code 7 before it was ready" in started.read_log()
        assert all(wait_gone(pid) for _, pid in started.list_started())

    def test_a_command_that_does_not_exist(self, parent: Any) -> None:
        started = parent(child_command=["/nowhere/server"])
        assert started.process.wait(20) == 1
        assert started.read_log() == "Error: /nowhere/server: cannot be started: No such file or directory\n"

    def test_each_gets_its_share_of_the_cores_and_the_directory_of_metrics(
        self, parent: Any, eventually: Eventually
    ) -> None:
        started = parent(environment={"MKL_NUM_THREADS": "7"}, grpc_port=0)
        started.wait_ready(eventually)
        answers = started.ask_all("/environment")
        for answer in answers.values():
            assert answer["environment"]["OMP_NUM_THREADS"] == str(max(1, int(count_cores() / 2)))
            assert answer["environment"]["MKL_NUM_THREADS"] == "7"
            assert "MINDSPORESERVER_WORKER" not in answer["environment"]
        (metrics,) = {Path(answer["environment"]["PROMETHEUS_MULTIPROC_DIR"]) for answer in answers.values()}
        assert metrics.stat().st_mode & 0o777 == 0o700
        (port,) = {answer["grpc_port"] for answer in answers.values()}
        with pytest.raises(UserError, match=f"--grpc_port: port {port} cannot be used"):
            reserve_grpc("127.0.0.1", port)
        started.process.terminate()
        assert started.process.wait(20) == 0
        assert not metrics.exists()


class TestEnd:
    def test_sigterm_finishes_what_is_in_flight(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        started.ask_all("/ready")
        with ThreadPoolExecutor(4) as pool:
            slow = [pool.submit(started.ask, "/slow?seconds=0.6") for _ in range(4)]
            eventually(lambda: len(list(started.models.glob("slow.begun-*"))) == 2)
            started.process.terminate()
            assert [answer.result()[0] for answer in slow] == [200] * 4
        assert started.process.wait(20) == 0
        assert len(started.list_started()) == 2

    def test_a_second_signal_does_not_wait(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(started.ask, "/slow?seconds=60")
            eventually(lambda: list(started.models.glob("slow.begun-*")))
            started.process.terminate()
            started.process.send_signal(signal.SIGINT)
            assert started.process.wait(20) == 128 + signal.SIGINT
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                slow.result()

    def test_workers_that_do_not_end_are_killed_after_the_grace_period(
        self, parent: Any, eventually: Eventually
    ) -> None:
        started = parent(patience={"grace": 0.3, "ping_interval": 0.1})
        started.wait_ready(eventually)
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(started.ask, "/slow?seconds=60")
            eventually(lambda: list(started.models.glob("slow.begun-*")))
            started.process.terminate()
            assert started.process.wait(20) == 1
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                slow.result()
        assert "did not end within 0.3 s: killed" in started.read_log()

    def test_sigterm_before_anything_is_ready(self, parent: Any, eventually: Eventually) -> None:
        started = parent(before={"start.wait": ""})
        eventually(lambda: len(started.list_started()) == 2)
        started.process.terminate()
        assert started.process.wait(20) == 0

    def test_workers_do_not_survive_a_killed_parent(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        (metrics,) = {
            answer["environment"]["PROMETHEUS_MULTIPROC_DIR"] for answer in started.ask_all("/environment").values()
        }
        pids = [pid for _, pid in started.list_started()]
        started.process.kill()
        started.process.wait()
        assert all(wait_gone(pid) for pid in pids)
        with bind_http("127.0.0.1", started.port):
            pass
        # The next one sweeps up.
        assert Path(metrics).exists()
        with hold_metrics_directory():
            assert not Path(metrics).exists()


class Stream:
    """Clients that ask one request after the other over connections that they keep, as long as a test lasts."""

    def __init__(self, started: Parent, clients: int = 8) -> None:
        self.started = started
        self.over = threading.Event()
        self.answered: list[int] = []
        self.lost: list[tuple[int | None, str]] = []
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Stream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection, pid = http.client.HTTPConnection("127.0.0.1", self.started.port, timeout=20), None
        while not self.over.is_set():
            try:
                connection.request("GET", "/ready")
                response = connection.getresponse()
                body = json.loads(response.read())
            except (http.client.HTTPException, ConnectionError) as error:
                # Asked again over a new connection, as any client does with a request that changes nothing.
                self.lost.append((pid, type(error).__name__))
                connection.close()
                pid = None
                continue
            except OSError as error:
                self.failed.append(repr(error))
                break
            if response.status != 200:
                self.failed.append(f"{response.status} {body}")
            self.answered.append(body["pid"])
            # The next request takes a new connection, maybe to another worker.
            pid = None if response.will_close else body["pid"]
        connection.close()


class TestRestart:
    def test_a_killed_worker_loses_only_what_it_had_in_flight(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        with Stream(started, clients=8) as stream:
            for round_number in range(3):
                eventually(lambda: len(set(stream.answered[-50:])) == 2)
                victim = started.list_started()[-1][1]
                os.kill(victim, signal.SIGKILL)
                started.wait_ready(eventually, 3 + round_number)
            eventually(lambda: len(set(stream.answered[-50:])) == 2 or stream.failed)
        killed = {pid for _, pid in started.list_started()[1:4]}
        assert stream.failed == []
        # A client has one request in flight: each of three kills loses at most the requests of half of the clients.
        assert {pid for pid, _ in stream.lost} <= killed | {None}
        assert len(stream.lost) <= 3 * 8
        assert len(stream.answered) > 100
        assert started.read_log().count("was killed by SIGKILL (out of memory?); another starts in 0.1 s") >= 1

    def test_connections_that_are_kept_come_back_to_a_restarted_worker(
        self, parent: Any, eventually: Eventually
    ) -> None:
        started = parent()
        started.wait_ready(eventually)
        with Stream(started, clients=8) as stream:
            eventually(lambda: len(stream.answered) > 50)
            os.kill(started.list_started()[0][1], signal.SIGKILL)
            started.wait_ready(eventually, 3)
            counts = eventually(lambda: is_shared(stream.answered[-100:]) and stream.answered[-100:])
        assert started.list_started()[-1][1] in counts
        assert stream.failed == []

    def test_what_waits_when_all_are_killed_is_answered_by_those_that_follow(
        self, parent: Any, eventually: Eventually
    ) -> None:
        started = parent()
        started.wait_ready(eventually)
        pids = [pid for _, pid in started.list_started()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor(20) as pool:
            waiting = [pool.submit(started.ask, "/ready") for _ in range(20)]
            # In the backlog of the socket, or accepted before the worker was stopped: nobody reads them.
            eventually(lambda: count_waiting(started.port) == 20)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert [answer.result()[0] for answer in waiting] == [200] * 20
        started.wait_ready(eventually, 4)

    def test_a_restarted_worker_is_heard_only_when_it_is_ready(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        started.write("start.wait")
        for index, pid in started.list_started():
            if index == 0:
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(started.list_started()) == 3)
        assert {started.ask("/ready")[1]["index"] for _ in range(20)} == {1}
        (started.models / "start.wait").unlink()
        assert {answer[1]["index"] for answer in [started.ask("/ready")]} <= {0, 1}
        started.wait_ready(eventually, 3)
        assert list(started.ask_all("/ready")) == [0, 1]

    def test_a_hung_worker_is_replaced(self, parent: Any, eventually: Eventually) -> None:
        started = parent(patience={"hung": 0.5, "ping_interval": 0.1})
        started.wait_ready(eventually)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            started.ask("/hang?seconds=60")
        started.wait_ready(eventually, 3)
        assert "hangs: killed" in started.read_log()
        assert len(started.list_started()) == 3

    def test_a_worker_that_is_held_up_for_a_while_is_left_alone(self, parent: Any, eventually: Eventually) -> None:
        started = parent(patience={"hung": 3.0, "ping_interval": 0.1})
        started.wait_ready(eventually)
        assert started.ask("/hang?seconds=0.7")[0] == 200
        assert len(started.list_started()) == 2

    def test_a_crash_loop_of_one_leaves_the_other_serving(self, parent: Any, eventually: Eventually) -> None:
        patience = {"first_delay": 0.01, "longest_delay": 0.02, "crash_delay": 0.7}
        started = parent(patience=patience)
        started.wait_ready(eventually)
        poison = started.write("start.exit-1", "3")
        os.kill(dict(started.list_started())[1], signal.SIGKILL)
        eventually(lambda: "another starts in 0.7 s" in started.read_log())
        assert [index for index, _ in started.list_started()].count(1) == 6
        assert {started.ask("/ready")[1]["index"] for _ in range(10)} == {0}
        poison.unlink()
        started.wait_ready(eventually, 3)
        assert list(started.ask_all("/ready")) == [0, 1]

    def test_a_crash_loop_of_all_ends_the_server(self, parent: Any, eventually: Eventually) -> None:
        started = parent(patience={"first_delay": 0.01, "longest_delay": 0.02})
        started.wait_ready(eventually)
        started.write("start.exit", "3")
        for _, pid in started.list_started():
            os.kill(pid, signal.SIGKILL)
        assert started.process.wait(30) == 1
        assert "Error: the workers end as soon as they start: giving up" in started.read_log()
        assert all(wait_gone(pid) for _, pid in started.list_started())


def is_shared(answered: list[int]) -> bool:
    return len(set(answered)) == 2 and all(answered.count(pid) > 25 for pid in set(answered))


def count_waiting(port: int) -> int:
    """Count connections to a port whose request nobody has read yet."""
    waiting = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        received = int(fields[4].split(":")[1], 16)
        if int(fields[1].split(":")[1], 16) == port and fields[3] == "01" and received:
            waiting += 1
    return waiting


class TestModels:
    def test_load_and_unload_act_on_all(self, parent: Any, eventually: Eventually) -> None:
        started = parent(workers=3)
        started.wait_ready(eventually, 3)
        started.write("faces", "first")
        assert started.ask("/load?name=faces")[0] == 200
        for body in started.ask_all("/models").values():
            assert body["models"] == {"digits": "one", "faces": "first"}
        assert [entry["state"] for entry in started.ask("/index")[1]["models"]] == ["READY", "READY"]
        assert started.ask("/unload?name=digits")[0] == 200
        for body in started.ask_all("/models").values():
            assert body["models"] == {"faces": "first"}

    def test_what_all_refuse_is_refused_as_one_would(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        status, body = started.ask("/load?name=nothing")
        assert (status, body["error"], body["kind"]) == (400, "model nothing: no such model", "UserError")
        status, body = started.ask("/unload?name=nothing")
        assert (status, body["error"]) == (400, "model nothing: not loaded")

    @pytest.mark.parametrize("culprit", [0, 1, 2])
    def test_a_load_that_fails_in_one_leaves_all_as_they_were(
        self, parent: Any, eventually: Eventually, culprit: int
    ) -> None:
        started = parent(workers=3)
        started.wait_ready(eventually, 3)
        started.write("faces", "first")
        started.write("digits", "two")
        started.write(f"faces.fail-{culprit}")
        started.write(f"digits.fail-{culprit}")
        where = f"worker {culprit}: " if culprit else ""
        for name in ("faces", "digits"):
            status, body = started.ask(f"/load?name={name}")
            assert (status, body["error"]) == (400, f"{where}model {name}: it is broken\nMend it.")
        for body in started.ask_all("/models").values():
            assert body["models"] == {"digits": "one"}
        (started.models / f"digits.fail-{culprit}").unlink()
        assert started.ask("/load?name=digits")[0] == 200
        for body in started.ask_all("/models").values():
            assert body["models"] == {"digits": "two"}
        assert len(started.list_started()) == 3

    def test_an_unload_that_fails_in_one_is_taken_back(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        started.write("digits.fail-1")
        status, body = started.ask("/unload?name=digits")
        assert (status, body["error"]) == (400, "worker 1: model digits: it is stuck")
        for answer in started.ask_all("/models").values():
            assert answer["models"] == {"digits": "one"}

    def test_a_worker_that_dies_while_it_loads_has_failed(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        started.write("faces", "first")
        poison = started.write("faces.die-1")
        with closing(http.client.HTTPConnection("127.0.0.1", started.port, timeout=20)) as connection:
            # The worker that is asked may be the one that dies.
            try:
                connection.request("GET", "/load?name=faces")
                body = json.loads(connection.getresponse().read())
            except (ConnectionError, http.client.HTTPException):
                body = {"error": "worker 1: the process ended before it answered"}
        assert body["error"] == "worker 1: the process ended before it answered"
        poison.unlink()
        (started.models / "faces").rename(started.models / "faces.kept")
        started.wait_ready(eventually, 3)
        for answer in started.ask_all("/models").values():
            assert answer["models"] == {"digits": "one"}

    def test_a_worker_that_does_not_answer_in_time_is_replaced(self, parent: Any, eventually: Eventually) -> None:
        started = parent(patience={"call": 0.5})
        started.wait_ready(eventually)
        started.write("faces", "first")
        poison = started.write("faces.stuck-1")
        status, body = started.ask("/load?name=faces")
        assert (status, body["error"]) == (400, "worker 1: load: no answer within 0.5 s")
        assert "is replaced: load of model faces: load: no answer within 0.5 s" in started.read_log()
        poison.unlink()
        (started.models / "faces").rename(started.models / "faces.kept")
        started.wait_ready(eventually, 3)
        for answer in started.ask_all("/models").values():
            assert answer["models"] == {"digits": "one"}

    def test_a_new_worker_gets_what_clients_loaded_and_unloaded(self, parent: Any, eventually: Eventually) -> None:
        started = parent(before={"shared": "x"})
        started.wait_ready(eventually)
        started.write("faces", "first")
        for path in ("/load?name=faces", "/unload?name=digits", "/unload?name=shared", "/load?name=shared"):
            assert started.ask(path)[0] == 200
        os.kill(started.list_started()[0][1], signal.SIGKILL)
        started.wait_ready(eventually, 3)
        for body in started.ask_all("/models").values():
            assert body["models"] == {"faces": "first", "shared": "x"}

    def test_a_new_worker_where_a_model_that_was_unloaded_is_gone(self, parent: Any, eventually: Eventually) -> None:
        started = parent(before={"faces": "first"})
        started.wait_ready(eventually)
        assert started.ask("/unload?name=faces")[0] == 200
        (started.models / "faces").unlink()
        os.kill(started.list_started()[0][1], signal.SIGKILL)
        started.wait_ready(eventually, 3)
        assert len(started.list_started()) == 3
        for body in started.ask_all("/models").values():
            assert body["models"] == {"digits": "one"}

    def test_loading_while_a_worker_starts(self, parent: Any, eventually: Eventually) -> None:
        started = parent()
        started.wait_ready(eventually)
        started.write("start.wait")
        os.kill(started.list_started()[0][1], signal.SIGKILL)
        eventually(lambda: len(started.list_started()) == 3)
        started.write("faces", "first")
        assert started.ask("/load?name=faces")[0] == 200
        assert started.ask("/unload?name=digits")[0] == 200
        (started.models / "start.wait").unlink()
        started.wait_ready(eventually, 3)
        for body in started.ask_all("/models").values():
            assert body["models"] == {"faces": "first"}

    def test_many_changes_at_once_leave_the_workers_equal(self, parent: Any, eventually: Eventually) -> None:
        started = parent(workers=3)
        started.wait_ready(eventually, 3)
        names = [f"model{number}" for number in range(6)]
        for name in names:
            started.write(name, name)
        with ThreadPoolExecutor(12) as pool:
            loads = [pool.submit(started.ask, f"/load?name={name}") for name in names for _ in range(2)]
            assert {answer.result()[0] for answer in loads} == {200}
            unloads = [pool.submit(started.ask, f"/unload?name={name}") for name in names[:3]]
            assert {answer.result()[0] for answer in unloads} == {200}
        bodies = started.ask_all("/models").values()
        assert {tuple(sorted(body["models"])) for body in bodies} == {("digits", *names[3:])}


class TestMergeIndexes:
    ONE: ClassVar[dict[str, str]] = {"name": "digits", "version": "1", "state": "READY", "reason": ""}

    def test_ready_everywhere(self) -> None:
        assert merge_indexes({0: [self.ONE], 1: [self.ONE]}) == [self.ONE]

    def test_not_ready_in_one(self) -> None:
        other = {**self.ONE, "state": "UNAVAILABLE", "reason": "it is broken"}
        for lists in ({0: [self.ONE], 1: [other]}, {0: [self.ONE], 1: [other], 2: [self.ONE]}):
            assert merge_indexes(lists) == [{**other, "reason": "worker 1: it is broken"}]

    def test_missing_in_one(self) -> None:
        expected = {**self.ONE, "state": "UNAVAILABLE", "reason": "not loaded in worker 1"}
        assert merge_indexes({0: [self.ONE], 1: []}) == [expected]

    def test_of_one_worker(self) -> None:
        other = {**self.ONE, "state": "UNAVAILABLE", "reason": "it is broken"}
        assert merge_indexes({0: [other]}) == [other]


class TestShares:
    @pytest.mark.parametrize(
        ("workers", "cores", "share"), [(1, 8.0, 8), (2, 8.0, 4), (3, 8.0, 2), (8, 2.0, 1), (2, 2.5, 1), (2, 0.5, 1)]
    )
    def test_of_the_cores(self, workers: int, cores: float, share: int) -> None:
        assert share_cores(workers, {}, cores) == {
            "OMP_NUM_THREADS": str(share),
            "OPENBLAS_NUM_THREADS": str(share),
            "MKL_NUM_THREADS": str(share),
        }

    def test_what_is_set_stays(self) -> None:
        assert "OMP_NUM_THREADS" not in share_cores(2, {"OMP_NUM_THREADS": "5"})

    @pytest.mark.parametrize(
        ("content", "cores"), [("max 100000\n", None), ("50000 100000\n", 0.5), ("nonsense", None), (None, None)]
    )
    def test_a_container_may_have_fewer(self, tmp_path: Path, content: str | None, cores: float | None) -> None:
        file = tmp_path / "cpu.max"
        if content is not None:
            file.write_text(content)
        assert count_cores(file) == (len(os.sched_getaffinity(0)) if cores is None else cores)


_COUNT = """
import os, sys
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
registry = CollectorRegistry()
counter = Counter("asked", "Asked.", ["model"], registry=registry)
histogram = Histogram("seconds", "Seconds.", registry=registry, buckets=(1.0, 2.0))
Gauge("in_flight", "In flight.", registry=registry, multiprocess_mode="livesum").set(5)
for model, count in zip(sys.argv[1::2], sys.argv[2::2]):
    counter.labels(model).inc(int(count))
    histogram.observe(int(count))
print(os.getpid())
"""


class TestFolding:
    """The metrics of dead workers are kept, in files whose number does not grow."""

    def count(self, directory: Path, *arguments: str) -> int:
        """Count in a process of its own, and return its number once it is dead."""
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
        command = [sys.executable, "-c", _COUNT, *arguments]
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    def read(self, directory: Path) -> dict[str, float]:
        from prometheus_client.multiprocess import MultiProcessCollector

        found = MultiProcessCollector(None, str(directory)).collect()
        samples = [sample for metric in found for sample in metric.samples]
        return {f"{sample.name}{''.join(sample.labels.values())}": sample.value for sample in samples}

    def test_sums_stay_and_files_go(self, tmp_path: Path) -> None:
        pids = [self.count(tmp_path, "a", "1"), self.count(tmp_path, "a", "2", "b", "3"), self.count(tmp_path)]
        before = self.read(tmp_path)
        assert (before["asked_totala"], before["asked_totalb"], before["in_flight"]) == (3, 3, 15)
        # Killed before it wrote anything.
        (tmp_path / "counter_1.db").touch()
        for pid in (*pids, 1):
            assert fold_metrics(tmp_path, pid)
            assert fold_metrics(tmp_path, pid), "done again changes nothing"
        after = self.read(tmp_path)
        assert after == {name: value for name, value in before.items() if name != "in_flight"}
        assert (after["seconds_bucket2.0"], after["seconds_count"], after["seconds_sum"]) == (2, 3, 6)
        assert sorted(file.name for file in tmp_path.glob("*.*")) == ["counter_dead.db", "histogram_dead.db"]

    def test_not_while_somebody_reads(self, tmp_path: Path) -> None:
        pid = self.count(tmp_path, "a", "1")
        with read_metrics(tmp_path), read_metrics(tmp_path):
            assert not fold_metrics(tmp_path, pid)
            assert (tmp_path / f"counter_{pid}.db").exists()
        assert fold_metrics(tmp_path, pid)

    def test_not_when_space_is_short(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pid = self.count(tmp_path, "a", "1")
        before = self.read(tmp_path)
        real = os.statvfs(tmp_path)
        full = os.statvfs_result((*real[:4], 0, *real[5:10]))
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _: full)
            assert not fold_metrics(tmp_path, pid)
        assert self.read(tmp_path)["asked_totala"] == before["asked_totala"]
        assert fold_metrics(tmp_path, pid)


class TestPorts:
    def test_a_taken_port_is_named(self) -> None:
        with bind_http("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(UserError, match=f"--http_port: port {port} cannot be used on 127.0.0.1: Address"):
                bind_http("127.0.0.1", port)

    def test_no_port(self) -> None:
        with pytest.raises(UserError, match="--http_port: must be 1 to 65535, got 65536"):
            bind_http("127.0.0.1", 65536)

    def test_no_address(self) -> None:
        with pytest.raises(UserError, match="--host: 'no such host' is no address of this machine"):
            bind_http("no such host", 0)

    def test_a_reserved_port_can_be_shared(self) -> None:
        with reserve_grpc("127.0.0.1", 0) as reserved, socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(reserved.getsockname())
            server.listen()
            with socket.create_connection(reserved.getsockname()):
                pass
