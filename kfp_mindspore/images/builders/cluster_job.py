"""The Job and the ConfigMap of a build on a cluster, as manifests."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.builders.cluster_layout import (
    CONTAINER,
    LOGIN_FILE,
    PULL_FOLDER,
    PUSH_FOLDER,
    SECRET_KEY,
    SECRETS_FOLDER,
    SETTINGS_FOLDER,
    WORK_FOLDER,
)
from kfp_mindspore.images.builders.context_store import PlacedContext

Document = dict[str, Any]

BUILDAH, BUILDKIT, APPEND = "buildah", "buildkit", "append"
_TIME_TO_LIVE_SECONDS = 600
_UNCONFINED = "container.apparmor.security.beta.kubernetes.io/" + CONTAINER


@dataclass(frozen=True)
class JobSettings:
    """What the user says about the pod of a build.

    Args:
        service_account: Account of the pod; an empty text for the namespace's default. Its token is not mounted.
        resources: Kubernetes resource requirements of the build's container.
        node_selector: Labels of nodes that may build.
        tolerations: Taints that are tolerated.
        work_size: Size of the build's emptyDir, such as `20Gi`; an empty text for no limit.
        user: uid that the build's process has.
        seccomp: Seccomp profile of Buildah and BuildKit: user namespaces need `Unconfined`, or a profile of the nodes'
            own as `Localhost/path`.
        deadline_seconds: Seconds after which the cluster ends the build.
    """

    service_account: str = ""
    resources: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    work_size: str = ""
    user: int = 1000
    seccomp: str = "Unconfined"
    deadline_seconds: int = 3600


def describe_pod(settings: JobSettings, pull_secrets: Sequence[str], architecture: str) -> Document:
    """Return the fields that every pod of a build has.

    Args:
        settings: What the user says.
        pull_secrets: Secrets by which the nodes pull the images that the pods run.
        architecture: The platform's, such as `amd64`; an empty text for any node.
    """
    selector = {**({"kubernetes.io/arch": architecture} if architecture else {}), **settings.node_selector}
    pod: Document = {
        "securityContext": {
            "runAsNonRoot": settings.user != 0,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
        },
    }
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if selector:
        pod["nodeSelector"] = selector
    if settings.tolerations:
        pod["tolerations"] = [dict(item) for item in settings.tolerations]
    return pod


def write_job(
    name: str,
    tool: str,
    image: str,
    command: Sequence[str],
    placed: PlacedContext,
    settings: JobSettings,
    pod: Mapping[str, Any],
    *,
    push_secret: str = "",
    pull_secrets: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
) -> Document:
    """Return the Job of a build.

    Args:
        name: Its name, and that of its ConfigMap.
        tool: `buildah`, `buildkit` or `append`.
        image: Image of the build's container.
        command: What the container runs.
        placed: Where the context is.
        settings: What the user says.
        pod: What `describe_pod` returned.
        push_secret: Secret with the login for pushing; an empty text for none.
        pull_secrets: Secrets with logins for the base image.
        secrets: Secrets for RUN steps: `SECRET/KEY` by the name that the Containerfile uses.
    """
    volumes: list[Document] = [
        {"name": "settings", "configMap": {"name": name}},
        {"name": "work", "emptyDir": {"sizeLimit": settings.work_size} if settings.work_size else {}},
    ]
    mounts: list[Document] = [
        {"name": "settings", "mountPath": SETTINGS_FOLDER, "readOnly": True},
        {"name": "work", "mountPath": WORK_FOLDER},
    ]
    if push_secret:
        _mount_login(volumes, mounts, "push", push_secret, PUSH_FOLDER)
    for index, secret in enumerate(pull_secrets):
        _mount_login(volumes, mounts, f"pull-{index}", secret, f"{PULL_FOLDER}/{index}")
    for index, (given, place) in enumerate(sorted((secrets or {}).items())):
        secret, _, key = place.partition("/")
        volumes.append(
            {
                "name": f"secret-{index}",
                "secret": {"secretName": secret, "items": [{"key": key, "path": given}], "defaultMode": 0o440},
            }
        )
        mounts.append(
            {
                "name": f"secret-{index}",
                "mountPath": f"{SECRETS_FOLDER}/{given}",
                "subPath": given,
                "readOnly": True,
            }
        )
    container: Document = {
        "name": CONTAINER,
        "image": image,
        "command": list(command),
        "volumeMounts": [*mounts, *placed.mounts],
        "securityContext": write_security(tool, settings),
        "terminationMessagePolicy": "File",
    }
    if settings.resources:
        container["resources"] = dict(settings.resources)
    template: Document = {
        "metadata": {"labels": write_labels(name)},
        "spec": {
            **pod,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [*volumes, *placed.volumes],
        },
    }
    if placed.init_containers:
        template["spec"]["initContainers"] = list(placed.init_containers)
    if tool != APPEND:
        # Nodes with AppArmor would forbid the mounts of a RUN step, which lie in a user namespace.
        template["metadata"]["annotations"] = {_UNCONFINED: "unconfined"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": write_labels(name)},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": settings.deadline_seconds,
            # For the case that whoever started the build is gone before it can remove it.
            "ttlSecondsAfterFinished": _TIME_TO_LIVE_SECONDS,
            "template": template,
        },
    }


def write_security(tool: str, settings: JobSettings) -> Document:
    """Return a container's security context: no privileges, and no more than the tool needs."""
    if tool == APPEND:
        return {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    kind, _, path = settings.seccomp.partition("/")
    profile = {"type": kind, "localhostProfile": path} if path else {"type": kind}
    # newuidmap and newgidmap fill a user namespace with more than one uid: by file capabilities, without root.
    return {
        "allowPrivilegeEscalation": True,
        "capabilities": {"drop": ["ALL"], "add": ["SETGID", "SETUID"]},
        "seccompProfile": profile,
    }


def write_config_map(
    name: str, files: Mapping[str, str], data: Mapping[str, bytes], owner: Mapping[str, Any]
) -> Document:
    """Return the ConfigMap of a build, which goes with its Job.

    Args:
        name: The Job's name.
        files: Settings.
        data: The context when it is small.
        owner: The Job as it was created.
    """
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner["metadata"]["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": write_labels(name), "ownerReferences": [reference]},
        "immutable": True,
        "data": dict(files),
        "binaryData": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def write_labels(name: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a build."""
    return {"app.kubernetes.io/managed-by": "kfp-mindspore", "kfp-mindspore.org/image-build": name}


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Refuse secrets that are not named as SECRET/KEY.

    Raises:
        UserError: As above.
    """
    for name, place in secrets.items():
        if "/" in name or not name or place.count("/") != 1 or not all(place.split("/")):
            raise UserError(
                f"secrets[{name}]: must be SECRET/KEY, the name of a Secret and one of its keys, got {place!r}"
            )


def _mount_login(volumes: list[Document], mounts: list[Document], name: str, secret: str, folder: str) -> None:
    items = [{"key": SECRET_KEY, "path": LOGIN_FILE}]
    volumes.append({"name": name, "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}})
    mounts.append({"name": name, "mountPath": folder, "readOnly": True})
