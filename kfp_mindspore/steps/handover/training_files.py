"""A training job's directories, on this machine and in pods, and the files that it has written."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from kfp_mindspore import files
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.checkpoint import DESCRIPTION, Checkpoint
from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.settings import (
    CHECKPOINT_VARIABLE,
    DATASET_VARIABLE,
    KUBERNETES,
    OUTPUT_VARIABLE,
    get_backend_name,
)
from kfp_mindspore.steps.handover.storage import JobStorage, open_storage
from kfp_mindspore.steps.handover.storage_spec import parse_storage
from kfp_mindspore.stores.artifact_store import StoreError, join_uri

CHECKPOINT_FOLDER = "checkpoint"
METRICS_FILE = "metrics.jsonl"
_OUTPUT = "model/"


class TrainingFiles(Protocol):
    """A training job's files.

    Attributes:
        directories: The training contract's variables.
        patch: Additions to the job pods.
    """

    directories: dict[str, str]
    patch: PodPatch

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the worker command."""

    def explain_failures(self) -> AbstractContextManager[Any]:
        """Return a context in which job errors name their reason."""

    def collect(self) -> Path | None:
        """Return a directory with metrics.jsonl and the final checkpoint's description; None without any output."""

    def read_checkpoint(self, directory: Path) -> Checkpoint | None:
        """Return a collected directory's final checkpoint; None if the command wrote none."""


class LocalTrainingFiles:
    """This machine's directories; without `checkpoint_dir` the checkpoints are deleted once the job has succeeded."""

    def __init__(self, output_dir: str, dataset_dir: str = "", checkpoint_dir: str = "") -> None:
        self._output = Path(output_dir).absolute()
        self._output.mkdir(parents=True, exist_ok=True)
        beside = self._output.parent / f"{self._output.name}.checkpoints"
        checkpoints = files.resolve_location(checkpoint_dir or beside)
        if "://" not in checkpoints:
            Path(checkpoints).mkdir(parents=True, exist_ok=True)
        self._temporary = None if checkpoint_dir else checkpoints
        self.patch = PodPatch()
        self.directories = {OUTPUT_VARIABLE: str(self._output), CHECKPOINT_VARIABLE: checkpoints}
        if dataset_dir:
            self.directories[DATASET_VARIABLE] = str(Path(dataset_dir).absolute())

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the command."""
        return list(command)

    def explain_failures(self) -> AbstractContextManager[Any]:
        """Return an empty context."""
        return contextlib.nullcontext()

    def collect(self) -> Path | None:
        """Delete temporary checkpoints and return the output directory."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        return self._output if any(self._output.iterdir()) else None

    def read_checkpoint(self, directory: Path) -> Checkpoint | None:
        """Return the final checkpoint."""
        final = directory / CHECKPOINT_FOLDER
        return Checkpoint.open(final, verify=False) if (final / DESCRIPTION).is_file() else None


class ArtifactTrainingFiles:
    """The job pods' directories, whose output is below an artifact's URI; only small files are read here.

    Args:
        storage: How the pods and this process access the artifacts.
        output: The output directory's name in `storage`.
        output_uri: Its URI.
        dataset_uri: Dataset URI; empty for none.
    """

    def __init__(self, storage: JobStorage, output: str, output_uri: str, dataset_uri: str = "") -> None:
        self._storage = storage
        self._uri = output_uri
        self.patch = storage.patch
        self.wrap = storage.wrap
        self.explain_failures = storage.explain_failures
        self.directories = {
            OUTPUT_VARIABLE: storage.outputs[output],
            CHECKPOINT_VARIABLE: storage.checkpoint_dir,
            **({DATASET_VARIABLE: storage.inputs[dataset_uri]} if dataset_uri else {}),
        }

    def collect(self) -> Path | None:
        """Download metrics.jsonl and the final checkpoint's description.

        Raises:
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        store = self._storage.artifacts
        directory = Path(tempfile.mkdtemp(prefix="kfp-mindspore-"))
        try:
            if not store.list_files(self._uri):
                return None
            for name in (METRICS_FILE, f"{CHECKPOINT_FOLDER}/{DESCRIPTION}"):
                content = store.read_bytes(join_uri(self._uri, name))
                if content is not None:
                    file = directory / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
        except StoreError as error:
            raise KfpMindSporeError(f"the job has succeeded, but {error}") from error
        return directory

    def read_checkpoint(self, directory: Path) -> Checkpoint | None:
        """Return the final checkpoint; its path has only the description."""
        final = directory / CHECKPOINT_FOLDER
        return Checkpoint.read_description(final) if final.is_dir() else None


def open_training_files(
    storage: str,
    *,
    root: str,
    output_dir: str,
    output_uri: str,
    dataset_dir: str,
    dataset_uri: str,
    checkpoint_dir: str,
    patch: PodPatch | None,
) -> TrainingFiles:
    """Return a training job's files; the arguments are `run_training`'s.

    Raises:
        ValidationError: `storage` or `checkpoint_dir` is invalid.
        UserError: The job's pods cannot access an artifact; nothing was submitted.
    """
    parse_storage(storage)
    if get_backend_name() != KUBERNETES:
        return LocalTrainingFiles(output_dir, dataset_dir, checkpoint_dir)
    opened = open_storage(
        storage,
        root=root,
        inputs={dataset_uri: dataset_dir} if dataset_uri else {},
        outputs={_OUTPUT: output_uri},
        checkpoint_dir=checkpoint_dir,
        patch=patch,
    )
    return ArtifactTrainingFiles(opened, _OUTPUT, output_uri, dataset_uri)
