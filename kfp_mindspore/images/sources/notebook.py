"""A notebook as a build context: its tagged code cells as one Python module, without outputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError, require_extra
from kfp_mindspore.images.requirements import read_requirements
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from kfp_mindspore.images.sources.folder import make_entry
from kfp_mindspore.images.sources.local_imports import resolve_source_imports
from kfp_mindspore.images.sources.notebook_cell import convert_cell

DEFAULT_TAG = "image"
ALL_CELLS = "*"


def convert_notebook(notebook: Path | str, *, tags: Sequence[str] = (DEFAULT_TAG,)) -> BuildContext:
    """Return a notebook's tagged code cells as one module, with the local modules that they import.

    `pip install` lines become requirements, `%%writefile` cells become files; other magics and shell lines are dropped
    when they only affect the notebook, and refused otherwise. Outputs and metadata are ignored.

    Args:
        notebook: The `.ipynb` file.
        tags: Cell tags to convert, a cell needs at least one; `*` converts every code cell.

    Raises:
        NotFoundError: There is no such file.
        UserError: It is not a Python notebook, no cell has one of the tags, or a cell cannot be converted; the message
            names the cell by its number in the notebook, counted from 1.
        MissingExtraError: nbformat is not installed.
    """
    file = Path(notebook)
    cells = _select_cells(_read_notebook(file), tags, file)
    root = file.resolve().parent
    sources, files, requirements, notes = [], {}, [], []
    for number, source in cells:
        cell = convert_cell(source, f"{file.name}, cell {number}")
        sources.append(cell.source.strip("\n"))
        files.update({path: content.encode() for path, content in cell.files.items()})
        requirements += cell.requirements
        for name in cell.requirement_files:
            requirements += read_requirements(root / name)
        notes += cell.notes
    text = "\n\n".join(source for source in sources if source) + "\n"
    module = re.sub(r"\W", "_", file.stem)
    name = f"{f'_{module}' if module[:1].isdigit() else module}.py"
    imports = resolve_source_imports(text, root, name=f"the cells of {file.name}")
    # Cells of `%%writefile` alone leave no code for the module.
    written = {name: text.encode(), **files} if text.strip() else files
    entries = [ContextEntry.from_bytes(path, content) for path, content in written.items()]
    entries += [make_entry(root, path) for path in imports.files if path not in written]
    imports.external -= {path.partition("/")[0].removesuffix(".py") for path in files}
    return BuildContext(
        entries,
        requirements=requirements,
        command=("python3", name) if name in written else (),
        notes=[*notes, *imports.describe()],
    )


def _read_notebook(file: Path) -> Any:
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file")
    with require_extra("nbformat", "images"):
        import nbformat
        import nbformat.reader
        import nbformat.warnings
    try:
        with warnings.catch_warnings():
            # A build does not use cell ids.
            warnings.simplefilter("ignore", nbformat.warnings.MissingIDFieldWarning)
            content = nbformat.read(file, as_version=4)
    except nbformat.reader.NotJSONError:
        raise UserError(f"{file}: is not a notebook: not JSON") from None
    # nbformat lets JSON structure exceptions through.
    except (ValueError, KeyError, TypeError, AttributeError, OSError, nbformat.ValidationError) as error:
        raise UserError(f"{file}: is not a notebook ({type(error).__name__})") from error
    metadata = content.get("metadata", {})
    language = metadata.get("kernelspec", {}).get("language") or metadata.get("language_info", {}).get("name", "python")
    if language.lower() not in ("python", "ipython"):
        raise UserError(f"{file}: is a notebook of {language}, expected Python")
    return content


def _select_cells(content: Any, tags: Sequence[str], file: Path) -> list[tuple[int, str]]:
    code = [(number, cell) for number, cell in enumerate(content.cells, start=1) if cell.cell_type == "code"]
    chosen = [
        (number, cell.source)
        for number, cell in code
        if cell.source.strip() and (ALL_CELLS in tags or set(tags) & set(cell.metadata.get("tags", ())))
    ]
    if not chosen:
        known = sorted({tag for _, cell in code for tag in cell.metadata.get("tags", ())})
        there = f"the tags are {', '.join(map(repr, known))}" if known else "no cell has a tag"
        raise UserError(
            f"{file}: no code cell has the tag {' or '.join(map(repr, tags))}; {there}",
            hint=f"Tag cells in Jupyter, or name another tag with --cell-tag ('{ALL_CELLS}' for all).",
        )
    return chosen
