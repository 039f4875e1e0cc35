"""The dataset directory: three NumPy splits and a description with their digests.

train.npz  validation.npz  test.npz     each with `features` (float32, (N, *shape)) and `labels` (int32, (N,))
dataset.json                            name, features {name, dtype, shape of one sample}, labels [class names],
                                        splits {split: count}, seed, digests {file: sha256}
"""

from __future__ import annotations

import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events, files
from kfp_mindspore.errors import MissingExtraError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats.manifest import check_digest, naming_fields

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Features = NDArray[np.float32]
    Labels = NDArray[np.int32]

DESCRIPTION = "dataset.json"
SPLITS = ("train", "validation", "test")
BUILT_IN = ("breast_cancer", "digits", "wine")


@dataclass(frozen=True)
class FeatureSpec:
    """Name, dtype and shape of one sample.

    Args:
        name: Name of the network's input, such as `image`.
        dtype: NumPy dtype name, `float32`.
        shape: Shape of one sample without the batch dimension, such as (1, 8, 8).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Dataset:
    """An opened dataset directory; `read` returns a split as arrays.

    Args:
        path: The directory.
        name: Name of the data.
        features: Spec of one sample.
        labels: Class names; a label is an index into them.
        splits: Number of samples a split.
        seed: Seed of the split into train, validation and test.
        digests: sha256 of each split's file, by file name.
    """

    path: Path
    name: str
    features: FeatureSpec
    labels: tuple[str, ...]
    splits: Mapping[str, int]
    seed: int
    digests: Mapping[str, str]

    @classmethod
    def open(cls, path: Path | str) -> Dataset:
        """Read a directory's description; the splits' digests are checked when they are read.

        Raises:
            NotFoundError: There is no such directory, or it holds no dataset.json.
            UserError: The description is incomplete, or a split's file is missing; the message names it.
        """
        path = Path(path)
        if not path.is_dir():
            raise NotFoundError(f"{path}: no such dataset directory")
        if not (path / DESCRIPTION).is_file():
            raise NotFoundError(
                f"{path}: {DESCRIPTION} is missing, so this is no dataset directory",
                hint="kfp_mindspore.formats.dataset.load_dataset(NAME_OR_URI, DIRECTORY) makes one.",
            )
        dataset = _parse_description(path, files.read_json(path / DESCRIPTION))
        missing = [f"{split}.npz" for split in dataset.splits if not (path / f"{split}.npz").is_file()]
        if missing:
            raise UserError(f"{path}: {', '.join(missing)} missing, named by {DESCRIPTION}")
        return dataset

    def read(self, split: str) -> tuple[Features, Labels]:
        """Read one split.

        Args:
            split: `train`, `validation` or `test`.

        Returns:
            Features, float32 of shape (N, *self.features.shape), and labels, int32 of shape (N,).

        Raises:
            UserError: There is no such split, or its arrays have another shape or dtype than described.
            CorruptBundleError: The file has another digest than described.
        """
        if split not in self.splits:
            raise UserError(f"{self.path}: no split {split!r}, found {', '.join(self.splits)}")
        file = self.path / f"{split}.npz"
        check_digest(file, self.digests[file.name], hint="Load the dataset again.")
        features, labels = _read_arrays(file)
        expected = (self.splits[split], *self.features.shape)
        if features.shape != expected:
            raise UserError(f"{file}: features must have shape {expected}, got {features.shape}")
        _check_arrays(file, features, labels, len(self.labels))
        return features, labels


def load_dataset(
    name_or_uri: str,
    output_dir: Path | str,
    *,
    seed: int = 42,
    validation_fraction: float = 0.15,
    test_fraction: float = 0.2,
) -> Dataset:
    """Write a dataset directory with splits and description; an existing one is replaced atomically.

    Args:
        name_or_uri: `digits` (8×8 images scaled to 0..1, shape (1, 8, 8)), `breast_cancer` or `wine` (standardised by
            the training split's mean and deviation), all from scikit-learn, no network needed; or a path or fsspec
            URI of a dataset directory, of a directory with train.npz, validation.npz and test.npz, or of one .npz
            file with `features` and `labels`, which is split. Given arrays are not scaled.
        output_dir: The dataset directory to write.
        seed: Seed of the stratified split.
        validation_fraction: Share of all samples in the validation split, between 0 and 1.
        test_fraction: Share of all samples in the test split, between 0 and 1.

    Returns:
        The dataset, opened.

    Raises:
        NotFoundError: No built-in set, path or URI has this name.
        UserError: The data cannot be split or has the wrong form.
        MissingExtraError: scikit-learn is needed and not installed.
    """
    output = Path(output_dir)
    _check_fractions(validation_fraction, test_fraction)
    fractions = (validation_fraction, test_fraction)
    if name_or_uri in BUILT_IN:
        # Imported before the span, which measures work without imports (0.5 s here).
        _import_sklearn()
    with events.span("dataset.load"):
        return _load(name_or_uri, output, seed, fractions)


def _load(name_or_uri: str, output: Path, seed: int, fractions: tuple[float, float]) -> Dataset:
    if name_or_uri in BUILT_IN:
        splits, spec, names = _load_built_in(name_or_uri, seed, fractions)
        return _write_dataset(output, name_or_uri, spec, names, splits, seed)
    with _fetch(name_or_uri) as source:
        if (source / DESCRIPTION).is_file():
            return _copy_dataset(Dataset.open(source), output)
        if source.is_dir():
            missing = [f"{split}.npz" for split in SPLITS if not (source / f"{split}.npz").is_file()]
            if missing:
                raise UserError(f"{name_or_uri}: neither {DESCRIPTION} nor {', '.join(missing)} found")
            splits = {split: _read_arrays(source / f"{split}.npz") for split in SPLITS}
        else:
            splits = _split(*_read_arrays(source), seed, fractions)
        count = 1 + max(int(labels.max(initial=0)) for _, labels in splits.values())
        for split, (features, labels) in splits.items():
            _check_arrays(Path(f"{source.name}[{split}]"), features, labels, count)
        spec = FeatureSpec("features", "float32", splits["train"][0].shape[1:])
        name = name_or_uri.rstrip("/").rpartition("/")[2].removesuffix(".npz")
        return _write_dataset(output, name, spec, [str(index) for index in range(count)], splits, seed)


def _parse_description(path: Path, raw: Any) -> Dataset:
    with naming_fields(path / DESCRIPTION, "a dataset's description"):
        features = raw["features"]
        dataset = Dataset(
            path=path,
            name=str(raw["name"]),
            features=FeatureSpec(features["name"], features["dtype"], tuple(int(size) for size in features["shape"])),
            labels=tuple(str(label) for label in raw["labels"]),
            splits={str(split): int(count) for split, count in raw["splits"].items()},
            seed=int(raw["seed"]),
            digests={str(name): str(digest) for name, digest in raw["digests"].items()},
        )
    undigested = [split for split in dataset.splits if f"{split}.npz" not in dataset.digests]
    if undigested:
        raise UserError(f"{path / DESCRIPTION}: digests: no entry for {undigested[0]}.npz")
    return dataset


def _check_fractions(validation_fraction: float, test_fraction: float) -> None:
    fractions = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    errors = [
        f"{field}: must be between 0 and 1, got {value}" for field, value in fractions.items() if not 0 < value < 1
    ]
    if not errors and validation_fraction + test_fraction >= 1:
        errors = [f"validation_fraction + test_fraction: must be below 1, got {validation_fraction + test_fraction}"]
    if errors:
        raise ValidationError(errors, subject="load_dataset")


def _check_arrays(file: Path, features: Features, labels: Labels, classes: int) -> None:
    if features.ndim < 2 or len(features) == 0:
        raise UserError(f"{file}: features must have shape (N, …) with N ≥ 1, got {features.shape}")
    if labels.shape != (len(features),):
        raise UserError(f"{file}: labels must have shape ({len(features)},), got {labels.shape}")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise UserError(f"{file}: labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}")


def _read_arrays(file: Path) -> tuple[Features, Labels]:
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = [name for name in ("features", "labels") if name not in archive]
            if missing:
                raise UserError(f"{file}: no array {missing[0]!r}, found {', '.join(archive) or 'none'}")
            features, labels = archive["features"], archive["labels"]
    except (zipfile.BadZipFile, ValueError, EOFError, AttributeError) as error:
        raise UserError(f"{file}: not an .npz file of plain arrays ({error})") from None
    if not np.issubdtype(features.dtype, np.number) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{file}: needs numeric features and integer labels, got {features.dtype} and {labels.dtype}")
    return features.astype(np.float32, copy=False), labels.astype(np.int32, copy=False)


def _split(
    features: Features, labels: Labels, seed: int, fractions: tuple[float, float]
) -> dict[str, tuple[Features, Labels]]:
    _import_sklearn()
    from sklearn.model_selection import train_test_split

    # Counts, not shares of the rest: 0.1 of 90 is 9 whatever the test split takes.
    validation_count, test_count = (math.ceil(round(fraction * len(features), 6)) for fraction in fractions)
    try:
        rest, test, rest_labels, test_labels = train_test_split(
            features, labels, test_size=test_count, stratify=labels, random_state=seed
        )
        train, validation, train_labels, validation_labels = train_test_split(
            rest,
            rest_labels,
            test_size=validation_count,
            stratify=rest_labels,
            random_state=seed,
        )
    except ValueError as error:
        raise UserError(f"cannot split {len(features)} samples by label: {error}") from None
    return {
        "train": (train, train_labels),
        "validation": (validation, validation_labels),
        "test": (test, test_labels),
    }


def _import_sklearn() -> Any:
    try:
        from sklearn import datasets, model_selection  # noqa: F401
    except ImportError:
        raise MissingExtraError("sklearn", "train") from None
    return datasets


def _load_built_in(
    name: str, seed: int, fractions: tuple[float, float]
) -> tuple[dict[str, tuple[Features, Labels]], FeatureSpec, list[str]]:
    import numpy as np

    raw = getattr(_import_sklearn(), f"load_{name}")()
    names = [str(label) for label in raw.target_names]
    labels = raw.target.astype(np.int32)
    if name == "digits":
        images = (raw.images[:, None] / 16).astype(np.float32)
        return _split(images, labels, seed, fractions), FeatureSpec("image", "float32", images.shape[1:]), names
    splits = _split(raw.data, labels, seed, fractions)
    mean, deviation = splits["train"][0].mean(axis=0), splits["train"][0].std(axis=0)
    scaled = {split: (((x - mean) / deviation).astype(np.float32), y) for split, (x, y) in splits.items()}
    return scaled, FeatureSpec("features", "float32", raw.data.shape[1:]), names


def _write_dataset(
    output: Path,
    name: str,
    spec: FeatureSpec,
    labels: Sequence[str],
    splits: Mapping[str, tuple[Features, Labels]],
    seed: int,
) -> Dataset:
    import numpy as np

    with files.replace_directory(output) as directory:
        for split, (features, targets) in splits.items():
            np.savez(directory / f"{split}.npz", features=features, labels=targets)
        files.write_json(
            directory / DESCRIPTION,
            {
                "name": name,
                "features": {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)},
                "labels": list(labels),
                "splits": {split: len(targets) for split, (_, targets) in splits.items()},
                "seed": seed,
                "digests": {f"{split}.npz": files.digest_file(directory / f"{split}.npz") for split in splits},
            },
        )
    return Dataset.open(output)


def _copy_dataset(source: Dataset, output: Path) -> Dataset:
    for split in source.splits:
        source.read(split)
    with files.replace_directory(output) as directory:
        for name in (DESCRIPTION, *(f"{split}.npz" for split in source.splits)):
            shutil.copyfile(source.path / name, directory / name)
    return Dataset.open(output)


@contextmanager
def _fetch(uri: str) -> Iterator[Path]:
    """Yield a local path for a path or URI; a download is removed after the block."""
    if "://" not in uri:
        path = Path(uri).expanduser()
        if not path.exists():
            raise NotFoundError(
                f"{uri}: neither a built-in dataset nor an existing path",
                hint=f"Built in are {', '.join(BUILT_IN)}; or give a directory, an .npz file or a URI such as s3://….",
            )
        yield path
        return
    from fsspec.core import url_to_fs

    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-dataset-") as temporary:
        local = Path(temporary, uri.rstrip("/").rpartition("/")[2] or "dataset")
        try:
            filesystem, remote = url_to_fs(uri)
            if filesystem.isdir(remote):
                filesystem.get(remote.rstrip("/") + "/", f"{local}/", recursive=True)
            else:
                filesystem.get_file(remote, str(local))
        except FileNotFoundError:
            raise NotFoundError(f"{uri}: nothing there") from None
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"{uri}: cannot be read ({error})") from error
        yield local
