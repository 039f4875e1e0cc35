"""A notebook cell as plain Python: what IPython adds to the language is translated, or refused with the reason."""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass, field

from kfp_mindspore.errors import MissingExtraError, UserError

_DROPPED_LINES = ("autoreload", "config", "load_ext", "matplotlib", "pylab", "reload_ext")
_DROPPED_CELLS = ("capture", "time", "timeit")
_PIP_FLAGS = ("-q", "-qq", "-U", "--quiet", "--upgrade", "--user", "--no-cache-dir", "--disable-pip-version-check")
_REPLACEMENT = "pass"


@dataclass
class Cell:
    """A cell in plain Python.

    Args:
        source: The Python.
        requirements: What its `pip install` lines ask for.
        requirement_files: Files that its `pip install -r` lines name.
        files: What its `%%writefile` writes, by path.
        notes: What was translated, one sentence each.
    """

    source: str = ""
    requirements: list[str] = field(default_factory=list)
    requirement_files: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def translate_cell(source: str, where: str) -> Cell:
    """Translate one code cell.

    Args:
        source: What stands in it.
        where: Which cell it is, for messages.

    Raises:
        UserError: It holds a magic or a shell line that has no meaning in an image, or is no Python.
        MissingExtraError: IPython is not installed.
    """
    cell = Cell()
    head, _, body = source.lstrip().partition("\n")
    if head.startswith("%%"):
        name, _, rest = head[2:].strip().partition(" ")
        if name == "writefile":
            path = rest.strip()
            if not path or path.startswith("-"):
                raise UserError(f"{where}: %%writefile must name one file, got {rest.strip()!r}")
            cell.files[path] = body
            cell.notes.append(f"{where}: %%writefile {path} became a file of the image")
            return cell
        if name not in _DROPPED_CELLS:
            raise UserError(f"{where}: %%{name} has no meaning in an image", hint="Leave the cell out by its tags.")
        cell.notes.append(f"{where}: %%{name} was dropped")
        source = body
    try:
        ast.parse(source)
    except SyntaxError:
        source = _to_python(source)
    try:
        tree = ast.parse(source, where)
    except SyntaxError as error:
        raise UserError(f"{where}, line {error.lineno}: {error.msg}") from None
    cell.source = _Translation(source, where, cell).apply(tree)
    return cell


def _to_python(source: str) -> str:
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        raise MissingExtraError("IPython", "images") from None
    text: str = TransformerManager().transform_cell(source)
    return text


class _Translation:
    """Replaces IPython's calls in a cell's Python, line by line, so that all else stays as it was written."""

    def __init__(self, source: str, where: str, cell: Cell) -> None:
        # AST's columns are counted in bytes of UTF-8.
        self._lines = source.encode().split(b"\n")
        self._where, self._cell = where, cell

    def apply(self, tree: ast.Module) -> str:
        statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_shell_call(node.value)]
        done = {id(part) for node in statements for part in ast.walk(node.value)}
        for node in ast.walk(tree):
            if _is_shell(node) and id(node) not in done:
                raise UserError(
                    f"{self._where}: get_ipython, or the value of a magic or shell line, has no meaning in an image",
                    hint="Write it in Python, or leave the cell out by its tags.",
                )
        statements.sort(key=lambda node: (node.lineno, node.col_offset))
        texts = [self._translate(statement.value) for statement in statements]
        # From the last on, so that the places of those before stay right.
        for statement, text in zip(reversed(statements), reversed(texts), strict=True):
            self._replace(statement, text)
        return b"\n".join(self._lines).decode()

    def _replace(self, statement: ast.Expr, text: str) -> None:
        first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
        before = self._lines[first][: statement.col_offset]
        after = self._lines[last][statement.end_col_offset or 0 :]
        self._lines[first : last + 1] = [before + text.encode() + after]

    def _translate(self, call: ast.expr) -> str:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        words = [argument.value if isinstance(argument, ast.Constant) else None for argument in call.args]
        if not all(isinstance(word, str) for word in words):
            raise UserError(f"{self._where}: get_ipython().{call.func.attr} has no meaning in an image")
        texts = [str(word) for word in words]
        if call.func.attr == "system" and texts:
            return self._translate_shell(texts[0])
        if call.func.attr == "run_line_magic" and len(texts) == 2:
            return self._translate_magic(*texts)
        raise UserError(f"{self._where}: get_ipython().{call.func.attr} has no meaning in an image")

    def _translate_shell(self, line: str) -> str:
        words = _split(line, self._where)
        for head in (["pip"], ["pip3"], ["python", "-m", "pip"], ["python3", "-m", "pip"]):
            if words[: len(head) + 1] == [*head, "install"]:
                return self._install(words[len(head) + 1 :], f"!{line}")
        raise UserError(
            f"{self._where}: the shell line !{line} has no meaning in an image",
            hint="Write it in Python, put it into a Containerfile, or leave the cell out by its tags.",
        )

    def _translate_magic(self, name: str, rest: str) -> str:
        if name == "pip":
            words = _split(rest, self._where)
            if words[:1] == ["install"]:
                return self._install(words[1:], f"%pip {rest}")
        if name == "time" and rest:
            self._cell.notes.append(f"{self._where}: %time was dropped, its statement kept")
            return rest
        if name in ("env", "set_env") and "=" in rest:
            variable, _, value = rest.partition("=")
            return f"import os; os.environ[{variable.strip()!r}] = {value.strip()!r}"
        if name in _DROPPED_LINES or name.startswith("pinfo"):
            self._cell.notes.append(f"{self._where}: {'?' if name.startswith('pinfo') else f'%{name}'} was dropped")
            return _REPLACEMENT
        raise UserError(
            f"{self._where}: %{name} has no meaning in an image",
            hint="Write it in Python, or leave the cell out by its tags.",
        )

    def _install(self, words: list[str], line: str) -> str:
        rest = iter(words)
        found: list[str] = []
        for word in rest:
            if word in _PIP_FLAGS:
                continue
            if word in ("-r", "--requirement"):
                self._cell.requirement_files.append(next(rest, ""))
            elif word.startswith("-"):
                raise UserError(
                    f"{self._where}: the option {word} of {line.split()[0]} has no meaning in an image",
                    hint="Put the install line into a Containerfile of your own.",
                )
            else:
                found.append(word)
        self._cell.requirements += found
        self._cell.notes.append(f"{self._where}: an install line became requirements: {' '.join(found) or 'a file'}")
        return _REPLACEMENT


def _split(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UserError(f"{where}: {line!r}: {error}") from None


def _is_shell_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_shell(node.func.value)


def _is_shell(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get_ipython"
