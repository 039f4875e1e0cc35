"""Options of a job that runs one command in each worker: the declaration of every form that they have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.names import (
    CLEAN_POD_POLICIES,
    DEFAULT_BACKOFF_LIMIT,
    DEFAULT_CLEAN_POD_POLICY,
    RESTART_POLICIES,
)
from kfp_mindspore.options import check_options, merge_values, option, to_text


@dataclass(frozen=True)
class JobOptions:
    """Job options, checked when they are built.

    Args:
        workers: Worker count. With more than one, a scheduler is added.
        image: The workers' image. Default: $KFP_MINDSPORE_IMAGE, in a step also the step's image; on this machine
            the present environment is used instead.
        env: The workers' environment variables by name.
        restart_policy: Terminations that restart the job. `ExitCode`: those with a retryable exit code (130, 137, 138,
            143), while any other fails the job; `OnFailure`: those with any exit code but 0; `Always`; `Never`.
        success_policy: Workers whose success is the job's. `Default`: worker 0; `AllWorkers`.
        backoff_limit: Restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is terminated and fails. Default: no limit.
        start_timeout_seconds: Seconds for which the job's pods may be unable to start. Default: 600 if no node of the
            cluster fits a pod or no operator reconciles the job, 60 for an image that cannot be pulled, a missing
            Secret or a refused pod, and no limit while other pods use the resources.
        ttl_seconds_after_finished: Seconds after which a finished job is deleted. Default: it is kept.
        clean_pod_policy: Pods or processes deleted when the job finishes: `Running`, `All` or `None`.
        resources: Each worker's Kubernetes resource requirements. {"requests": {…}, "limits": {…}}, or by resource
            for equal requests and limits, such as {"cpu": 2}.
        working_dir: The command's working directory; by default the present one, on a cluster the image's.
        empty_dirs: Size limits for empty directories in the workers' pods by path, such as 8Gi for `/dev/shm`. That one
            is in memory; an empty text is no limit.
        labels: Job labels.
        annotations: Job annotations.
        pod_labels: Pod labels.
        pod_annotations: Pod annotations.
        image_pull_secrets: Registry secret names for the job's pods.
        service_account: Service account for the job's pods.
        security_context: PodSecurityContext for the job's pods.
        delete_after_done: Whether the step deletes its finished job, and with it its pods' logs.
        storage: How data reach the pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    workers: int = option(1, minimum=1)
    image: str = ""
    env: Mapping[str, str] = option({})
    restart_policy: str = option("ExitCode", enum=list(RESTART_POLICIES))
    success_policy: str = option("Default", enum=["Default", "AllWorkers"])
    backoff_limit: int = option(DEFAULT_BACKOFF_LIMIT, minimum=0)
    active_deadline_seconds: int | None = option(None, minimum=1)
    start_timeout_seconds: int | None = option(None, minimum=1)
    ttl_seconds_after_finished: int | None = option(None, minimum=0)
    clean_pod_policy: str = option(DEFAULT_CLEAN_POD_POLICY, enum=list(CLEAN_POD_POLICIES))
    resources: Mapping[str, Any] = option({})
    working_dir: str = ""
    empty_dirs: Mapping[str, str] = option({})
    labels: Mapping[str, str] = option({})
    annotations: Mapping[str, str] = option({})
    pod_labels: Mapping[str, str] = option({})
    pod_annotations: Mapping[str, str] = option({})
    image_pull_secrets: Sequence[str] = ()
    service_account: str = ""
    security_context: Mapping[str, Any] = option({})
    delete_after_done: bool = False
    storage: str = "artifacts"

    def __post_init__(self) -> None:
        # KFP's parameters are numbers where Kubernetes has texts.
        for field in ("env", "empty_dirs", "labels", "annotations", "pod_labels", "pod_annotations"):
            if isinstance(values := getattr(self, field), Mapping):
                object.__setattr__(self, field, {name: to_text(value) for name, value in values.items()})
        check_options(self)
        if errors := [
            f"empty_dirs: must be absolute paths, got {path!r}" for path in self.empty_dirs if path[:1] != "/"
        ]:
            raise ValidationError(errors)

    def merge(self, changes: Mapping[str, Any]) -> JobOptions:
        """Return a copy with other values: a mapping is merged, None is ignored, any other value replaces.

        Args:
            changes: Values by field.
        """
        return dataclasses.replace(self, **merge_values(vars(self), changes))
