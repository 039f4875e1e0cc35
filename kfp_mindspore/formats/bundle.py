"""The model bundle, a directory.

model.mindir      graph and weights; a language model has weights.safetensors instead, see kfp_mindspore.lm.bundle
verified.npz      held-out samples: `input.<name>`, the network's own `output.<name>`, `labels` where known, and with
                  preprocessing steps the same samples as requests have them, `raw.<name>` (see formats/npz.py)
preprocessing.json  optional: declared preprocessing and postprocessing, see kfp_mindspore.transform.declaration
transform.py      optional: preprocessing and postprocessing as code, see kfp_mindspore.transform
statistics.json   optional: the training data's statistics, see kfp_mindspore.mindir.monitoring
example.json      optional: a request and its response, where a transform in code changes them
signature.json    inputs and outputs {name, dtype, shape with -1 for a free dimension}, files {name: {sha256, size}},
                  mindspore_version, verified (origin and count of the samples, largest difference), metadata, and
                  `digest`, the sha256 of all these fields, so that a change of any byte is detected
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats import npz
from kfp_mindspore.formats.example_request import ExampleRequest
from kfp_mindspore.formats.manifest import check_files, describe_files, naming_fields
from kfp_mindspore.formats.model_options import Dimension
from kfp_mindspore.formats.signature import (
    CAUSAL_KIND,
    DETECTOR_KIND,
    DUAL_KIND,
    EMBEDDING_KIND,
    FIRST_STAGE_KIND,
    FORMAT_VERSION,
    SECOND_STAGE_KIND,
    SEQ2SEQ_KIND,
    Signature,
)
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.outputs import OutputKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

__all__ = [
    "CAUSAL_KIND",
    "DETECTOR_KIND",
    "DUAL_KIND",
    "EMBEDDING_KIND",
    "EXAMPLE_FILE",
    "FIRST_STAGE_KIND",
    "GENERATION_FILE",
    "MODEL_FILE",
    "NETWORK_FILE",
    "PREPROCESSING_FILE",
    "PROMPTS_FILE",
    "SECOND_STAGE_KIND",
    "SEQ2SEQ_KIND",
    "SIGNATURE_FILE",
    "STATISTICS_FILE",
    "TEXT_MODEL_FILE",
    "TOKENIZER_FILE",
    "TRANSFORM_FILE",
    "VERIFIED_FILE",
    "WEIGHTS_FILE",
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
# A bundle as an output.
OUTPUT = OutputKind(SIGNATURE_FILE, listing="files")
VERIFIED_FILE = "verified.npz"
PREPROCESSING_FILE = "preprocessing.json"
TRANSFORM_FILE = "transform.py"
EXAMPLE_FILE = "example.json"
STATISTICS_FILE = "statistics.json"
WEIGHTS_FILE = "weights.safetensors"
PROMPTS_FILE = "prompts.npz"
NETWORK_FILE = "network.json"
TOKENIZER_FILE = "tokenizer.json"
# A dual encoder's text tower; model.mindir is its image tower.
TEXT_MODEL_FILE = "text.mindir"
GENERATION_FILE = "generation.json"

_COPY_HINT = "Copy the bundle again from where it came from, or export the model again."
_EXPORT_HINT = (
    "A model is a directory written by: kfp-mindspore model export CHECKPOINT_DIR -o MODEL_DIR, "
    "a language model by: kfp-mindspore lm import SOURCE -o MODEL_DIR"
)
_IMPORT_HINT = (
    "A published model becomes one by: kfp-mindspore lm import SOURCE -o MODEL_DIR, "
    "of images by: kfp-mindspore vision import SOURCE -o MODEL_DIR"
)


@dataclass(frozen=True)
class VerifiedSamples:
    """Held-out samples and the network's outputs before export.

    Args:
        inputs: The graph's, by name, each with shape (N, …).
        outputs: The graph's, by name, each with shape (N, …).
        labels: Targets as the dataset stores them, such as class indexes, int32 with shape (N,); None where not known.
        raw: With a declared preprocessing, the samples before it: by name, each with shape (N, …), texts and files as
            `bytes` objects.
        weight: Each sample's weight, float32 with shape (N,), or None.
        groups: Each sample's query in a ranking, (N,), or None.
    """

    inputs: Arrays
    outputs: Arrays
    labels: NDArray[Any] | None
    raw: Arrays = field(default_factory=dict)
    weight: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def scale_tolerance(self, tolerance: float) -> float:
        """Scale a tolerance for outputs up to 1 in proportion to the largest output: float32 has seven digits."""
        import numpy as np

        numbers = [array[np.isfinite(array)] for array in self.outputs.values() if array.dtype.kind == "f"]
        return tolerance * max([1.0, *(float(np.abs(array).max()) for array in numbers if array.size)])


@dataclass(frozen=True)
class ModelBundle:
    """A bundle whose signature was read by `open`.

    Args:
        path: The directory.
        signature: Inputs, outputs, files and metadata.
    """

    path: Path
    signature: Signature

    @property
    def mindir(self) -> Path:
        """model.mindir path."""
        return self.path / MODEL_FILE

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> ModelBundle:
        """Read a bundle's signature and check its files.

        Args:
            path: The directory.
            verify: Also compare the files' digests, not only their presence and size.

        Raises:
            NotFoundError: There is no such directory.
            UserError: It is not a bundle, or files are missing; the message names them.
            CorruptBundleError: A file has another size or digest than signed; the message names it.
        """
        path = Path(path)
        if not path.exists():
            raise NotFoundError(f"{path}: no such model directory", hint=_EXPORT_HINT)
        if not path.is_dir():
            raise UserError(f"{path}: a file, where a model directory is needed", hint=_EXPORT_HINT)
        # A language model's bundle has weights and no MindIR.
        model = WEIGHTS_FILE if (path / WEIGHTS_FILE).is_file() else MODEL_FILE
        missing = [name for name in (SIGNATURE_FILE, model) if not (path / name).is_file()]
        if missing:
            what = "an empty directory" if not any(path.iterdir()) else "no model bundle"
            is_published = (path / "config.json").is_file() or any(path.glob("*.gguf"))
            hint = _IMPORT_HINT if is_published else _EXPORT_HINT
            raise UserError(f"{path}: {what}: {' and '.join(missing)} missing", hint=hint)
        bundle = cls(path, _read_signature(path / SIGNATURE_FILE))
        bundle._check(digests=verify)
        return bundle

    def verify(self) -> None:
        """Compare each file's presence, size and digest with the signature.

        Raises:
            UserError: A file is missing.
            CorruptBundleError: A file has another size or digest than signed.
        """
        self._check(digests=True)

    def read_verified(self) -> VerifiedSamples:
        """Read the verification's samples at export.

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
        names: list[str] = []
        if any(name.startswith("raw.") for name in arrays):
            names = [str(spec["name"]) for spec in self.read_preprocessing().get("inputs", ())]
        raw = npz.unpack_columns(file, [f"raw.{name}" for name in names], arrays)
        try:
            return VerifiedSamples(
                inputs={spec.name: arrays[f"input.{spec.name}"] for spec in self.signature.inputs},
                outputs={spec.name: arrays[f"output.{spec.name}"] for spec in self.signature.outputs},
                labels=arrays.get("labels"),
                raw={name: raw[f"raw.{name}"] for name in names},
                weight=arrays.get("weight"),
                groups=arrays.get("groups"),
            )
        except KeyError as error:
            raise UserError(f"{file}: no array {error.args[0]!r}, found {', '.join(arrays)}") from None

    def read_example(self) -> ExampleRequest | None:
        """Read the example request; None in a bundle without one, such as those without a transform.

        Raises:
            CorruptBundleError: The file is not readable.
        """
        if EXAMPLE_FILE not in self.signature.files:
            return None
        file = self.path / EXAMPLE_FILE
        try:
            return ExampleRequest.decode(file.read_bytes())
        except (OSError, ValueError) as error:
            raise CorruptBundleError(f"{file}: not readable ({error})", hint=_COPY_HINT) from None

    def read_preprocessing(self) -> dict[str, Any]:
        """Read the declared preprocessing; empty for a bundle without one.

        Raises:
            CorruptBundleError: The file is not readable, or has another digest than signed.
        """
        return self._read_json(PREPROCESSING_FILE)

    def read_statistics(self) -> dict[str, Any]:
        """Read the training data's statistics; empty for a bundle without them.

        Raises:
            CorruptBundleError: The file is not readable, or has another digest than signed.
        """
        return self._read_json(STATISTICS_FILE)

    def _read_json(self, name: str) -> dict[str, Any]:
        entry = self.signature.files.get(name)
        if entry is None:
            return {}
        file = self.path / name
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise CorruptBundleError(f"{file}: sha256 must be {entry['sha256']}: the file was changed")
            value = json.loads(content)
        except (OSError, ValueError) as error:
            raise CorruptBundleError(f"{file}: not readable ({error})", hint=_COPY_HINT) from None
        return dict(value)

    def _check(self, *, digests: bool) -> None:
        if not {MODEL_FILE, WEIGHTS_FILE} & set(self.signature.files):
            raise CorruptBundleError(f"{self.path / SIGNATURE_FILE}: files: no entry for {MODEL_FILE}", hint=_COPY_HINT)
        check_files(self.path, self.signature.files, SIGNATURE_FILE, digests=digests, hint=_COPY_HINT)


