"""Images, addresses and configuration of test clusters, and unavailable ones."""

from __future__ import annotations

import ipaddress
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Failed, Skipped

from tests.cluster.conftest import REQUIRE_VARIABLE, is_current_wanted, start
from tests.cluster.infrastructure.api_server import pick_ports
from tests.cluster.infrastructure.binaries import BUILDKIT, COSCHEDULING, KUBERNETES, VOLCANO, Toolset, get_binaries
from tests.cluster.infrastructure.cluster import open_current_cluster, render_dns
from tests.cluster.infrastructure.images import ImageConfig, write_archive
from tests.cluster.infrastructure.namespaces import Network
from tests.cluster.infrastructure.node import describe_pod_network
from tests.cluster.infrastructure.packages import PodPackages
from tests.cluster.infrastructure.prerequisites import PACKAGES, UnavailableError, list_missing_packages


def make_root(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "tool").write_text("#!/bin/sh\n")
    (path / "bin" / "tool").chmod(0o755)
    (path / "etc").symlink_to("bin")
    return path


def read_archive(archive: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        with tarfile.open(fileobj=tar.extractfile(manifest["Layers"][0])) as layer:
            return manifest, config, layer.getnames()


def test_archive_has_one_layer(tmp_path: Path) -> None:
    config = ImageConfig(entrypoint=["/bin/tool"], environment=["A=1"], user="1000")
    write_archive("a.test/b:1", make_root(tmp_path / "root"), tmp_path / "image.tar", config)
    manifest, read, names = read_archive(tmp_path / "image.tar")
    assert manifest["RepoTags"] == ["a.test/b:1"]
    assert manifest["Layers"] == [f"{read['rootfs']['diff_ids'][0].removeprefix('sha256:')}/layer.tar"]
    assert (read["config"]["Entrypoint"], read["config"]["Cmd"], read["config"]["User"]) == (
        ["/bin/tool"],
        None,
        "1000",
    )
    assert read["config"]["Env"][1] == "A=1"
    assert names == ["bin", "bin/tool", "etc"]


def test_archive_is_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_archive("a.test/b:1", make_root(tmp_path / name), tmp_path / f"{name}.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


@pytest.mark.parametrize("number", [200, 249])
def test_network_addresses_do_not_overlap(number: int) -> None:
    network = Network(number)
    whole = ipaddress.ip_network(f"10.{number}.0.0/16")
    pods, services = ipaddress.ip_network(network.pods), ipaddress.ip_network(network.services)
    assert pods.subnet_of(whole)
    assert services.subnet_of(whole)
    assert not pods.overlaps(services)
    for address in (network.first_service, network.dns):
        assert ipaddress.ip_address(address) in services
    for address in (network.node, network.outside):
        assert ipaddress.ip_address(address) in whole
        assert ipaddress.ip_address(address) not in pods
        assert ipaddress.ip_address(address) not in services
    assert describe_pod_network(network)["plugins"][0]["ipam"]["ranges"] == [[{"subnet": network.pods}]]


def test_dns_objects_have_address_and_image() -> None:
    objects = {item["kind"]: item for item in render_dns("10.200.128.10")}
    assert objects["Service"]["spec"]["clusterIP"] == "10.200.128.10"
    assert objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"].endswith("coredns:1")


def test_add_packages_keeps_given_pod() -> None:
    pod = {
        "containers": [{"name": "a", "env": [{"name": "HOME", "value": "/x"}]}, {"name": "b"}],
        "volumes": [{"name": "v"}],
    }
    added = PodPackages(Path("/d"), Path("/p")).add_to(pod)
    assert [volume["name"] for volume in added["volumes"]] == ["dependencies", "project", "v"]
    assert all(mount["readOnly"] for container in added["containers"] for mount in container["volumeMounts"])
    # The last value of a variable is effective.
    assert added["containers"][0]["env"][-1] == {"name": "HOME", "value": "/x"}
    assert pod["volumes"] == [{"name": "v"}]


def test_list_missing_packages() -> None:
    assert list_missing_packages(lambda thing: True) == []
    assert list_missing_packages(lambda thing: thing != "runc") == ["runc"]
    assert list_missing_packages(lambda thing: False) == list(PACKAGES.values())


def test_ports_are_distinct() -> None:
    assert len(set(pick_ports(20))) == 20


def unavailable() -> None:
    raise UnavailableError("root is needed")


def test_unavailable_cluster_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRE_VARIABLE, raising=False)
    with pytest.raises(Skipped, match="root is needed"):
        start(unavailable)


def test_required_cluster_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRE_VARIABLE, "1")
    with pytest.raises(Failed, match="root is needed"):
        start(unavailable)


@pytest.mark.parametrize(
    ("tools", "name"),
    [
        (KUBERNETES, "kube-apiserver"),
        (BUILDKIT, "buildkitd"),
        (COSCHEDULING, "podgroups.yaml"),
        (VOLCANO, "vc-scheduler"),
    ],
)
def test_missing_binaries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: Toolset, name: str) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_CLUSTER_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match=rf"{name}.*tests.cluster build"):
        get_binaries(tools)


def test_open_current_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cluster.infrastructure.certificates import Authority

    path = Authority(tmp_path / "pki").write_kubeconfig(tmp_path / "config", "https://192.0.2.7:6443", "me")
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert open_current_cluster().url == "https://192.0.2.7:6443"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match="none: no cluster"):
        open_current_cluster()


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("own", False), ("current", True)])
def test_is_current_wanted(value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_TEST_CLUSTER", value)
    assert is_current_wanted() is wanted


def test_unknown_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_TEST_CLUSTER", "kind")
    with pytest.raises(Failed, match="must be `own` or `current`"):
        is_current_wanted()
