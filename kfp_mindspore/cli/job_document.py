"""The job that `kfp-mindspore job submit` is given: a file, or options and a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.cli.flags import list_given
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob

# What describes a job that has no file.
_DESCRIPTION = (
    *("workers", "env", "claims", "dataset", "output", "checkpoints", "restart_policy", "backoff_limit"),
    *("active_deadline_seconds", "ttl_seconds_after_finished", "working_dir"),
)


def refuse_description(words: tuple[str, ...]) -> None:
    """Refuse options that describe a job where a file does.

    Args:
        words: The present command's arguments.

    Raises:
        UserError: One was given; it names them all.
    """
    if given := list_given(_DESCRIPTION):
        found = f"the file {words[0]}" if words else "no --name"
        raise UserError(
            f"{', '.join(given)}: for --name and a command, got {found}",
            hint="Change it in the file, or give --name and a command: "
            "kfp-mindspore job submit --name lenet -- python train.py",
        )


def read_job(words: tuple[str, ...]) -> MSJob:
    """Read the job in the one file that was named, or in standard input by `-`.

    Raises:
        UserError: It is not one file, cannot be read, or holds no valid MSJob.
    """
    from kfp_mindspore.msjob import MSJob

    if len(words) != 1:
        raise UserError(
            f"expected one file, got {len(words)} words",
            hint="Give a YAML file, or --name and a command: kfp-mindspore job submit --name lenet -- python train.py",
        )
    path = Path(words[0])
    return MSJob.from_yaml(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text, or standard input by `-`.

    Raises:
        UserError: It cannot be read; the message says why.
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


def set_namespace(document: MSJob, asked: str | None, default: str) -> None:
    """Put a job into its namespace: its own, or the client's.

    Raises:
        UserError: The file and --namespace name different ones.
    """
    written = document.metadata.get("namespace")
    if asked is not None and written not in (None, asked):
        raise UserError(
            f"metadata.namespace is {written!r} in the file, but --namespace is {asked!r}",
            hint="Leave one of them out.",
        )
    document.metadata["namespace"] = written or default


def fill_images(document: MSJob, image: str) -> None:
    """Name the image of containers that name none."""
    from kfp_mindspore.msjob.build import has_image

    for spec in document.ms_replica_specs.values():
        if not has_image(spec.container):
            spec.container["image"] = image


def find_directories(
    dataset: Path | None, output: Path | None, checkpoints: Path | None, in_pods: bool
) -> dict[str, str]:
    """Return the training contract's variables; those of pods are paths in their volumes."""
    from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, OUTPUT_VARIABLE

    if dataset is not None and not in_pods and not dataset.is_dir():
        raise UserError(f"--dataset: must be a directory, got {dataset}")
    if checkpoints is None and output is not None:
        checkpoints = output / "checkpoints"
    named = {DATASET_VARIABLE: dataset, OUTPUT_VARIABLE: output, CHECKPOINT_VARIABLE: checkpoints}
    given = {variable: path for variable, path in named.items() if path is not None}
    return {variable: str(path if in_pods else path.absolute()) for variable, path in given.items()}


def mount_claims(document: MSJob, claims: tuple[tuple[str, str], ...]) -> None:
    """Give the workers volumes."""
    pod = document.ms_replica_specs["Worker"].template["spec"]
    for number, (claim, path) in enumerate(claims):
        volume = {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        pod.setdefault("volumes", []).append(volume)
        mount = {"name": volume["name"], "mountPath": path}
        pod["containers"][0].setdefault("volumeMounts", []).append(mount)
