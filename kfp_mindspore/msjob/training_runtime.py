"""ClusterTrainingRuntimes with which Kubeflow's SDK trains MindSpore: of several nodes, and of one.

Trainer's jax policy sets size, rank and coordinator and leaves `python` as the SDK's command; `init_distributed` reads
them. With one node MS_WORKER_NUM is 1, so that a job with more nodes is refused, not trained by each node alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.api.names import DEFAULT_GRACE_SECONDS, WORKER
from kfp_mindspore.msjob.build import JobOptions, PodPatch, build_msjob
from kfp_mindspore.msjob.decisions.restart import RETRYABLE_EXIT_CODES
from kfp_mindspore.msjob.decisions.security import restrict_pod
from kfp_mindspore.msjob.kinds.trainjob import FRAMEWORK_LABELS, KIND, NODE, RUNTIME_KIND, STEP_LABELS
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, WORKER_COUNT_VARIABLE

DISTRIBUTED, SINGLE = "mindspore-distributed", "mindspore"
# Fields of `JobOptions` that a runtime has.
RUNTIME_OPTIONS = (
    *("image", "env", "backoff_limit", "resources", "empty_dirs", "pod_labels", "pod_annotations"),
    *("image_pull_secrets", "service_account", "device"),
)
_ADMISSION = "admissionregistration.k8s.io/v1"
_JOB_VARIABLE = "KFP_MINDSPORE_TRAINJOB"
_JOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
_CHECKPOINTS = "/mnt/checkpoints"
# The first that matches. Kubernetes names the reason of a Job that its podFailurePolicy fails, and the message the
# condition or the exit code; an eviction, preemption or node loss is not counted, as in an MSJob.
_FAILURE_RULES = [
    {
        "name": "permanent",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["failed with exit code"],
    },
    {
        "name": "disrupted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    },
]
# The SDK writes the function into a file here, and pip's --user needs a home: any user may write there.
_DIRECTORY = "/tmp"


def build_training_runtime(
    name: str, options: JobOptions, *, checkpoints: str = "", grace_seconds: int = DEFAULT_GRACE_SECONDS
) -> dict[str, Any]:
    """Return a runtime's manifest.

    Args:
        name: `mindspore-distributed` or `mindspore`, which is for one node.
        options: The pods' options; only RUNTIME_OPTIONS are read.
        checkpoints: Where `fit` writes checkpoints: a claim, `claim:NAME`, or a URI such as s3://bucket/path; each
            TrainJob has a directory of its own in it. Default: none, so that a restart begins anew.
        grace_seconds: Seconds between SIGTERM, at which `fit` writes a checkpoint, and SIGKILL.

    Raises:
        ValidationError: An option is invalid.
    """
    patch = _build_checkpoints(checkpoints) if checkpoints else PodPatch()
    defaults = {"HOME": _DIRECTORY} if name == DISTRIBUTED else {"HOME": _DIRECTORY, WORKER_COUNT_VARIABLE: "1"}
    options = dataclasses.replace(options, working_dir=_DIRECTORY, env={**defaults, **options.env})
    template = build_msjob(name, command=None, options=options, pod=patch).ms_replica_specs[WORKER].template
    pod = template["spec"]
    pod["containers"][0]["name"] = NODE
    # The JobSet restarts all pods: a worker cannot rejoin the others.
    pod |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_seconds}
    restrict_pod(pod)
    permanent = {"containerName": NODE, "operator": "NotIn", "values": sorted(RETRYABLE_EXIT_CODES)}
    pod_rules = [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": permanent},
    ]
    job = {"backoffLimit": 0, "podFailurePolicy": {"rules": pod_rules}, "template": template}
    job_set = {
        "replicatedJobs": [{"name": NODE, "template": {"metadata": {"labels": STEP_LABELS}, "spec": job}}],
        "failurePolicy": {"maxRestarts": options.backoff_limit, "rules": _FAILURE_RULES},
        # Workers resolve rank 0's name before it is ready.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    return {
        "apiVersion": KIND.api_version,
        "kind": RUNTIME_KIND,
        "metadata": {"name": name, "labels": FRAMEWORK_LABELS},
        "spec": {"mlPolicy": {"numNodes": 1, "jax": {}}, "template": {"spec": job_set}},
    }


def build_node_limit() -> list[dict[str, Any]]:
    """Return the admission policy that refuses TrainJobs of several nodes with the runtime for one, and its binding."""
    group, _, version = KIND.api_version.partition("/")
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"]}
    reference = f"object.spec.runtimeRef.kind == '{RUNTIME_KIND}' && object.spec.runtimeRef.name == '{SINGLE}'"
    nodes = {
        "expression": "!has(object.spec.trainer) || !has(object.spec.trainer.numNodes) "
        "|| object.spec.trainer.numNodes == 1",
        "message": f"spec.trainer.numNodes: must be 1 with the runtime {SINGLE}; {DISTRIBUTED} is for several nodes",
    }
    policy = {
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["trainjobs"]}]},
        "matchConditions": [{"name": "one-node", "expression": reference}],
        "validations": [nodes],
    }
    name = f"{SINGLE}-one-node"
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kind = "ValidatingAdmissionPolicy"
    return [
        {"apiVersion": _ADMISSION, "kind": item, "metadata": {"name": name}, "spec": spec}
        for item, spec in ((kind, policy), (f"{kind}Binding", binding))
    ]


def _build_checkpoints(location: str) -> PodPatch:
    job = {"name": _JOB_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_JOB_LABEL}']"}}}
    scheme, separator, rest = location.partition(":")
    if rest.startswith("//"):
        return PodPatch(env=[job, {"name": CHECKPOINT_VARIABLE, "value": f"{location.rstrip('/')}/$({_JOB_VARIABLE})"}])
    if scheme != "claim" or not separator or not rest or "/" in rest:
        raise ValidationError([f"checkpoints: must be claim:NAME or a URI such as s3://bucket/path, got {location!r}"])
    return PodPatch(
        env=[job, {"name": CHECKPOINT_VARIABLE, "value": _CHECKPOINTS}],
        volumes=[{"name": "checkpoints", "persistentVolumeClaim": {"claimName": rest}}],
        volume_mounts=[{"name": "checkpoints", "mountPath": _CHECKPOINTS, "subPathExpr": f"$({_JOB_VARIABLE})"}],
    )
