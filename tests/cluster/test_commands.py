"""The harness itself: a cluster for people, by its commands."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api

from tests.cluster.conftest import start
from tests.cluster.infrastructure.cluster import Cluster
from tests.cluster.infrastructure.packages import get_dependencies
from tests.cluster.infrastructure.paths import ROOT, get_cache
from tests.cluster.infrastructure.resources import connect


@pytest.fixture
def run_command(own_cluster: Cluster) -> Iterator[Callable[[str], str]]:
    """Return a function that runs `python -m tests.cluster` on a cache with the real one's contents and no cluster."""
    start(get_dependencies)
    with tempfile.TemporaryDirectory(prefix="kfp-") as cache:
        for path in get_cache().iterdir():
            if path.is_dir() and path.name != "instances":
                Path(cache, path.name).symlink_to(path)

        def run(word: str) -> str:
            environment = {**os.environ, "KFP_MINDSPORE_CLUSTER_CACHE": cache}
            command = [sys.executable, "-m", "tests.cluster", word]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        try:
            yield run
        finally:
            run("down")


def test_cluster_up_and_down(run_command: Callable[[str], str], own_cluster: Cluster) -> None:
    assert run_command("status").startswith("no cluster is up")
    answer = run_command("up")
    kubeconfig = Path(answer.removeprefix("export KUBECONFIG="))
    with connect(kubeconfig) as client:
        assert [node.metadata.name for node in CoreV1Api(client).list_node().items] == ["node-1"]
    # The command has ended and the cluster is up: starting it again finds it.
    assert run_command("up") == answer
    assert run_command("status").split("\t")[1:] == ["ready", str(kubeconfig)]

    assert run_command("down") == f"{kubeconfig.parent.name} stopped"
    assert not kubeconfig.parent.exists()
    assert own_cluster.is_ready()
