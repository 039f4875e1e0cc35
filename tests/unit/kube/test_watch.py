"""List-and-watch across broken connections, expired versions and rejected tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kfp_mindspore.kube.cluster import CancellationToken, Cluster
from kfp_mindspore.kube.errors import ForbiddenError
from kfp_mindspore.kube.resources import Resource
from tests.support.kube.fake_api_server import FakeApiServer, respond_once

THINGS = Resource("example.com", "v1", "things", "Thing")
COLLECTION = THINGS.get_path("default")
SECONDS = 120.0

Objects = Mapping[str, Any]


def put(server: FakeApiServer, name: str, value: int = 0, **labels: str) -> None:
    server.put(COLLECTION, {"metadata": {"name": name, "labels": labels}, "value": value})


def wait(states: Iterator[Objects], check: Callable[[Objects], object]) -> Objects:
    """Return the first state that passes a check."""
    for state in states:
        if check(state):
            return state
    raise AssertionError("the watch ended")


def wait_open(server: FakeApiServer, count: int = 1) -> None:
    deadline = time.monotonic() + SECONDS
    while server.count("GET", "'watch': 'true'") < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def later(*steps: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        for step in steps:
            step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_changes_are_yielded(server: FakeApiServer, cluster: Cluster) -> None:
    put(server, "a")
    states = cluster.watch(THINGS, "default", timeout=SECONDS)
    assert set(next(states)) == {"a"}
    later(
        lambda: wait_open(server),
        lambda: put(server, "b"),
        lambda: put(server, "a", 1),
        lambda: server.remove(COLLECTION, "b"),
    )
    assert set(next(states)) == {"a", "b"}
    assert next(states)["a"]["value"] == 1
    assert set(next(states)) == {"a"}
    assert server.count("GET", "things") == 2


def test_selectors(server: FakeApiServer, cluster: Cluster) -> None:
    put(server, "a", team="x")
    put(server, "b", team="y")
    assert set(next(cluster.watch(THINGS, "default", labels="team=x"))) == {"a"}
    assert set(next(cluster.watch(THINGS, "default", fields="metadata.name=b"))) == {"b"}


@pytest.mark.parametrize("by", ["reset", "half", "error", "end"])
def test_broken_watches_resume_without_gaps(server: FakeApiServer, cluster: Cluster, by: str) -> None:
    put(server, "a")
    states = cluster.watch(THINGS, "default", timeout=SECONDS)
    next(states)
    later(lambda: wait_open(server), lambda: server.break_streams(by), lambda: put(server, "b"))
    assert set(wait(states, lambda state: "b" in state)) == {"a", "b"}
    later(lambda: put(server, "c"))
    wait(states, lambda state: "c" in state)


def test_expired_version_lists_again_and_drops_deleted_objects(server: FakeApiServer, cluster: Cluster) -> None:
    put(server, "a")
    put(server, "b")
    states = cluster.watch(THINGS, "default", timeout=SECONDS)
    next(states)

    def change() -> None:
        wait_open(server)
        server.stop()
        server.remove(COLLECTION, "a")
        put(server, "c")
        server.compact()
        server.start()

    later(change)
    assert set(wait(states, lambda state: "c" in state)) == {"b", "c"}


def test_transient_errors_are_retried(server: FakeApiServer, cluster: Cluster) -> None:
    put(server, "a")
    states = cluster.watch(THINGS, "default", timeout=SECONDS)
    next(states)
    server.faults.append(respond_once(429, headers={"Retry-After": "0"}, times=2))
    server.faults.append(respond_once(500, headers={"Retry-After": "0"}, times=2))
    server.faults.append(respond_once(410, reason="Expired"))
    later(lambda: put(server, "b"))
    wait(states, lambda state: "b" in state)


def test_rejected_tokens_are_read_again(server: FakeApiServer, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    server.token = "old"
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig", {"tokenFile": str(token)}))
    states = cluster.watch(THINGS, "default", timeout=SECONDS)
    next(states)

    def change() -> None:
        wait_open(server)
        token.write_text("new")
        server.token = "new"
        server.break_streams("end")
        put(server, "b")

    later(change)
    wait(states, lambda state: "b" in state)
    assert server.requests[-1].token == "new"


def test_forbidden_watch_raises(server: FakeApiServer, cluster: Cluster) -> None:
    states = cluster.watch(THINGS, "default", timeout=SECONDS)
    next(states)
    server.faults.append(respond_once(403, times=100))
    with pytest.raises(ForbiddenError, match=r"watch things\.example\.com in namespace default"):
        next(states)


def test_timeout(server: FakeApiServer, cluster: Cluster) -> None:
    began = time.monotonic()
    assert len(list(cluster.watch(THINGS, "default", timeout=0.3))) == 1
    assert 0.3 <= time.monotonic() - began < SECONDS
    assert len(list(cluster.watch(THINGS, "default", timeout=0))) == 1


def test_cancellation_token_ends_watch(server: FakeApiServer, cluster: Cluster) -> None:
    token = CancellationToken()
    later(lambda: wait_open(server), token.cancel)
    assert len(list(cluster.watch(THINGS, "default", token=token))) == 1
