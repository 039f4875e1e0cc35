"""KServe 0.20 in Standard mode, simulated on a real API server whose controllers make the pods of Deployments.

It makes Deployments of InferenceServices and InferenceGraphs as KServe does (names, labels, annotations copied to the
pod template), and plays the kubelet: a pod becomes ready, or fails as its model's URI says (`broken`, `no-image`,
`no-node`). As with KServe, Ready of an InferenceService stays true while a new version fails.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from kfp_mindspore.inference.backends.kserve import GRAPHS, SERVICES
from kfp_mindspore.inference.backends.rollout import DEPLOYMENTS
from kfp_mindspore.inference.manifest import SERVICE_ANNOTATION, STOP_ANNOTATION, VERSION_ANNOTATION
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import DEFINITIONS, PODS, Resource

_SECONDS = 0.05
_CONTAINER = "kserve-container"

Document = dict[str, Any]


def install_definitions(cluster: Cluster) -> None:
    """Define both kinds without schemas, as KServe's minimal definitions do, and wait until they are served."""
    for resource in (SERVICES, GRAPHS):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
        cluster.apply(
            {
                "apiVersion": DEFINITIONS.api_version,
                "kind": DEFINITIONS.kind,
                "metadata": {"name": resource.full_name},
                "spec": {
                    "group": resource.group,
                    "names": {"plural": resource.plural, "kind": resource.kind, "singular": resource.kind.lower()},
                    "scope": "Namespaced",
                    "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
                },
            }
        )
        while not _is_served(cluster, resource):
            pass


def _is_served(cluster: Cluster, resource: Resource) -> bool:
    try:
        cluster.list(resource)
    except KfpMindSporeError:
        return False
    return True


