"""A build's Job on a cluster: its pod, its volumes and the script that runs rootless BuildKit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.builders.context_store import CONTEXT_URL_VARIABLE, StoredContext
from kfp_mindspore.images.containerfile import CONTAINERFILE_FILE
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.registry.configuration import RegistryConfig

Document = dict[str, Any]

CONTAINER = "build"
WORK_FOLDER = "/build"
LOGIN_FOLDER = "/run/kfp-mindspore/login"
SECRETS_FOLDER = "/run/kfp-mindspore/secrets"
_TERMINATION_FILE = "/dev/termination-log"
_CONTEXT_FOLDER = f"{WORK_FOLDER}/context"
_BUILDKITD_FILE = f"{WORK_FOLDER}/buildkitd.toml"
_CA_FILE = f"{WORK_FOLDER}/ca.crt"
# Linux limits one process argument to 128 KiB; the script contains the CA certificates.
_MAX_CA_BYTES = 100_000
_TTL_SECONDS = 600
_APPARMOR_ANNOTATION = f"container.apparmor.security.beta.kubernetes.io/{CONTAINER}"


@dataclass(frozen=True)
class JobSettings:
    """The build pod's scheduling and resources.

    Args:
        service_account: The pod's service account; empty for the namespace's default. Its token is not mounted.
        resources: The build container's Kubernetes resource requirements.
        node_selector: Labels that eligible nodes have.
        tolerations: The pod's tolerations.
        work_size: Size limit for the pod's emptyDir, such as `20Gi`; empty for no limit.
        user: The build process's uid.
        seccomp: Seccomp profile: user namespaces need `Unconfined`, or a profile on the nodes as `Localhost/path`.
        deadline_seconds: Seconds after which the cluster terminates the build.
        owner: The Job's owner reference, to an object in its namespace; deleting the object deletes the Job.
    """

    service_account: str = ""
    resources: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    work_size: str = ""
    user: int = 1000
    seccomp: str = "Unconfined"
    deadline_seconds: int = 3600
    owner: Mapping[str, Any] | None = None


def make_job(
    name: str,
    image: str,
    script: str,
    stored: StoredContext,
    settings: JobSettings,
    *,
    architecture: str,
    registry: RegistryConfig,
    secrets: Mapping[str, str],
) -> Document:
    """Return a build's Job manifest.

    Args:
        name: The Job's name.
        image: Image with BuildKit.
        script: The build container's shell script.
        stored: The build context.
        settings: The pod's scheduling and resources.
        architecture: Required node architecture, such as `amd64`.
        registry: Names the push and pull secrets.
        secrets: Secrets for RUN steps: `SECRET/KEY` by id.
    """
    volumes: list[Document] = [
        {"name": "work", "emptyDir": {"sizeLimit": settings.work_size} if settings.work_size else {}}
    ]
    mounts: list[Document] = [{"name": "work", "mountPath": WORK_FOLDER}]
    if registry.push_secret:
        _mount_secret(
            volumes, mounts, "login", f"{registry.push_secret}/.dockerconfigjson", LOGIN_FOLDER, "config.json"
        )
    for index, (secret_id, source) in enumerate(sorted(secrets.items())):
        _mount_secret(volumes, mounts, f"secret-{index}", source, f"{SECRETS_FOLDER}/{index}", secret_id)
    container: Document = {
        "name": CONTAINER,
        "image": image,
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [*mounts, *stored.mounts],
        "securityContext": _make_security_context(settings),
        "terminationMessagePolicy": "File",
    }
    if stored.url:
        container["env"] = [{"name": CONTEXT_URL_VARIABLE, "value": stored.url}]
    if settings.resources:
        container["resources"] = dict(settings.resources)
    pod: Document = {
        "securityContext": {
            "runAsNonRoot": settings.user != 0,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
        },
        "nodeSelector": {"kubernetes.io/arch": architecture, **settings.node_selector},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [*volumes, *stored.volumes],
    }
    if registry.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in registry.pull_secrets]
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.tolerations:
        pod["tolerations"] = [dict(item) for item in settings.tolerations]
    labels = {"app.kubernetes.io/managed-by": "kfp-mindspore", "kfp-mindspore.org/image-build": name}
    # AppArmor's default profile forbids mounts, which RUN steps need inside their user namespace.
    metadata = {"labels": labels, "annotations": {_APPARMOR_ANNOTATION: "unconfined"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels,
            **({"ownerReferences": [dict(settings.owner)]} if settings.owner else {}),
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": settings.deadline_seconds,
            # Deletes the Job when the client died before it could.
            "ttlSecondsAfterFinished": _TTL_SECONDS,
            "template": {"metadata": metadata, "spec": pod},
        },
    }


def make_script(
    plan: ImagePlan,
    target: str,
    stored: StoredContext,
    *,
    registry: RegistryConfig,
    hosts: Sequence[str],
    build_args: Mapping[str, str],
    secrets: Sequence[str],
) -> str:
    """Return the shell script that builds and pushes, and writes the digest to the pod's termination message.

    Args:
        plan: The image plan.
        target: Repository and tag.
        stored: The build context.
        registry: How registries are reached.
        hosts: Registries that the build reads from and pushes to.
        build_args: Values for ARG instructions.
        secrets: Secret ids for RUN steps.

    Raises:
        UserError: The CA file is too large.
    """
    options = {"filename": CONTAINERFILE_FILE, "platform": plan.options.platform}
    options |= {f"label:{key}": value for key, value in plan.all_labels.items()}
    options |= {"build-arg:SOURCE_DATE_EPOCH": str(plan.options.created)}
    options |= {f"build-arg:{key}": value for key, value in build_args.items()}
    build = ["buildctl-daemonless.sh", "build", "--progress", "plain", "--frontend", "dockerfile.v0"]
    for key, value in sorted(options.items()):
        build += ["--opt", f"{key}={value}"]
    for index, secret_id in enumerate(sorted(secrets)):
        build += ["--secret", f"id={secret_id},src={SECRETS_FOLDER}/{index}/{secret_id}"]
    build += ["--output", f"type=image,name={target},push=true,rewrite-timestamp=true"]
    build += ["--metadata-file", f"{WORK_FOLDER}/metadata.json"]
    flags = f"--root {WORK_FOLDER}/buildkit --oci-worker-no-process-sandbox --config {_BUILDKITD_FILE}"
    lines = ["set -eu", f"export BUILDKITD_FLAGS={shlex.quote(flags)} TMPDIR={WORK_FOLDER}"]
    lines.append(f"printf %s {shlex.quote(make_buildkitd_config(registry, hosts))} > {_BUILDKITD_FILE}")
    if registry.ca_file is not None:
        lines.append(f"printf %s {shlex.quote(_read_ca_file(registry))} > {_CA_FILE}")
    if registry.push_secret:
        lines.append(f"export DOCKER_CONFIG={LOGIN_FOLDER}")
    if stored.url:
        # BuildKit downloads and unpacks an http context itself.
        context = f'--opt "context=${CONTEXT_URL_VARIABLE}"'
    else:
        lines += [f"mkdir -p {_CONTEXT_FOLDER}", f"tar -xf {shlex.quote(stored.archive)} -C {_CONTEXT_FOLDER}"]
        context = f"--local context={_CONTEXT_FOLDER} --local dockerfile={_CONTEXT_FOLDER}"
    # A termination message holds 4 KiB, less than the metadata: extract the digest.
    digest = f"tr ',{{}}' '\\n\\n\\n' < {WORK_FOLDER}/metadata.json | grep '\"containerimage.digest\"'"
    lines += [f"{shlex.join(build)} {context}", f"{digest} | grep -o 'sha256:[0-9a-f]*' > {_TERMINATION_FILE}"]
    return "\n".join(lines) + "\n"


def make_buildkitd_config(registry: RegistryConfig, hosts: Sequence[str]) -> str:
    """Return buildkitd.toml: plain HTTP, certificate authorities and mirrors by registry host."""
    mirror_hosts = {location.partition("/")[0] for location in registry.mirrors.values()}
    blocks = []
    for host in sorted({*registry.insecure, *registry.mirrors, *hosts, *mirror_hosts}):
        lines = [f"[registry.{_quote(host)}]"]
        if host in registry.mirrors:
            lines.append(f"mirrors = [{_quote(registry.mirrors[host].rstrip('/'))}]")
        if registry.is_insecure(host):
            lines.append("http = true")
        if registry.ca_file is not None:
            lines.append(f"ca = [{_quote(_CA_FILE)}]")
        if len(lines) > 1:
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Validate secret references.

    Raises:
        UserError: An id holds a slash, or a value is not SECRET/KEY.
    """
    for secret_id, source in secrets.items():
        if "/" in secret_id or not secret_id or source.count("/") != 1 or not all(source.split("/")):
            raise UserError(
                f"secrets[{secret_id}]: must be SECRET/KEY, the name of a Secret and one of its keys, got {source!r}"
            )


