"""The backend for clusters, where an operator runs the jobs."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from kfp_mindspore.errors import (
    AlreadyExistsError,
    KfpMindSporeError,
    NotFoundError,
    ValidationError,
    WaitTimeoutError,
)
from kfp_mindspore.kube.cluster import CancellationToken, Cluster
from kfp_mindspore.kube.errors import ConflictError, ForbiddenError, UncertainError
from kfp_mindspore.kube.resources import EVENTS, PODS
from kfp_mindspore.msjob.api.names import CONTAINER_NAME, JOB_LABEL, KIND, MSJOBS, QUEUE_LABEL, resolve_replica_type
from kfp_mindspore.msjob.api.status import DetailedStatus
from kfp_mindspore.msjob.backends.base import JobBackend, JobEvent, Pod
from kfp_mindspore.msjob.backends.cluster_logs import follow_pods
from kfp_mindspore.msjob.backends.cluster_pods import is_owned, read_events, read_pods
from kfp_mindspore.msjob.build import has_image
from kfp_mindspore.msjob.progress import format_line
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.retries import wait_with_jitter
from kfp_mindspore.settings import KUBERNETES, get_backend_name

_MANAGER = "kfp-mindspore"
# Set by the API server; in a patch, resourceVersion would be a precondition.
_SERVER_FIELDS = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)
_CONFLICTS = 10
# Time for deletion beyond the pods' grace period.
_DELETION_SECONDS = 120.0


class KubernetesBackend(JobBackend):
    """Jobs on a cluster.

    Credentials and address come from the same sources as the kubernetes client's: KUBECONFIG, ~/.kube/config with its
    contexts and exec plugins, and in a pod its service account. Errors are `kfp_mindspore.kube` errors beside the
    package's own.

    Args:
        namespace: Job namespace; default the context's or the pod's.
        context: The kubeconfig's context; default the current one.
        kubeconfig: The kubeconfig.
    """

    def __init__(
        self,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
    ) -> None:
        self.namespace = namespace
        self.context = context
        self.kubeconfig = kubeconfig

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The cluster, reached on first use."""
        return Cluster(self.kubeconfig, self.context)

    @property
    def default_namespace(self) -> str:
        """The default namespace for jobs: the backend's, else the context's or the pod's."""
        return self.namespace or self.cluster.namespace

    def list_flags(self) -> Sequence[str]:
        """Return the command-line flags that select this cluster."""
        flags = [] if get_backend_name() == KUBERNETES else ["--backend", KUBERNETES]
        for flag, value in (("--context", self.context), ("--kubeconfig", self.kubeconfig)):
            flags += [flag, str(value)] if value else []
        return flags

    def name_command(self, *words: str, namespace: str = "") -> str:
        """Return a `kfp-mindspore job` command line that means the same jobs; see `JobBackend.name_command`."""
        other = copy.copy(self)
        # Pasted, the command finds the context namespace, not this object's.
        other.namespace = None
        return JobBackend.name_command(other, *words, namespace=namespace)

    def create(self, job: MSJob, *, dry_run: bool = False) -> MSJob:
        """Submit a job; see `JobBackend.create`. The API server validates it too, unknown fields included."""
        validate_msjob(job)
        check_images(job)
        document = job.to_dict()
        document.pop("status", None)
        namespace = document["metadata"].setdefault("namespace", self.default_namespace)
        for field in set(_SERVER_FIELDS) - {"name", "namespace"}:
            document["metadata"].pop(field, None)
        # The response may be lost after the job was created: a unique field manager identifies it.
        manager = f"{_MANAGER}-{secrets.token_hex(4)}"
        while True:
            try:
                return _read_job(self.cluster.create(MSJOBS, document, namespace, manager=manager, dry_run=dry_run))
            except UncertainError:
                if (found := self._get_created(job.name, namespace, manager)) is not None:
                    return found
            except AlreadyExistsError:
                if (found := self._get_created(job.name, namespace, manager)) is not None:
                    return found
                raise AlreadyExistsError(
                    f"job {job.name} exists already in namespace {namespace}",
                    hint="Choose another name, or delete it: "
                    + self.name_command("delete", job.name, namespace=namespace),
                ) from None
            except ValidationError as error:
                raise ValidationError(error.errors, subject=f"MSJob {job.name}", hint=error.hint) from None

    def explain_queue(self, job: MSJob, kind: str = KIND) -> str:
        """Return why a job's Kueue queue cannot start it; see `JobBackend.explain_queue`."""
        from kfp_mindspore.msjob.backends.queues import explain_queue, sum_requests

        queue = (job.metadata.get("labels") or {}).get(QUEUE_LABEL)
        if not queue:
            return ""
        # Another kind's launcher or head has requests of its own.
        requests = sum_requests(job) if kind == KIND else None
        # Accounts that may submit jobs are not always allowed to read queues, and the job is submitted already.
        with contextlib.suppress(KfpMindSporeError):
            return explain_queue(self.cluster, queue, job.metadata.get("namespace") or self.default_namespace, requests)
        return ""

    def get(self, name: str, namespace: str) -> MSJob:
        """Return a job with its status; see `JobBackend.get`."""
        return _read_job(self._get(name, namespace))

    def list_jobs(self, namespace: str) -> list[MSJob]:
        """Return the jobs in a namespace by name."""
        return [_read_job(document) for document in _sort(self.cluster.list(MSJOBS, namespace))]

    def watch(
        self,
        name: str,
        namespace: str,
        *,
        timeout: float | None = None,
        interval: float = 0.1,
        token: CancellationToken | None = None,
    ) -> Iterator[MSJob]:
        """Yield a job as it is now, and again after each change; see `JobBackend.watch`.

        The API server's watch is used, so `interval` has no effect; `token` ends it from another thread.
        """
        uid = ""
        fields = f"metadata.name={name}"
        for objects in self.cluster.watch(MSJOBS, namespace, fields=fields, timeout=timeout, token=token):
            document = objects.get(name)
            if document is None or uid not in ("", document["metadata"]["uid"]):
                if not uid:
                    self._raise_not_found(name, namespace)
                raise NotFoundError(f"job {name} does not exist in namespace {namespace} any more: it was deleted")
            uid = document["metadata"]["uid"]
            yield _read_job(document)

    def update(self, name: str, namespace: str, patch: dict[str, Any]) -> MSJob:
        """Merge a patch into a job; see `JobBackend.update`. What others change meanwhile is kept."""
        patch = {key: value for key, value in patch.items() if key in ("metadata", "spec")}
        if metadata := patch.get("metadata"):
            patch["metadata"] = {key: value for key, value in metadata.items() if key not in _SERVER_FIELDS}
        if isinstance(spec := patch.get("spec"), Mapping) and isinstance(spec.get("msReplicaSpecs"), Mapping):
            patch["spec"] = {**spec, "msReplicaSpecs": self._use_stored_keys(name, namespace, spec["msReplicaSpecs"])}
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

        retrying = Retrying(
            reraise=True,
            retry=retry_if_exception_type(ConflictError),
            stop=stop_after_attempt(_CONFLICTS + 1),
            wait=wait_with_jitter(0.02, 0.64),
        )
        try:
            return _read_job(retrying(self.cluster.patch, MSJOBS, name, namespace, patch))
        except NotFoundError:
            self._raise_not_found(name, namespace)
        except ValidationError as error:
            raise ValidationError(error.errors, subject=f"Update of MSJob {name}", hint=error.hint) from None

    def delete(self, name: str, namespace: str, *, grace_seconds: float | None = None) -> None:
        """Delete a job, its pods before it, and return when all are gone; see `JobBackend.delete`.

        Raises:
            WaitTimeoutError: Its pods do not terminate, as on a lost node.
        """
        job = self.get(name, namespace)
        uid = str(job.metadata["uid"])
        longest = max(spec.grace_seconds for spec in job.ms_replica_specs.values())
        deadline = time.monotonic() + (longest if grace_seconds is None else grace_seconds) + _DELETION_SECONDS
        with contextlib.suppress(NotFoundError, ConflictError):
            self.cluster.delete(MSJOBS, name, namespace, propagation="Foreground", uid=uid)
        if grace_seconds is not None:
            self._shorten_grace_period(name, namespace, uid, math.ceil(grace_seconds))
        job_there = self.cluster.watch(
            MSJOBS, namespace, fields=f"metadata.name={name}", timeout=max(0.0, deadline - time.monotonic())
        )
        self._wait_for_end(name, namespace, job_there, lambda item: item["metadata"]["uid"] == uid)
        # Pods without blockOwnerDeletion are deleted after their job.
        pods_there = self.cluster.watch(
            PODS, namespace, labels=f"{JOB_LABEL}={name}", timeout=max(0.0, deadline - time.monotonic())
        )
        self._wait_for_end(name, namespace, pods_there, lambda item: is_owned(item, uid))

    def cancel(self, job: MSJob) -> None:
        """Request a job's deletion by one API call; see `JobBackend.cancel`."""
        self.cluster.delete(MSJOBS, job.name, job.namespace, uid=str(job.metadata.get("uid") or ""))

    def list_pods(self, name: str, namespace: str) -> Sequence[Pod]:
        """Return a job's pods: scheduler, parameter servers, workers by rank."""
        uid = self._get(name, namespace)["metadata"]["uid"]
        documents = self.cluster.list(PODS, namespace, labels=f"{JOB_LABEL}={name}")
        return read_pods(document for document in documents if is_owned(document, uid))

    def list_events(self, name: str, namespace: str) -> Sequence[JobEvent]:
        """Return the events on a job and its pods, oldest first; the API server keeps them for an hour."""
        uid = self._get(name, namespace)["metadata"]["uid"]
        return read_events(self.cluster.list(EVENTS, namespace), name, uid)

    def read_log(self, name: str, namespace: str, pod: str, *, last: int | None = None) -> str:
        """Return a pod's output; see `JobBackend.read_log`. An earlier attempt's log is deleted with its pod."""
        text = self.cluster.read_log(pod, namespace, container=CONTAINER_NAME, last=last)
        return "\n".join(map(format_line, text.split("\n")))

    def follow_logs(
        self,
        name: str,
        namespace: str,
        pod_filter: Callable[[Pod], bool],
        *,
        timeout: float | None = None,
        on_change: Callable[[MSJob], object] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Yield (pod name, line), across restarts, until the job ends or is deleted; see `JobBackend.follow_logs`."""
        uid = self._get(name, namespace)["metadata"]["uid"]

        def watch_job(token: CancellationToken) -> Iterator[MSJob]:
            return self.watch(name, namespace, token=token)

        return follow_pods(self.cluster, watch_job, name, namespace, uid, pod_filter, timeout, on_change)

    def _wait_for_end(
        self,
        name: str,
        namespace: str,
        there: Iterator[Mapping[str, dict[str, Any]]],
        belongs: Callable[[dict[str, Any]], bool],
    ) -> None:
        rest: list[dict[str, Any]] = []
        for objects in there:
            rest = [item for item in objects.values() if belongs(item)]
            if not rest:
                return
        held = sorted({word for item in rest for word in item["metadata"].get("finalizers") or []})
        raise WaitTimeoutError(
            f"job {name} is being deleted and takes long; still there: "
            + ", ".join(f"{item.get('kind') or 'Pod'} {item['metadata']['name']}" for item in rest)
            + (f" (finalizers: {', '.join(held)})" if held else ""),
            hint=f"See what holds it: kubectl get pods -n {namespace} -l {JOB_LABEL}={name}",
        )

    def _get(self, name: str, namespace: str) -> dict[str, Any]:
        try:
            return self.cluster.get(MSJOBS, name, namespace)
        except NotFoundError:
            self._raise_not_found(name, namespace)

    def _raise_not_found(self, name: str, namespace: str) -> NoReturn:
        raise NotFoundError(
            f"job {name} does not exist in namespace {namespace}",
            hint=f"`{self.name_command('list', namespace=namespace)}` shows what there is.",
        ) from None

    def _get_created(self, name: str, namespace: str, manager: str) -> MSJob | None:
        try:
            document = self.cluster.get(MSJOBS, name, namespace)
        except NotFoundError:
            return None
        entries = document["metadata"].get("managedFields") or []
        return _read_job(document) if any(entry.get("manager") == manager for entry in entries) else None

    def _use_stored_keys(self, name: str, namespace: str, specs: Mapping[str, Any]) -> dict[str, Any]:
        """Return replica specs under the keys that the stored job has for them: `worker` stays `worker`."""
        stored = self._get(name, namespace)["spec"]["msReplicaSpecs"]
        keys = {resolve_replica_type(key) or key: key for key in stored}
        return {keys.get(resolve_replica_type(key) or key, key): value for key, value in specs.items()}

    def _shorten_grace_period(self, name: str, namespace: str, uid: str, seconds: int) -> None:
        # The garbage collector uses the pods' own grace period, which a second deletion can shorten. Accounts that may
        # delete jobs are not always allowed to delete pods: the grace period then stays.
        with contextlib.suppress(ForbiddenError):
            for document in self.cluster.list(PODS, namespace, labels=f"{JOB_LABEL}={name}"):
                if is_owned(document, uid):
                    with contextlib.suppress(NotFoundError, ConflictError):
                        metadata = document["metadata"]
                        self.cluster.delete(
                            PODS, metadata["name"], namespace, grace_seconds=seconds, uid=metadata["uid"]
                        )


def check_images(job: MSJob) -> None:
    """Refuse a job without an image, which only the local backend can run.

    Raises:
        ValidationError: A container `mindspore` has no image.
    """
    errors = [
        f"spec.msReplicaSpecs.{kind}.template.spec.containers: '{CONTAINER_NAME}' must have an image on a cluster"
        for kind, spec in job.ms_replica_specs.items()
        if not has_image(spec.container)
    ]
    if errors:
        raise ValidationError(
            errors,
            subject=f"MSJob {job.name}",
            hint="Give it one: in its YAML, or by --image, base_image or KFP_MINDSPORE_IMAGE.",
        )


def _read_job(document: dict[str, Any]) -> MSJob:
    """Return a stored job; unknown spec fields are dropped, but kept in pod templates."""
    status = document.get("status")
    job = MSJob.from_dict({**document, "status": None}, validate=False)
    job.metadata.pop("managedFields", None)
    job.status = DetailedStatus.from_dict(status) if status else None
    return job


def _sort(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(documents, key=lambda document: str(document["metadata"]["name"]))
