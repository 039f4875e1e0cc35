"""A notebook cell's conversion to plain Python: IPython's syntax is converted, or refused with the reason."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass, field

from kfp_mindspore.errors import UserError, require_extra

_MAGIC_CALL = re.compile(r"(\s*)get_ipython\(\)\.(run_line_magic|run_cell_magic|system)\((.*)\)\s*")
# Magics that only affect the notebook's display or session.
_DROPPED_LINE_MAGICS = ("autoreload", "config", "load_ext", "matplotlib", "pinfo", "pinfo2", "pylab", "reload_ext")
_DROPPED_CELL_MAGICS = ("capture", "time", "timeit")
_PIP_FLAGS = ("-q", "-qq", "-U", "--quiet", "--upgrade", "--user", "--no-cache-dir", "--disable-pip-version-check")
_HINT = "Write it in Python, or leave the cell out by its tags."


@dataclass
class ConvertedCell:
    """A cell in plain Python.

    Args:
        source: The Python source.
        requirements: Requirements in its `pip install` lines.
        requirement_files: Files in its `pip install -r` lines.
        files: A `%%writefile` cell's content, by path.
        notes: The conversions, one sentence each.
    """

    source: str = ""
    requirements: list[str] = field(default_factory=list)
    requirement_files: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def convert_cell(source: str, where: str) -> ConvertedCell:
    """Convert a code cell.

    Args:
        source: The cell's source.
        where: Which cell it is, for messages.

    Raises:
        UserError: It has a magic or shell line without a meaning in an image, or is not Python.
        MissingExtraError: IPython is not installed.
    """
    cell = ConvertedCell()
    cell.source = _convert(source, where, cell)
    return cell


def _convert(source: str, where: str, cell: ConvertedCell) -> str:
    try:
        ast.parse(source)
    except SyntaxError:
        lines = _transform(source).split("\n")
        source = "\n".join(_convert_line(line, where, cell) for line in lines)
    try:
        tree = ast.parse(source, where)
    except SyntaxError as error:
        raise UserError(f"{where}, line {error.lineno}: {error.msg}") from None
    if any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(tree)):
        raise UserError(
            f"{where}: get_ipython, or the value of a magic or shell line, has no meaning in an image", hint=_HINT
        )
    return source


def _transform(source: str) -> str:
    with require_extra("IPython", "images"):
        from IPython.core.inputtransformer2 import TransformerManager
    text: str = TransformerManager().transform_cell(source)
    return text


def _convert_line(line: str, where: str, cell: ConvertedCell) -> str:
    matched = _MAGIC_CALL.fullmatch(line)
    if matched is None:
        return line
    indent, method, arguments = matched.groups()
    values = ast.literal_eval(f"({arguments},)")
    if method == "system":
        return indent + _convert_shell_line(values[0], where, cell)
    if method == "run_cell_magic":
        return _convert_cell_magic(*values, where=where, cell=cell)
    return indent + _convert_line_magic(*values, where=where, cell=cell)


def _convert_shell_line(line: str, where: str, cell: ConvertedCell) -> str:
    words = _split(line, where)
    for command in (["pip"], ["pip3"], ["python", "-m", "pip"], ["python3", "-m", "pip"]):
        if words[: len(command) + 1] == [*command, "install"]:
            return _add_requirements(words[len(command) + 1 :], where, cell)
    raise UserError(
        f"{where}: the shell line !{line} has no meaning in an image",
        hint="Write it in Python or in a Containerfile, or leave the cell out by its tags.",
    )


def _convert_line_magic(name: str, rest: str, *, where: str, cell: ConvertedCell) -> str:
    if name == "pip" and rest.split()[:1] == ["install"]:
        return _add_requirements(_split(rest, where)[1:], where, cell)
    if name == "time" and rest:
        cell.notes.append(f"{where}: %time was dropped, its statement kept")
        return rest
    if name in ("env", "set_env") and "=" in rest:
        variable, _, value = rest.partition("=")
        return f"import os; os.environ[{variable.strip()!r}] = {value.strip()!r}"
    if name in _DROPPED_LINE_MAGICS:
        cell.notes.append(f"{where}: {'?' if name.startswith('pinfo') else f'%{name}'} was dropped")
        return "pass"
    raise UserError(f"{where}: %{name} has no meaning in an image", hint=_HINT)


def _convert_cell_magic(name: str, rest: str, body: str, *, where: str, cell: ConvertedCell) -> str:
    if name == "writefile":
        path = rest.strip()
        if not path or path.startswith("-"):
            raise UserError(f"{where}: %%writefile must name one file, got {path!r}")
        cell.files[path] = body
        cell.notes.append(f"{where}: %%writefile {path} became a file of the image")
        return ""
    if name in _DROPPED_CELL_MAGICS:
        cell.notes.append(f"{where}: %%{name} was dropped")
        return _convert(body, where, cell)
    raise UserError(f"{where}: %%{name} has no meaning in an image", hint="Leave the cell out by its tags.")


def _add_requirements(words: list[str], where: str, cell: ConvertedCell) -> str:
    rest = iter(words)
    requirements: list[str] = []
    for word in rest:
        if word in _PIP_FLAGS:
            continue
        if word in ("-r", "--requirement"):
            cell.requirement_files.append(next(rest, ""))
        elif word.startswith("-"):
            raise UserError(
                f"{where}: the option {word} of pip install has no meaning in an image",
                hint="Put the install line into a Containerfile of your own.",
            )
        else:
            requirements.append(word)
    cell.requirements += requirements
    cell.notes.append(f"{where}: pip install became requirements: {' '.join(requirements) or 'a file'}")
    return "pass"


def _split(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UserError(f"{where}: {line!r}: {error}") from None
