"""Checks before a run on a cluster: rights, definitions, operator, serving runtime, images and pipeline root."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, NotFoundError, UserError
from kfp_mindspore.images.runtime.extras import EXTRAS_LABEL, list_missing_extras
from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT
from kfp_mindspore.inference.store_account import ACCOUNTS, get_secret_name
from kfp_mindspore.kube.errors import ForbiddenError, NotInstalledError
from kfp_mindspore.kube.resources import CONFIG_MAPS, Resource
from kfp_mindspore.msjob.api.names import API_VERSION, KIND
from kfp_mindspore.msjob.backends.queues import explain_queue
from kfp_mindspore.msjob.kinds import rayjob
from kfp_mindspore.runs.cluster.access import (
    LAUNCHER_CONFIG,
    ON_REQUEST,
    Capability,
    ServiceAccount,
    list_default_capabilities,
    list_missing_permissions,
    list_permissions,
)
from kfp_mindspore.runs.cluster.step_needs import (
    deploys_language_model,
    list_capabilities,
    list_needed_extras,
    list_queues,
)
from kfp_mindspore.runs.cluster.store_secrets import list_copies
from kfp_mindspore.runs.compiled.data_sources import list_sources
from kfp_mindspore.runs.compiled.image import list_placeholders
from kfp_mindspore.runs.compiled.spec import PipelineSpec, list_parameters
from kfp_mindspore.settings import PLACEHOLDER_PREFIX

if TYPE_CHECKING:
    from kfp_mindspore.images import RegistryConfig
    from kfp_mindspore.kube.cluster import Cluster

Status = Literal["passed", "failed", "unknown"]

# KFP's own default, in KFP 2.17.
_DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"
# Schemes that both KFP and KServe's storage initializer read.
_SERVABLE_SCHEMES = ("s3", "gs")
_DEFINITIONS: Mapping[Capability, tuple[tuple[str, str], ...]] = {
    "training": ((API_VERSION, KIND),),
    "ray": ((rayjob.KIND.api_version, rayjob.KIND.kind),),
    "deployment": (("serving.kserve.io/v1beta1", "InferenceService"), ("serving.kserve.io/v1alpha1", "InferenceGraph")),
}
_INSTALL = {
    "training": "Install it: kfp-mindspore operator install --image REGISTRY/NAME@sha256:…",
    "deployment": "Install KServe: https://kserve.github.io/website",
    "ray": "Install KubeRay: https://docs.ray.io/en/latest/cluster/kubernetes/. "
    'Or keep Ray in the step: task.set_env_variable("KFP_MINDSPORE_BACKEND", "local").',
}
# Flags for `pipeline setup` and `pipeline check`.
NAMESPACE_FLAGS: Mapping[Capability, str] = {
    "training": "--job-namespace",
    "ray": "--job-namespace",
    "deployment": "--service-namespace",
    "images": "--build-namespace",
}
_OPERATOR = "msjob-controller"
_OPERATOR_NAMESPACE = "msjob-system"
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
_RUNTIMES = Resource("serving.kserve.io", "v1alpha1", "servingruntimes", "ServingRuntime")
_CLUSTER_RUNTIMES = Resource(
    "serving.kserve.io", "v1alpha1", "clusterservingruntimes", "ClusterServingRuntime", namespaced=False
)


@dataclass(frozen=True)
class CheckResult:
    """One check's result.

    Args:
        name: Check name.
        status: `passed`, `failed`, or `unknown` if the caller may not read what it needs.
        message: What was found.
        hint: The next step to take.
    """

    name: str
    status: Status
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Destination:
    """Where a pipeline is to run.

    Args:
        account: The run's service account.
        namespaces: Namespaces by capability; default the account's.
        secrets: Secrets with artifact store credentials, besides KFP's default.
        model_account: Service account for services; empty when not known.
        pipeline_root: The run's pipeline root; empty for the pipeline's or the namespace's.
    """

    account: ServiceAccount
    namespaces: Mapping[Capability, Sequence[str]] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    model_account: str = ""
    pipeline_root: str = ""

    def list_namespaces(self, capability: Capability) -> Sequence[str]:
        """Return a capability's namespaces."""
        return self.namespaces.get(capability) or (self.account.namespace,)


