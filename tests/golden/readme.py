"""Rendering of READMEs from functions, docstrings and metadata.yaml.

The READMEs have the format that the generator of kubeflow/pipelines-components writes: its validator compares them
byte by byte, and keeps what stands below the custom-content mark.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docstring_parser
import yaml

CUSTOM_CONTENT = "<!-- custom-content -->"
METADATA_KEYS = ("name", "stability", "dependencies", "tags", "lastVerified", "ci", "links")
LINE_LENGTH = 120
ACRONYMS = ("KFP", "API", "URL", "ID", "UI", "CI", "CD")


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read a folder's metadata.yaml."""
    metadata: dict[str, Any] = yaml.safe_load((folder / "metadata.yaml").read_text())
    return metadata


def read_function(folder: Path) -> ast.FunctionDef:
    """Parse the function of a component or pipeline, which has the folder's name."""
    (file,) = (folder / name for name in ("component.py", "pipeline.py") if (folder / name).is_file())
    tree = ast.parse(file.read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == folder.name)
    return function


def render_readme(folder: Path) -> str:
    """Render a component's or pipeline's README.md; the existing file's custom content is kept."""
    metadata = read_metadata(folder)
    function = read_function(folder)
    docstring = docstring_parser.parse(ast.get_docstring(function) or "")
    links = metadata.pop("links", {})
    metadata.pop("ci", None)
    metadata["owners"] = yaml.safe_load((folder / "OWNERS").read_text())
    parts = [f"# {_format_title(metadata['name'])} ✨"]
    if metadata["stability"] != "stable":
        warning = "This asset is not yet stable and may change."
        parts.append(f"> ⚠️ **Stability: {metadata['stability']}** — {warning}")
    parts += ["## Overview 🧾", _wrap(_get_overview(docstring))]
    if function.args.args:
        parts += ["## Inputs 📥", _render_parameters(function, docstring)]
    if function.returns is not None:
        description = (docstring.returns.description if docstring.returns else None) or ""
        row = f"| Output | `{ast.unparse(function.returns)}` | {description} |"
        parts += ["## Outputs 📤", f"| Name | Type | Description |\n|------|------|-------------|\n{row}"]
    example = folder / "example_pipelines.py"
    if example.is_file():
        parts += ["## Usage Examples 🧪", f"```python\n{example.read_text()}\n```"]
    items = [f"- **{_format_title(key)}**: {_format_value(value)}" for key, value in metadata.items()]
    parts += ["## Metadata 🗂️", "\n".join(items)]
    if links:
        named = [f"- **{name.replace('_', ' ').title()}**: [{url}]({url})" for name, url in links.items()]
        parts += ["## Additional Resources 📚", "\n".join(named)]
    text = "\n".join(line.rstrip() for line in "\n\n".join(parts).splitlines()) + "\n"
    custom = _read_custom_content(folder / "README.md")
    return f"{text}\n\n{custom}" if custom else text


def render_index(category: Path, folders: Sequence[Path]) -> str:
    """Render the README.md of a category.

    Args:
        category: Directory of the category.
        folders: Directories of its components or pipelines.
    """
    title, kind = _format_title(category.name), category.parent.name
    entries = []
    for folder in folders:
        overview = _get_overview(docstring_parser.parse(ast.get_docstring(read_function(folder)) or ""))
        summary = overview.partition("\n")[0].strip()[:LINE_LENGTH]
        entries.append(f"- [{_format_title(folder.name)}](./{folder.name}/README.md): {summary}\n")
    heading = f"# {title} {kind.capitalize()}\n\nThis directory contains {kind} in the **{title}** category:\n\n"
    return heading + "".join(sorted(entries))


def _get_overview(docstring: docstring_parser.Docstring) -> str:
    return "\n\n".join(part for part in (docstring.short_description, docstring.long_description) if part)


def _wrap(text: str) -> str:
    """Fill each paragraph to the line length."""
    return "\n\n".join(
        textwrap.fill(" ".join(part.split()), LINE_LENGTH, break_long_words=False, break_on_hyphens=False)
        for part in text.split("\n\n")
    )


def _format_title(name: str) -> str:
    """Return "Last Verified" for `lastVerified` and "Train Msjob" for `train_msjob`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", name).split()
    return " ".join(word.upper() if word.upper() in ACRONYMS else word.capitalize() for word in words)


def _format_value(value: Any, indent: str = "") -> str:
    """Return a value of metadata.yaml as Markdown: a nested list where it has several parts."""
    if isinstance(value, Mapping):
        formatted = {_format_title(key): _format_value(part, indent + "  ") for key, part in value.items()}
        items = [f"{key}:{part}" if "\n" in part else f"{key}: {part}" for key, part in formatted.items()]
    elif isinstance(value, list):
        items = [
            ", ".join(f"{_format_title(key)}: {part}" for key, part in item.items())
            if isinstance(item, Mapping)
            else str(item)
            for item in value
        ]
    else:
        return str(value)
    return "".join(f"\n{indent}  - {item}" for item in items) or "None"


def _render_parameters(function: ast.FunctionDef, docstring: docstring_parser.Docstring) -> str:
    """Return the table of a function's parameters, which include the output artifacts."""
    described = {param.arg_name: param.description or "" for param in docstring.params}
    arguments = function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    rows = ["| Parameter | Type | Default | Description |", "|-----------|------|---------|-------------|"]
    for argument, default in zip(arguments.args, defaults, strict=True):
        value = default.value if isinstance(default, ast.Constant) else default and ast.unparse(default)
        kind = ast.unparse(argument.annotation) if argument.annotation else "Any"
        shown = '""' if value == "" else value
        rows.append(f"| `{argument.arg}` | `{kind}` | `{shown}` | {described.get(argument.arg, '')} |")
    return "\n".join(rows)


def _read_custom_content(file: Path) -> str:
    """Return what stands from the custom-content mark on."""
    _, mark, content = (file.read_text() if file.is_file() else "").partition(CUSTOM_CONTENT)
    return mark + content
