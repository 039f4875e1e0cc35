"""The backend for clusters, where KServe serves: an InferenceService for each service."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError, ValidationError, WaitTimeoutError
from kfp_mindspore.inference import manifest
from kfp_mindspore.inference.backends import rollout
from kfp_mindspore.inference.backends.base import ServingBackend
from kfp_mindspore.inference.backends.kserve_status import (
    OWN_ANNOTATIONS,
    build_status,
    get_annotations,
    get_canary_url,
    get_replaced_autoscaler,
    get_url,
    is_idle,
    is_stopped,
    is_version_of,
    snapshot,
)
from kfp_mindspore.inference.manifest import (
    DEPLOYED_ANNOTATION,
    PREVIOUS_ANNOTATION,
    SERVICE_ANNOTATION,
    STOP_ANNOTATION,
)
from kfp_mindspore.inference.manifest import VERSION_ANNOTATION as VERSION
from kfp_mindspore.inference.scaling import keep_scaling, list_needs
from kfp_mindspore.inference.service import SERVER, Service, ServiceStatus, make_canary_error, make_missing_error
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ApiRequest, ForbiddenError, NotInstalledError
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.settings import KUBERNETES

SERVICES = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
GRAPHS = Resource("serving.kserve.io", "v1alpha1", "inferencegraphs", "InferenceGraph")
STORAGE_CONTAINERS = Resource(
    "serving.kserve.io", "v1alpha1", "clusterstoragecontainers", "ClusterStorageContainer", namespaced=False
)
_MANAGER = "kfp-mindspore-serving"
_OWN_LABEL = f"{manifest.MANAGER_LABEL}={manifest.MANAGER}"
_PREDICTORS = "component=predictor"
_CONTAINER = "kserve-container"
_REFUSED = "denied the request: "
_POLL_SECONDS = 0.2
_DELETION_SECONDS = 120.0

Document = dict[str, Any]


class KServeBackend(ServingBackend):
    """Services in a cluster with KServe, in Standard mode.

    Credentials and address come from the same sources as the kubernetes client's: KUBECONFIG, ~/.kube/config, and in a
    pod the service account. Errors are `kfp_mindspore.kube` errors beside the package's own.

    Args:
        context: The kubeconfig's context; default the current one.
        kubeconfig: The kubeconfig.
        unschedulable_seconds: Seconds for which a pod may have no node before its rollout fails; give a cluster
            autoscaler the time that it takes to add one.
    """

    def __init__(
        self,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        *,
        unschedulable_seconds: float = 30.0,
    ) -> None:
        self.context = context
        self.kubeconfig = kubeconfig
        self.unschedulable_seconds = unschedulable_seconds

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The cluster, reached on first use."""
        return Cluster(self.kubeconfig, self.context)

    @property
    def default_namespace(self) -> str:
        """The context's or the pod's namespace."""
        return self.cluster.namespace

    def deploy(self, service: Service, *, wait_seconds: float, lease: Lease | None, canary: int = 0) -> ServiceStatus:
        """Apply a service, or a canary, and return once the new version serves.

        The same service again is no new rollout, nor is an equal digest at another URI: the old one is kept. When
        the new version fails, the InferenceService is restored to the version before, or deleted if this deployment
        created it. A lease has no effect: the service outlives the run.
        """
        current = self._find(SERVICES, service.name, service.namespace)
        if current is not None and manifest.MANAGER_LABEL not in (current["metadata"].get("labels") or {}):
            raise UserError(
                f"service {service.name}: InferenceService in namespace {service.namespace} is not of kfp-mindspore",
                hint=f"Choose another name, or label it to hand it over: kubectl label -n {service.namespace} "
                f"inferenceservice {service.name} {_OWN_LABEL}",
            )
        self._check_cluster(service)
        service = self._keep_location(current, service)
        has_canary = self._find(SERVICES, f"{service.name}-canary", service.namespace) is not None
        # After its promotion, a retried step's canary is the version that serves.
        is_promoted = not has_canary and current is not None and is_version_of(current, service)
        if canary and current is not None and not is_stopped(current) and not is_promoted:
            self._deploy_canary(service, canary, current, wait_seconds)
        else:
            if has_canary:
                raise make_canary_error(service.name, service.namespace, KUBERNETES)
            self._deploy_stable(service, current, wait_seconds)
        return self.get(service.name, service.namespace)

    def promote(self, name: str, namespace: str, *, wait_seconds: float) -> ServiceStatus:
        """Deploy the canary's model as the service, wait until it serves, and remove the canary."""
        current, canary = self._get(name, namespace), self._find(SERVICES, f"{name}-canary", namespace)
        if canary is None:
            raise UserError(f"service {name}: has no canary to promote")
        service = manifest.restore_service(get_annotations(canary)[SERVICE_ANNOTATION], name, namespace)
        if not service.max_replicas and (recorded := get_annotations(current).get(SERVICE_ANNOTATION)):
            service = keep_scaling(service, manifest.restore_service(recorded, name, namespace))
        self._deploy_stable(service, current, wait_seconds)
        self._remove_canary(name, namespace)
        return self.get(name, namespace)

    def rollback(self, name: str, namespace: str, *, wait_seconds: float) -> ServiceStatus:
        """Remove the canary, or without one deploy the previous version's model again."""
        current = self._get(name, namespace)
        if not self._remove_canary(name, namespace):
            previous = get_annotations(current).get(PREVIOUS_ANNOTATION)
            if not previous:
                raise UserError(f"service {name}: has neither a canary nor a version before this one")
            service = manifest.restore_service(previous, name, namespace)
            if recorded := get_annotations(current).get(SERVICE_ANNOTATION):
                service = keep_scaling(service, manifest.restore_service(recorded, name, namespace))
            self._deploy_stable(service, current, wait_seconds, keep_previous=False)
        return self.get(name, namespace)

    def update(self, name: str, namespace: str, changes: Mapping[str, Any], *, wait_seconds: float) -> ServiceStatus:
        """Apply the recorded service with other options, and return once the new version serves."""
        current = self._get(name, namespace)
        recorded = get_annotations(current).get(SERVICE_ANNOTATION)
        if recorded is None:
            raise UserError(f"service {name}: was not deployed by kfp-mindspore", hint="Deploy it: service create.")
        service = replace(manifest.restore_service(recorded, name, namespace), **changes)
        service.validate()
        return self.deploy(service, wait_seconds=wait_seconds, lease=None)

    def get(self, name: str, namespace: str) -> ServiceStatus:
        """Return a service's status, from the InferenceService and the version's pods."""
        document = self._get(name, namespace)
        canary = self._find(SERVICES, f"{name}-canary", namespace)
        return build_status(document, canary, self.cluster.list(PODS, namespace, labels=_PREDICTORS))

    def list(self, namespace: str | None) -> list[ServiceStatus]:
        """Return kfp-mindspore services in a namespace, or in all."""
        found = self.cluster.list(SERVICES, namespace or "", labels=_OWN_LABEL)
        pods = self.cluster.list(PODS, namespace or "", labels=_PREDICTORS)
        named = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in found}
        return [
            build_status(item, named.get((place, f"{name}-canary")), pods)
            for (place, name), item in sorted(named.items())
            if manifest.CANARY_LABEL not in item["metadata"]["labels"]
        ]

    def read_logs(self, name: str, namespace: str, *, follow: bool, lines: int | None) -> Iterator[str]:
        """Yield the model server's lines from each service pod, or follow the newest pod's."""
        self._get(name, namespace)
        pods = rollout.list_pods(self.cluster, f"{name}-predictor", namespace)
        pods.sort(key=lambda pod: str(pod.created))
        for pod in pods[-1:] if follow else pods:
            pod_name = pod.name
            prefix = f"{pod_name}: " if len(pods) > 1 and not follow else ""
            # Following continues after the existing lines, so it needs their number.
            last = None if follow else lines
            text = self.cluster.read_log(pod_name, namespace, container=_CONTAINER, last=last)
            existing = text.splitlines()
            shown = existing if lines is None else existing[max(0, len(existing) - lines) :]
            yield from (f"{prefix}{line}" for line in shown)
            if follow:
                stream = self.cluster.stream_log(pod_name, namespace, container=_CONTAINER)
                yield from itertools.islice(stream, len(existing), None)

    def stop(self, name: str, namespace: str) -> ServiceStatus:
        """Annotate the InferenceService so that KServe removes the pods, and wait until they are gone."""
        document = snapshot(self._get(name, namespace))
        self._remove_canary(name, namespace)
        document["metadata"]["annotations"][STOP_ANNOTATION] = "true"
        self._apply(document)
        self._wait_gone(namespace, name)
        return self.get(name, namespace)

    def delete(self, name: str, namespace: str) -> None:
        """Delete the InferenceService and the canary, and wait until the pods are gone."""
        self._get(name, namespace)
        self._remove_canary(name, namespace)
        self._delete(namespace, (SERVICES, name))
        self._wait_gone(namespace, name)

    def _check_cluster(self, service: Service) -> None:
        """Refuse scaling that the cluster cannot do: KServe would accept it and nothing would scale."""
        if not (needed := list_needs(service)):
            return
        found = self.cluster.request(ApiRequest("get", "the API groups"), "GET", "/apis")
        groups = {group["name"] for group in found["groups"]}
        for need in needed:
            if need.group not in groups:
                raise UserError(
                    f"service {service.name}: {need.option} needs {need.product}, which this cluster does not have",
                    hint=f"Let an administrator install {need.product}, or {need.way}.",
                )

    def _list_uri_formats(self, service: Service) -> Sequence[Mapping[str, str]] | None:
        """Return the URI formats of the cluster's storage containers, or None for those that may not be read.

        KServe then decides.
        """
        if service.download == SERVER or manifest.has_known_scheme(service):
            return ()
        try:
            containers = self.cluster.list(STORAGE_CONTAINERS)
        except ForbiddenError:
            return None
        except (NotFoundError, NotInstalledError):
            return ()
        enabled = [item for item in containers if not item.get("disabled")]
        return [entry for item in enabled for entry in item["spec"]["supportedUriFormats"]]

    def _keep_location(self, current: Document | None, service: Service) -> Service:
        """Return the service at the URI where an equal bundle is served: another URI would be a rollout."""
        recorded = get_annotations(current).get(SERVICE_ANNOTATION) if current is not None else None
        if current is None or not recorded or is_stopped(current) or not self._is_serving(current):
            return service
        return manifest.keep_location(recorded, service)

    def _deploy_stable(
        self, service: Service, current: Document | None, wait_seconds: float, *, keep_previous: bool = True
    ) -> None:
        document = manifest.build_inference_service(service, self._list_uri_formats(service))
        own = document["metadata"]["annotations"]
        before = get_annotations(current) if current else {}
        recorded = before.get(SERVICE_ANNOTATION)
        is_serving = current is not None and (is_stopped(current) or self._is_serving(current))
        if current is not None and is_version_of(current, service):
            # A retried step: the annotations stay as well, since changing them is a rollout.
            own.update({key: before[key] for key in OWN_ANNOTATIONS if key in before})
        else:
            own[VERSION] = str(int(before.get(VERSION) or 0) + 1)
            own[DEPLOYED_ANNOTATION] = f"{time.time():.3f}"
            previous = recorded if is_serving else before.get(PREVIOUS_ANNOTATION)
            if keep_previous and previous:
                own[PREVIOUS_ANNOTATION] = previous
        good = snapshot(current) if current and is_serving else None
        if current and good is None and before.get(PREVIOUS_ANNOTATION):
            # The present, failing version's deployment died before it could restore the one before.
            kept = manifest.restore_service(before[PREVIOUS_ANNOTATION], service.name, service.namespace)
            good = manifest.build_inference_service(kept, self._list_uri_formats(kept))
            good["metadata"]["annotations"][VERSION] = str(int(own[VERSION]) + 1)
        self._roll_out(SERVICES, document, f"{service.name}-predictor", good, current is None, wait_seconds)

    def _deploy_canary(self, service: Service, percent: int, stable: Document, wait_seconds: float) -> None:
        name, namespace = service.name, service.namespace
        current = self._find(SERVICES, manifest.name_canary(name), namespace)
        service = self._keep_location(current, service)
        before = get_annotations(current) if current else {}
        version = max(int(get_annotations(stable).get(VERSION) or 0), int(before.get(VERSION) or 0)) + 1
        if current is not None and is_version_of(current, service):
            version = int(before[VERSION])
        document = manifest.build_canary(service, percent, version, self._list_uri_formats(service))
        good = snapshot(current) if current and self._is_serving(current) else None
        subject = f"canary of service {name}"
        self._roll_out(SERVICES, document, f"{name}-canary-predictor", good, good is None, wait_seconds, subject)
        url = get_url(stable)
        urls = url, get_canary_url(url, name)
        graph = manifest.build_canary_graph(service, percent, urls)
        graph["metadata"]["annotations"] = {VERSION: f"{version}-{percent}"}
        try:
            self._roll_out(GRAPHS, graph, graph["metadata"]["name"], None, True, wait_seconds, f"router of {subject}")
        except BaseException:
            self._remove_canary(name, namespace)
            raise

    def _roll_out(
        self,
        resource: Resource,
        document: Document,
        deployment: str,
        good: Document | None,
        is_new: bool,
        wait_seconds: float,
        subject: str = "",
    ) -> None:
        """Apply an object and wait until that version serves; if it fails, restore `good` or delete a new object."""
        name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
        subject_name = subject or f"service {name}"
        try:
            before = self._find(resource, name, namespace)
            applied = self._apply(document)
            self._remove_autoscaler(before, document)
            rollout.Rollout(self.cluster, subject_name, resource, applied, deployment, self.unschedulable_seconds).wait(
                wait_seconds
            )
        except BaseException as error:
            # Also after SIGTERM during the request, which the API server may have accepted.
            found = self._find(resource, name, namespace)
            if found is not None and get_annotations(found).get(VERSION) == get_annotations(document).get(VERSION):
                outcome = self._restore(resource, name, namespace, good, is_new, is_canary=bool(subject))
                if isinstance(error, KfpMindSporeError):
                    error.hint = f"{error.hint} {outcome}".strip()
            raise

    def _restore(
        self, resource: Resource, name: str, namespace: str, good: Document | None, is_new: bool, *, is_canary: bool
    ) -> str:
        if good is not None:
            before = self._find(resource, name, namespace)
            self._apply(good)
            try:
                self._remove_autoscaler(before, good)
            except ForbiddenError as error:
                return f"The version before serves on, beside the failed one's autoscaler: {error.message}."
            return "The version before serves on."
        if is_new:
            self._delete(namespace, (resource, name))
            if is_canary:
                return "The canary was removed; the version of the service serves on."
            return "It was removed: there was no version before it."
        return "There is no version before it to restore."

    def _remove_autoscaler(self, before: Document | None, document: Document) -> None:
        """Delete the autoscaler of the class that a service had before; KServe 0.20 keeps it, and both would scale."""
        if before is not None and (resource := get_replaced_autoscaler(before, document)):
            metadata = document["metadata"]
            with contextlib.suppress(NotFoundError):
                self.cluster.delete(resource, f"{metadata['name']}-predictor", metadata["namespace"])

    def _remove_canary(self, name: str, namespace: str) -> bool:
        """Delete the router and the canary; return whether there was one."""
        return self._delete(namespace, (GRAPHS, manifest.name_graph(name)), (SERVICES, f"{name}-canary"))

    def _delete(self, namespace: str, *objects: tuple[Resource, str]) -> bool:
        """Delete objects and wait until they are gone; return whether one existed.

        All are deleted before the first wait: a step that is terminated has half a second for requests.
        """
        found = []
        for resource, name in objects:
            with contextlib.suppress(NotFoundError):
                self.cluster.delete(resource, name, namespace)
                found.append((resource, name))
        deadline = time.monotonic() + _DELETION_SECONDS
        for resource, name in found:
            while self._find(resource, name, namespace) is not None:
                if time.monotonic() >= deadline:
                    raise WaitTimeoutError(f"{resource.kind} {name}: not deleted within {_DELETION_SECONDS:g} s")
                time.sleep(_POLL_SECONDS)
        return bool(found)

    def _wait_gone(self, namespace: str, name: str) -> None:
        """Wait until the pods of service and canary have terminated."""
        deadline = time.monotonic() + _DELETION_SECONDS
        selector = f"{rollout.SERVICE_LABEL} in ({name},{name}-canary),{_PREDICTORS}"
        while pods := self.cluster.list(PODS, namespace, labels=selector):
            if time.monotonic() >= deadline:
                names = ", ".join(pod["metadata"]["name"] for pod in pods)
                raise WaitTimeoutError(f"service {name}: pods not gone within {_DELETION_SECONDS:g} s: {names}")
            time.sleep(_POLL_SECONDS)

    def _apply(self, document: Mapping[str, Any]) -> Document:
        try:
            return self.cluster.apply(document, manager=_MANAGER)
        except (ForbiddenError, ValidationError) as error:
            reason = error.message.partition(_REFUSED)[2]
            if not reason:
                raise
            raise ValidationError([reason], subject=f"service {document['metadata']['name']}") from None

    def _find(self, resource: Resource, name: str, namespace: str) -> Document | None:
        with contextlib.suppress(NotFoundError):
            return self.cluster.get(resource, name, namespace)
        return None

    def _get(self, name: str, namespace: str) -> Document:
        if (document := self._find(SERVICES, name, namespace)) is None:
            raise make_missing_error(name, namespace, KUBERNETES)
        return document

    def _is_serving(self, document: Document) -> bool:
        metadata = document["metadata"]
        version = get_annotations(document).get(VERSION, "")
        pods = rollout.list_pods(self.cluster, f"{metadata['name']}-predictor", metadata["namespace"], version)
        return any(pod.is_ready for pod in pods) or is_idle(document)
