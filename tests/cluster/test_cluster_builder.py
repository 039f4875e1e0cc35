"""ClusterBuilder on a real cluster: it builds and pushes images, and the cluster runs them."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, watch

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.images import ImageOptions, make_plan
from kfp_mindspore.images.builders.cluster import JOBS, ClusterBuilder
from kfp_mindspore.images.builders.cluster_job import JobSettings
from kfp_mindspore.images.builders.context_store import PvcContextStore, S3ContextStore, StoredContext
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.reference import parse_reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from kfp_mindspore.kube.cluster import Cluster
from tests.cluster.builder_images import BUILDKIT_IMAGE, make_buildkit_archive, push_busybox
from tests.cluster.conftest import start
from tests.cluster.infrastructure.certificates import Authority
from tests.support.remote import registries, s3_server

RUN_SECONDS = 180


@dataclasses.dataclass(frozen=True)
class PrivateRegistry:
    """A registry with a login and a certificate authority of its own."""

    host: str
    base: str
    ca_file: Path
    login: Path


@dataclasses.dataclass(frozen=True)
class Environment:
    """A cluster with BuildKit's image, a registry with a base image, and an object store for build contexts."""

    cluster: object
    store: s3_server.S3Server
    registry: str
    base: str
    config: RegistryConfig

    def build(self, builder, namespace, *, main="echo built", destination="team/out", extra=(), **options):
        context = BuildContext([ContextEntry.from_bytes("main.sh", f"{main}\n".encode()), *extra])
        given = {"base": self.base, "command": ("sh", "main.sh"), **options}
        plan = make_plan(context, ImageOptions(**given), builder)
        seen = []
        return builder.build(plan, f"{self.registry}/{destination}", on_progress=seen.append), seen

    def make_builder(self, namespace, **options):
        given = {
            "registry": self.config,
            "context_store": S3ContextStore(f"s3://{s3_server.BUCKET}/builds", self.store.url, "eu-1"),
            "image": BUILDKIT_IMAGE,
            **options,
        }
        return ClusterBuilder(namespace=namespace, kubeconfig=self.cluster.kubeconfig, **given)

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
        left = [item.metadata.name for item in jobs if item.metadata.deletion_timestamp is None]
        return [*left, *self.store.objects]


