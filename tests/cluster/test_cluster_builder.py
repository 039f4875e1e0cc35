"""ClusterBuilder on a real cluster: what it builds is pushed, and the cluster runs it."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, watch

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.images import ImagePlan, parse_reference
from kfp_mindspore.images.build import ImageOptions, make_plan
from kfp_mindspore.images.builders.cluster import CONFIG_MAPS, JOBS, ClusterBuilder
from kfp_mindspore.images.builders.cluster_job import JobSettings, write_config_map
from kfp_mindspore.images.builders.cluster_layout import PLAN_FILE
from kfp_mindspore.images.builders.context_store import ClaimPlace, ObjectStorePlace
from kfp_mindspore.images.context import BuildContext, Entry
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ForbiddenError
from kfp_mindspore.kube.resources import PODS
from tests.cluster.builder_images import (
    BUILDAH_IMAGE,
    BUILDKIT_IMAGE,
    make_buildah_archive,
    make_buildkit_archive,
    push_busybox,
    push_package_image,
)
from tests.cluster.conftest import start
from tests.cluster.infrastructure.certificates import Authority
from tests.support import registries, s3_server

RUN_SECONDS = 180
# The name that a tool gives to the second step of a Containerfile.
STEPS = {"buildah": r"STEP 2/\d+ \({}\)", "buildkit": r"\[2/\d+\] {}"}


@dataclasses.dataclass(frozen=True)
class Closed:
    """A registry that needs a login, whose certificate only its own authority answers for."""

    host: str
    base: str
    ca_file: Path
    login: Path


@dataclasses.dataclass(frozen=True)
class Yard:
    """Where builds happen: a cluster with Buildah's image, a registry with a base image."""

    cluster: object
    registry: str
    base: str
    config: RegistryConfig

    def build(self, builder, namespace, *, main="echo built", destination="team/out", extra=(), **options):
        context = BuildContext([Entry.from_bytes("main.sh", f"{main}\n".encode()), *extra])
        given = {"base": self.base, "command": ("sh", "main.sh"), **options}
        plan = make_plan(context, ImageOptions(**given), builder)
        seen = []
        return builder.build(plan, f"{self.registry}/{destination}", on_progress=seen.append), seen

    def make_builder(self, namespace, **options):
        return ClusterBuilder(self.config, namespace=namespace, kubeconfig=self.cluster.kubeconfig, **options)

    def run(self, namespace, image):
        """Run an image as a pod without privileges and return what it printed."""
        api = client.CoreV1Api(self.cluster.client())
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {"name": "main", "image": image, "securityContext": security}
        spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1}
        name = f"run-{image[-12:]}"
        api.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})
        stream = watch.Watch().stream(
            api.list_namespaced_pod, namespace, field_selector=f"metadata.name={name}", timeout_seconds=RUN_SECONDS
        )
        phase = next((item["object"].status.phase for item in stream if _has_ended(item["object"])), "no end")
        log = api.read_namespaced_pod_log(name, namespace)
        assert phase == "Succeeded", f"{phase}: {log}"
        return log

    def list_leftovers(self, namespace):
        labels = "kfp-mindspore.org/image-build"
        jobs = client.BatchV1Api(self.cluster.client()).list_namespaced_job(namespace, label_selector=labels).items
        maps = (
            client.CoreV1Api(self.cluster.client()).list_namespaced_config_map(namespace, label_selector=labels).items
        )
        return [item.metadata.name for item in [*jobs, *maps] if item.metadata.deletion_timestamp is None]