def run_checks(
    cluster: Cluster,
    destination: Destination,
    spec: PipelineSpec | None = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    open_registries: Callable[[], RegistryConfig] | None = None,
) -> Iterator[CheckResult]:
    """Yield each check result that the pipeline requires.

    Args:
        cluster: Cluster client.
        destination: The run's account and namespaces.
        spec: The compiled pipeline; None for the checks for any pipeline in this package, with image build checks where
            the destination has a namespace for them.
        arguments: Run arguments by name; defaults are added.
        open_registries: Returns how the images' registries are reached; None for Docker's own configuration.

    Raises:
        UnreachableError: The API server does not respond.
        ConfigurationError: No cluster is configured.
    """
    if spec is None:
        capabilities = list_default_capabilities(has_builds=bool(destination.namespaces.get("images")))
    else:
        capabilities = list_capabilities(spec)
        yield _check_images(spec)
        yield from _check_extras(spec, arguments or {}, open_registries)
    yield _check("account", _check_account, cluster, destination.account)
    for uri in list_sources(spec, arguments or {}) if spec is not None else ():
        yield _check("data", _check_data, cluster, destination.account.namespace, uri)
    for capability in capabilities:
        for api_version, kind in _DEFINITIONS.get(capability, ()):
            yield _check("definition", _check_definition, cluster, api_version, kind, _INSTALL[capability])
        for namespace in destination.list_namespaces(capability):
            yield _check("access", _check_access, cluster, destination, capability, namespace)
    if "training" in capabilities:
        yield _check("operator", _check_operator, cluster, destination.list_namespaces("training"))
    for namespace, queue in list_queues(spec, arguments or {}, destination.account.namespace) if spec else ():
        yield _check("queue", _check_queue, cluster, namespace, queue)
    if "training" in capabilities or "ray" in capabilities:
        yield from _check_store_secrets(cluster, destination, spec)
    if "deployment" in capabilities:
        for namespace in destination.list_namespaces("deployment"):
            yield _check("runtime", _check_runtime, cluster, namespace, _get_model_format(spec))
            yield _check("model store", _check_model_store, cluster, destination, namespace, spec)
        yield _check("pipeline root", _check_root, cluster, destination, spec)


def _check(name: str, check: Callable[..., CheckResult], *arguments: Any) -> CheckResult:
    try:
        return check(*arguments)
    except ForbiddenError as error:
        return CheckResult(name, "unknown", error.message, error.hint)


def _check_images(spec: PipelineSpec) -> CheckResult:
    if placeholders := list_placeholders(spec):
        return CheckResult(
            "images",
            "failed",
            f"steps have the placeholder image {placeholders[0]}",
            "Set an image with kfp-mindspore installed: --image, or KFP_MINDSPORE_IMAGE.",
        )
    images = {
        executor["container"]["image"]
        for executor in spec["deploymentSpec"].get("executors", {}).values()
        if "container" in executor
    }
    floating = sorted(image for image in images if "@sha256:" not in image)
    if floating:
        return CheckResult(
            "images", "passed", f"set, by tag: {', '.join(floating)}; KFP caches by tag, prefer a digest"
        )
    return CheckResult("images", "passed", "set by digest")


def _check_extras(
    spec: PipelineSpec, arguments: Mapping[str, Any], open_registries: Callable[[], RegistryConfig] | None
) -> Iterator[CheckResult]:
    """Yield for each image whether it has the extras that the steps need, by the label of `image runtime`."""
    for image, steps in list_needed_extras(spec, arguments).items():
        if not image.startswith(PLACEHOLDER_PREFIX):
            yield _check_image_extras(image, steps, open_registries)


