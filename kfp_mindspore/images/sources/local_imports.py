"""The local modules that a module imports, resolved from the source without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from kfp_mindspore.errors import UserError


@dataclass
class LocalImports:
    """A module's transitive imports.

    Args:
        files: Module names by local file path, relative to the root with `/`.
        external: Top-level names of imported modules that are neither local nor in the standard library.
    """

    files: dict[str, str] = field(default_factory=dict)
    external: set[str] = field(default_factory=set)

    def describe(self) -> list[str]:
        """Return notes for the build plan."""
        lines = []
        if self.files:
            lines.append(f"included local modules: {', '.join(sorted(set(self.files.values())))}")
        if self.external:
            names = ", ".join(sorted(self.external))
            lines.append(f"external imports, to be in the base image or the requirements: {names}")
        return lines


def resolve_source_imports(source: str, root: Path, *, name: str) -> LocalImports:
    """Return the imports in Python source.

    Args:
        source: The source.
        root: The local modules' folder.
        name: Source name, for messages.

    Raises:
        UserError: The source or an imported local module has a syntax error; the message names file and line.
    """
    imports = LocalImports()
    _Resolver(root, imports).add_imports(source, name, "")
    return imports


def resolve_module_imports(module: str, root: Path) -> LocalImports:
    """Return a local module's imports, itself and its parent packages included.

    Raises:
        UserError: There is no such module below the root, or a local module has a syntax error.
    """
    imports = LocalImports()
    if not _Resolver(root, imports).add_module(module):
        raise UserError(f"{module}: no such module below {root}")
    return imports


class _Resolver:
    def __init__(self, root: Path, imports: LocalImports) -> None:
        self._root, self._imports = root.resolve(), imports
        self._is_local: dict[str, bool] = {}

    def add_module(self, module: str) -> bool:
        """Add a local module, its packages and its imports; return False when it is not local."""
        if module in self._is_local:
            return self._is_local[module]
        parent, _, _ = module.rpartition(".")
        self._is_local[module] = False
        if parent and not self.add_module(parent):
            return False
        spec = self._find_spec(module)
        if spec is None:
            return False
        self._is_local[module] = True
        if spec.origin and spec.origin.endswith(".py"):
            file = Path(spec.origin)
            self._imports.files[file.relative_to(self._root).as_posix()] = module
            package = module if spec.submodule_search_locations is not None else parent
            self.add_imports(_read_source(file), str(file), package)
        return True

    def add_imports(self, source: str, name: str, package: str) -> None:
        try:
            tree = ast.parse(source, name)
        except SyntaxError as error:
            raise UserError(f"{name}, line {error.lineno}: {error.msg}") from None
        for module, names in _list_imports(tree, package):
            if self.add_module(module):
                for imported in names:
                    self.add_module(f"{module}.{imported}")
            else:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names and not self._is_local.get(top):
                    self._imports.external.add(top)

    def _find_spec(self, module: str) -> ModuleSpec | None:
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
