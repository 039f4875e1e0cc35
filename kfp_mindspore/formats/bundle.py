"""The model bundle, a directory that is a model: read, checked and written without MindSpore.

model.mindir      the graph and its weights
verified.npz      held-out samples: `input.<name>`, the network's own `output.<name>`, and `labels` where known
transform.py      optional: what is done before and after the graph, see kfp_mindspore.transform
example.json      optional: a request of a client and its answer, where a transform changes them
signature.json    inputs and outputs {name, dtype, shape with -1 for a free dimension}, files {name: {sha256, size}},
                  mindspore_version, verified (against what, and by how much it differed), metadata, and `digest`,
                  the sha256 of all of this, so that no byte of a bundle can change unnoticed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats.example_request import ExampleRequest
from kfp_mindspore.formats.signature import FORMAT_VERSION, Dimension, Signature, TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

__all__ = [
    "EXAMPLE_FILE",
    "MODEL_FILE",
    "SIGNATURE_FILE",
    "TRANSFORM_FILE",
    "VERIFIED_FILE",
    "BundleWriter",
    "Dimension",
    "ModelBundle",
    "Signature",
    "TensorSpec",
    "VerifiedSamples",
    "write_bundle",
]

MODEL_FILE = "model.mindir"
SIGNATURE_FILE = "signature.json"
VERIFIED_FILE = "verified.npz"
TRANSFORM_FILE = "transform.py"
EXAMPLE_FILE = "example.json"

_COPY_HINT = "Copy the bundle again from where it came from, or export the model again."
_EXPORT_HINT = "A model is a directory written by: kfp-mindspore model export CHECKPOINT_DIR -o MODEL_DIR"


@dataclass(frozen=True)
class VerifiedSamples:
    """Held-out samples and what the network itself made of them.

    Args:
        inputs: By name, each of shape (N, …).
        outputs: By name, each of shape (N, …).
        labels: True class indexes, int32 of shape (N,), or None where not known.
    """

    inputs: Arrays
    outputs: Arrays
    labels: NDArray[np.int32] | None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


@dataclass(frozen=True)
class ModelBundle:
    """A bundle whose signature was read; `open` is the way to get one.

    Args:
        path: The directory.
        signature: What is in it.
    """

    path: Path
    signature: Signature

    @property
    def mindir(self) -> Path:
        """The model's file."""
        return self.path / MODEL_FILE

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> ModelBundle:
        """Read a bundle and refuse one that was damaged.

        Args:
            path: The directory.
            verify: Also compare the files' digests, not only their presence and size.

        Raises:
            NotFoundError: Nothing is there.
            UserError: It is no bundle, or files are missing; the message names them.
            CorruptBundleError: A file is not the one that was signed; the message names it.
        """
        path = Path(path)
        if not path.exists():
            raise NotFoundError(f"{path}: no such model directory", hint=_EXPORT_HINT)
        if not path.is_dir():
            raise UserError(f"{path}: a file, where a model directory is needed", hint=_EXPORT_HINT)
        missing = [name for name in (SIGNATURE_FILE, MODEL_FILE) if not (path / name).is_file()]
        if missing:
            what = "an empty directory" if not any(path.iterdir()) else "no model bundle"
            raise UserError(f"{path}: {what}: {' and '.join(missing)} missing", hint=_EXPORT_HINT)
        bundle = cls(path, _read_signature(path / SIGNATURE_FILE))
        bundle._check(digests=verify)
        return bundle

    def verify(self) -> None:
        """Compare presence, size and digest of each file with the signature.

        Raises:
            UserError: A file is missing.
            CorruptBundleError: A file is not the one that was signed.
        """
        self._check(digests=True)

    def read_verified(self) -> VerifiedSamples:
        """Read the samples that the model was compared with.

        Raises:
            UserError: The bundle has none.
        """
        import numpy as np

        file = self.path / VERIFIED_FILE
        if VERIFIED_FILE not in self.signature.files:
            raise UserError(f"{self.path}: {VERIFIED_FILE} is not part of this bundle")
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise CorruptBundleError(f"{file}: not readable ({error})", hint=_COPY_HINT) from None
        try:
            return VerifiedSamples(
                inputs={spec.name: arrays[f"input.{spec.name}"] for spec in self.signature.inputs},
                outputs={spec.name: arrays[f"output.{spec.name}"] for spec in self.signature.outputs},
                labels=arrays.get("labels"),
            )
        except KeyError as error:
            raise UserError(f"{file}: no array {error.args[0]!r}, found {', '.join(arrays)}") from None

    def read_example(self) -> ExampleRequest | None:
        """Read a client's request and its answer; None in a bundle that has none, as those without a transform.

        Raises:
            CorruptBundleError: It is not readable.
        """
        if EXAMPLE_FILE not in self.signature.files:
            return None
        file = self.path / EXAMPLE_FILE
        try:
            return ExampleRequest.decode(file.read_bytes())
        except (OSError, ValueError) as error:
            raise CorruptBundleError(f"{file}: not readable ({error})", hint=_COPY_HINT) from None

    def _check(self, *, digests: bool) -> None:
        described = self.signature.files
        missing = [name for name in sorted({MODEL_FILE, *described}) if not (self.path / name).is_file()]
        if missing:
            raise UserError(f"{self.path}: {', '.join(missing)} missing, named by {SIGNATURE_FILE}", hint=_COPY_HINT)
        if MODEL_FILE not in described:
            raise CorruptBundleError(f"{self.path / SIGNATURE_FILE}: files: no entry for {MODEL_FILE}", hint=_COPY_HINT)
        for name, entry in described.items():
            file = self.path / name
            if (size := file.stat().st_size) != entry["size"]:
                raise CorruptBundleError(f"{file}: must have {entry['size']} bytes, has {size}", hint=_COPY_HINT)
            if digests and (digest := files.digest_file(file)) != entry["sha256"]:
                raise CorruptBundleError(
                    f"{file}: sha256 must be {entry['sha256']}, is {digest}: the file was changed", hint=_COPY_HINT
                )


