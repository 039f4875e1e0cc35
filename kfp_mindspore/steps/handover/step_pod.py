"""A step's pod on Kubeflow Pipelines: the run and the Workflow that it belongs to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

# Set by Kubeflow Pipelines on each pod in a run; a run's jobs have it too.
RUN_LABEL = "pipeline/runid"
POD_NAME_VARIABLE = "KFP_POD_NAME"
# Argo's name for a step's container.
_STEP_CONTAINER = "main"
_DISRUPTION = "DisruptionTarget"
# KFP's MLflow plugin sets credentials on the container from a Secret, and leaves them out of TaskConfig (KFP 2.17).
_SECRET_PREFIX = "MLFLOW_"


@dataclass(frozen=True)
class StepPod:
    """What a step reads from its own pod.

    Args:
        namespace: Pod namespace.
        run_id: Run ID; empty if the pod has no such label.
        workflow: Owner reference to the run's Workflow; None if the pod has none.
        image: The step's image.
        cluster: The cluster.
        name: Pod name.
        uid: Pod UID.
        secrets: EnvVars with MLflow's credentials, by reference to a Secret in the pod's namespace.
    """

    namespace: str
    run_id: str = ""
    workflow: Mapping[str, Any] | None = None
    image: str = ""
    cluster: Cluster | None = field(default=None, compare=False, repr=False)
    name: str = ""
    uid: str = field(default="", compare=False)
    secrets: Sequence[Mapping[str, Any]] = ()

    def is_deleted(self) -> bool:
        """Return whether the pod is being deleted, evicted or gone: the node is drained, and the run goes on.

        Argo terminates a run by signals to the pods' processes, which it does not delete. One short request: a
        terminated step has half a second left.
        """
        if self.cluster is None:
            return False
        from kfp_mindspore.kube.pods import read_pod
        from kfp_mindspore.kube.resources import PODS

        try:
            pod = read_pod(self.cluster.get(PODS, self.name, self.namespace))
            # Set by the kubelet before it kills a pod under node pressure, which it does not delete.
            disruption = pod.conditions.get(_DISRUPTION)
            return pod.is_deleting or (disruption is not None and disruption.status == "True")
        except NotFoundError:
            return True
        except KfpMindSporeError:
            return False

    def delete_now(self) -> None:
        """Delete the terminating pod without grace period, so that Argo retries the step.

        Argo 4.0 records a pod that ends, whatever the exit code, as Failed, and one that is gone as Error; Kubeflow's
        default policy, OnError, retries errors only.
        """
        from kfp_mindspore.kube.resources import PODS

        if self.cluster is not None:
            # Without the right to delete pods the step is not retried.
            with contextlib.suppress(KfpMindSporeError):
                self.cluster.delete(PODS, self.name, self.namespace, grace_seconds=0, uid=self.uid)

    def has_run(self, metadata: Mapping[str, Any]) -> bool:
        """Return whether an object belongs to this pod's run: by label or owner."""
        if self.run_id and (metadata.get("labels") or {}).get(RUN_LABEL) == self.run_id:
            return True
        owners = [owner.get("uid") for owner in metadata.get("ownerReferences") or []]
        return self.workflow is not None and self.workflow["uid"] in owners


def read_step_pod(cluster: Cluster) -> StepPod | None:
    """Return this step's pod; None, with the reason printed, where it cannot be read.

    A job is owned by the Workflow, not by the step's pod: deleting the pod would delete the job before a step retry can
    adopt it.

    Args:
        cluster: The step's cluster.
    """
    name = os.environ.get(POD_NAME_VARIABLE)
    if not name:
        print(f"{POD_NAME_VARIABLE} is not set: a job of this process belongs to no run", flush=True)
        return None
    from kfp_mindspore.kube.resources import PODS

    try:
        namespace = cluster.namespace
        document = cluster.get(PODS, name, namespace)
    except KfpMindSporeError as error:
        print(f"Pod {name} cannot be read, so a job of this step outlives a deleted run: {error.message}", flush=True)
        return None
    metadata = document["metadata"]
    containers = (document.get("spec") or {}).get("containers") or []
    container: Mapping[str, Any] = next((entry for entry in containers if entry.get("name") == _STEP_CONTAINER), {})
    owners = metadata.get("ownerReferences") or []
    workflow = next((owner for owner in owners if owner.get("kind") == "Workflow"), None)
    fields = ("apiVersion", "kind", "name", "uid")
    return StepPod(
        namespace=namespace,
        run_id=(metadata.get("labels") or {}).get(RUN_LABEL, ""),
        workflow={field: workflow[field] for field in fields} if workflow else None,
        image=container.get("image", ""),
        cluster=cluster,
        name=name,
        uid=str(metadata.get("uid") or ""),
        secrets=tuple(
            entry
            for entry in container.get("env") or []
            if entry["name"].startswith(_SECRET_PREFIX) and "secretKeyRef" in (entry.get("valueFrom") or {})
        ),
    )