def _has_ended(pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


@pytest.fixture(scope="session")
def yard(own_cluster, registry, tmp_path_factory) -> Yard:
    own_cluster.import_image(make_buildah_archive())
    base = push_busybox(registry, tmp_path_factory.mktemp("busybox"))
    return Yard(own_cluster, registry, base, RegistryConfig(insecure=(registry,)))


@pytest.fixture(scope="session")
def package_image(yard, pod_packages) -> str:
    return push_package_image(yard.registry, pod_packages, yard.config)


@pytest.fixture(scope="session")
def buildkit(yard) -> str:
    """Return the name of BuildKit's image, which the node has."""
    yard.cluster.import_image(start(make_buildkit_archive))
    return BUILDKIT_IMAGE


@pytest.fixture(params=["buildah", "buildkit"])
def tool(request) -> dict[str, str]:
    """Return what a builder is told of a tool that runs steps."""
    image = BUILDAH_IMAGE if request.param == "buildah" else request.getfixturevalue("buildkit")
    return {"tool": request.param, "image": image}


def find_step(tool: dict[str, str], instruction: str) -> str:
    """Return the pattern of a second step's name."""
    return STEPS[tool["tool"]].format(re.escape(instruction))


def test_a_step_runs_without_privileges_and_the_cluster_runs_the_image(yard, namespace, tool) -> None:
    containerfile = (
        f"FROM {yard.base}\nRUN id -u > /made-by && echo in the step\nWORKDIR /app\nCOPY sources/ /app/\n"
        'USER 1000:1000\nCMD ["sh", "main.sh"]\n'
    )
    builder = yard.make_builder(namespace, **tool)
    options = {"main": "echo from the sources; cat /made-by", "containerfile": containerfile}
    options["destination"] = f"team/{tool['tool']}"
    result, seen = yard.build(builder, namespace, **options)
    assert result.built
    (step,) = {entry.step for entry in seen if entry.text == "in the step"}
    assert re.fullmatch(find_step(tool, "RUN id -u > /made-by && echo in the step"), step)
    assert yard.run(namespace, result.reference).splitlines() == ["from the sources", "0"]
    assert yard.list_leftovers(namespace) == []

    again, seen = yard.build(builder, namespace, **options)
    assert (again.built, again.reference, seen) == (False, result.reference, [])


def test_append_builder_in_a_pod_needs_no_build_tool(yard, namespace, package_image) -> None:
    builder = yard.make_builder(namespace, package_image=package_image)
    result, seen = yard.build(builder, namespace, main="echo from append", destination="team/appended")
    assert result.built
    assert (result.layers_sent, result.layers_reused) == (1, 1)
    assert any(entry.done_bytes and entry.done_bytes == entry.total_bytes for entry in seen)
    assert yard.run(namespace, result.reference) == "from append\n"
    assert yard.list_leftovers(namespace) == []


def test_failing_step_is_named_with_its_last_lines_and_everything_is_removed(yard, namespace, tool) -> None:
    containerfile = f"FROM {yard.base}\nRUN echo about to fail && false\n"
    builder = yard.make_builder(namespace, **tool)
    destination = f"team/failed-{tool['tool']}"
    with pytest.raises(ProcessFailedError) as caught:
        yard.build(builder, namespace, containerfile=containerfile, destination=destination)
    step = find_step(tool, "RUN echo about to fail && false")
    assert re.match(rf"{step}: .*exit (status|code:) 1", caught.value.message)
    assert any("about to fail" in line for line in caught.value.log)
    assert yard.list_leftovers(namespace) == []
    # The same place takes a build that works.
    good, _ = yard.build(builder, namespace, containerfile=f"FROM {yard.base}\nRUN true\n", destination=destination)
    assert good.built


def test_build_that_takes_too_long_is_ended_by_the_cluster(yard, namespace) -> None:
    builder = yard.make_builder(namespace, image=BUILDAH_IMAGE, job=JobSettings(deadline_seconds=60))
    with pytest.raises(ProcessFailedError, match=r"STEP 2/.*had 60 s and was ended by the cluster"):
        yard.build(builder, namespace, containerfile=f"FROM {yard.base}\nRUN sleep 600\n", destination="team/deadline")
    assert yard.list_leftovers(namespace) == []


def test_interrupted_command_removes_the_job(yard, namespace, tmp_path) -> None:
    (tmp_path / "main.sh").write_text("echo never\n")
    (tmp_path / "Containerfile").write_text(f"FROM {yard.base}\nRUN echo sleeping && sleep 600\n")
    words = [sys.executable, "-m", "kfp_mindspore.cli.main", "image", "build", str(tmp_path), "--base", yard.base]
    words += ["--to", f"{yard.registry}/team/interrupted", "--insecure", yard.registry, "--builder", "cluster"]
    words += ["--kubeconfig", str(yard.cluster.kubeconfig), "--namespace", namespace, "--tool-image", BUILDAH_IMAGE]
    words += ["--containerfile", str(tmp_path / "Containerfile")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.strip() == "sleeping":
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(RUN_SECONDS) == 130, "".join(lines) + rest
    assert "Traceback" not in rest
    assert yard.list_leftovers(namespace) == []


def test_missing_image_is_told_at_once(yard, namespace) -> None:
    builder = yard.make_builder(namespace, image=f"{yard.registry}/team/nosuch:1")
    with pytest.raises(UserError, match=r"team/nosuch:1: (ErrImagePull|ImagePullBackOff)"):
        yard.build(builder, namespace, destination="team/none", containerfile=f"FROM {yard.base}\nRUN true\n")
    assert yard.list_leftovers(namespace) == []


def test_missing_secret_is_told_by_its_name(yard, namespace) -> None:
    builder = yard.make_builder(namespace, image=BUILDAH_IMAGE, secrets={"token": "no-such-secret/key"})
    with pytest.raises(UserError, match="no-such-secret"):
        yard.build(builder, namespace, destination="team/none", containerfile=f"FROM {yard.base}\nRUN true\n")
    assert yard.list_leftovers(namespace) == []


def test_secret_of_a_step_is_used_and_left_out_of_the_image(yard, namespace, tool) -> None:
    api = client.CoreV1Api(yard.cluster.client())
    api.create_namespaced_secret(namespace, {"metadata": {"name": "login"}, "stringData": {"token": "open sesame"}})
    containerfile = (
        f"FROM {yard.base}\nRUN --mount=type=secret,id=token test \"$(cat /run/secrets/token)\" = 'open sesame'\n"
        'CMD ["sh", "-c", "cat /run/secrets/token || echo nothing there"]\n'
    )
    builder = yard.make_builder(namespace, **tool, secrets={"token": "login/token"})
    destination = f"team/secret-{tool['tool']}"
    result, seen = yard.build(builder, namespace, destination=destination, containerfile=containerfile)
    assert "nothing there" in yard.run(namespace, result.reference)
    assert not any("open sesame" in entry.text for entry in seen)


@pytest.fixture(scope="session")
def closed(yard, tmp_path_factory) -> Iterator[Closed]:
    """Return a registry with an authority of its own and a login, which has the base image."""
    folder = tmp_path_factory.mktemp("closed")
    authority = Authority(folder)
    address = yard.cluster.network.outside
    tls = authority.issue("registry", "registry", hosts=[address])
    with registries.start_registry(folder / "registry", tls=tls, htpasswd=True, address=address) as server:
        base = f"{server.host}/team/busybox:1"
        words = ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false"]
        words += ["--dest-creds", f"{registries.USER}:{registries.PASSWORD}", f"docker://{yard.base}"]
        done = subprocess.run([*words, f"docker://{base}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        login = registries.write_login(folder / "config.json", server.host)
        yield Closed(server.host, base, authority.certificate, login)


def make_login(yard, namespace, name, login) -> None:
    api = client.CoreV1Api(yard.cluster.client())
    body = {"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson"}
    api.create_namespaced_secret(namespace, {**body, "stringData": {".dockerconfigjson": login.read_text()}})


def check_a_closed_registry(yard, closed, namespace, **options) -> None:
    """Build from and to a registry with the logins of Secrets, twice."""
    make_login(yard, namespace, "push", closed.login)
    make_login(yard, namespace, "pull", closed.login)
    config = RegistryConfig(
        insecure=(yard.registry,),
        ca_file=closed.ca_file,
        docker_config=closed.login,
        pull_secrets=("pull",),
        push_secret="push",
    )
    builder = ClusterBuilder(config, namespace=namespace, kubeconfig=yard.cluster.kubeconfig, **options)
    tool = options["tool"]
    given = {} if tool == "append" else {"containerfile": f"FROM {closed.base}\nRUN true\nCOPY sources/ /app/\n"}
    private = dataclasses.replace(yard, registry=closed.host, base=closed.base)
    result, seen = private.build(builder, namespace, destination=f"team/{tool}", **given)
    assert result.built
    assert result.reference.startswith(f"{closed.host}/team/{tool}@sha256:")
    password = base64.b64encode(f"{registries.USER}:{registries.PASSWORD}".encode()).decode()
    assert not any(word in entry.text for entry in seen for word in (registries.PASSWORD, password))
    again, _ = private.build(builder, namespace, destination=f"team/{tool}", **given)
    assert (again.built, again.reference) == (False, result.reference)
    assert yard.list_leftovers(namespace) == []


def test_a_registry_with_its_own_authority_is_read_and_written_with_the_secrets_logins(
    yard, closed, namespace, tool
) -> None:
    check_a_closed_registry(yard, closed, namespace, **tool)


def test_a_registry_with_its_own_authority_is_appended_to_with_the_secrets_logins(
    yard, closed, namespace, package_image
) -> None:
    check_a_closed_registry(yard, closed, namespace, tool="append", package_image=package_image)


def test_a_secret_without_the_right_login_is_told_by_the_registrys_word(
    yard, closed, namespace, tmp_path, tool
) -> None:
    wrong = registries.write_login(tmp_path / "config.json", closed.host, password="battery staple")
    make_login(yard, namespace, "push", wrong)
    config = RegistryConfig(ca_file=closed.ca_file, docker_config=closed.login, push_secret="push")
    builder = ClusterBuilder(config, namespace=namespace, kubeconfig=yard.cluster.kubeconfig, **tool)
    private = dataclasses.replace(yard, registry=closed.host, base=closed.base)
    with pytest.raises(ProcessFailedError, match=r"(?i)unauthorized|authentication required") as caught:
        private.build(builder, namespace, destination="team/refused", containerfile=f"FROM {closed.base}\nRUN true\n")
    assert "battery staple" not in f"{caught.value} {caught.value.log}"
    assert yard.list_leftovers(namespace) == []


def test_large_context_goes_through_a_claim(yard, namespace) -> None:
    volume = yard.cluster.make_volume(f"claim-{namespace}")
    api = client.CoreV1Api(yard.cluster.client())
    size = {"storage": "1Gi"}
    api.create_persistent_volume(
        {
            "metadata": {"name": f"pv-{namespace}"},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(volume)},
                "claimRef": {"namespace": namespace, "name": "contexts"},
                "storageClassName": "",
            },
        }
    )
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": size}, "storageClassName": ""}
    api.create_namespaced_persistent_volume_claim(
        namespace, {"metadata": {"name": "contexts"}, "spec": {**claim, "volumeName": f"pv-{namespace}"}}
    )
    # Nothing compresses what has no pattern.
    large = Entry.from_bytes("weights.bin", os.urandom(3_000_000))
    containerfile = f'FROM {yard.base}\nCOPY sources/ /app/\nCMD ["sh", "-c", "ls -l /app/weights.bin"]\n'
    builder = yard.make_builder(namespace, image=BUILDAH_IMAGE, place=ClaimPlace("contexts"))
    try:
        result, _ = yard.build(builder, namespace, destination="team/large", extra=[large], containerfile=containerfile)
        assert "3000000" in yard.run(namespace, result.reference)
        assert [path for path in volume.rglob("*") if path.is_file()] == []
        names = [pod.metadata.name for pod in api.list_namespaced_pod(namespace).items]
        assert not [name for name in names if name.endswith("-load")]
    finally:
        api.delete_persistent_volume(f"pv-{namespace}")


def test_large_context_goes_through_an_object_store(yard, namespace, package_image, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.SECRET_KEY)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    login = {"AWS_ACCESS_KEY_ID": s3_server.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": s3_server.SECRET_KEY}
    api = client.CoreV1Api(yard.cluster.client())
    api.create_namespaced_secret(namespace, {"metadata": {"name": "store"}, "stringData": login})
    large = Entry.from_bytes("weights.bin", os.urandom(12_000_000))
    with s3_server.start_s3_server(yard.cluster.network.outside) as server:
        place = ObjectStorePlace(f"s3://{s3_server.BUCKET}/builds", server.url, region="eu-1", secret="store")
        builder = yard.make_builder(namespace, package_image=package_image, place=place)
        result, _ = yard.build(builder, namespace, main="ls -l weights.bin", destination="team/stored", extra=[large])
        assert server.objects == {}
        assert any(request.startswith("GET ") for request in server.requests)
    assert "12000000" in yard.run(namespace, result.reference)
    assert yard.list_leftovers(namespace) == []


def test_context_too_large_for_a_config_map_needs_a_place(yard, namespace) -> None:
    large = Entry.from_bytes("weights.bin", os.urandom(1_500_000))
    builder = yard.make_builder(namespace, image=BUILDAH_IMAGE)
    with pytest.raises(UserError, match="a ConfigMap takes 900,000 compressed"):
        yard.build(builder, namespace, extra=[large], containerfile=f"FROM {yard.base}\nRUN true\n")
    assert yard.list_leftovers(namespace) == []


@pytest.mark.parametrize("tool", ["buildkit", "buildah", "append"])
def test_manifests_are_accepted_by_the_api_server(api_server, api_namespace, tool) -> None:
    plan = ImagePlan(
        BuildContext([Entry.from_bytes("main.sh", b"true\n")]),
        "registry.test/base:1",
        f"sha256:{'d' * 64}",
        containerfile="FROM registry.test/base:1\n",
        replaced=tool != "append",
    )
    registry = RegistryConfig(push_secret="push", pull_secrets=("pull",))
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    settings = JobSettings(
        resources=resources,
        node_selector={"pool": "builds"},
        tolerations=[{"key": "builds", "operator": "Exists", "effect": "NoSchedule"}],
        work_size="10Gi",
        service_account="builder",
    )
    secrets = {} if tool == "append" else {"token": "login/token"}
    builder = ClusterBuilder(registry, tool=tool, package_image="registry.test/p:1", job=settings, secrets=secrets)
    job = builder.write_manifest(plan, parse_reference("registry.test/team/out:1"))
    cluster = Cluster(api_server.kubeconfig)
    created = cluster.create(JOBS, job, api_namespace)
    # A field that the server does not know would have been refused, one that it drops would be missing here.
    pod, wanted = created["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    assert pod["containers"][0]["securityContext"] == wanted["containers"][0]["securityContext"]
    assert pod["containers"][0]["resources"] == resources
    written = write_config_map(job["metadata"]["name"], {PLAN_FILE: "{}"}, {"context.tar.gz": b"x"}, created)
    cluster.create(CONFIG_MAPS, written, api_namespace)
    cluster.delete(JOBS, job["metadata"]["name"], api_namespace)
    for maps in cluster.watch(CONFIG_MAPS, api_namespace, timeout=RUN_SECONDS):
        if job["metadata"]["name"] not in maps:
            break
    else:
        pytest.fail("the ConfigMap was not removed with its Job")


def test_append_runs_in_a_restricted_namespace_and_buildah_does_not(api_server) -> None:
    core = client.CoreV1Api(api_server.client())
    with api_server.make_namespace() as namespace:
        label = {"pod-security.kubernetes.io/enforce": "restricted"}
        core.patch_namespace(namespace, {"metadata": {"labels": label}})
        plan = ImagePlan(
            BuildContext([Entry.from_bytes("main.sh", b"true\n")]),
            "registry.test/base:1",
            f"sha256:{'d' * 64}",
            containerfile="FROM registry.test/base:1\n",
        )
        accepted = {}
        for tool in ("append", "buildah"):
            builder = ClusterBuilder(tool=tool, package_image="registry.test/p:1")
            template = builder.write_manifest(plan, parse_reference("registry.test/team/out:1"))["spec"]["template"]
            pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": tool, **template["metadata"]}}
            try:
                Cluster(api_server.kubeconfig).create(PODS, pod, namespace, dry_run=True)
                accepted[tool] = True
            except ForbiddenError:
                accepted[tool] = False
    assert accepted == {"append": True, "buildah": False}
