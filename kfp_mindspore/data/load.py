"""Sources of data to a dataset directory."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.errors import MissingExtraError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats import npz
from kfp_mindspore.formats.dataset import DESCRIPTION, SPLITS, Column, Dataset, copy_dataset, write_dataset
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform import Normalize, Pipeline, Standardize, Step, declare, fit_steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Features = NDArray[np.float32]
    Labels = NDArray[np.int32]

BUILT_IN = ("breast_cancer", "digits", "wine")


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
        name_or_uri: `digits` (8×8 images of pixels 0 to 16, shape (1, 8, 8), and the preprocessing that divides them
            by 16), `breast_cancer` or `wine` (raw features, and the preprocessing that standardises them by the
            training split's mean and deviation), all from scikit-learn, no network needed; or a path or fsspec URI
            of a dataset directory, of a directory with train.npz, validation.npz and test.npz, or of one .npz file
            with `features` and `labels`, which is split. Given arrays are not scaled.
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
        splits, feature, names, steps = _load_built_in(name_or_uri, seed, fractions)
        return _write(output, name_or_uri, feature, names, splits, seed, steps)
    with _fetch(name_or_uri) as source:
        if (source / DESCRIPTION).is_file():
            return copy_dataset(Dataset.open(source), output)
        if source.is_dir():
            missing = [f"{split}.npz" for split in SPLITS if not (source / f"{split}.npz").is_file()]
            if missing:
                raise UserError(f"{name_or_uri}: neither {DESCRIPTION} nor {', '.join(missing)} found")
            splits = {split: _read_arrays(source / f"{split}.npz") for split in SPLITS}
        else:
            splits = _split(*_read_arrays(source), seed, fractions)
        count = 1 + max(int(labels.max(initial=0)) for _, labels in splits.values())
        name = name_or_uri.rstrip("/").rpartition("/")[2].removesuffix(".npz")
        return _write(output, name, "features", [str(index) for index in range(count)], splits, seed)


def _check_fractions(validation_fraction: float, test_fraction: float) -> None:
    fractions = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    errors = [
        f"{field}: must be between 0 and 1, got {value}" for field, value in fractions.items() if not 0 < value < 1
    ]
    if not errors and validation_fraction + test_fraction >= 1:
        errors = [f"validation_fraction + test_fraction: must be below 1, got {validation_fraction + test_fraction}"]
    if errors:
        raise ValidationError(errors, subject="load_dataset")


def _read_arrays(file: Path) -> tuple[Features, Labels]:
    import numpy as np

    arrays = npz.read_arrays(file)
    missing = [name for name in ("features", "labels") if name not in arrays]
    if missing:
        raise UserError(f"{file}: no array {missing[0]!r}, found {', '.join(arrays) or 'none'}")
    features, labels = arrays["features"], arrays["labels"]
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
) -> tuple[dict[str, tuple[Features, Labels]], str, list[str], list[Step]]:
    import numpy as np

    raw = getattr(_import_sklearn(), f"load_{name}")()
    names = [str(label) for label in raw.target_names]
    labels = raw.target.astype(np.int32)
    if name == "digits":
        images = raw.images[:, None].astype(np.float32)
        return _split(images, labels, seed, fractions), "image", names, [Normalize(0, 16)]
    return _split(raw.data.astype(np.float32), labels, seed, fractions), "features", names, [Standardize()]


def _write(
    output: Path,
    name: str,
    feature: str,
    labels: Sequence[str],
    splits: Mapping[str, tuple[Features, Labels]],
    seed: int,
    steps: Sequence[Step] = (),
) -> Dataset:
    shape = splits["train"][0].shape[1:]
    fitted, _ = fit_steps(steps, {feature: splits["train"][0]})
    inputs = [TensorSpec(feature, "float32", (-1, *shape))]
    return write_dataset(
        output,
        name=name,
        task="classification",
        columns=(Column(feature, "float32", shape), Column("label", "int32", (), "target")),
        splits={split: {feature: features, "label": targets} for split, (features, targets) in splits.items()},
        labels=labels,
        seed=seed,
        preprocessing=declare(Pipeline(fitted, inputs=inputs)) if steps else None,
    )


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
