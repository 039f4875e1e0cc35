"""Compiled deployment components in pods, as Kubeflow Pipelines starts them, against KServe; killed and terminated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.inference.backends.kserve import GRAPHS, SERVICES
from kfp_mindspore.inference.manifest import VERSION_ANNOTATION
from kfp_mindspore.kube.pods import read_pod
from kfp_mindspore.kube.resources import PODS
from tests.support.controllers.kserve_cluster import KServe
from tests.support.kube.operators import wait_for
from tests.support.kube.step_pods import DEPLOY, Step, StepRunner
from tests.support.remote.object_store import BUCKET, ObjectStore
from tests.support.serving.serving_cases import FIRST, NAME, SECOND

READY_SECONDS = 300.0
# Target, and the grace period of a step, see `step_launcher.py`.
TERMINATION_SECONDS = 10.0 + 0.7
CANARY = {"canary": 20, "max_worsening": 1.0}


class Deployments:
    """Deployment steps in a namespace of KServe.

    Args:
        kserve: KServe.
        namespace: The namespace.
        bundles: Bundles by model name; a step finds them where KFP's launcher would download them.
    """

    def __init__(self, kserve: KServe, namespace: str, bundles: dict[str, Path]) -> None:
        self.api, self.namespace = kserve.api, namespace
        self.runner = StepRunner(kserve.cluster, namespace, kserve.packages, ["deployment"])
        kserve.make_models(namespace, "artifacts", bundles)

    def create(self, component: str, model: str = "", **parameters: Any) -> Step:
        """Return a step of a component of `components/deployment` with a bundle as its input."""
        return self.runner.create(
            DEPLOY / component / "component.yaml",
            {"bundle": f"s3://{BUCKET}/{model}"} if model else {},
            volumes={"artifacts": (f"/s3/{BUCKET}", {"persistentVolumeClaim": {"claimName": "artifacts"}})},
            **parameters,
        )

    def deploy(self, model: str, **parameters: Any) -> Step:
        """Return a step that deploys a model."""
        given = {"service_name": NAME, "service_account": "models", "wait_seconds": int(READY_SECONDS)}
        return self.create("deploy_kserve", model, **given, **parameters)

    def run(self, component: str, model: str = "", **parameters: Any) -> dict[str, Any]:
        """Run a step; return its output parameters."""
        return dict(self.create(component, model, **parameters).finish()["parameterValues"])

    def list_versions(self) -> dict[str, str]:
        """Return the versions of the InferenceServices by name."""
        found = self.api.list(SERVICES, self.namespace)
        return {item["metadata"]["name"]: item["metadata"]["annotations"][VERSION_ANNOTATION] for item in found}

    def list_graphs(self) -> list[str]:
        """Return the names of the InferenceGraphs."""
        return [item["metadata"]["name"] for item in self.api.list(GRAPHS, self.namespace)]

    def list_ready_pods(self) -> list[str]:
        """Return the UIDs of the service's pods that are ready and not being deleted."""
        pods = self.api.list(PODS, self.namespace, labels=f"serving.kserve.io/inferenceservice={NAME}")
        return [pod.uid for pod in map(read_pod, pods) if pod.is_ready and not pod.is_deleting]

    def has_pod(self, prefix: str) -> bool:
        """Return whether a pod with a name prefix exists."""
        return any(pod["metadata"]["name"].startswith(prefix) for pod in self.api.list(PODS, self.namespace))


def first_version_starts(world: Deployments) -> bool:
    return world.has_pod(f"{NAME}-predictor-")


def version_is_updated(world: Deployments) -> bool:
    return world.list_versions().get(NAME) == "2"


def canary_starts(world: Deployments) -> bool:
    return world.has_pod(f"{NAME}-canary-predictor-")


def router_starts(world: Deployments) -> bool:
    return bool(world.list_graphs())


Stage = Callable[[Deployments], bool]
CANARY_STAGES: tuple[Stage, ...] = (canary_starts, router_starts, version_is_updated)


def reach(world: Deployments, step: Step, stage: Stage) -> None:
    """Start an attempt of a step and wait until it reaches a stage."""

    def is_reached() -> bool:
        assert step.get_phase() in ("", "Pending", "Running"), step.read_log()
        return stage(world)

    step.start()
    wait_for(is_reached, step.read_log, READY_SECONDS)


@pytest.fixture
def steps(kserve: KServe, bundles: dict[str, Path], store: ObjectStore) -> Iterator[Deployments]:
    with kserve.make_namespace() as namespace:
        kserve.add_store(namespace, store)
        yield Deployments(kserve, namespace, bundles)


def test_steps_deploy_test_and_roll_back_service(steps: Deployments) -> None:
    first = steps.deploy(FIRST).finish()["parameterValues"]
    assert first["url"] == f"http://{NAME}-predictor.{steps.namespace}.svc.cluster.local"
    tested = steps.run("smoke_test", FIRST, url=first["url"], model_name=first["name"])
    assert (tested["samples"], tested["max_abs_diff"] < 1e-5) == (32, True)
    # A retried step finds its own version.
    assert steps.deploy(FIRST).finish()["parameterValues"] == first
    second = steps.deploy(SECOND, **CANARY).finish()["parameterValues"]
    assert second["version"] == first["version"] + 1
    with pytest.raises(RuntimeError, match="differs"):
        steps.run("smoke_test", FIRST, url=second["url"], model_name=NAME)
    steps.run("rollback_kserve", service_name=NAME, wait_seconds=int(READY_SECONDS))
    assert steps.run("smoke_test", FIRST, url=first["url"], model_name=NAME)["samples"] == 32


def test_deployment_killed_at_each_stage_is_retried_to_one_version(steps: Deployments) -> None:
    for model, version, parameters, stages in (
        (FIRST, 1, {}, (first_version_starts,)),
        (SECOND, 2, CANARY, CANARY_STAGES),
    ):
        step = steps.deploy(model, **parameters)
        for number, stage in enumerate(stages):
            reach(steps, step, stage)
            # SIGKILL of the processes, and the loss of the pod.
            (step.delete if number % 2 else step.kill)()
        output = step.finish()["parameterValues"]
        assert output["version"] == version
        assert (steps.list_versions(), steps.list_graphs()) == ({NAME: str(version)}, [])
        tested = steps.run("smoke_test", model, url=output["url"], model_name=NAME)
        assert tested["max_abs_diff"] < 1e-5


def test_terminated_deployment_leaves_version_before(steps: Deployments) -> None:
    def terminate(model: str, stage: Stage, is_restored: Callable[[], bool], **parameters: Any) -> None:
        step = steps.deploy(model, **parameters)
        reach(steps, step, stage)
        begin = time.monotonic()
        step.terminate()
        wait_for(is_restored, lambda: f"{steps.list_versions()}, {steps.list_graphs()}: {step.read_log()}")
        assert time.monotonic() - begin < TERMINATION_SECONDS

    terminate(FIRST, first_version_starts, lambda: not steps.list_versions())
    steps.deploy(FIRST).finish()
    pods = set(steps.list_ready_pods())
    assert pods

    def serves_before() -> bool:
        is_alone = (steps.list_versions(), steps.list_graphs()) == ({NAME: "1"}, [])
        return is_alone and pods <= set(steps.list_ready_pods())

    terminate(SECOND, version_is_updated, serves_before)
    for stage in CANARY_STAGES:
        terminate(SECOND, stage, serves_before, **CANARY)
