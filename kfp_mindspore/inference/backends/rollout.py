"""A rollout on a cluster: completion, and the reason for a failure.

An InferenceService's Ready=True stays true while a new version's pods crash, and an InferenceGraph is Ready without its
router. So a rollout is complete when the Deployment is, and fails when a pod of that version does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, WaitTimeoutError
from kfp_mindspore.inference.manifest import VERSION_ANNOTATION
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.pods import PodState, read_pod
from kfp_mindspore.kube.resources import EVENTS, PODS, Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
# On an InferenceService's pods: its name.
SERVICE_LABEL = "serving.kserve.io/inferenceservice"
KNATIVE_MODES = ("Knative", "Serverless")
_POLL_SECONDS = 0.1
_LAST_LINES = 15
# The controller makes a Deployment in under a second, and repeats an attempt that failed by a conflict.
_CONTROLLER_SECONDS = 5.0
# modelStatus keeps an earlier spec's failure until the controller has read the new one.
_STALE_SECONDS = 2.0
# A container does not leave these waiting states without intervention.
_STUCK_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff"}
    | {"InvalidImageName", "CrashLoopBackOff", "RunContainerError"}
)

Document = Mapping[str, Any]


@dataclass(frozen=True)
class PodFailure:
    """Why a pod does not become ready.

    Args:
        reason: One sentence with pod and container.
        pod: Pod name.
        container: The pod's failing container; empty when none has started.
        restarted: Whether the container that failed is the one before the present one.
        message: Termination message, the last resort for a log.
    """

    reason: str
    pod: str
    container: str = ""
    restarted: bool = False
    message: str = ""


@dataclass(frozen=True)
class Rollout:
    """One InferenceService or InferenceGraph version.

    Args:
        cluster: The cluster.
        subject: The rollout's name in messages, such as `service digits`.
        resource: The object's kind.
        applied: The object as the API server stored it.
        deployment: Deployment name in Standard mode.
        unschedulable_seconds: Seconds for which a pod may have no node.
    """

    cluster: Cluster
    subject: str
    resource: Resource
    applied: Document
    deployment: str
    unschedulable_seconds: float

    def wait(self, wait_seconds: float) -> None:
        """Wait until the version serves, and no other version's pod is left.

        Raises:
            ProcessFailedError: A pod fails, the controller refuses the spec, or another deployment replaced it.
            WaitTimeoutError: The timeout expired.
        """
        start = time.monotonic()
        unschedulable: dict[str, float] = {}
        while True:
            seconds = time.monotonic() - start
            observed = self._get()
            if self._marker(observed) != self._marker(self.applied):
                raise ProcessFailedError(f"{self.subject}: another deployment replaced this one meanwhile")
            deployment = self._get_deployment()
            pods = list_pods(self.cluster, self.deployment, self._namespace, self._marker(self.applied))
            if self._is_complete(observed, deployment, pods):
                return
            for pod in pods:
                failure = get_pod_failure(pod)
                if failure is None and (why := get_unschedulable(pod)):
                    since = unschedulable.setdefault(pod.uid, time.monotonic())
                    if time.monotonic() - since >= self.unschedulable_seconds:
                        failure = PodFailure(f"pod {pod.name}: Unschedulable: {why}", "")
                if failure is not None:
                    raise ProcessFailedError(f"{self.subject}: {failure.reason}", log=self._read_lines(failure))
            if reason := self._get_refusal(observed, deployment, pods, seconds):
                raise ProcessFailedError(f"{self.subject}: {reason}")
            if seconds >= wait_seconds:
                states = [f"pod {pod.name} is {pod.phase}" for pod in pods]
                lines = self._read_lines(PodFailure("", pods[0].name)) if pods else []
                raise WaitTimeoutError(
                    f"{self.subject}: not ready within {wait_seconds:g} s: {', '.join(states) or 'it has no pods'}",
                    log=lines,
                    hint="Increase the timeout if it is still loading according to its last lines.",
                )
            time.sleep(_POLL_SECONDS)

    @property
    def _namespace(self) -> str:
        return str(self.applied["metadata"]["namespace"])

    @property
    def _applied_at(self) -> str:
        """When the newest change was made to the applied object (RFC 3339, seconds)."""
        entries = self.applied["metadata"].get("managedFields") or []
        return max((entry.get("time", "") for entry in entries), default="")

    def _marker(self, document: Document) -> str:
        return str((document["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, ""))

    def _get(self) -> Document:
        try:
            return self.cluster.get(self.resource, self.applied["metadata"]["name"], self._namespace)
        except NotFoundError:
            raise ProcessFailedError(f"{self.subject}: was deleted meanwhile") from None

    def _get_deployment(self) -> Document | None:
        """Return the Deployment once it has the version's template."""
        try:
            deployment = self.cluster.get(DEPLOYMENTS, self.deployment, self._namespace)
        except NotFoundError:
            return None
        return deployment if self._marker(deployment["spec"]["template"]) == self._marker(self.applied) else None

    def _is_complete(self, observed: Document, deployment: Document | None, pods: Sequence[PodState]) -> bool:
        status = observed.get("status") or {}
        if status.get("deploymentMode") in KNATIVE_MODES:
            revisions = (status.get("components") or {}).get("predictor") or {}
            latest = revisions.get("latestCreatedRevision")
            # A graph has no components, and its own Ready is its Knative service's.
            is_latest = not revisions or latest == revisions.get("latestReadyRevision")
            is_serving = is_latest and (not revisions or any(pod.is_ready for pod in pods))
            return get_condition(observed, "Ready").get("status") == "True" and is_serving
        if deployment is None:
            return False
        found = deployment.get("status") or {}
        wanted = deployment["spec"].get("replicas", 1)
        counts = [found.get(field, 0) for field in ("updatedReplicas", "replicas", "availableReplicas")]
        is_observed = found.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        return bool(is_observed and wanted > 0 and counts == [wanted] * 3)

    def _get_refusal(
        self, observed: Document, deployment: Document | None, pods: Sequence[PodState], seconds: float
    ) -> str:
        """Return why there are no pods: the spec, or a quota or policy; empty while there is no reason."""
        if deployment is not None:
            failed = get_condition(deployment, "ReplicaFailure")
            # The previous version's condition stays for a moment.
            is_stale = str(failed.get("lastUpdateTime") or "") < self._applied_at and seconds < _CONTROLLER_SECONDS
            is_failed = failed.get("status") == "True" and not pods and not is_stale
            return str(failed.get("message") or "") if is_failed else ""
        model = (observed.get("status") or {}).get("modelStatus") or {}
        if model.get("transitionStatus") == "InvalidSpec" and seconds >= _STALE_SECONDS and not pods:
            info = model.get("lastFailureInfo") or {}
            return f"{info.get('reason', 'InvalidSpec')}: {info.get('message', '')}".rstrip(": ")
        return self._get_event() if seconds >= _CONTROLLER_SECONDS and not pods else ""

    def _get_event(self) -> str:
        """Return the controller's newest warning about this version."""
        name = self.applied["metadata"]["name"]
        fields = f"involvedObject.kind={self.resource.kind},involvedObject.name={name},type=Warning"
        events = self.cluster.list(EVENTS, self._namespace, fields=fields)
        found = [event for event in events if (event.get("lastTimestamp") or "") >= self._applied_at]
        newest = max(found, key=lambda event: str(event.get("lastTimestamp")), default=None)
        return f"{newest.get('reason')}: {newest.get('message')}" if newest else ""

    def _read_lines(self, failure: PodFailure) -> list[str]:
        lines: list[str] = []
        # The reason is known; a log that cannot be read must not hide it.
        with contextlib.suppress(KfpMindSporeError):
            if failure.pod and (failure.container or not failure.reason):
                container = failure.container or "kserve-container"
                text = self.cluster.read_log(
                    failure.pod, self._namespace, container=container, last=_LAST_LINES, previous=failure.restarted
                )
                lines = text.splitlines()
        return lines or failure.message.splitlines()[-_LAST_LINES:]


