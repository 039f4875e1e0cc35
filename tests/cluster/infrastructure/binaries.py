"""Go programs of the tests: Kubernetes, BuildKit, controllers and judges of releases, from pinned modules."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.paths import INFRASTRUCTURE, compute_digest, get_cache, lock, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError, check_go

_KUBERNETES = "k8s.io/kubernetes"
_COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


@dataclass(frozen=True)
class Program:
    """Go program.

    Args:
        folder: Folder with the go.mod that pins it, a subfolder of this one unless absolute.
        package: Its Go package.
    """

    folder: str
    package: str = "."


@dataclass(frozen=True)
class SourceFile:
    """File among the sources of a module.

    Args:
        folder: Subfolder with the go.mod that pins the module.
        module: The module.
        path: Path in the module.
        mode: Permission bits of the copy.
    """

    folder: str
    module: str
    path: str
    mode: int = 0o644


@dataclass(frozen=True)
class Toolset:
    """Programs and files that are built into one directory.

    Args:
        programs: Programs by name.
        files: Files of their modules by name.
    """

    programs: Mapping[str, Program]
    files: Mapping[str, SourceFile] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all programs and files."""
        return (*self.programs, *self.files)

    @property
    def directory(self) -> Path:
        """Their directory in the cache; its name changes with the go.mod files."""
        folders = sorted({each.folder for each in (*self.programs.values(), *self.files.values())})
        found = [file for folder in folders for file in (INFRASTRUCTURE / folder).iterdir()]
        return get_cache() / f"bin-{compute_digest(file for file in found if file.suffix in {'.go', '.mod', '.sum'})}"


KUBERNETES = Toolset(
    programs={
        **{name: Program("kubernetes", f"{_KUBERNETES}/cmd/{name}") for name in _COMPONENTS},
        "etcd": Program("kubernetes", "go.etcd.io/etcd/server/v3"),
        "coredns": Program("coredns"),
        "pause": Program("pause"),
    },
)
BUILDKIT = Toolset(
    programs={
        "buildkitd": Program("buildkit", "github.com/moby/buildkit/cmd/buildkitd"),
        "buildctl": Program("buildkit", "github.com/moby/buildkit/cmd/buildctl"),
        "docker-buildx": Program("buildkit", "github.com/docker/buildx/cmd/buildx"),
    },
    files={
        "buildctl-daemonless.sh": SourceFile(
            "buildkit", "github.com/moby/buildkit", "examples/buildctl-daemonless/buildctl-daemonless.sh", 0o755
        )
    },
)
COSCHEDULING = Toolset(
    programs={"kube-scheduler-coscheduling": Program("coscheduling")},
    files={
        "podgroups.yaml": SourceFile(
            "coscheduling", "sigs.k8s.io/scheduler-plugins", "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"
        )
    },
)
_VOLCANO = "volcano.sh/volcano"
VOLCANO = Toolset(
    programs={
        "vc-scheduler": Program("volcano", f"{_VOLCANO}/cmd/scheduler"),
        "vc-controller-manager": Program("volcano", f"{_VOLCANO}/cmd/controller-manager"),
    },
    files={
        f"{name}.yaml": SourceFile("volcano", _VOLCANO, f"config/crd/volcano/bases/{name}.yaml")
        for name in (
            "batch.volcano.sh_jobs",
            "bus.volcano.sh_commands",
            "scheduling.volcano.sh_podgroups",
            "scheduling.volcano.sh_queues",
            "nodeinfo.volcano.sh_numatopologies",
        )
    },
)

# It has image volumes, which Debian's containerd 1.6 lacks.
CONTAINERD = Toolset(
    programs={
        name: Program("containerd", f"github.com/containerd/containerd/v2/cmd/{name}")
        for name in ("containerd", "containerd-shim-runc-v2")
    }
)

