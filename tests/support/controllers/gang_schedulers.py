"""Volcano and scheduler-plugins beside the default scheduler of a test cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.kube.cluster import Cluster
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import COSCHEDULING, VOLCANO, Toolset, get_binaries
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster

GANG_VARIABLE = "KFP_MINDSPORE_TEST_GANG"
_PROFILE = "scheduler-plugins-scheduler"
_SECONDS = 5
_CONTROLLERS = "job-controller,pg-controller,queue-controller"


@contextlib.contextmanager
def run_scheduler_plugins(cluster: NodeCluster) -> Iterator[None]:
    """Run the scheduler of scheduler-plugins with the Coscheduling plugin."""
    folder = _get_programs(COSCHEDULING)
    _define(cluster, folder / "podgroups.yaml")
    plugin = {"name": "Coscheduling"}
    profile = {
        "schedulerName": _PROFILE,
        "plugins": {
            "multiPoint": {"enabled": [plugin]},
            "queueSort": {"enabled": [plugin], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{**plugin, "args": {"permitWaitingTimeSeconds": _SECONDS}}],
    }
    settings: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig)},
        "profiles": [profile],
    }
    file = cluster.directory / "coscheduling.yaml"
    file.write_text(yaml.safe_dump(settings))
    with _run(
        cluster, {"coscheduling": [str(folder / "kube-scheduler-coscheduling"), f"--config={file}", "--secure-port=0"]}
    ):
        yield


@contextlib.contextmanager
def run_volcano(cluster: NodeCluster) -> Iterator[None]:
    """Run Volcano's scheduler with its defaults, and its controllers of Jobs, queues and PodGroups."""
    folder = _get_programs(VOLCANO)
    for definition in VOLCANO.files:
        _define(cluster, folder / definition)
    flags = [f"--kubeconfig={cluster.kubeconfig}", "--leader-elect=false"]
    controllers = [str(folder / "vc-controller-manager"), *flags, f"--controllers={_CONTROLLERS}"]
    scheduler = [str(folder / "vc-scheduler"), *flags, "--cache-dumper=false"]
    commands = {"volcano-controllers": controllers, "volcano-scheduler": scheduler}
    with _run(cluster, commands):
        yield


def _get_programs(tools: Toolset) -> Path:
    if not os.environ.get(GANG_VARIABLE):
        pytest.skip(f"builds of gang schedulers are slow: run `make test-gang`, which sets {GANG_VARIABLE}")
    return Path(start(lambda: get_binaries(tools)))


def _define(cluster: NodeCluster, file: Path) -> None:
    Cluster(cluster.kubeconfig).apply(yaml.safe_load(file.read_text()))


@contextlib.contextmanager
def _run(cluster: NodeCluster, commands: dict[str, list[str]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            cluster.daemons.start(name, command)
            stack.callback(cluster.daemons.stop, name)
        yield
        # A daemon that exited during the test explains the failure better than the test's own timeout.
        cluster.daemons.check(*commands)