def _check_image_extras(
    image: str, steps: Mapping[str, Sequence[str]], open_registries: Callable[[], RegistryConfig] | None
) -> CheckResult:
    needed = ", ".join(sorted(steps))
    try:
        from kfp_mindspore.images import RegistryConfig
        from kfp_mindspore.images.registry.images import inspect_image

        config = open_registries() if open_registries is not None else RegistryConfig()
        labels = inspect_image(image, dataclasses.replace(config, attempts=1, timeout_seconds=10.0)).labels
    except NotFoundError as error:
        return CheckResult("extras", "failed", error.message, "Build it: kfp-mindspore image runtime --to HOST/NAME")
    except KfpMindSporeError as error:
        return CheckResult("extras", "unknown", f"steps need {needed}; {error.message}", error.hint)
    if EXTRAS_LABEL not in labels:
        return CheckResult("extras", "unknown", f"steps need {needed}; {image} has no label {EXTRAS_LABEL}")
    present = [extra for extra in labels[EXTRAS_LABEL].split(",") if extra]
    missing = list_missing_extras(steps, present)
    if not missing:
        return CheckResult("extras", "passed", f"{image} has {needed}")
    lacks = "; ".join(f"{extra} (of {', '.join(steps[extra])})" for extra in missing)
    flags = " ".join(f"--extra {extra}" for extra in sorted({*present, *missing}))
    return CheckResult(
        "extras",
        "failed",
        f"{image} lacks the extras {lacks}",
        f"Build it with them: kfp-mindspore image runtime --to {image.partition('@')[0]} {flags}",
    )


def _check_account(cluster: Cluster, account: ServiceAccount) -> CheckResult:
    try:
        cluster.get(ACCOUNTS, account.name, account.namespace)
    except NotFoundError:
        return CheckResult(
            "account",
            "failed",
            f"namespace {account.namespace} has no service account {account.name}",
            "Steps run as pipeline-runner on a single-user Kubeflow Pipelines, as default-editor in a profile: "
            "name yours with --service-account.",
        )
    return CheckResult("account", "passed", f"service account {account.name} exists in namespace {account.namespace}")


def _check_definition(cluster: Cluster, api_version: str, kind: str, hint: str) -> CheckResult:
    try:
        cluster.resolve_resource(api_version, kind)
    except NotInstalledError:
        return CheckResult("definition", "failed", f"the cluster does not know {kind} of {api_version}", hint)
    return CheckResult("definition", "passed", f"{kind} of {api_version} is installed")


def _check_access(cluster: Cluster, destination: Destination, capability: Capability, namespace: str) -> CheckResult:
    account = destination.account
    permissions = list_permissions(capability, destination.secrets)
    try:
        missing = list_missing_permissions(cluster, account, permissions, namespace)
    except ForbiddenError as error:
        return CheckResult(
            "access",
            "unknown",
            f"{capability}: the rights of {account.name} in namespace {namespace} cannot be reviewed: {error.message}",
            "Run the check as an admin of the namespace, or in a pod of this service account.",
        )
    if not missing:
        return CheckResult("access", "passed", f"{capability}: {account.name} has all rights in namespace {namespace}")
    rights = "; ".join(
        f"{', '.join(item.verbs)} {item.full_name}{''.join(f' {name}' for name in item.names)}" for item in missing
    )
    flag = "" if namespace == account.namespace else f" {NAMESPACE_FLAGS[capability]} {namespace}"
    flag += f" --for {capability}" if capability in ON_REQUEST else ""
    return CheckResult(
        "access",
        "failed",
        f"{capability}: {account.name} of {account.namespace} lacks in namespace {namespace}: {rights}",
        "Grant them: kfp-mindspore pipeline setup "
        f"-n {account.namespace} --service-account {account.name}{flag} --apply",
    )


