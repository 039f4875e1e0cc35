"""Command line of the test cluster: build, matrix, up, down, sweep, status."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from tests.cluster.infrastructure.binaries import (
    BUILDKIT,
    CONTAINERD,
    COSCHEDULING,
    CUSTOM_RESOURCES,
    HELM,
    KATIB,
    KEDA,
    KSERVE,
    KSERVE_AGENT,
    KUBECONFORM,
    KUBERAY,
    KUEUE,
    METRICS_SERVER,
    MPI,
    TRAINER,
    VOLCANO,
    build_binaries,
)
from tests.cluster.infrastructure.cluster import Cluster, OwnedCluster
from tests.cluster.infrastructure.images import build_images
from tests.cluster.infrastructure.instances import list_persistent, remove_instance, remove_leftovers
from tests.cluster.infrastructure.kubernetes_versions import VERSIONS
from tests.cluster.infrastructure.packages import install_dependencies
from tests.cluster.infrastructure.prerequisites import (
    DATABASE,
    MONITORING,
    UnavailableError,
    check_root,
    install_packages,
)
from tests.cluster.infrastructure.schemas import download_releases
from tests.cluster.katib_images import make_katib_archives
from tests.cluster.kserve_images import make_kserve_archives
from tests.cluster.matrix import measure
from tests.cluster.mpi_image import make_mpi_archive
from tests.cluster.ray_image import make_ray_archive

REQUIRE_VARIABLE = "KFP_MINDSPORE_REQUIRE_CLUSTER"


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build_command = commands.add_parser("build", help="build binaries, images and the pods' packages into the cache")
    build_command.add_argument("--control-plane", action="store_true", help="only the programs of an API server")
    build_command.add_argument(
        "--gang", action="store_true", help="also the schedulers of Volcano and scheduler-plugins"
    )
    build_command.add_argument(
        "--kserve", action="store_true", help="also KServe with its images, KEDA, the metrics server and Prometheus"
    )
    build_command.add_argument(
        "--trainers", action="store_true", help="also the MPI operator with its image, and Kubeflow Trainer"
    )
    build_command.add_argument("--katib", action="store_true", help="also Katib with its images, and MariaDB")
    build_command.add_argument("--kuberay", action="store_true", help="also KubeRay and an image with Ray")
    build_command.add_argument("--kueue", action="store_true", help="also Kueue")
    build_command.add_argument(
        "--helm", action="store_true", help="only Helm and kubeconform, with Kubernetes' schemas"
    )
    matrix_command = commands.add_parser("matrix", help="run the tests of API servers on other Kubernetes versions")
    matrix_command.add_argument("versions", nargs="*", metavar="VERSION", help=f"default {', '.join(VERSIONS)}")
    commands.add_parser("up", help="start a persistent cluster, unless one is up, and print its KUBECONFIG")
    commands.add_parser("down", help="stop persistent clusters and remove those of dead owners")
    commands.add_parser("sweep", help="remove clusters of dead owners")
    commands.add_parser("status", help="list persistent clusters")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            names = ("control_plane", "gang", "kserve", "trainers", "katib", "kuberay", "helm", "kueue")
            build(**{name: getattr(arguments, name) for name in names})
        elif arguments.command == "matrix":
            failed = [version for version in arguments.versions or VERSIONS if not measure(version)]
            return 1 if failed else 0
        else:
            {"up": up, "down": down, "sweep": remove_leftovers, "status": status}[arguments.command]()
    except UnavailableError as error:
        print(f"no cluster here: {error}", file=sys.stderr)
        return 1 if arguments.command != "build" or os.environ.get(REQUIRE_VARIABLE) else 0
    return 0


def build(
    *,
    control_plane: bool = False,
    gang: bool = False,
    kserve: bool = False,
    trainers: bool = False,
    katib: bool = False,
    kuberay: bool = False,
    kueue: bool = False,
    helm: bool = False,
) -> None:
    """Build missing parts and print the time that each took.

    Args:
        control_plane: Only the programs of an API server without nodes.
        gang: Also the gang schedulers, which `make test-gang` runs.
        kserve: Also KServe with its images, KEDA, the metrics server and Prometheus, which `make test-kubeflow` runs.
        trainers: Also the MPI operator with its image, and Kubeflow Trainer, which `make test-kubeflow` runs.
        katib: Also Katib with its images, and MariaDB, which `make test-kubeflow` runs.
        kuberay: Also KubeRay and an image with Ray, which `make test-kubeflow` runs.
        kueue: Also Kueue, which `make test-kueue` runs.
        helm: Only Helm and kubeconform with Kubernetes' schemas, which `make test-helm` runs.
    """
    if helm:
        _time("Helm", lambda: build_binaries(HELM))
        _time("kubeconform", lambda: [build_binaries(tools) for tools in (KUBECONFORM, CUSTOM_RESOURCES)])
        _time("Kubernetes' schemas", download_releases)
        return
    _time("Kubernetes", build_binaries)
    if control_plane:
        return
    check_root()
    _time("BuildKit", lambda: build_binaries(BUILDKIT))
    if gang:
        _time("gang schedulers", lambda: [build_binaries(tools) for tools in (COSCHEDULING, VOLCANO)])
    if kserve:
        toolsets = (KSERVE, KSERVE_AGENT, KEDA, METRICS_SERVER, CONTAINERD)
        _time("KServe, KEDA, metrics server, containerd 2", lambda: [build_binaries(tools) for tools in toolsets])
        _time("Prometheus", lambda: install_packages(MONITORING))
    if trainers:
        _time("MPI operator and Kubeflow Trainer", lambda: [build_binaries(tools) for tools in (MPI, TRAINER)])
    if katib:
        _time("Katib", lambda: build_binaries(KATIB))
        _time("MariaDB", lambda: install_packages(DATABASE))
    if kuberay:
        _time("KubeRay", lambda: build_binaries(KUBERAY))
    if kueue:
        _time("Kueue", lambda: build_binaries(KUEUE))
    _time("packages of the distribution", install_packages)
    _time("images", build_images)
    _time("packages for pods", install_dependencies)
    if kserve:
        _time("images of KServe", make_kserve_archives)
    if trainers:
        _time("image of MPI", make_mpi_archive)
    if katib:
        _time("images of Katib", make_katib_archives)
    if kuberay:
        _time("image of Ray", make_ray_archive)


def up() -> None:
    """Start a cluster that outlives this process, unless one is up."""
    kept = [directory for directory in list_persistent() if (directory / "kubeconfig").exists()]
    if not kept:
        build()
        kept = [OwnedCluster(keep=True).directory]
    print(f"export KUBECONFIG={kept[0] / 'kubeconfig'}")


def down() -> None:
    """Stop every persistent cluster."""
    for directory in list_persistent():
        remove_instance(directory)
        print(f"{directory.name} stopped")
    for name in remove_leftovers():
        print(f"{name} removed: its owner is dead")


def status() -> None:
    """List persistent clusters and whether they are ready."""
    kept = list_persistent()
    for directory in kept:
        cluster = Cluster.open(directory)
        print(f"{directory.name}\t{'ready' if cluster.is_ready() else 'not ready'}\t{cluster.kubeconfig}")
    if not kept:
        print("no cluster is up; start one with `make cluster-up`")


def _time(what: str, act: Callable[[], object]) -> None:
    started = time.monotonic()
    act()
    print(f"{what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
