"""The modules of a project that a module imports, found by reading them: nothing is run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from kfp_mindspore.errors import UserError


@dataclass
class Closure:
    """What a module needs.

    Args:
        files: The project's files, by path relative to its root with `/`, and the modules they are.
        outside: Top-level names of imported modules that are neither the project's nor Python's own.
    """

    files: dict[str, str] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)

    def describe(self) -> list[str]:
        """Return sentences about it."""
        lines = []
        if self.files:
            lines.append(f"modules taken along: {', '.join(sorted(set(self.files.values())))}")
        if self.outside:
            lines.append(
                f"imported from elsewhere, must be in the base image or required: {', '.join(sorted(self.outside))}"
            )
        return lines


def trace_source(source: str, root: Path, *, name: str, package: str = "") -> Closure:
    """Return the closure of source text.

    Args:
        source: Python source.
        root: Folder that absolute imports of the project start from.
        name: What the source is, for messages.
        package: Package that the source's relative imports start from.

    Raises:
        UserError: The source or a module it imports is no Python; the message names file and line.
    """
    closure = Closure()
    _Tracer(root, closure).trace(source, name, package)
    return closure


def trace_module(module: str, root: Path) -> Closure:
    """Return the closure of a module of a project, itself and its packages among its files.

    Raises:
        UserError: There is no such module below the root, or something it imports is no Python.
    """
    closure = Closure()
    if not _Tracer(root, closure).take(module):
        raise UserError(f"{module}: no such module below {root}")
    return closure


class _Tracer:
    def __init__(self, root: Path, closure: Closure) -> None:
        self._root, self._closure = root.resolve(), closure
        self._taken: dict[str, bool] = {}

    def take(self, module: str) -> bool:
        """Add a module of the project, its packages and what it imports; False when it is not the project's."""
        if module in self._taken:
            return self._taken[module]
        parent, _, _ = module.rpartition(".")
        self._taken[module] = False
        if parent and not self.take(parent):
            return False
        spec = self._find(module)
        if spec is None:
            return False
        self._taken[module] = True
        if spec.origin and spec.origin.endswith(".py"):
            file = Path(spec.origin)
            self._closure.files[file.relative_to(self._root).as_posix()] = module
            package = module if spec.submodule_search_locations is not None else parent
            self.trace(_read_source(file), str(file), package)
        return True

    def trace(self, source: str, name: str, package: str) -> None:
        try:
            tree = ast.parse(source, name)
        except SyntaxError as error:
            raise UserError(f"{name}, line {error.lineno}: {error.msg}") from None
        for module, names in _list_imports(tree, package):
            if self.take(module):
                for imported in names:
                    self.take(f"{module}.{imported}")
            else:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names and not self._taken.get(top):
                    self._closure.outside.add(top)

    def _find(self, module: str) -> ModuleSpec | None:
        folder = self._root.joinpath(*module.split(".")[:-1])
        spec = PathFinder.find_spec(module, [str(folder)])
        if spec is None:
            return None
        if spec.origin is None:
            places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
            holds = any(place.is_relative_to(self._root) and any(place.rglob("*.py")) for place in places)
            return spec if holds else None
        return spec if Path(spec.origin).resolve().is_relative_to(self._root) else None


def _list_imports(tree: ast.AST, package: str) -> Iterator[tuple[str, Iterable[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            above = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module:
                yield module, [alias.name for alias in node.names if alias.name != "*"]


def _read_source(file: Path) -> str:
    import tokenize

    try:
        with tokenize.open(file) as opened:
            return opened.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as Python ({error})") from error
