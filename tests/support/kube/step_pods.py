"""Steps of pipeline runs as pods of a node: commands of compiled components, started as Kubeflow Pipelines does."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.runs.cluster.access import Capability, ServiceAccount, build_access
from kfp_mindspore.runs.compiled.spec import read_spec
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import ImagePackages
from tests.cluster.infrastructure.paths import ROOT
from tests.support.kube.operators import wait_for
from tests.support.remote.object_store import BUCKET

RUNNER = "pipeline-runner"
# Three processes of MindSpore on two busy cores.
SECONDS = 500.0
TRAIN = ROOT / "components/training/train_msjob/component.yaml"
STOP = ROOT / "components/training/stop_msjobs/component.yaml"
DEPLOY = ROOT / "components/deployment"
_UUID = "0b6f5a9e-52f0-4a0c-8f37-90a7b4a6b1aa"
_LAUNCHER = Path(__file__).with_name("step_launcher.py")


class StepRunner:
    """Runs steps in a namespace, as a service account with the rights that `pipeline setup` grants.

    Args:
        cluster: The cluster.
        namespace: The namespace.
        packages: Packages of the pods.
        capabilities: What the steps do.
        image: Image of the pods; empty for the one that each step was compiled with.
    """

    def __init__(
        self,
        cluster: NodeCluster,
        namespace: str,
        packages: ImagePackages,
        capabilities: Sequence[Capability],
        image: str = PYTHON,
    ) -> None:
        self.cluster, self.namespace, self.packages, self.image = cluster, namespace, packages, image
        self.api = Cluster(cluster.kubeconfig)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": RUNNER, "namespace": namespace}}
        access = build_access(ServiceAccount(RUNNER, namespace), {name: [namespace] for name in capabilities})
        for document in (account, *access):
            self.api.apply(document)

    def create(
        self,
        component: Path,
        artifacts: Mapping[str, str] | None = None,
        *,
        volumes: Mapping[str, tuple[str, dict[str, Any]]] | None = None,
        run: str = "",
        task_name: str = "",
        **values: Any,
    ) -> Step:
        """Return a step that has not started.

        Args:
            component: The compiled component, or pipeline.
            artifacts: URIs of its input artifacts by name.
            volumes: Mount path and source of further volumes by name.
            run: The run's ID; empty for a new one.
            task_name: Name of the component in a pipeline; empty for the only one.
            **values: Its parameters.
        """
        return Step(self, component, task_name, artifacts or {}, volumes or {}, run, values)


class Step:
    """A step of a run; each attempt is a new pod. The arguments are those of `StepRunner.create`."""

    def __init__(
        self,
        runner: StepRunner,
        component: Path,
        task: str,
        artifacts: Mapping[str, str],
        volumes: Mapping[str, tuple[str, dict[str, Any]]],
        run: str,
        values: Mapping[str, Any],
    ) -> None:
        self.runner = runner
        self.run = run or f"run-{secrets.token_hex(4)}"
        self.key = f"artifacts/{self.run}/{task or component.parent.name.replace('_', '-')}/{_UUID}"
        self.pod = ""
        self._volumes = [{"name": name, **source} for name, (_, source) in volumes.items()]
        self._mounts = [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()]
        document = read_spec(component)
        components = document["components"]
        spec = components[f"comp-{task}"] if task else next(iter(components.values()))
        executor = document["deploymentSpec"]["executors"][spec["executorLabel"]]
        inputs, outputs = spec.get("inputDefinitions", {}), spec.get("outputDefinitions", {})
        self._output_file = f"/s3/{BUCKET}/{self.key}/output_metadata.json"
        executor_input = {
            "inputs": {
                "parameterValues": {**self._list_parameters(inputs.get("parameters", {})), **values},
                "artifacts": {name: _describe(name, inputs, uri) for name, uri in artifacts.items()},
            },
            "outputs": {
                "artifacts": {
                    name: _describe(name, outputs, f"s3://{BUCKET}/{self.key}/{name}")
                    for name in outputs.get("artifacts", {})
                },
                "parameters": {
                    name: {"outputFile": f"/tmp/kfp/outputs/{name}"} for name in outputs.get("parameters", {})
                },
                "outputFile": self._output_file,
            },
        }
        self._image = runner.image or executor["container"]["image"]
        words = [*executor["container"]["command"], *executor["container"]["args"]]
        self._command = [word.replace("{{$}}", json.dumps(executor_input)).replace("$", "$$") for word in words]

    def _list_parameters(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the default values, and what KFP passes through of kfp-kubernetes' setters."""
        packages = self.runner.packages
        found: dict[str, Any] = {}
        for name, entry in inputs.items():
            if entry["parameterType"] == "TASK_CONFIG":
                found[name] = {
                    "env": packages.environment,
                    "volumes": [*packages.volumes, *self._volumes],
                    "volumeMounts": [*packages.mounts, *self._mounts],
                }
            elif "defaultValue" in entry:
                value = entry["defaultValue"]
                # The driver's JSON of a protobuf number has no fraction.
                found[name] = int(value) if isinstance(value, float) and value.is_integer() else value
        return found

    def start(self) -> None:
        """Start an attempt, in a new pod."""
        self.pod = f"step-{secrets.token_hex(4)}"
        variables = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
        spec = {
            "serviceAccountName": RUNNER,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": self._image,
                    "command": ["python", "-c", _LAUNCHER.read_text(), self._output_file, *self._command],
                    "env": [
                        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": variables[key]}}} for key in variables),
                        {"name": "KFP_MINDSPORE_IMAGE", "value": self._image},
                    ],
                    "volumeMounts": self._mounts,
                }
            ],
            "volumes": self._volumes,
        }
        metadata = {"name": self.pod, "labels": {"pipeline/runid": self.run}}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.runner.packages.add_to(spec)}
        self.runner.api.create(PODS, document, self.runner.namespace)

    def kill(self) -> None:
        """Kill the processes of the attempt and wait until it has failed."""
        self._send(signal.SIGKILL)

    def delete(self) -> None:
        """Kill the processes of the attempt and delete its pod as that of a lost node; wait until they ended."""
        processes = self._find_processes()
        for process in processes:
            process.send(signal.SIGKILL)
        self.runner.api.delete(PODS, self.pod, self.runner.namespace, grace_seconds=0)
        wait_for(lambda: not any(process.is_alive() for process in processes), lambda: f"{self.pod} still runs")

    def drain(self) -> None:
        """Delete the attempt's pod as a drain of its node does, and wait until it is gone."""
        self.runner.api.delete(PODS, self.pod, self.runner.namespace)
        wait_for(lambda: not self._exists(), lambda: f"{self.pod} is still there")

    def terminate(self) -> None:
        """Terminate the attempt as Argo does when its run is terminated, and wait until it has failed."""
        self._send(signal.SIGTERM)

    def get_phase(self) -> str:
        """Return the phase of the attempt's pod."""
        return str(self.runner.api.get(PODS, self.pod, self.runner.namespace)["status"].get("phase", ""))

    def read_log(self) -> str:
        """Return the log of the attempt; empty after its pod was deleted."""
        try:
            return self.runner.api.read_log(self.pod, self.runner.namespace)
        except NotFoundError:
            return ""

    def finish(self) -> dict[str, Any]:
        """Start an attempt, wait for its success and return KFP's ExecutorOutput."""
        self.start()
        return self.wait()

    def wait(self) -> dict[str, Any]:
        """Wait for the success of the attempt and return KFP's ExecutorOutput.

        Raises:
            RuntimeError: It failed; the message is its log.
        """
        wait_for(lambda: self.get_phase() in ("Succeeded", "Failed"), self.read_log, SECONDS)
        log = self.read_log()
        if self.get_phase() != "Succeeded":
            raise RuntimeError(log)
        output: dict[str, Any] = json.loads(log.splitlines()[-1])
        return output

    def list_jobs(self) -> list[dict[str, Any]]:
        """Return the MSJobs of the step."""
        return self.runner.api.list(MSJOBS, self.runner.namespace, labels=f"pipeline/runid={self.run}")

    def wait_job(self) -> dict[str, Any]:
        """Wait for the MSJob of the step and return it."""

        def exists() -> bool:
            assert self.get_phase() != "Failed", self.read_log()
            return bool(self.list_jobs())

        wait_for(exists, self.read_log, SECONDS)
        (job,) = self.list_jobs()
        return job

    def _exists(self) -> bool:
        try:
            self.runner.api.get(PODS, self.pod, self.runner.namespace)
        except NotFoundError:
            return False
        return True

    def _find_processes(self) -> list[ProcessIdentity]:
        """Return the processes of the attempt's pod, whose status has its container a moment after the start."""
        found: list[ProcessIdentity] = []

        def is_found() -> bool:
            found[:] = self.runner.cluster.find_processes(self.runner.namespace, self.pod)
            return bool(found)

        wait_for(is_found, lambda: f"{self.pod} has no process")
        return found

    def _send(self, number: int) -> None:
        """Send a signal to the pod's first process and wait until the attempt has failed."""
        self._find_processes()[0].send(number)
        wait_for(lambda: self.get_phase() in ("Succeeded", "Failed"), self.read_log)
        assert self.get_phase() == "Failed", self.read_log()


def _describe(name: str, definitions: Mapping[str, Any], uri: str) -> dict[str, Any]:
    kind = definitions["artifacts"][name]["artifactType"]
    return {"artifacts": [{"name": name, "uri": uri, "type": kind, "metadata": {}}]}