def _make_security_context(settings: JobSettings) -> Document:
    kind, _, path = settings.seccomp.partition("/")
    # newuidmap and newgidmap map more than one uid into a user namespace; they need these capabilities, not root.
    return {
        "allowPrivilegeEscalation": True,
        "capabilities": {"drop": ["ALL"], "add": ["SETGID", "SETUID"]},
        "seccompProfile": {"type": kind, "localhostProfile": path} if path else {"type": kind},
    }


def _mount_secret(
    volumes: list[Document], mounts: list[Document], name: str, source: str, folder: str, filename: str
) -> None:
    secret, _, key = source.partition("/")
    items = [{"key": key, "path": filename}]
    volumes.append({"name": name, "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}})
    mounts.append({"name": name, "mountPath": folder, "readOnly": True})


def _read_ca_file(registry: RegistryConfig) -> str:
    assert registry.ca_file is not None
    text = registry.ca_file.read_text()
    if len(text) > _MAX_CA_BYTES:
        raise UserError(
            f"ca_file: {registry.ca_file}: must have at most {_MAX_CA_BYTES:,} bytes, got {len(text):,}",
            hint="Name a file with the registry's certificate authority alone.",
        )
    return text


def _quote(text: str) -> str:
    # A JSON string is a valid TOML basic string.
    return json.dumps(text)
