"""Folders of PNG and JPEG images, one folder for each class."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.errors import MissingExtraError, UserError, join_names
from kfp_mindspore.formats.dataset import SPLITS
from kfp_mindspore.formats.names import normalize_name

_logger = logging.getLogger(__name__)
SUFFIXES = (".jpeg", ".jpg", ".png")


def list_images(folder: Path) -> list[Path]:
    """Return the images in a folder in name order."""
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )


def is_image_folder(path: Path) -> bool:
    """Return whether a directory has folders with images, directly or in folders named after the splits."""
    folders = [folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    if folders and all(folder.name in SPLITS for folder in folders):
        return any(is_image_folder(folder) for folder in folders)
    return any(list_images(folder) for folder in folders)


def read_images(path: Path, request: SourceRequest) -> Source:
    """Read DIRECTORY/CLASS/FILE, or DIRECTORY/SPLIT/CLASS/FILE with splits named train, validation and test.

    The files are the field `image`, bytes as they are; decoding and resizing are declared as preprocessing.

    Raises:
        UserError: A file cannot be decoded, a class folder has no image, or there are fewer than two classes.
        MissingExtraError: Pillow is not installed.
    """
    import numpy as np

    from kfp_mindspore.transform.images import DecodeImage, Resize

    where = f"{path.name} (images)"
    roots = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    is_split = all(folder.name in SPLITS for folder in roots)
    folders = [
        (SPLITS.index(root.name) if is_split else 0, folder)
        for root in (roots if is_split else [path])
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    ]
    found = [(split, normalize_name(folder.name), file) for split, folder in folders for file in list_images(folder)]
    classes = sorted({label for _, label, _ in found})
    _check_folders(where, [folder for _, folder in folders], classes)
    contents, headers = read_files([file for _, _, file in found], request.max_pixels)
    size = request.image_size or Counter(header[:2] for header in headers).most_common(1)[0][0]
    modes = {mode for _, _, mode in headers}
    columns = {
        "image": to_objects(contents),
        "label": to_objects([label.encode() for _, label, _ in found]),
    }
    select_fields(where, request, list(columns))
    steps = (DecodeImage("L" if modes <= {"1", "L"} else "RGB", column="image"), Resize(size, column="image"))
    splits = np.array([index for index, _, _ in found], np.int8) if is_split else None
    return Source("images", where, columns, target=("label",), task="classification", splits=splits, steps=steps)


def read_files(files: Sequence[Path], max_pixels: int) -> tuple[list[bytes], list[tuple[int, int, str]]]:
    """Return image files' content, and each one's height, width and Pillow mode.

    Raises:
        UserError: A file cannot be decoded; the message names it.
        MissingExtraError: Pillow is not installed.
    """
    from kfp_mindspore.transform.images import check_image

    contents = [file.read_bytes() for file in files]

    def check(index: int) -> tuple[int, int, str]:
        try:
            return check_image(contents[index], max_pixels)
        except MissingExtraError:
            raise
        except UserError as error:
            raise UserError(f"{files[index]}: {error.message}", hint=error.hint) from None

    # Pillow decodes without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return contents, list(pool.map(check, range(len(files))))


def _check_folders(where: str, folders: Sequence[Path], classes: Sequence[str]) -> None:
    """Refuse classes without images, and log the files that are left out."""
    for folder in folders:
        others = sorted(file.name for file in folder.iterdir() if file.suffix.lower() not in SUFFIXES)
        if normalize_name(folder.name) not in classes:
            raise UserError(
                f"{where}: the class folder {folder.name} must have {', '.join(SUFFIXES)} files, found "
                f"{join_names(others) or 'nothing'}",
                hint="Add images, convert them to PNG or JPEG, or remove the folder.",
            )
        if others:
            _logger.warning("%s: left out in %s, neither PNG nor JPEG: %s", where, folder.name, join_names(others))
    if len(classes) < 2:
        raise UserError(
            f"{where}: must have images in at least two class folders, found them in {', '.join(classes)}",
            hint="Give a folder that has a folder of images for each class.",
        )