_KSERVE = "github.com/kserve/kserve"
_KSERVE_FILES = {
    **{
        f"{name}.yaml": f"config/crd/full/serving.kserve.io_{name}.yaml"
        for name in (
            "clusterservingruntimes",
            "inferencegraphs",
            "inferenceservices",
            "servingruntimes",
            "trainedmodels",
        )
    },
    "clusterstoragecontainers.yaml": (
        "config/crd/full/clusterstoragecontainer/serving.kserve.io_clusterstoragecontainers.yaml"
    ),
    "role.yaml": "config/rbac/role.yaml",
    "webhooks.yaml": "config/webhook/manifests.yaml",
    "configuration.yaml": "config/configmap/inferenceservice.yaml",
    "storage-container.yaml": "config/storagecontainers/default.yaml",
    **{
        f"{name}.yaml": f"config/crd/full/llmisvc/serving.kserve.io_{name}.yaml"
        for name in ("llminferenceservices", "llminferenceserviceconfigs")
    },
    "llmisvc-role.yaml": "config/rbac/llmisvc/role.yaml",
    "llmisvc-webhooks.yaml": "config/webhook/llmisvc/manifests.yaml",
    **{
        f"config-llm-{name}.yaml": f"config/llmisvcconfig/config-llm-{name}.yaml"
        for name in ("template", "router-route", "scheduler")
    },
}
# What the routers of language models create.
_GATEWAY_FILES = {
    **{
        f"{name}.yaml": ("sigs.k8s.io/gateway-api", f"config/crd/standard/gateway.networking.k8s.io_{name}.yaml")
        for name in ("gatewayclasses", "gateways", "httproutes")
    },
    "inferencepools.yaml": (
        "sigs.k8s.io/gateway-api-inference-extension",
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
    "leaderworkersets.yaml": (
        "sigs.k8s.io/lws",
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    ),
}
KSERVE = Toolset(
    programs={
        "kserve-llmisvc": Program("kserve", f"{_KSERVE}/cmd/llmisvc"),
        "kserve-manager": Program("kserve", f"{_KSERVE}/cmd/manager"),
        "kserve-router": Program("kserve", f"{_KSERVE}/cmd/router"),
    },
    files={
        **{name: SourceFile("kserve", _KSERVE, path) for name, path in _KSERVE_FILES.items()},
        **{name: SourceFile("kserve", module, path) for name, (module, path) in _GATEWAY_FILES.items()},
        "initializer-entrypoint": SourceFile(
            "kserve", _KSERVE, "python/storage-initializer/scripts/initializer-entrypoint", 0o755
        ),
    },
)
# The proxy that logs requests in a service's pods; a test runs it without a cluster.
KSERVE_AGENT = Toolset(programs={"kserve-agent": Program("kserve", f"{_KSERVE}/cmd/agent")})

_KEDA = "github.com/kedacore/keda/v2"
_KEDA_FILES = {
    **{
        f"{name}.yaml": f"config/crd/bases/{name}.yaml"
        for name in (
            "keda.sh_clustertriggerauthentications",
            "keda.sh_scaledjobs",
            "keda.sh_scaledobjects",
            "keda.sh_triggerauthentications",
            "eventing.keda.sh_cloudeventsources",
            "eventing.keda.sh_clustercloudeventsources",
        )
    },
    "keda-role.yaml": "config/rbac/role.yaml",
    "keda-metrics-role.yaml": "config/metrics-server/role.yaml",
    "keda-metrics-binding.yaml": "config/metrics-server/role_binding.yaml",
    "keda-metrics-api.yaml": "config/metrics-server/api_service.yaml",
}
KEDA = Toolset(
    programs={
        "keda-adapter": Program("keda", f"{_KEDA}/cmd/adapter"),
        "keda-operator": Program("keda", f"{_KEDA}/cmd/operator"),
    },
    files={name: SourceFile("keda", _KEDA, path) for name, path in _KEDA_FILES.items()},
)
METRICS_SERVER = Toolset(
    programs={"metrics-server": Program("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server")}
)

_MPI = "github.com/kubeflow/mpi-operator"
_TRAINER = "github.com/kubeflow/trainer/v2"
_JOBSET = "sigs.k8s.io/jobset"
MPI = Toolset(
    programs={"mpi-operator": Program("mpi", f"{_MPI}/cmd/mpi-operator")},
    files={"mpijobs.yaml": SourceFile("mpi", _MPI, "manifests/base/kubeflow.org_mpijobs.yaml")},
)
TRAINER = Toolset(
    programs={
        "trainer-manager": Program("trainer", f"{_TRAINER}/cmd/trainer-controller-manager"),
        "jobset-manager": Program("trainer", _JOBSET),
    },
    files={
        **{
            f"{name}.yaml": SourceFile("trainer", _TRAINER, f"manifests/base/crds/trainer.kubeflow.org_{name}.yaml")
            for name in ("clustertrainingruntimes", "trainingruntimes", "trainjobs")
        },
        "trainer-webhooks.yaml": SourceFile("trainer", _TRAINER, "manifests/base/webhook/manifests.yaml"),
        "jobsets.yaml": SourceFile("trainer", _JOBSET, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
        "jobset-webhooks.yaml": SourceFile("trainer", _JOBSET, "config/components/webhook/manifests.yaml"),
    },
)

_KATIB = "github.com/kubeflow/katib"
_KATIB_FILES = {
    **{f"{name}.yaml": f"components/crd/{name}.yaml" for name in ("experiment", "suggestion", "trial")},
    **{f"katib-controller-{name}.yaml": f"components/controller/{name}.yaml" for name in ("rbac", "service")},
    "katib-controller.yaml": "components/controller/controller.yaml",
    "katib-db-manager.yaml": "components/db-manager/db-manager.yaml",
    "katib-db-manager-service.yaml": "components/db-manager/service.yaml",
    "katib-webhooks.yaml": "components/webhook/webhooks.yaml",
    "katib-config.yaml": "installs/katib-standalone/katib-config.yaml",
}
KATIB = Toolset(
    programs={
        "katib-controller": Program("katib", f"{_KATIB}/cmd/katib-controller/v1beta1"),
        "katib-db-manager": Program("katib", f"{_KATIB}/cmd/db-manager/v1beta1"),
        "goptuna-suggestion": Program("katib", f"{_KATIB}/cmd/suggestion/goptuna/v1beta1"),
        "file-metricscollector": Program("katib", f"{_KATIB}/cmd/metricscollector/v1beta1/file-metricscollector"),
    },
    files={name: SourceFile("katib", _KATIB, f"manifests/v1beta1/{path}") for name, path in _KATIB_FILES.items()},
)

_KUBERAY = "github.com/ray-project/kuberay/ray-operator"
KUBERAY = Toolset(
    programs={"ray-operator": Program("kuberay", _KUBERAY)},
    files={
        f"{name}.yaml": SourceFile("kuberay", _KUBERAY, f"config/crd/bases/ray.io_{name}.yaml")
        for name in ("rayclusters", "rayjobs", "rayservices")
    },
)
HELM = Toolset(programs={"helm": Program("helm", "helm.sh/helm/v3/cmd/helm")})
KUBECONFORM = Toolset(programs={"kubeconform": Program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform")})
_MONITORING = "github.com/prometheus-operator/prometheus-operator"
# Of the chart's custom resources.
CUSTOM_RESOURCES = Toolset(
    programs={},
    files={
        **{
            name: SourceFile("kserve", _KSERVE, _KSERVE_FILES[name])
            for name in ("clusterservingruntimes.yaml", "servingruntimes.yaml")
        },
        **{
            f"{name}.yaml": SourceFile(
                "prometheus-operator",
                _MONITORING,
                f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml",
            )
            for name in ("podmonitors", "prometheusrules", "servicemonitors")
        },
    },
)

# Judges of a release's images.
RELEASE = Toolset(
    programs={
        "cosign": Program("cosign", "github.com/sigstore/cosign/v2/cmd/cosign"),
        "syft": Program("syft", "github.com/anchore/syft/cmd/syft"),
    },
)

_KUEUE = "sigs.k8s.io/kueue"
_KUEUE_CRDS = (
    "admissionchecks",
    "clusterqueues",
    "cohorts",
    "localqueues",
    "multikueueclusters",
    "multikueueconfigs",
    "provisioningrequestconfigs",
    "resourceflavors",
    "topologies",
    "workloadpriorityclasses",
    "workloads",
)
KUEUE = Toolset(
    programs={"kueue-manager": Program("kueue", f"{_KUEUE}/cmd/kueue")},
    files={
        **{
            f"{name}.yaml": SourceFile("kueue", _KUEUE, f"config/components/crd/bases/kueue.x-k8s.io_{name}.yaml")
            for name in _KUEUE_CRDS
        },
        "kueue-webhooks.yaml": SourceFile("kueue", _KUEUE, "config/components/webhook/manifests.yaml"),
    },
)


def get_binaries(tools: Toolset = KUBERNETES) -> Path:
    """Return the directory of a toolset.

    Raises:
        UnavailableError: Some are not built.
    """
    directory = tools.directory
    missing = [name for name in tools.names if not (directory / name).exists()]
    if missing:
        raise UnavailableError(
            f"{directory}: {', '.join(missing)} not built; run `python -m tests.cluster build` "
            "(16 minutes the first time; `--gang` adds gang schedulers, `--kserve` KServe and KEDA, "
            "`--trainers` the MPI operator and Kubeflow Trainer, `--katib` Katib, `--kuberay` KubeRay, "
            "`--kueue` Kueue; `--helm` builds Helm and kubeconform alone)"
        )
    return directory


def build_binaries(tools: Toolset = KUBERNETES) -> Path:
    """Build missing programs of a toolset and return its directory.

    Modules are verified by go.sum. All toolsets take 3 GB of Go's build cache, and a minute when it is warm.

    Raises:
        UnavailableError: Go is missing.
        RuntimeError: The build failed; the message holds the end of its output.
    """
    directory = make_directory(tools.directory)
    with lock(directory.with_suffix(".lock")):
        missing = [name for name in tools.names if not (directory / name).exists()]
        if missing:
            check_go()
        for name in missing:
            if program := tools.programs.get(name):
                _build(directory / name, program)
            else:
                _copy(tools.files[name], directory / name)
    return directory


def _build(output: Path, program: Program) -> None:
    started = time.monotonic()
    folder = INFRASTRUCTURE / program.folder
    linker = ["-s", "-w"]
    if program.package.startswith(f"{_KUBERNETES}/"):
        linker += _list_version_flags(_fetch_module(folder, _KUBERNETES)["Version"])
    partial = output.with_name(f".{output.name}.partial")
    words = ["build", "-mod=readonly", "-trimpath", "-ldflags", " ".join(linker), "-o", str(partial), program.package]
    call_go(words, folder)
    partial.replace(output)
    print(f"built {output.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _copy(source: SourceFile, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(Path(_fetch_module(INFRASTRUCTURE / source.folder, source.module)["Dir"], source.path), partial)
    partial.chmod(source.mode)
    partial.replace(target)


def _list_version_flags(version: str) -> list[str]:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "module",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]


def _fetch_module(folder: Path, module: str) -> dict[str, str]:
    """Download a required module and return its Version and the Dir of its sources."""
    found: dict[str, str] = json.loads(call_go(["mod", "download", "-json", module], folder))
    return found


def call_go(arguments: Sequence[str], folder: Path) -> str:
    """Run a command of Go in a module's folder and return its output.

    Raises:
        RuntimeError: It failed; the message holds the end of its output.
    """
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    return call("go", *arguments, seconds=None, folder=folder, environment=environment)