def list_pods(cluster: Cluster, deployment: str, namespace: str, version: str = "") -> list[PodState]:
    """Return a KServe Deployment's pods, without pods being deleted.

    Args:
        cluster: The cluster.
        deployment: Deployment name; in Knative mode, the Knative service's name.
        namespace: Their namespace.
        version: Only this version's; empty for all.
    """
    service, _, component = deployment.rpartition("-")
    selector = f"app=isvc.{deployment}"
    if component == "predictor":
        # `app` differs in Knative mode; these labels are the same in both.
        selector = f"{SERVICE_LABEL}={service},component=predictor"
    return read_version_pods(cluster.list(PODS, namespace, labels=selector), version)


def read_version_pods(documents: Iterable[Document], version: str = "") -> list[PodState]:
    """Return a version's pods, or all without a version, except for pods being deleted."""
    return [
        pod
        for pod in map(read_pod, documents)
        if not pod.is_deleting and version in ("", pod.annotations.get(VERSION_ANNOTATION))
    ]


def get_condition(document: Document, kind: str) -> Document:
    """Return an object's condition; empty when it has none."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def get_unschedulable(pod: PodState) -> str:
    """Return why a pod has no node; empty when it has one."""
    return "" if pod.unschedulable is None else pod.unschedulable or "no node fits"


def get_pod_failure(pod: PodState) -> PodFailure | None:
    """Return why a pod does not become ready: a container that ended or cannot start, or an eviction; else None."""
    for item in pod.all_containers:
        ended = item.termination or item.last_termination
        if ended and (ended.exit_code or not item.is_init):
            why = "" if ended.reason in ("", "Error", "Completed") else f" ({ended.reason})"
            return PodFailure(
                f"pod {pod.name}: container {item.name} ended with exit code {ended.exit_code}{why}",
                pod.name,
                item.name,
                restarted=item.termination is None,
                message=ended.message,
            )
        if item.waiting_reason in _STUCK_REASONS:
            text = f"{item.waiting_reason}: {item.waiting_message or item.image}"
            return PodFailure(f"pod {pod.name}: container {item.name}: {text}", pod.name)
    if pod.phase == "Failed":
        return PodFailure(f"pod {pod.name}: {pod.reason or 'Failed'}: {pod.message}".rstrip(": "), "")
    return None
