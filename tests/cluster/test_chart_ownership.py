"""Releases of the Helm chart beside objects of other owners, on an API server without nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kfp_mindspore.inference.backends.rollout import DEPLOYMENTS
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import DEFINITIONS
from kfp_mindspore.operator.install import InstallOptions, build_objects
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.infrastructure.api_server import ApiServer
from tests.support.kube.helm import CHART, Helm

DEFINITION = "msjobs.mindspore.gitee.com"
IMAGE, OTHER_IMAGE = "registry.example.com/operator@sha256:1", "registry.example.com/operator@sha256:2"


@pytest.fixture
def release(helm: Helm, start_api_server: Callable[..., ApiServer]) -> Helm:
    return replace(helm, kubeconfig=start_api_server().kubeconfig)


def install(release: Helm, name: str, *words: str, **values: Any) -> str:
    """Install the chart and return the error, empty after success."""
    done = release("install", name, str(CHART), *words, operator={"image": IMAGE, **values})
    # It also notes the link to the definition there.
    return done.stderr if done.returncode else ""


def test_installation_of_command_is_taken_over_on_request(release: Helm) -> None:
    cluster = Cluster(release.kubeconfig)
    objects = build_objects(InstallOptions(image=OTHER_IMAGE))
    list(apply_objects(objects, kubeconfig=str(release.kubeconfig)))
    before = cluster.get(DEFINITIONS, DEFINITION)["metadata"]["uid"]
    error = install(release, "kfp")
    assert "exists and cannot be imported into the current release: invalid ownership metadata" in error
    assert read_image(cluster) == OTHER_IMAGE
    assert install(release, "kfp", "--take-ownership") == ""
    assert read_image(cluster) == IMAGE
    assert cluster.get(DEFINITIONS, DEFINITION)["metadata"]["uid"] == before


def test_second_release_is_refused(release: Helm) -> None:
    assert install(release, "first") == ""
    error = install(release, "second", namespace="other-system", watched=["team-a"])
    assert 'annotation validation error: key "meta.helm.sh/release-name" must equal "second"' in error


def test_command_changes_a_release_until_its_next_upgrade(release: Helm) -> None:
    cluster = Cluster(release.kubeconfig)
    assert install(release, "kfp") == ""
    objects = build_objects(InstallOptions(image=OTHER_IMAGE, replicas=1))
    list(apply_objects(objects, kubeconfig=str(release.kubeconfig)))
    assert read_image(cluster) == OTHER_IMAGE
    release.run("upgrade", "kfp", str(CHART), "--reset-then-reuse-values")
    assert read_image(cluster) == IMAGE


def test_kept_definition_is_adopted_by_release_of_same_name(release: Helm) -> None:
    assert install(release, "kfp") == ""
    assert f"[CustomResourceDefinition] {DEFINITION}" in release.run("uninstall", "kfp", "--wait")
    assert 'key "meta.helm.sh/release-name" must equal "renamed"' in install(release, "renamed")
    assert install(release, "kfp") == ""


def read_image(cluster: Cluster) -> str:
    """Return the operator's image."""
    spec = cluster.get(DEPLOYMENTS, "msjob-controller", "msjob-system")["spec"]["template"]["spec"]
    return str(spec["containers"][0]["image"])