@contextlib.contextmanager
def write_bundle(path: Path | str) -> Iterator[BundleWriter]:
    """Yield a writer; when the block succeeds and `sign` was called, its directory becomes the bundle `path`.

    When the block raises, nothing is left of it and what stood at `path` is untouched.

    Args:
        path: The bundle's directory; replaced when it exists.

    Raises:
        UserError: The disk is full or the directory cannot be written.
    """
    path = Path(path)
    try:
        with files.replace_directory(path) as directory:
            writer = BundleWriter(directory)
            yield writer
            if not (directory / SIGNATURE_FILE).is_file():
                raise ValueError(f"{path}: sign() was not called")
    except OSError as error:
        raise UserError(
            f"{path}: the model bundle cannot be written ({error.strerror or error})",
            hint="Free some space or choose another directory.",
        ) from error


class BundleWriter:
    """What `write_bundle` yields.

    Args:
        directory: Where the files go; `model.mindir` is the caller's to write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_verified(self, samples: VerifiedSamples) -> None:
        """Write the samples that the model was compared with."""
        import numpy as np

        arrays = {f"input.{name}": array for name, array in samples.inputs.items()}
        arrays |= {f"output.{name}": array for name, array in samples.outputs.items()}
        if samples.labels is not None:
            arrays["labels"] = samples.labels
        np.savez(self.directory / VERIFIED_FILE, **arrays)

    def write_example(self, example: ExampleRequest) -> None:
        """Write what a client may send, and what it gets."""
        (self.directory / EXAMPLE_FILE).write_bytes(example.encode())

    def sign(self, signature: Signature) -> None:
        """Digest every file and write the signature; the last thing to do.

        Args:
            signature: Its `files` are replaced by what is in the directory.
        """
        described = {}
        for file in sorted(self.directory.iterdir()):
            file.chmod(0o644)
            described[file.name] = {"sha256": files.digest_file(file), "size": file.stat().st_size}
        value = {**signature.to_dict(), "files": described}
        value["digest"] = _digest(value)
        files.write_bytes(self.directory / SIGNATURE_FILE, _serialize(value))


def _serialize(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(_serialize({name: item for name, item in value.items() if name != "digest"})).hexdigest()


def _read_signature(file: Path) -> Signature:
    content = file.read_bytes()
    try:
        value = json.loads(content)
        # Byte for byte what `sign` writes: a changed blank is a changed file.
        whole = isinstance(value, dict) and _serialize(value) == content and value.get("digest") == _digest(value)
    except ValueError:
        whole = False
    if not whole:
        raise CorruptBundleError(f"{file}: its content does not have its own digest: it was changed", hint=_COPY_HINT)
    if value.get("version") != FORMAT_VERSION:
        raise UserError(f"{file}: version must be {FORMAT_VERSION}, got {value.get('version')!r}")
    try:
        signature = Signature.from_dict(value)
        _ = signature.dimensions, signature.ranges, signature.serving
    except KeyError as error:
        raise UserError(f"{file}: field {error.args[0]!r} is missing") from None
    except ValidationError as error:
        raise ValidationError(error.errors, subject=f"{file}: metadata") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file}: not a model's signature ({error})") from None
    return signature
