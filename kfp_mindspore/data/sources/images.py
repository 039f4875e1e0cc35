"""Folders of PNG and JPEG images, one folder for each class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.formats.dataset import SPLITS

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
        UserError: A file is no image, or there are fewer than two classes with images.
        MissingExtraError: Pillow is not installed.
    """
    import numpy as np

    from kfp_mindspore.transform.images import DecodeImage, Resize

    where = f"{path.name} (images)"
    roots = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    is_split = all(folder.name in SPLITS for folder in roots)
    found = [
        (SPLITS.index(root.name) if is_split else 0, folder.name, file)
        for root in (roots if is_split else [path])
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
        for file in list_images(folder)
    ]
    classes = sorted({label for _, label, _ in found})
    if len(classes) < 2:
        raise UserError(f"{where}: must have images in at least two class folders, found them in {', '.join(classes)}")
    sizes, modes = zip(*(_read_header(file) for _, _, file in found), strict=True)
    size = request.image_size or Counter(sizes).most_common(1)[0][0]
    columns = {
        "image": to_objects([file.read_bytes() for _, _, file in found]),
        "label": to_objects([label.encode() for _, label, _ in found]),
    }
    select_fields(where, request, list(columns))
    steps = (DecodeImage("L" if set(modes) <= {"1", "L"} else "RGB", column="image"), Resize(size, column="image"))
    splits = np.array([index for index, _, _ in found], np.int8) if is_split else None
    return Source("images", where, columns, target=("label",), task="classification", splits=splits, steps=steps)


def _read_header(file: Path) -> tuple[tuple[int, int], str]:
    """Return height and width, and Pillow's mode."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError("PIL", "train") from None
    try:
        with Image.open(file) as image:
            return (image.height, image.width), image.mode
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(f"{file}: not a PNG or JPEG image ({error})") from None