def _check_store_secrets(
    cluster: Cluster, destination: Destination, spec: PipelineSpec | None
) -> Iterator[CheckResult]:
    """Yield the state of the artifact store's Secrets in other namespaces of jobs."""
    place, name = destination.account.namespace, "store secret"
    root = destination.pipeline_root or str((spec or {}).get("defaultPipelineRoot") or "")
    for namespace in destination.list_namespaces("training"):
        apply = (
            f"kfp-mindspore pipeline setup -n {place} --service-account {destination.account.name} "
            f"{NAMESPACE_FLAGS['training']} {namespace} --for training --apply"
        )
        try:
            for copied in list_copies(cluster, place, [namespace], root):
                found = f"Secret {copied.name} in namespace {namespace}"
                if copied.is_current:
                    yield CheckResult(name, "passed", f"{found} is that of namespace {place}")
                elif copied.present is None:
                    yield CheckResult(
                        name, "failed", f"{found} does not exist: its jobs' pods refer to it", f"Copy it: {apply}"
                    )
                elif copied.is_foreign:
                    yield CheckResult(
                        name,
                        "unknown",
                        f"{found} is not a copy and differs from that of namespace {place}",
                        "Its credentials must give access to the run's pipeline root.",
                    )
                else:
                    yield CheckResult(name, "failed", f"{found} is out of date", f"Update it: {apply}")
        except ForbiddenError as error:
            yield CheckResult(name, "unknown", error.message, error.hint)
        except UserError as error:
            yield CheckResult(name, "failed", error.message, error.hint)


def _check_operator(cluster: Cluster, namespaces: Sequence[str]) -> CheckResult:
    labels = f"app.kubernetes.io/name={_OPERATOR}"
    try:
        found = cluster.list(_DEPLOYMENTS, labels=labels)
    except ForbiddenError:
        # Without rights in the whole cluster.
        found = cluster.list(_DEPLOYMENTS, _OPERATOR_NAMESPACE, labels=labels)
    hint = "Install it: kfp-mindspore operator install --image REGISTRY/NAME@sha256:…"
    if not found:
        return CheckResult("operator", "failed", f"no Deployment {_OPERATOR} in the cluster", hint)
    ready = [item for item in found if (item.get("status") or {}).get("availableReplicas")]
    if not ready:
        place = found[0]["metadata"]["namespace"]
        return CheckResult(
            "operator",
            "failed",
            f"the Deployment {_OPERATOR} in namespace {place} has no available pod",
            f"See why: kubectl -n {place} describe pods -l {labels}",
        )
    watched = [_list_watched(item) for item in ready]
    unwatched = [name for name in namespaces if not any(not names or name in names for names in watched)]
    if unwatched:
        return CheckResult("operator", "failed", f"the operator does not watch namespace {', '.join(unwatched)}", hint)
    return CheckResult("operator", "passed", f"the operator runs in namespace {ready[0]['metadata']['namespace']}")


def _check_queue(cluster: Cluster, namespace: str, queue: str) -> CheckResult:
    if problem := explain_queue(cluster, queue, namespace):
        return CheckResult("queue", "failed", problem, f"List them: kubectl get localqueues -n {namespace}")
    return CheckResult("queue", "passed", f"queue {queue!r} of namespace {namespace} is active")


