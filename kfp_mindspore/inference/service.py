"""The description and a service's status, the same for all backends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from kfp_mindspore.canonical import canonicalize
from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.inference.logger import list_logger_errors, list_writer_errors, read_logger
from kfp_mindspore.inference.pod_checks import CPU, SCALE_METRICS, list_pod_errors, list_scaling_errors
from kfp_mindspore.kube.names import (
    RESERVED_LABELS,
    list_namespace_errors,
    list_reserved_errors,
    list_service_name_errors,
)
from kfp_mindspore.options import check_options, list_options, option, to_text
from kfp_mindspore.settings import KUBERNETES, LOCAL

LOOPBACK = "127.0.0.1"
INITIALIZER = "initializer"
SERVER = "server"
MODEL_FORMAT = "mindspore"
LANGUAGE_FORMAT = "mindspore-lm"
FORMATS = (MODEL_FORMAT, LANGUAGE_FORMAT)
# Of mindsporeserver and KServe's own servers.
OPENAI_PATH = "/openai/v1"
# KServe adds `-predictor`, and the whole has to be a DNS label of at most 63 characters.
MAXIMUM_NAME = 53
# Fields that each deployment has of its own.
OF_DEPLOYMENT = ("name", "model_dir", "namespace", "digest", "run")
# Options that are checked together.
SCALING = ("replicas", "min_replicas", "max_replicas", "scale_metric", "scale_target", "prometheus")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i|[eE][0-9]+)?")
_RESOURCE_KINDS = ("requests", "limits")
_FLAG = re.compile(r"--([A-Za-z][-\w]*)(=.*)?", re.DOTALL)
# Labels and annotations set by the backends; KServe copies an InferenceService's to its pods.
_RESERVED_PREFIXES = ("kfp-mindspore/", "serving.kserve.io/inferenceservice")
# Further ones that only an InferenceService has; its mode and autoscaler follow from the scaling options.
_RESERVED_ANNOTATIONS = (*_RESERVED_PREFIXES, "serving.kserve.io/stop", "serving.kserve.io/autoscalerClass")
_POD_OPTIONS = (
    "env",
    "env_from",
    "tolerations",
    "volumes",
    "image_pull_secrets",
    "priority_class",
    "spread",
    "runtime",
)
# Flags set by the backends.
_RESERVED_FLAGS = ("model_name", "model_dir", "http_port", "grpc_port", "host")
# Fields whose errors have a function of their own.
_CHECKED_APART = ("name", "model_dir", "namespace", "resources", "server_args", "logger")


class ServiceState(str, Enum):
    """A service's state.

    `Starting`: the first server is not ready yet. `Ready`: the readiness probe succeeds. `NotReady`: the server runs
    and the probe fails. `Restarting`: the server crashed and the next one is not ready yet. `Failed`: it crashed and is
    not restarted. `Stopped`: it was stopped.
    """

    STARTING = "Starting"
    READY = "Ready"
    NOT_READY = "NotReady"
    RESTARTING = "Restarting"
    FAILED = "Failed"
    STOPPED = "Stopped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Service:
    """A model bundle to serve.

    Args:
        name: Name for the service and for the model in its URLs, a DNS label. At most 53 characters.
        model_dir: The model bundle: a directory on this machine, or a URI such as `s3://bucket/model` on a cluster.
        replicas: Replica count. This machine runs one.
        resources: Each replica's Kubernetes resource requirements: {"requests": {…}, "limits": {…}}. Not enforced on
            this machine.
        namespace: Service namespace. Empty for the client's.
        port: HTTP port on this machine; 0 for a free one.
        grpc_port: gRPC port on this machine; 0 for a free one.
        host: Listen address on this machine; `0.0.0.0` for all.
        server_args: The model server's further flags, each `--flag=value`. Such as `--max_batch=32`.
        grpc: Whether the service on a cluster has a gRPC port. It is 8081; this machine always has one.
        service_account: The pods' service account, with the model store's credentials. On a cluster.
        download: What downloads the bundle on a cluster: `initializer` (KServe's) or the `server`, for restricted pods.
            `server` is allowed in namespaces with the Pod Security Standard `restricted`.
        storage_secret: With download `server`: Secret whose keys become its environment, such as AWS_ACCESS_KEY_ID.
            Others are AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL.
        pod_labels: Pod labels on a cluster, such as {"sidecar.istio.io/inject": "false"}.
        pod_annotations: Pod annotations on a cluster, such as {"huawei.com/vnpu-mode": "hami-core"}.
        min_replicas: Fewest replicas with max_replicas; 0 for none while there are no requests, in Knative mode.
        max_replicas: Most replicas on a cluster; 0 for a fixed count, `replicas`.
        scale_metric: What the count follows: `cpu`, `memory`; with KEDA `in_flight`, or `waiting` (language models).
        scale_target: Value per replica, a percentage for cpu and memory; 0 for 80 %, 32 in flight or 4 waiting.
        prometheus: Prometheus' address, for `in_flight` and `waiting`.
        env: The servers' environment variables by name.
        env_from: Environment on a cluster from `secret/NAME` or `configmap/NAME`.
        node_selector: Node labels for the pods.
        tolerations: The pods' tolerations, such as {"key": "npu", "operator": "Exists"}.
        volumes: Volume sources by mount path, such as {"/mnt/adapters": {"persistentVolumeClaim": {"claimName": "a"}}}.
        image_pull_secrets: Registry secret names for the pods.
        annotations: InferenceService annotations.
        priority_class: The pods' PriorityClass.
        spread: Node label over whose values replicas are spread, such as `topology.kubernetes.io/zone`.
        runtime: Serving runtime on a cluster; empty for the one that KServe selects.
        logger: Log of requests and responses, such as {"url": "s3://bucket/log", "sample": 0.1}.
            See `LoggerOptions` for all fields.
        model_format: Model format on a cluster: `mindspore`, `mindspore-lm` for language models, or one of `runtime`.
            KServe selects the serving runtime by it; a pipeline finds the first two in the bundle.
        model_name_flag: Flag with which another server names its model, such as `--served-model-name`; a canary has it.
        openai_path: Path of another server's OpenAI protocol, such as `/v1` (vLLM, llama.cpp).
        digest: Bundle digest. A new digest at the same URI is a new version, the serving version's digest at another
            URI is not.
        run: Recorded with the service. The pipeline run that deploys it.
    """

    name: str
    model_dir: str | Path
    replicas: int = option(1, minimum=1)
    resources: Mapping[str, Any] = option({})
    namespace: str = ""
    port: int = option(0, minimum=0, maximum=65535)
    grpc_port: int = option(0, minimum=0, maximum=65535)
    host: str = LOOPBACK
    server_args: Sequence[str] = ()
    grpc: bool = False
    service_account: str = ""
    download: str = option(INITIALIZER, enum=(INITIALIZER, SERVER))
    storage_secret: str = ""
    pod_labels: Mapping[str, str] = option({})
    pod_annotations: Mapping[str, str] = option({})
    min_replicas: int = option(1, minimum=0)
    max_replicas: int = option(0, minimum=0)
    scale_metric: str = option(CPU, enum=SCALE_METRICS)
    scale_target: int = option(0, minimum=0)
    prometheus: str = ""
    env: Mapping[str, str] = option({})
    env_from: Sequence[str] = ()
    node_selector: Mapping[str, str] = option({})
    tolerations: Sequence[Mapping[str, Any]] = ()
    volumes: Mapping[str, Any] = option({})
    image_pull_secrets: Sequence[str] = ()
    annotations: Mapping[str, str] = option({})
    priority_class: str = ""
    spread: str = ""
    runtime: str = ""
    logger: Mapping[str, Any] = option({})
    model_format: str = MODEL_FORMAT
    model_name_flag: str = ""
    openai_path: str = OPENAI_PATH
    digest: str = ""
    run: str = ""

    def __post_init__(self) -> None:
        # KFP's parameters are numbers where Kubernetes has texts.
        for name in ("env", "node_selector"):
            if isinstance(values := getattr(self, name), Mapping):
                object.__setattr__(self, name, {key: to_text(value) for key, value in values.items()})
        # Its integers are floats, which Kubernetes refuses.
        if isinstance(self.tolerations, (list, tuple)):
            object.__setattr__(self, "tolerations", tuple(canonicalize(self.tolerations)))
        object.__setattr__(self, "volumes", canonicalize(self.volumes))
        object.__setattr__(self, "logger", canonicalize(self.logger))

    @property
    def has_own_format(self) -> bool:
        """Whether mindsporeserver serves the model format."""
        return self.model_format in FORMATS

    def validate(self) -> None:
        """Check every field.

        Raises:
            ValidationError: Naming each field that is wrong.
        """
        errors = [*list_service_errors(self.name, self.namespace or "default")]
        if not str(self.model_dir):
            errors.append("model_dir: must be a model bundle's directory or URI, got an empty text")
        wrong = set()
        for entry in list_options(Service):
            if entry.name not in _CHECKED_APART and (found := entry.list_errors(getattr(self, entry.name))):
                wrong.add(entry.name)
                errors.extend(found)
        if isinstance(self.pod_labels, Mapping):
            errors.extend(list_reserved_errors("pod_labels", self.pod_labels, (*_RESERVED_PREFIXES, *RESERVED_LABELS)))
        if isinstance(self.pod_annotations, Mapping):
            errors.extend(list_reserved_errors("pod_annotations", self.pod_annotations, _RESERVED_PREFIXES))
        if isinstance(self.annotations, Mapping):
            errors.extend(list_reserved_errors("annotations", self.annotations, _RESERVED_ANNOTATIONS))
        if wrong.isdisjoint(SCALING):
            is_language = self.model_format != MODEL_FORMAT
            given = {name: getattr(self, name) for name in SCALING}
            errors.extend(list_scaling_errors(**given, is_language=is_language))
        if wrong.isdisjoint(_POD_OPTIONS):
            errors.extend(list_pod_errors(**{name: getattr(self, name) for name in _POD_OPTIONS}))
        if not self.has_own_format and not (self.runtime and self.model_format):
            errors.append(
                f"model_format: must be one of {', '.join(FORMATS)} without runtime, got {self.model_format!r}"
            )
        if not self.has_own_format and self.download == SERVER:
            errors.append(f"download: must be {INITIALIZER!r} for model_format {self.model_format!r}, got {SERVER!r}")
        if self.model_name_flag and _FLAG.fullmatch(str(self.model_name_flag)) is None:
            errors.append(f"model_name_flag: must be --flag, got {self.model_name_flag!r}")
        if self.model_name_flag and self.has_own_format:
            errors.append(f"model_name_flag: is another server's, got model_format {self.model_format!r}")
        if not str(self.openai_path).startswith("/"):
            errors.append(f"openai_path: must begin with a slash, got {self.openai_path!r}")
        errors.extend(self._list_logger_errors())
        if self.port and self.port == self.grpc_port:
            errors.append(f"grpc_port: must differ from port, got {self.grpc_port} for both")
        if not self.host:
            errors.append(f"host: must be an address of this machine, got {self.host!r}")
        errors.extend(_list_resource_errors(self.resources))
        errors.extend(_list_flag_errors(self.server_args))
        if self.storage_secret and self.download == INITIALIZER:
            errors.append(f"storage_secret: needs download={SERVER!r}; the initializer uses service_account")
        if errors:
            raise ValidationError(errors, subject=f"service {self.name}" if isinstance(self.name, str) else "service")

    def _list_logger_errors(self) -> list[str]:
        if (errors := list_logger_errors(self.logger)) or (options := read_logger(self.logger)) is None:
            return errors
        is_language = self.model_format != MODEL_FORMAT
        return list_writer_errors(options, is_own=self.has_own_format, is_language=is_language)


@dataclass(frozen=True)
class DeploymentOptions:
    """How a pipeline deploys, tests and registers a service.

    Args:
        model_uri: Bundle URI for a cluster (s3://, gs://, pvc://claim/path, …); default the artifact's.
        canary: Percentage of requests that a canary gets during its test, 1 to 99; 0 deploys without a canary.
        max_worsening: Largest metric worsening with which a canary is promoted, in metric units.
        wait_seconds: Seconds to wait until the service is ready.
        gate: Whether the model passed: evaluate_mindir's `passed`, compare_models' `better`; False deploys nothing.
        smoke_samples: Samples that the smoke test sends by each protocol; 0 for no test. A canary is always tested.
        registry: Kubeflow's Model Registry address, at which a deployed bundle is registered; default none.

    Raises:
        ValidationError: Naming each field that is wrong.
    """

    model_uri: str = ""
    canary: int = option(0, minimum=0, maximum=99)
    max_worsening: float = 0.0
    wait_seconds: int = option(120, minimum=0)
    gate: bool = True
    smoke_samples: int = option(0, minimum=0)
    registry: str = ""

    def __post_init__(self) -> None:
        check_options(self, subject="deployment")


@dataclass(frozen=True)
class CanaryStatus:
    """A service's canary: a second model that gets some requests.

    Args:
        percent: Percentage of requests that it gets.
        url: Its own address over HTTP, under the service name.
        traffic_url: Address that splits requests between the service and its canary: POST a V1 or V2 body to it; the
            path is ignored.
        model: Its bundle's directory or URI.
        state: Its state.
        message: The state's reason; may be empty.
    """

    percent: int
    url: str
    traffic_url: str
    model: str
    state: ServiceState
    message: str = ""


@dataclass(frozen=True)
class ServiceStatus:
    """A service status.

    Args:
        name: Name for the service and for the model in its URLs.
        namespace: Its namespace.
        state: Its state.
        url: Address over HTTP; the model is at `{url}/v1/models/{name}:predict` and `{url}/v2/models/{name}/infer`.
        grpc_url: Address over gRPC, host and port.
        model: The deployed bundle's directory or URI.
        version: Deployment number under this name, from 1.
        replicas: Running replicas.
        restarts: Its server's restart count.
        pid: The server's process number on this machine; None when none runs.
        message: The state's reason; may be empty.
        warnings: Requests that the backend does not honour.
        created: Deployment time, in seconds since the epoch.
        log: File with the server's log; empty on a cluster.
        canary: Its canary, or None.
        previous: The model that `rollback` restores when there is no canary; empty for none.
        digest: Bundle digest; empty if the deployment named none.
        run: The pipeline run that deployed it; empty for none.
        scaling: Bounds and metric of its replicas, such as `1 to 4 by cpu`; empty for a fixed count.
        options: `Service` fields that differ from their defaults; without model, name and namespace.
    """

    name: str
    namespace: str
    state: ServiceState
    url: str
    grpc_url: str
    model: str
    version: int = 1
    replicas: int = 1
    restarts: int = 0
    pid: int | None = None
    message: str = ""
    warnings: tuple[str, ...] = ()
    created: float = 0.0
    log: str = ""
    canary: CanaryStatus | None = None
    previous: str = ""
    digest: str = ""
    run: str = ""
    scaling: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def other_openai_path(self) -> str:
        """Another server's path of the OpenAI protocol; empty for mindsporeserver."""
        is_own = self.options.get("model_format", MODEL_FORMAT) in FORMATS
        return "" if is_own else str(self.options.get("openai_path", OPENAI_PATH))

    @property
    def ready(self) -> bool:
        """Whether the readiness probe succeeds."""
        return self.state is ServiceState.READY

    @property
    def is_finished(self) -> bool:
        """Whether it has stopped or failed."""
        return self.state in (ServiceState.STOPPED, ServiceState.FAILED)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON types, `ready` included."""
        value = asdict(self)
        if self.canary is not None:
            value["canary"]["state"] = self.canary.state.value
        return {**value, "state": self.state.value, "warnings": list(self.warnings), "ready": self.ready}


def list_changed_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults, as JSON has them.

    Args:
        values: `Service` fields by name.
    """
    changed = {}
    for entry in list_options(Service):
        value, default = (canonicalize(item) for item in (values.get(entry.name, entry.default), entry.default))
        if entry.name not in OF_DEPLOYMENT and value != default:
            changed[entry.name] = value
    return changed


def list_service_errors(name: Any, namespace: Any) -> list[str]:
    """Return one sentence for each error in a service's name and namespace."""
    return [*list_service_name_errors("name", name, MAXIMUM_NAME), *list_namespace_errors("namespace", namespace)]


def format_command(verb: str, name: str, namespace: str, backend: str) -> str:
    """Return a command for a service, such as `kfp-mindspore service logs digits -n team --backend kubernetes`."""
    return f"kfp-mindspore service {verb} {name} -n {namespace}" + (f" --backend {backend}" if backend else "")


def make_missing_error(name: str, namespace: str, backend: str) -> NotFoundError:
    """Return the error for a service that a backend does not have."""
    return NotFoundError(
        f"service {name} does not exist in namespace {namespace}",
        hint=f"These exist: kfp-mindspore service list -A --backend {backend}. The other backend is "
        f"{LOCAL if backend == KUBERNETES else KUBERNETES}.",
    )


def make_canary_error(name: str, namespace: str, backend: str) -> UserError:
    """Return the error for deploying to a service that has a canary."""
    return UserError(
        f"service {name}: has a canary",
        hint=f"End it first: {format_command('promote', name, namespace, backend)}, or rollback.",
    )


def suggest_name(model_dir: str | Path) -> str:
    """Return a service name from a bundle's directory, such as `digits` from `out/Digits/`; default `model`."""
    words = re.sub(r"[^a-z0-9]+", "-", Path(model_dir).absolute().name.lower()).lstrip("-0123456789")
    return words[:MAXIMUM_NAME].strip("-") or "model"


def _list_resource_errors(resources: Any) -> list[str]:
    if not isinstance(resources, Mapping):
        return [f"resources: must be an object with requests and limits, got {resources!r}"]
    errors = []
    for kind, entries in resources.items():
        if kind not in _RESOURCE_KINDS:
            errors.append(f"resources.{kind}: unknown field, expected {' or '.join(_RESOURCE_KINDS)}")
        elif not isinstance(entries, Mapping):
            errors.append(f"resources.{kind}: must be an object of quantities, got {entries!r}")
        else:
            errors.extend(
                f"resources.{kind}.{name}: must be a quantity such as 500m, 2 or 4Gi, got {quantity!r}"
                for name, quantity in entries.items()
                if isinstance(quantity, bool) or not _QUANTITY.fullmatch(str(quantity))
            )
    return errors


def _list_flag_errors(flags: Any) -> list[str]:
    if isinstance(flags, str) or not isinstance(flags, Sequence):
        return [f"server_args: must be a list of flags, got {flags!r}"]
    errors = []
    for index, flag in enumerate(flags):
        match = _FLAG.fullmatch(flag) if isinstance(flag, str) else None
        if match is None:
            errors.append(f"server_args[{index}]: must be --flag or --flag=value, got {flag!r}")
        elif match[1].replace("-", "_") in _RESERVED_FLAGS:
            errors.append(f"server_args[{index}]: --{match[1]} follows from the service's own fields")
    return errors