class SimulatedKServe:
    """The controller and the kubelet of one namespace.

    Args:
        kubeconfig: The API server's.
        namespace: The namespace.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.cluster = Cluster(kubeconfig)
        self.namespace = namespace
        self.errors: list[BaseException] = []
        # Whether routers start; InferenceGraphs are Ready in either case.
        self.starts_routers = True
        self.has_runtime = True
        # Knative mode: a Deployment for each revision, and Ready of the last revision that was.
        self.knative = False

    @contextmanager
    def run(self) -> Iterator[SimulatedKServe]:
        """Run the controller during a block."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,))
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
        assert not self.errors, self.errors

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_SECONDS):
            try:
                for resource in (SERVICES, GRAPHS):
                    for document in self.cluster.list(resource, self.namespace):
                        # Deleted between two requests, as with the real controller.
                        try:
                            self._reconcile(resource, document)
                        except NotFoundError:
                            continue
                for pod in self.cluster.list(PODS, self.namespace):
                    try:
                        self._play_kubelet(pod)
                    except NotFoundError:
                        continue
            except BaseException as error:  # noqa: BLE001 - raised by run
                self.errors.append(error)
                return

    def _reconcile(self, resource: Resource, document: Document) -> None:
        metadata = document["metadata"]
        annotations = metadata.get("annotations") or {}
        name = metadata["name"] if resource is GRAPHS else f"{metadata['name']}-predictor"
        labels = {"app": f"isvc.{name}", **metadata.get("labels", {})}
        if resource is SERVICES:
            if not self.has_runtime:
                info = {"reason": "NoSupportingRuntime", "message": "No runtime found to support specified framework"}
                self._set_status(
                    resource, document, {"modelStatus": {"transitionStatus": "InvalidSpec", "lastFailureInfo": info}}
                )
                return
            labels |= {"serving.kserve.io/inferenceservice": metadata["name"], "component": "predictor"}
            if annotations.get(STOP_ANNOTATION) == "true":
                self.cluster.delete(DEPLOYMENTS, name, self.namespace)
                return
        if self.knative and resource is SERVICES:
            revision = f"{name}-{int(annotations[VERSION_ANNOTATION]):05d}"
            name, labels["app"] = f"{revision}-deployment", revision
        owner = {"apiVersion": document["apiVersion"], "kind": document["kind"], "name": metadata["name"]}
        container = {"name": _CONTAINER if resource is SERVICES else name, "image": "server.invalid/server:1"}
        args = document["spec"].get("predictor", {}).get("model", {}).get("args") or [json.dumps(document["spec"])]
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "ownerReferences": [{**owner, "uid": metadata["uid"], "controller": True}],
            },
            "spec": {
                "replicas": document["spec"].get("predictor", {}).get("minReplicas", 1),
                "selector": {"matchLabels": {"app": labels["app"]}},
                "template": {
                    "metadata": {"labels": labels, "annotations": copy.deepcopy(annotations)},
                    "spec": {"containers": [{**container, "args": args}]},
                },
            },
        }
        made = self.cluster.apply(deployment, manager="kserve")
        found = (made.get("status") or {}).get("conditions") or []
        if self.knative and resource is SERVICES:
            is_available = any(item["type"] == "Available" and item["status"] == "True" for item in found)
            self._finish_revision(document, labels["app"], is_available)
            return
        # As KServe propagates it: once available, Ready stays true, and a graph is Ready without being available.
        if resource is GRAPHS or any(item["type"] == "Available" and item["status"] == "True" for item in found):
            ready = [{"type": "Ready", "status": "True"}]
            url = f"http://{name}.{self.namespace}.svc.cluster.local"
            self._set_status(resource, document, {"conditions": ready, "address": {"url": url}})

    def _finish_revision(self, document: Document, revision: str, is_ready: bool) -> None:
        """Report a revision; once it is ready, remove those before it."""
        before = ((document.get("status") or {}).get("components") or {}).get("predictor") or {}
        ready = revision if is_ready else before.get("latestReadyRevision")
        predictor = {"latestCreatedRevision": revision, "latestReadyRevision": ready}
        status = {"deploymentMode": "Knative", "components": {"predictor": predictor}}
        # As KServe does, Ready is that of the revision that serves.
        self._set_status(SERVICES, document, {**status, "conditions": [{"type": "Ready", "status": str(bool(ready))}]})
        for deployment in self.cluster.list(DEPLOYMENTS, self.namespace):
            if ready == revision and deployment["metadata"]["name"] != f"{revision}-deployment":
                self.cluster.delete(DEPLOYMENTS, deployment["metadata"]["name"], self.namespace)

    def _set_status(self, resource: Resource, document: Document, status: Document) -> None:
        if {**(document.get("status") or {}), **status} != document.get("status"):
            name = document["metadata"]["name"]
            self.cluster.patch(resource, name, self.namespace, {"status": status}, subresource="status")

    def _play_kubelet(self, pod: Document) -> None:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") or (pod.get("status") or {}).get("containerStatuses"):
            return
        recorded = metadata["annotations"].get(SERVICE_ANNOTATION)
        model = json.loads(recorded)["model_dir"] if recorded else ("router" if self.starts_routers else "no-image")
        name = pod["spec"]["containers"][0]["name"]
        item: Document = {"name": name, "image": "server.invalid/server:1", "imageID": "", "restartCount": 0}
        ready = "False"
        if "broken" in model:
            ended = {"exitCode": 2, "reason": "Error", "message": "model.mindir: has another digest"}
            item |= {"ready": False, "state": {"terminated": ended}}
        elif "no-image" in model:
            item |= {"ready": False, "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}
        elif "no-node" in model:
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
            self.cluster.patch(
                PODS, metadata["name"], self.namespace, {"status": {"conditions": [refused]}}, subresource="status"
            )
            return
        else:
            ready = "True"
            item |= {"ready": True, "started": True, "state": {"running": {"startedAt": metadata["creationTimestamp"]}}}
        conditions = [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [item]}
        self.cluster.patch(PODS, metadata["name"], self.namespace, {"status": status}, subresource="status")
