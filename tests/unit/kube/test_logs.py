"""Followed logs: each line once and in order, across broken connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.cluster import CancellationToken, Cluster
from kfp_mindspore.kube.logs import _LogPosition
from kfp_mindspore.kube.resources import PODS
from tests.support.kube.fake_api_server import FakeApiServer, respond_once, send_note_once

COLLECTION = PODS.get_path("default")


def run_pod(server: FakeApiServer, name: str = "pod", *, running: bool = True, uid: str = "1") -> None:
    state = {"running": {}} if running else {"terminated": {"exitCode": 0}}
    status = {"containerStatuses": [{"name": "mindspore", "state": state}]}
    server.put(COLLECTION, {"metadata": {"name": name, "uid": uid}, "status": status})


def follow(cluster: Cluster, token: CancellationToken | None = None) -> Iterator[str]:
    return cluster.stream_log("pod", "default", container="mindspore", uid="1", token=token)


def test_logs_are_read_complete_or_by_tail(server: FakeApiServer, cluster: Cluster) -> None:
    run_pod(server)
    assert cluster.read_log("pod", "default") == ""
    server.write("pod", "2026-01-31T12:00:00Z one", "2026-01-31T12:00:01Z two", end=True)
    assert cluster.read_log("pod", "default", last=7) == "one\ntwo\n"
    assert server.requests[-1].query == {"tailLines": "7"}


def test_logs_are_followed_until_container_terminates(server: FakeApiServer, cluster: Cluster) -> None:
    run_pod(server)
    server.write("pod", "2026-01-31T12:00:00.1Z one")
    lines = follow(cluster)
    assert next(lines) == "one"
    server.write("pod", "2026-01-31T12:00:00.2Z ", "2026-01-31T12:00:00.3Z  two  three")
    assert [next(lines), next(lines)] == ["", " two  three"]
    run_pod(server, running=False)
    server.write("pod", "2026-01-31T12:00:01Z end", end=True)
    assert list(lines) == ["end"]


@pytest.mark.parametrize("by", ["reset", "end"])
def test_broken_streams_resume_without_gaps_or_repeats(server: FakeApiServer, cluster: Cluster, by: str) -> None:
    run_pod(server)
    same = "2026-01-31T12:00:00.5Z"
    server.write("pod", "2026-01-31T12:00:00.25Z one", f"{same} two", f"{same} three")
    lines = follow(cluster)
    assert [next(lines) for _ in range(3)] == ["one", "two", "three"]
    server.break_streams(by)
    server.write("pod", f"{same} four", "2026-01-31T12:00:00.51Z five")
    assert [next(lines), next(lines)] == ["four", "five"]
    run_pod(server, running=False)
    server.write("pod", end=True)
    assert list(lines) == []


def test_pods_of_another_uid_are_not_followed(server: FakeApiServer, cluster: Cluster) -> None:
    run_pod(server)
    server.write("pod", "2026-01-31T12:00:00Z one")
    lines = follow(cluster)
    next(lines)
    run_pod(server, uid="2")
    server.break_streams("end")
    assert list(lines) == []


def test_kubelet_errors_are_retried(server: FakeApiServer, cluster: Cluster) -> None:
    run_pod(server)
    server.write("pod", "2026-01-31T12:00:00Z one")
    lines = follow(cluster)
    next(lines)
    server.faults.append(respond_once(500, path="/log", times=2))
    server.break_streams("reset")
    server.write("pod", "2026-01-31T12:00:02Z two")
    assert next(lines) == "two"


def test_kubelet_notes_are_no_lines_of_known_log(server: FakeApiServer, cluster: Cluster) -> None:
    """The kubelet answers 200 and a note without a timestamp for a container that was removed between two streams."""
    note = "unable to retrieve container logs for containerd://4f"
    run_pod(server)
    server.write("pod", "2026-01-31T12:00:00Z one")
    lines = follow(cluster)
    assert next(lines) == "one"
    server.faults.append(send_note_once(note, times=2))
    server.break_streams("end")
    server.write("pod", "2026-01-31T12:00:02Z two")
    assert next(lines) == "two"
    run_pod(server, running=False)
    server.write("pod", end=True)
    assert list(lines) == []


def test_kubelet_note_is_shown_for_log_without_lines(server: FakeApiServer, cluster: Cluster) -> None:
    run_pod(server, running=False)
    server.faults.append(send_note_once("failed to open log file"))
    assert list(follow(cluster)) == ["failed to open log file"]


def test_deleted_pods_have_no_lines(server: FakeApiServer, cluster: Cluster) -> None:
    assert list(follow(cluster)) == []
    with pytest.raises(NotFoundError, match="'pod' in namespace default"):
        cluster.get(PODS, "pod", "default")


def test_cancellation_token_ends_followed_log(server: FakeApiServer, cluster: Cluster) -> None:
    run_pod(server)
    server.write("pod", "2026-01-31T12:00:00Z one")
    token = CancellationToken()
    lines = follow(cluster, token)
    next(lines)
    threading.Timer(0.1, token.cancel).start()
    assert list(lines) == []


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20).map(sorted), st.lists(st.integers(0, 20), max_size=5))
def test_lines_that_server_repeats_are_read_once(stamps: list[int], cuts: list[int]) -> None:
    """Break a log at any lines; the server sends again what is of the same second or later."""
    fractions = ["", ".1", ".12"]
    lines = [
        (f"2026-01-31T12:00:0{stamp // 3}{fractions[stamp % 3]}Z", f"line {index}")
        for index, stamp in enumerate(stamps)
    ]
    position, read = _LogPosition(), []
    for cut in [*cuts, len(lines)]:
        since = position.since.rstrip("Z")
        for stamp, content in [item for item in lines if item[0][:19] >= since][:cut]:
            if (text := position.advance(f"{stamp} {content}".encode())) is not None:
                read.append(text)
        position.rewind()
    assert read == [text for _, text in lines]