def _has_ended(pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


@pytest.fixture(scope="session")
def environment(own_cluster, registry, tmp_path_factory) -> Iterator[Environment]:
    own_cluster.import_image(start(make_buildkit_archive))
    base = push_busybox(registry, tmp_path_factory.mktemp("busybox"))
    with pytest.MonkeyPatch.context() as patch, s3_server.S3Server(own_cluster.network.outside) as store:
        patch.setenv("AWS_ACCESS_KEY_ID", s3_server.ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.SECRET_KEY)
        patch.setenv("AWS_DEFAULT_REGION", "eu-1")
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        yield Environment(own_cluster, store, registry, base, RegistryConfig(insecure=(registry,)))


def match_step(instruction: str) -> str:
    """Return the pattern of BuildKit's name for a Containerfile's second step."""
    return rf"\[2/\d+\] {re.escape(instruction)}"


def test_step_runs_unprivileged_and_cluster_runs_image(environment, namespace) -> None:
    containerfile = (
        f"FROM {environment.base}\nRUN id -u > /made-by && echo in the step\nWORKDIR /app\nCOPY sources/ /app/\n"
        'USER 1000:1000\nCMD ["sh", "main.sh"]\n'
    )
    builder = environment.make_builder(namespace)
    options = {"main": "echo from the sources; cat /made-by", "containerfile": containerfile}
    options["destination"] = "team/built"
    result, seen = environment.build(builder, namespace, **options)
    assert result.built
    (step,) = {entry.step for entry in seen if entry.text == "in the step"}
    assert re.fullmatch(match_step("RUN id -u > /made-by && echo in the step"), step)
    assert environment.run(namespace, result.reference).splitlines() == ["from the sources", "0"]
    assert environment.list_leftovers(namespace) == []

    again, seen = environment.build(builder, namespace, **options)
    assert (again.built, again.reference, seen) == (False, result.reference, [])


def test_failing_step_is_named_with_its_last_lines_and_job_is_deleted(environment, namespace) -> None:
    containerfile = f"FROM {environment.base}\nRUN echo about to fail && false\n"
    builder = environment.make_builder(namespace)
    destination = "team/failed"
    with pytest.raises(ProcessFailedError) as caught:
        environment.build(builder, namespace, containerfile=containerfile, destination=destination)
    step = match_step("RUN echo about to fail && false")
    assert re.match(rf"{step}: .*exit (status|code:) 1", caught.value.message)
    assert any("about to fail" in line for line in caught.value.log)
    assert environment.list_leftovers(namespace) == []
    # The same context store serves the next build.
    good, _ = environment.build(
        builder, namespace, containerfile=f"FROM {environment.base}\nRUN true\n", destination=destination
    )
    assert good.built


def test_deadline_terminates_build(environment, namespace) -> None:
    builder = environment.make_builder(namespace, job=JobSettings(deadline_seconds=60))
    with pytest.raises(ProcessFailedError, match=r"\[2/.*exceeded its deadline of 60 s"):
        environment.build(
            builder, namespace, containerfile=f"FROM {environment.base}\nRUN sleep 600\n", destination="team/deadline"
        )
    assert environment.list_leftovers(namespace) == []


def test_interrupted_command_deletes_job(environment, namespace, tmp_path) -> None:
    (tmp_path / "main.sh").write_text("echo never\n")
    (tmp_path / "Containerfile").write_text(f"FROM {environment.base}\nRUN echo sleeping && sleep 600\n")
    words = registries.list_build_words(tmp_path, environment.base, environment.registry, "team/interrupted")
    words += ["--builder", "cluster", "--builder-image", BUILDKIT_IMAGE]
    words += ["--kubeconfig", str(environment.cluster.kubeconfig), "--namespace", namespace]
    words += ["--store", f"s3://{s3_server.BUCKET}/builds", "--store-endpoint", environment.store.url]
    words += ["--containerfile", str(tmp_path / "Containerfile")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.strip() == "sleeping":
            break
    process.send_signal(signal.SIGINT)
    try:
        rest = process.communicate(timeout=RUN_SECONDS)[1]
    except subprocess.TimeoutExpired:
        # Python drops an interrupt that arrives in a callback of a weak reference; a person presses Ctrl-C again.
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=RUN_SECONDS)[1]
    assert process.returncode == 130, "".join(lines) + rest
    assert "Traceback" not in rest
    assert environment.list_leftovers(namespace) == []


def test_missing_image_fails_before_start_timeout(environment, namespace) -> None:
    builder = environment.make_builder(namespace, image=f"{environment.registry}/team/nosuch:1")
    with pytest.raises(UserError, match=r"team/nosuch:1: (ErrImagePull|ImagePullBackOff)"):
        environment.build(
            builder, namespace, destination="team/none", containerfile=f"FROM {environment.base}\nRUN true\n"
        )
    assert environment.list_leftovers(namespace) == []


def test_missing_secret_is_named(environment, namespace) -> None:
    builder = environment.make_builder(namespace, secrets={"token": "no-such-secret/key"})
    with pytest.raises(UserError, match="no-such-secret"):
        environment.build(
            builder, namespace, destination="team/none", containerfile=f"FROM {environment.base}\nRUN true\n"
        )
    assert environment.list_leftovers(namespace) == []


def test_build_secret_is_not_in_image(environment, namespace) -> None:
    api = client.CoreV1Api(environment.cluster.client())
    api.create_namespaced_secret(namespace, {"metadata": {"name": "login"}, "stringData": {"token": "open sesame"}})
    containerfile = (
        f"FROM {environment.base}\n"
        "RUN --mount=type=secret,id=token test \"$(cat /run/secrets/token)\" = 'open sesame'\n"
        'CMD ["sh", "-c", "cat /run/secrets/token || echo nothing there"]\n'
    )
    builder = environment.make_builder(namespace, secrets={"token": "login/token"})
    destination = "team/secret"
    result, seen = environment.build(builder, namespace, destination=destination, containerfile=containerfile)
    assert "nothing there" in environment.run(namespace, result.reference)
    assert not any("open sesame" in entry.text for entry in seen)


@pytest.fixture(scope="session")
def private(environment, tmp_path_factory) -> Iterator[PrivateRegistry]:
    """Return a registry with an authority of its own and a login, which has the base image."""
    folder = tmp_path_factory.mktemp("private")
    authority = Authority(folder)
    address = environment.cluster.network.outside
    tls = authority.issue("registry", "registry", hosts=[address])
    with registries.start_registry(folder / "registry", tls=tls, htpasswd=True, address=address) as server:
        base = f"{server.host}/team/busybox:1"
        words = ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false"]
        words += ["--dest-creds", f"{registries.USER}:{registries.PASSWORD}", f"docker://{environment.base}"]
        done = subprocess.run([*words, f"docker://{base}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        login = registries.write_login(folder / "config.json", server.host)
        yield PrivateRegistry(server.host, base, authority.certificate, login)


def make_login(environment, namespace, name, login) -> None:
    api = client.CoreV1Api(environment.cluster.client())
    body = {"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson"}
    api.create_namespaced_secret(namespace, {**body, "stringData": {".dockerconfigjson": login.read_text()}})


def test_private_registry_is_read_and_written_with_push_secret(environment, private, namespace) -> None:
    make_login(environment, namespace, "push", private.login)
    make_login(environment, namespace, "pull", private.login)
    config = RegistryConfig(
        insecure=(environment.registry,),
        ca_file=private.ca_file,
        docker_config=private.login,
        pull_secrets=("pull",),
        push_secret="push",
    )
    builder = environment.make_builder(namespace, registry=config)
    containerfile = f"FROM {private.base}\nRUN true\nCOPY sources/ /app/\n"
    there = dataclasses.replace(environment, registry=private.host, base=private.base)
    result, seen = there.build(builder, namespace, destination="team/out", containerfile=containerfile)
    assert result.built
    assert result.reference.startswith(f"{private.host}/team/out@sha256:")
    password = base64.b64encode(f"{registries.USER}:{registries.PASSWORD}".encode()).decode()
    assert not any(word in entry.text for entry in seen for word in (registries.PASSWORD, password))
    again, _ = there.build(builder, namespace, destination="team/out", containerfile=containerfile)
    assert (again.built, again.reference) == (False, result.reference)
    assert environment.list_leftovers(namespace) == []


def test_wrong_password_in_push_secret_is_reported_as_unauthorized(environment, private, namespace, tmp_path) -> None:
    wrong = registries.write_login(tmp_path / "config.json", private.host, password="battery staple")
    make_login(environment, namespace, "push", wrong)
    config = RegistryConfig(ca_file=private.ca_file, docker_config=private.login, push_secret="push")
    builder = environment.make_builder(namespace, registry=config)
    there = dataclasses.replace(environment, registry=private.host, base=private.base)
    with pytest.raises(ProcessFailedError, match=r"(?i)unauthorized|authentication required") as caught:
        there.build(builder, namespace, destination="team/refused", containerfile=f"FROM {private.base}\nRUN true\n")
    assert "battery staple" not in f"{caught.value} {caught.value.log}"
    assert environment.list_leftovers(namespace) == []


def test_large_context_is_read_from_claim(environment, namespace) -> None:
    volume = environment.cluster.make_volume(f"claim-{namespace}")
    api = client.CoreV1Api(environment.cluster.client())
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
    large = ContextEntry.from_bytes("weights.bin", os.urandom(3_000_000))
    containerfile = f'FROM {environment.base}\nCOPY sources/ /app/\nCMD ["sh", "-c", "ls -l /app/weights.bin"]\n'
    builder = environment.make_builder(namespace, context_store=PvcContextStore("contexts", volume))
    try:
        result, _ = environment.build(
            builder, namespace, destination="team/large", extra=[large], containerfile=containerfile
        )
        assert "3000000" in environment.run(namespace, result.reference)
        assert [path for path in volume.rglob("*") if path.is_file()] == []
    finally:
        api.delete_persistent_volume(f"pv-{namespace}")


def test_manifest_is_accepted_by_api_server(api_server, api_namespace) -> None:
    context = BuildContext([ContextEntry.from_bytes("main.sh", b"true\n")])
    plan = ImagePlan(context, ImageOptions("registry.test/base:1"), f"sha256:{'d' * 64}")
    registry = RegistryConfig(push_secret="push", pull_secrets=("pull",))
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    settings = JobSettings(
        resources=resources,
        node_selector={"pool": "builds"},
        tolerations=[{"key": "builds", "operator": "Exists", "effect": "NoSchedule"}],
        work_size="10Gi",
        service_account="builder",
    )
    builder = ClusterBuilder(registry, job=settings, secrets={"token": "login/token"})
    stored = StoredContext(url="https://s3.test/bucket/context.tar?X-Amz-Signature=1")
    job = builder.make_manifest(plan, parse_reference("registry.test/team/out:1"), stored)
    # Strict validation refuses unknown fields; a dropped field would be missing in the response.
    created = Cluster(api_server.kubeconfig).create(JOBS, job, api_namespace)
    pod, wanted = created["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    assert pod["containers"][0]["securityContext"] == wanted["containers"][0]["securityContext"]
    assert pod["containers"][0]["resources"] == resources
