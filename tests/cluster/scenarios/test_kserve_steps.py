"""Compiled deployment components in pods, started as Kubeflow Pipelines starts them, against KServe."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.runs.access import ServiceAccount, build_access
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.paths import ROOT
from tests.support.kserve_cluster import KServe
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_cases import FIRST, NAME, SECOND

READY_SECONDS = 300.0
RUNNER = "pipeline-runner"
_OUTPUTS = "/tmp/kfp_outputs"


class StepRunner:
    """Runs components as pods of a namespace, with the rights that `pipeline setup` grants for deployments.

    Args:
        kserve: KServe.
        namespace: The namespace.
        bundles: Bundles by model name; a step finds them where KFP's launcher would download them.
    """

    def __init__(self, kserve: KServe, namespace: str, bundles: dict[str, Path]) -> None:
        self.kserve, self.namespace = kserve, namespace
        kserve.make_models(namespace, "artifacts", bundles)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": RUNNER, "namespace": namespace}}
        access = build_access(ServiceAccount(RUNNER, namespace), {"deployment": [namespace]})
        for document in (account, *access):
            kserve.api.apply(document)

    def run(self, component: str, model: str = "", **parameters: Any) -> dict[str, Any]:
        """Run a component of `components/deployment` with a bundle as its input; return its output parameters."""
        document = yaml.safe_load((ROOT / "components" / "deployment" / component / "component.yaml").read_text())
        (spec,), (executor,) = document["components"].values(), document["deploymentSpec"]["executors"].values()
        inputs = spec["inputDefinitions"]["parameters"]
        values = {name: entry["defaultValue"] for name, entry in inputs.items() if "defaultValue" in entry}
        # The driver's JSON of a protobuf number has no fraction.
        values = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in values.items()
        }
        artifact = {"name": "bundle", "type": {"schemaTitle": "system.Model"}, "uri": f"s3://{BUCKET}/{model}"}
        outputs = spec["outputDefinitions"]["parameters"]
        executor_input = {
            "inputs": {
                "parameterValues": {**values, **parameters},
                "artifacts": {"bundle": {"artifacts": [{**artifact, "metadata": {}}]}} if model else {},
            },
            "outputs": {
                "parameters": {name: {"outputFile": f"{_OUTPUTS}/{name}"} for name in outputs},
                "outputFile": f"{_OUTPUTS}/output_metadata.json",
            },
        }
        container = executor["container"]
        words = [*container["command"], *container["args"]]
        name = f"{component.replace('_', '-')}-{secrets.token_hex(3)}"
        written = self.kserve.cluster.make_volume(f"{self.namespace}-{name}")
        self._run_pod(name, [word.replace("{{$}}", json.dumps(executor_input)) for word in words], written)
        metadata = json.loads((written / "output_metadata.json").read_text())
        return dict(metadata["parameterValues"])

    def _run_pod(self, name: str, command: list[str], outputs: Path) -> None:
        variables = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
        pod = {
            "restartPolicy": "Never",
            "serviceAccountName": RUNNER,
            "containers": [
                {
                    "name": "main",
                    "image": PYTHON,
                    "command": command,
                    "env": [
                        {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in variables.items()
                    ],
                    "volumeMounts": [
                        {"name": "artifacts", "mountPath": f"/s3/{BUCKET}", "readOnly": True},
                        {"name": "outputs", "mountPath": _OUTPUTS},
                    ],
                }
            ],
            "volumes": [
                {"name": "artifacts", "persistentVolumeClaim": {"claimName": "artifacts"}},
                {"name": "outputs", "hostPath": {"path": str(outputs), "type": "Directory"}},
            ],
        }
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace}}
        api = self.kserve.api
        api.create(PODS, {**document, "spec": self.kserve.packages.add_to(pod)}, self.namespace)
        phase = ""
        for pods in api.watch(PODS, self.namespace, fields=f"metadata.name={name}", timeout=READY_SECONDS):
            phase = pods.get(name, {}).get("status", {}).get("phase", "")
            if phase in ("Succeeded", "Failed"):
                break
        if phase != "Succeeded":
            raise RuntimeError(f"{name} is {phase}: {api.read_log(name, self.namespace)}")


@pytest.fixture
def steps(kserve: KServe, bundles: dict[str, Path], store: ObjectStore) -> Iterator[StepRunner]:
    with kserve.make_namespace() as namespace:
        kserve.add_store(namespace, store)
        yield StepRunner(kserve, namespace, bundles)


def test_steps_deploy_test_and_roll_back_a_service(steps: StepRunner) -> None:
    given = {"service_name": NAME, "service_account": "models", "wait_seconds": int(READY_SECONDS)}
    first = steps.run("deploy_kserve", FIRST, **given)
    assert first["url"] == f"http://{NAME}-predictor.{steps.namespace}.svc.cluster.local"
    tested = steps.run("smoke_test", FIRST, url=first["url"], model_name=first["name"])
    assert (tested["samples"], tested["max_abs_diff"] < 1e-5) == (32, True)
    # A retried step finds its own version.
    assert steps.run("deploy_kserve", FIRST, **given) == first
    second = steps.run("deploy_kserve", SECOND, **given, canary=20, max_accuracy_drop=1.0)
    assert second["version"] == first["version"] + 1
    with pytest.raises(RuntimeError, match="differs"):
        steps.run("smoke_test", FIRST, url=second["url"], model_name=NAME)
    steps.run("rollback_kserve", service_name=NAME, wait_seconds=int(READY_SECONDS))
    assert steps.run("smoke_test", FIRST, url=first["url"], model_name=NAME)["samples"] == 32
