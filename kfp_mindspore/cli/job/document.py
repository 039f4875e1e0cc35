"""The job for `kfp-mindspore job submit`: from a file, or from options and a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.cli.shared.flags import list_given
from kfp_mindspore.errors import UserError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.options import list_options

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob

# Fields of JobOptions without a derived flag: launchers set some, others are objects. --image is for files, too.
WITHOUT_FLAG = (
    *("image", "start_timeout_seconds", "delete_after_done", "storage", "success_policy", "clean_pod_policy"),
    *("resources", "image_pull_secrets", "service_account", "security_context"),
)
# Options that are given once for each entry.
FLAG_NAMES = {
    "empty_dirs": "--empty-dir",
    "labels": "--label",
    "annotations": "--annotation",
    "pod_labels": "--pod-label",
    "pod_annotations": "--pod-annotation",
}


def refuse_description(words: tuple[str, ...]) -> None:
    """Refuse options that describe a job when a file is given.

    Args:
        words: The present command's arguments.

    Raises:
        UserError: One was given; the message names them all.
    """
    described = {entry.name for entry in list_options(JobOptions)} - {"image", "queue", "queue_priority"}
    if given := list_given({*described, "claims", "dataset", "output", "checkpoints"}):
        found = f"the file {words[0]}" if words else "no --name"
        raise UserError(
            f"{', '.join(given)}: for --name and a command, got {found}",
            hint="Change it in the file, or give --name and a command: "
            "kfp-mindspore job submit --name lenet -- python train.py",
        )


def read_job(words: tuple[str, ...]) -> MSJob:
    """Read the job from a file, or from standard input for `-`.

    Raises:
        UserError: Not one file, unreadable, or not a valid MSJob.
    """
    from kfp_mindspore.msjob import MSJob

    if len(words) != 1:
        raise UserError(
            f"expected one file, or --name with a command; got {len(words)} words",
            hint="Give a YAML file, or --name and a command: kfp-mindspore job submit --name lenet -- python train.py",
        )
    path = Path(words[0])
    return MSJob.from_yaml(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """Read UTF-8 text from a file, or from standard input for `-`.

    Raises:
        UserError: It cannot be read.
    """
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a YAML file") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: must be UTF-8 text, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def set_namespace(document: MSJob, given: str | None, default: str) -> None:
    """Set a job's namespace: its own, or the client's.

    Raises:
        UserError: The file and --namespace name different ones.
    """
    written = document.metadata.get("namespace")
    if given is not None and written not in (None, given):
        raise UserError(
            f"metadata.namespace is {written!r} in the file, but --namespace is {given!r}",
            hint="Leave one of them out.",
        )
    document.metadata["namespace"] = written or default


def fill_images(document: MSJob, image: str) -> None:
    """Set the image on containers without one."""
    from kfp_mindspore.msjob.build import has_image

    for spec in document.ms_replica_specs.values():
        if not has_image(spec.container):
            spec.container["image"] = image


def mount_claims(document: MSJob, claims: tuple[tuple[str, str], ...]) -> None:
    """Mount PersistentVolumeClaims in the workers."""
    pod = document.ms_replica_specs["Worker"].template["spec"]
    for number, (claim, path) in enumerate(claims):
        volume = {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        pod.setdefault("volumes", []).append(volume)
        mount = {"name": volume["name"], "mountPath": path}
        pod["containers"][0].setdefault("volumeMounts", []).append(mount)
