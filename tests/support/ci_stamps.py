"""Print the path of the stamp that `.ci/run` writes once a part has passed: its name is a digest of the part's inputs.

python -m tests.support.ci_stamps make TARGET [VARIABLE=VALUE…]

The inputs are the commands that make would run, the Python version, the variables KFP_MINDSPORE_*, every file that is
not Python (a document only where the part's files name it or a pattern for it), and the Python files that the tests
reach: by imports, the lazy ones of `__init__.pyi` included, and by any dotted name, file name or folder name in their
text, because processes are started by strings. grimp sees none of these, and no module outside of packages.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
STAMPS = Path.home() / ".cache" / "kfp-mindspore" / "ci"
_DOTTED = re.compile(r"\b(?:kfp_mindspore|mindsporeserver|tests|components|pipelines|benchmarks)\b(?:\.\w+)*")
_PREFIX = re.compile(r"([A-Za-z_][\w.]*)\.\{|[\"']([A-Za-z_][\w.]*)\.[\"']")
_SCRIPT = re.compile(r"[\w/-]*\w\.py\b")
_DOCUMENT = re.compile(r"[\w*./-]*\.md\b")
_TEST_PATHS = re.compile(r"^testpaths = \[(.*)\]", re.MULTILINE)
_QUOTED = re.compile(r"[\"'](\w+)[\"'](?! /)")


def list_files(root: Path = ROOT) -> dict[str, bytes]:
    """Return the contents of all files that git tracks or would add, of a link its target."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    paths = {name: root / name for name in names if name}
    return {
        name: str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for name, path in sorted(paths.items())
        if path.is_symlink() or path.is_file()
    }


class ImportGraph:
    """The Python files among `files`, and which of them each can import or start."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.texts = {name: data.decode() for name, data in files.items() if name.endswith((".py", ".pyi"))}
        self._modules: dict[str, list[str]] = {}
        self._scripts: dict[str, list[str]] = {}
        self._folders: dict[str, list[str]] = {}
        tested = {str(parent) for name in self.texts if "/test_" in name for parent in PurePosixPath(name).parents}
        for name in self.texts:
            path = PurePosixPath(name)
            if not path.name.startswith(("test_", "conftest.", "__init__.")):  # run by their own part only
                self._scripts.setdefault(path.name, []).append(name)
            for module in _list_module_names(path):
                self._modules.setdefault(module, []).append(name)
            for parent in path.parents:
                if str(parent) not in tested:
                    self._folders.setdefault(parent.name, []).append(name)

    def reach(self, roots: set[str]) -> set[str]:
        """Return `roots` and all files that they can import or start, in any number of steps."""
        reached, waiting = set[str](), set(roots)
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= self.list_next(name) - reached
        return reached

    @functools.cache  # noqa: B019 - a graph lives as long as its process
    def list_next(self, name: str) -> frozenset[str]:
        """Return the files that a file names."""
        text = self.texts[name]
        modules = {module for imported in _list_imports(name, text) for module in self._resolve(imported)}
        modules |= {module for dotted in set(_DOTTED.findall(text)) for module in self._resolve(dotted)}
        prefixes = tuple(f"{formatted or quoted}." for formatted, quoted in _PREFIX.findall(text))
        modules |= {module for module in self._modules if module.startswith(prefixes) and ".test_" not in module}
        if "kfp-mindspore" in text:
            modules.add("kfp_mindspore_cli")
        found = {file for module in modules for file in self._modules.get(module, ())}
        for script in set(_SCRIPT.findall(text)):
            same = self._scripts.get(PurePosixPath(script).name, ())
            found |= {file for file in same if f"/{file}".endswith(f"/{script.lstrip('/')}")}
        for folder in set(_QUOTED.findall(text)):
            found |= set(self._folders.get(folder, ()))
        return frozenset(found)

    def _resolve(self, dotted: str) -> Iterator[str]:
        # The longest prefix that is a module, its parents, which are imported first, and what `python -m` runs.
        parts = dotted.split(".")
        for size in range(len(parts), 0, -1):
            if (module := ".".join(parts[:size])) in self._modules:
                yield from (module, f"{module}.__main__")


def _list_module_names(path: PurePosixPath) -> Iterator[str]:
    parts = path.with_suffix("").parts[path.parts[0] == "serving" :]
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    yield name
    if parts[0] in ("components", "pipelines"):  # links in kfp_mindspore
        yield f"kfp_mindspore.{name}"


def _list_imports(name: str, text: str) -> Iterator[str]:
    package = [*_list_module_names(PurePosixPath(name).parent / "__init__.py")][-1].split(".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def list_roots(commands: str, files: Mapping[str, bytes]) -> set[str]:
    """Return the Python files that commands name: all for `.`, pytest's default paths where it has none."""
    names = {name for name in files if name.endswith((".py", ".pyi"))}
    roots = set[str]()
    for line in commands.splitlines():
        words = [word.rstrip("/") for word in line.split()]
        if "." in words:
            return names
        if "pytest" in words:
            ignored = tuple(word.removeprefix("--ignore=") + "/" for word in words if word.startswith("--ignore="))
            paths = [word for word in words if word in names or any(name.startswith(f"{word}/") for name in files)]
            if not paths:
                paths = re.findall(r'"(\w+)"', _TEST_PATHS.findall(files["pyproject.toml"].decode())[0])
            inside = {name for name in names for path in paths if f"{name}/".startswith(f"{path}/")}
            roots |= {name for name in inside if not name.startswith(ignored or "\0")}
    folders = {str(parent) for name in roots for parent in PurePosixPath(name).parents}
    return roots | {
        name for name in names if name.endswith("conftest.py") and str(PurePosixPath(name).parent) in folders
    }


def list_inputs(commands: str, files: Mapping[str, bytes]) -> set[str]:
    """Return the files that a part's result depends on."""
    graph = ImportGraph(files)
    sources = graph.reach(list_roots(commands, files))
    documents = {pattern for name in sources for pattern in _DOCUMENT.findall(graph.texts[name])}
    patterns = {PurePosixPath(pattern).name for pattern in documents}
    others = set(files) - set(graph.texts)
    return sources | {
        name
        for name in others
        if not name.endswith(".md") or any(fnmatch.fnmatch(PurePosixPath(name).name, item) for item in patterns)
    }


def get_commands(words: list[str], root: Path = ROOT) -> str:
    """Return the commands that make would run."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", "--dry-run", *words[words.index("make") + 1 :]]
    return subprocess.run(command, cwd=root, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout


def compute_digest(commands: str, files: Mapping[str, bytes]) -> str:
    """Return the digest of a part's inputs."""
    digest = hashlib.sha256(repr((platform.python_version(), commands)).encode())
    digest.update(repr(sorted(item for item in os.environ.items() if item[0].startswith("KFP_MINDSPORE_"))).encode())
    for name in sorted(list_inputs(commands, files)):
        digest.update(repr((name, hashlib.sha256(files[name]).digest())).encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    target = sys.argv[sys.argv.index("make") + 1]
    print(STAMPS / f"{target}-{compute_digest(get_commands(sys.argv[1:]), list_files())}")
