"""Layers and code lines of a network, found from the compiled graph or from MindSpore's traceback."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# MindSpore 2.9's traceback of construct code: a place, then the code with a mark below the expression.
_FRAME = re.compile(
    r"^(?:# (?:\d+ )?)?In file (?P<file>.+?):(?P<line>\d+)(?:~\d+)?(?:, (?P<begin>\d+)~(?P<end>\d+))?[^\n]*\n"
    r"(?P<code>[^\n]*)",
    re.MULTILINE,
)
_CALL = re.compile(r"self\.(\w+)\(")
_CHECKS = (ast.Raise, ast.Assert)


@dataclass(frozen=True)
class LayerSource:
    """A layer, and where the user's code has or calls it.

    Args:
        path: Attribute names from the network, such as `encoder.layers.0`; empty for the network itself.
        kind: Class name.
        line: `FILE:LINE: CODE`; empty where the source is not available.
    """

    path: str
    kind: str
    line: str = ""

    def __str__(self) -> str:
        return f"layer {self.path} ({self.kind})" if self.path else self.kind


def locate_operator(network: Any, scope: str) -> LayerSource:
    """Return the layer that an operator belongs to, and the user's line that raises or calls the layer.

    Args:
        network: The exported network.
        scope: The operator's scope in a MindIR, such as `Default/rnn-GRU/raise-op0`.
    """
    cells = [network]
    path: list[str] = []
    for part in scope.split("/")[1:-1]:
        name = part.rpartition("-")[0]
        child = dict(cells[-1].name_cells()).get(name)
        if child is None:
            break
        cells.append(child)
        path.append(name)
    line = _find_line(cells[-1], None) if _is_own(cells[-1]) else ""
    for owner, name in zip(reversed(cells[:-1]), reversed(path), strict=True):
        if line:
            break
        if _is_own(owner):
            line = _find_line(owner, name)
    return LayerSource(".".join(path), type(cells[-1]).__name__, line)


def locate_error(network: Any, text: str, libraries: Collection[Path] = ()) -> LayerSource:
    """Return the layer and the user's line in MindSpore's error text; the network itself without such a line.

    Args:
        network: The network that could not be compiled.
        text: The error's text, with a traceback of the construct code.
        libraries: Directories whose code is not the user's, beside MindSpore's.
    """
    import mindspore

    excluded = {Path(mindspore.__file__).parent, *libraries}
    for frame in reversed(list(_FRAME.finditer(text))):
        if not excluded.isdisjoint(Path(frame["file"]).parents):
            continue
        line = f"{frame['file']}:{frame['line']}: {frame['code'].strip()}"
        called = _CALL.match(frame["code"], int(frame["begin"])) if frame["begin"] else None
        for path, cell in network.cells_and_names():
            if not _contains(cell, frame["file"], int(frame["line"])):
                continue
            child = dict(cell.name_cells()).get(called[1]) if called else None
            if called and child is not None:
                path, cell = f"{path}.{called[1]}".removeprefix("."), child
            return LayerSource(path, type(cell).__name__, line)
        return LayerSource("", type(network).__name__, line)
    return LayerSource("", type(network).__name__)


def _is_own(cell: Any) -> bool:
    """Return whether a cell's class is user code."""
    return type(cell).__module__.partition(".")[0] != "mindspore"


def _read_class(cell: Any) -> tuple[str, list[str], int]:
    """Return a class's file, source lines and first line number; no lines where there is no source."""
    try:
        lines, first = inspect.getsourcelines(type(cell))
        return inspect.getsourcefile(type(cell)) or "", lines, first
    except (OSError, TypeError):
        return "", [], 0


def _contains(cell: Any, file: str, line: int) -> bool:
    if not _is_own(cell):
        return False
    own, lines, first = _read_class(cell)
    return bool(lines) and Path(own) == Path(file) and first <= line < first + len(lines)


def _find_line(cell: Any, child: str | None) -> str:
    """Return a class's first line that calls a child, else that names it; without a child, one that raises."""
    file, lines, first = _read_class(cell)
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        return ""
    nodes = list(_list_nodes(tree))
    found: Sequence[ast.AST]
    if child is None:
        found = [node for node in nodes if isinstance(node, _CHECKS)]
    else:
        calls = [node for node in nodes if isinstance(node, ast.Call) and _is_child(node.func, child)]
        found = calls or [node for node in nodes if _is_child(node, child)]
    if not found:
        return ""
    index = min(getattr(node, "lineno", 1) for node in found) - 1
    return f"{file}:{first + index}: {lines[index].strip()}"


def _list_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name != "__init__":
            yield from ast.walk(function)


def _is_child(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
