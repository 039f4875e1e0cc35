"""Bundles in a registry as image volumes, `oci+native://`, on a node whose containerd has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.inference import InferenceClient
from kfp_mindspore.kube.resources import PODS
from tests.cluster.conftest import CLUSTER_VARIABLE, is_current_wanted, start
from tests.cluster.infrastructure.binaries import CONTAINERD, get_binaries
from tests.cluster.infrastructure.cluster import OwnedCluster
from tests.cluster.infrastructure.packages import install_project
from tests.support.controllers.kserve_cluster import run_kserve, skip_without_kserve
from tests.support.serving.kserve_environment import READY_SECONDS, KServeEnvironment
from tests.support.serving.serving_cases import FIRST, NAME, SECOND

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def world(bundles: dict[str, Path]) -> Iterator[KServeEnvironment]:
    """Return a namespace of KServe on a cluster of its own, whose registry has both bundles."""
    skip_without_kserve()
    if is_current_wanted():
        pytest.skip(f"the test needs a containerd of its own: unset {CLUSTER_VARIABLE}")
    containerd = start(lambda: get_binaries(CONTAINERD))
    with start(lambda: OwnedCluster(containerd=containerd)) as cluster:
        packages = start(lambda: install_project(cluster.directory / "project"))
        with run_kserve(cluster, packages) as kserve, kserve.make_namespace() as namespace:
            world = KServeEnvironment(kserve, namespace, bundles)
            registry = cluster.start_registry()
            for name, bundle in world.bundles.items():
                image = f"{registry}/models/{name}:1"
                assert run(["model", "push", str(bundle), image, "--insecure", registry]) == 0
            world.store = f"oci+native://{registry}/models"
            yield world


def list_images(world: KServeEnvironment) -> list[str]:
    """Return the images that the service's pods mount."""
    labels = f"serving.kserve.io/inferenceservice={NAME}"
    pods: list[dict[str, Any]] = world.kserve.api.list(PODS, world.client.namespace, labels=labels)
    return [volume["image"]["reference"] for pod in pods for volume in pod["spec"]["volumes"] if "image" in volume]


def test_bundles_are_mounted_promoted_and_kept(world: KServeEnvironment) -> None:
    client: InferenceClient = world.client
    assert world.identify(world.deploy(f"{FIRST}:1").url) == FIRST
    assert list_images(world) == [world.locate(f"{FIRST}:1").partition("://")[2]]
    canary = world.deploy(f"{SECOND}:1", canary=50).canary
    assert canary is not None
    assert world.identify(canary.url) == SECOND
    assert world.identify(client.promote(NAME, READY_SECONDS).url) == SECOND
    with pytest.raises(ProcessFailedError, match=r"ErrImagePull|ImagePullBackOff"):
        world.deploy("absent:1")
    status = client.get(NAME)
    assert (status.model, world.identify(status.url)) == (world.locate(f"{SECOND}:1"), SECOND)
    assert world.identify(client.rollback(NAME).url) == FIRST