def _list_watched(deployment: Mapping[str, Any]) -> list[str]:
    """Return the namespaces that the operator watches; empty for all."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    place = deployment["metadata"]["namespace"]
    arguments = [str(item) for item in container.get("args") or []]
    names = [item.partition("=")[2] for item in arguments if item.startswith("--namespace=")]
    return [name.replace("$(POD_NAMESPACE)", place) for name in names]


def _get_model_format(spec: PipelineSpec | None) -> str:
    """Return the model format that a pipeline deploys: `mindspore-lm` if it has steps of language models."""
    return LANGUAGE_FORMAT if spec is not None and deploys_language_model(spec) else MODEL_FORMAT


def _check_runtime(cluster: Cluster, namespace: str, model_format: str) -> CheckResult:
    unread: list[str] = []
    found = []
    for resource in (_RUNTIMES, _CLUSTER_RUNTIMES):
        try:
            found += cluster.list(resource, namespace)
        except ForbiddenError:
            unread.append(resource.plural)
        except (NotFoundError, NotInstalledError):
            # KServe is missing: reported with its definitions.
            continue
    for runtime in found:
        spec = runtime["spec"]
        formats = [entry for entry in spec.get("supportedModelFormats") or [] if entry.get("autoSelect")]
        if not spec.get("disabled") and any(entry.get("name") == model_format for entry in formats):
            return CheckResult("runtime", "passed", f"{runtime['metadata']['name']} serves the format {model_format}")
    if unread:
        return CheckResult("runtime", "unknown", f"{', '.join(unread)} may not be listed with these credentials")
    return CheckResult(
        "runtime",
        "failed",
        f"no serving runtime selects the model format {model_format} in namespace {namespace}",
        "Install it: kfp-mindspore service runtime --image REGISTRY/NAME@sha256:…"
        f"{'' if model_format == MODEL_FORMAT else f' --model-format {model_format}'} | kubectl apply -f -",
    )


def _check_data(cluster: Cluster, namespace: str, uri: str) -> CheckResult:
    """Try a data source with the credentials that steps in the namespace use."""
    from kfp_mindspore.data.fetch import check_uri
    from kfp_mindspore.stores.artifact_store import PROTOCOLS
    from kfp_mindspore.stores.config import open_run_source, open_source

    is_stored = uri.partition("://")[0] in PROTOCOLS
    access = open_run_source(uri, cluster, namespace, is_probe=True) if is_stored else open_source(uri)
    try:
        check_uri(uri, access)
    except MissingExtraError as error:
        return CheckResult("data", "unknown", f"{uri}: {error.message} on this machine", error.hint)
    except UserError as error:
        # The step's environment differs from this process's.
        is_known = access.has_secret or not is_stored
        return CheckResult("data", "failed" if is_known else "unknown", error.message, error.hint)
    except KfpMindSporeError as error:
        return CheckResult("data", "unknown", error.message, "The store may be reachable from within the cluster only.")
    return CheckResult("data", "passed", f"{uri} can be read")


def _check_model_store(
    cluster: Cluster, destination: Destination, namespace: str, spec: PipelineSpec | None
) -> CheckResult:
    name, place = destination.model_account or "default", destination.account.namespace
    try:
        if secret := get_secret_name(cluster, name, namespace):
            return CheckResult(
                "model store", "passed", f"service account {name} in namespace {namespace} has the Secret {secret}"
            )
        message = f"service account {name} in namespace {namespace} has no Secret with S3 credentials for KServe"
    except NotFoundError:
        message = f"namespace {namespace} has no service account {name}"
    flag = "" if namespace == place else f" {NAMESPACE_FLAGS['deployment']} {namespace}"
    has_parameter = spec is None or any(parameter.name == "service_account" for parameter in list_parameters(spec))
    given = "run with -p service_account=…" if has_parameter else "set service_account of deploy_kserve"
    return CheckResult(
        "model store",
        # A run may name another account, and a cloud may give the account an identity.
        "failed" if destination.model_account else "unknown",
        message,
        f"For s3:// and minio://: kfp-mindspore pipeline setup -n {place}{flag} --model-account "
        f"{destination.model_account or 'model-reader'} --apply, then {given} and check with --model-account.",
    )


def _check_root(cluster: Cluster, destination: Destination, spec: PipelineSpec | None) -> CheckResult:
    namespace = destination.account.namespace
    root = destination.pipeline_root or str((spec or {}).get("defaultPipelineRoot") or "")
    source = "the run's" if destination.pipeline_root else "the pipeline's"
    if not root:
        source = f"that of the ConfigMap {LAUNCHER_CONFIG} in namespace {namespace}"
        try:
            root = (cluster.get(CONFIG_MAPS, LAUNCHER_CONFIG, namespace).get("data") or {}).get(
                "defaultPipelineRoot", ""
            )
        except NotFoundError:
            root = ""
    if not root:
        root, source = _DEFAULT_ROOT, "KFP's default"
    if root.partition("://")[0] in (*_SERVABLE_SCHEMES, *(("minio",) if destination.model_account else ())):
        return CheckResult("pipeline root", "passed", f"{root} ({source}) can be read by KServe")
    return CheckResult(
        "pipeline root",
        "failed",
        f"{root} ({source}) cannot be read by KServe, which needs s3:// or gs://",
        f"Set --pipeline-root s3://BUCKET/PATH, or defaultPipelineRoot in the ConfigMap {LAUNCHER_CONFIG}.",
    )