@contextlib.contextmanager
def write_bundle(path: Path | str) -> Iterator[BundleWriter]:
    """Yield a writer; when the block succeeds and `sign` was called, its directory becomes the bundle `path`.

    When the block raises, its files are removed and an existing bundle at `path` is unchanged.

    Args:
        path: The bundle's directory; replaced when it exists.

    Raises:
        UserError: The disk is full or the directory cannot be written.
    """
    path = Path(path)
    try:
        with files.replace_directory(path, OUTPUT) as directory:
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
    """Writes a bundle's files, see `write_bundle`.

    Args:
        directory: The files' temporary directory; the caller writes `model.mindir`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_verified(self, samples: VerifiedSamples) -> None:
        """Write the verification's samples."""
        import numpy as np

        optional = {"labels": samples.labels, "weight": samples.weight, "groups": samples.groups}
        arrays = {f"input.{name}": array for name, array in samples.inputs.items()}
        arrays |= {f"output.{name}": array for name, array in samples.outputs.items()}
        arrays |= {name: array for name, array in optional.items() if array is not None}
        arrays |= npz.pack_columns({f"raw.{name}": array for name, array in samples.raw.items()})
        np.savez(self.directory / VERIFIED_FILE, **arrays)

    def write_preprocessing(self, declaration: Mapping[str, Any]) -> None:
        """Write the declared preprocessing."""
        files.write_json(self.directory / PREPROCESSING_FILE, declaration)

    def write_statistics(self, statistics: Mapping[str, Any]) -> None:
        """Write the training data's statistics."""
        files.write_json(self.directory / STATISTICS_FILE, statistics)

    def write_example(self, example: ExampleRequest) -> None:
        """Write the example request."""
        (self.directory / EXAMPLE_FILE).write_bytes(example.encode())

    def sign(self, signature: Signature) -> None:
        """Digest every file and write the signature; call it last.

        Args:
            signature: Its `files` are replaced by the directory's.
        """
        value = {**signature.to_dict(), "files": describe_files(self.directory)}
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
        raise CorruptBundleError(f"{file}: its content does not match its own digest: it was changed", hint=_COPY_HINT)
    if value.get("version") != FORMAT_VERSION:
        raise UserError(f"{file}: version must be {FORMAT_VERSION}, got {value.get('version')!r}")
    with naming_fields(file, "a model's signature"):
        try:
            signature = Signature.from_dict(value)
            _ = signature.dimensions, signature.ranges, signature.serving, signature.rows
        except ValidationError as error:
            raise ValidationError(error.errors, subject=f"{file}: metadata") from None
    return signature
