"""Sweeps exported to Katib, which runs their trials as MSJobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import NAMESPACES
from kfp_mindspore.msjob import LocalBackend, MSJobClient
from kfp_mindspore.sweeps import sweep
from kfp_mindspore.sweeps.katib import ALGORITHMS, build_katib_experiment
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.support.controllers.katib_cluster import EXPERIMENTS, INJECTION, TRIALS, explain, run_katib
from tests.support.kube.operators import OperatorProcess, wait_for

SCRIPT = Path(__file__).parents[2] / "support" / "training" / "sweep_script.py"
CHOICES = [0.0, 0.3, 0.8]
SECONDS = 600.0


@pytest.fixture(scope="module")
def katib(own_cluster: NodeCluster, definition: None) -> Iterator[Cluster]:
    """Return a client of a cluster with Katib."""
    with run_katib(own_cluster) as api:
        yield api


def test_katib_and_sweep_agree_on_best_trial(
    own_cluster: NodeCluster, katib: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    options: dict[str, Any] = {"pruner": "none", "parallel": 2}
    client = MSJobClient(LocalBackend())
    best = sweep(
        {"script": str(SCRIPT)}, {"x": CHOICES}, "loss", directory=tmp_path / "sweep", client=client,
        sampler="grid", **options,
    ).best  # fmt: skip
    assert best.parameters == {"x": 0.3}

    with own_cluster.make_namespace("katib") as namespace:
        katib.patch(NAMESPACES, namespace, "", {"metadata": {"labels": INJECTION}})
        volume = own_cluster.make_volume(namespace)
        shutil.copyfile(SCRIPT, volume / SCRIPT.name)
        template = {"script": f"/data/{SCRIPT.name}"}
        experiment = build_katib_experiment(
            "grid", template, {"x": CHOICES}, "loss", namespace=namespace, image=PYTHON, output="/data/out",
            sampler="random", trials=8, seed=1, **options,
        )  # fmt: skip
        pod = experiment["spec"]["trialTemplate"]["trialSpec"]["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["volumes"] = [{"name": "data", "hostPath": {"path": str(volume), "type": "Directory"}}]
        pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        with OperatorProcess(own_cluster.kubeconfig, tmp_path / "operator.log", "-n", namespace):
            katib.create(EXPERIMENTS, experiment, namespace)
            status = wait_for_end(katib, namespace)
            trials = [read_trial(document) for document in katib.list(TRIALS, namespace)]

    # Its random sampler has a seed.
    assert len({trial["x"] for trial in trials}) > 1, trials
    assert all(trial["loss"] == pytest.approx((trial["x"] - 0.3) ** 2 + 0.25) for trial in trials), trials
    optimal = status["currentOptimalTrial"]
    assert {item["name"]: float(item["value"]) for item in optimal["parameterAssignments"]} == best.parameters
    (metric,) = optimal["observation"]["metrics"]
    assert (metric["name"], float(metric["min"])) == ("loss", pytest.approx(best.value))
    assert status["trialsSucceeded"] == 8


@pytest.mark.parametrize("sampler", ALGORITHMS)
def test_katib_accepts_each_algorithm(own_cluster: NodeCluster, katib: Cluster, sampler: str) -> None:
    space: dict[str, Any] = {"optimizer": ["Adam", "SGD"], "batch_size": [16, 32]}
    if sampler != "grid":
        space |= {"learning_rate": {"low": 1e-4, "high": 0.1, "log": True}, "epochs": {"low": 1, "high": 9, "step": 2}}
    template = {"network": "my:Net", "network_arguments": {"classes": 10}, "dataset": "/data", "num_workers": 2}
    pruner = "median" if sampler == "tpe" else "none"
    experiment = build_katib_experiment(
        "lenet", template, space, "accuracy", image=PYTHON, output="s3://bucket", sampler=sampler, pruner=pruner
    )
    del experiment["metadata"]["namespace"]
    with own_cluster.make_namespace("katib") as namespace:
        katib.patch(NAMESPACES, namespace, "", {"metadata": {"labels": INJECTION}})
        created = katib.create(EXPERIMENTS, experiment, namespace, dry_run=True)
    # Its webhook has added what it would use.
    assert created["spec"]["objective"]["metricStrategies"] == [{"name": "accuracy", "value": "max"}]


def read_trial(document: dict[str, Any]) -> dict[str, float]:
    """Return a Trial's parameter and objective."""
    (metric,) = document["status"]["observation"]["metrics"]
    chosen = {item["name"]: float(item["value"]) for item in document["spec"]["parameterAssignments"]}
    return {**chosen, metric["name"]: float(metric["min"])}


def wait_for_end(api: Cluster, namespace: str) -> dict[str, Any]:
    """Return the status of the Experiment `grid` when it has succeeded."""

    def get_status() -> dict[str, Any]:
        return dict(api.get(EXPERIMENTS, "grid", namespace).get("status") or {})

    def has_ended() -> bool:
        found = {item["type"] for item in get_status().get("conditions") or [] if item["status"] == "True"}
        assert "Failed" not in found, f"{get_status()}\n{explain(api, namespace)}"
        return "Succeeded" in found

    wait_for(has_ended, lambda: f"{get_status()}\n{explain(api, namespace)}\n{explain(api, 'kubeflow')}", SECONDS)
    return get_status()
