"""Rendering of the README.md of a component or pipeline from its function, docstring and metadata.yaml."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import docstring_parser
import yaml

CUSTOM_CONTENT = "<!-- custom-content -->"
METADATA_KEYS = ("name", "stability", "dependencies", "tags", "lastVerified", "ci", "links")


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read a folder's metadata.yaml."""
    metadata: dict[str, Any] = yaml.safe_load((folder / "metadata.yaml").read_text())
    return metadata


def render_readme(folder: Path, component: Any, module: str) -> str:
    """Render a README.md; the text below the custom-content mark of the existing file is kept.

    Args:
        folder: Directory of the component or pipeline.
        component: The kfp component.
        module: Name of the package to import it from.
    """
    metadata = read_metadata(folder)
    function = getattr(component, "python_func", None) or component.pipeline_func
    docstring = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {param.arg_name: param.description or "" for param in docstring.params}
    spec = component.component_spec
    needs = ", ".join(f"{need['name']} {need['version']}" for need in metadata["dependencies"]["kubeflow"])
    parts = [
        f"# {metadata['name']}",
        f"{metadata['stability']} · needs {needs} · tags: {', '.join(metadata['tags'])}",
        docstring.short_description or "",
        docstring.long_description or "",
        "## Inputs",
        _render_inputs(spec.inputs or {}, described),
    ]
    if spec.outputs:
        parts += ["## Outputs", _render_outputs(spec.outputs, described)]
    example = folder / "example_pipelines.py"
    use = f"```python\n{example.read_text()}```" if example.is_file() else _render_commands(metadata["name"], module)
    parts += ["## Use", use]
    head = "\n\n".join(part for part in parts if part)
    return f"{head}\n\n{CUSTOM_CONTENT}\n{_read_custom_content(folder / 'README.md')}"


def _read_custom_content(file: Path) -> str:
    if not file.is_file():
        return ""
    _, mark, content = file.read_text().partition(f"{CUSTOM_CONTENT}\n")
    return content if mark else ""


def _render_inputs(inputs: dict[str, Any], described: dict[str, str]) -> str:
    rows = ["| name | type | default | description |", "|---|---|---|---|"]
    for name, spec in inputs.items():
        if not spec.optional:
            default = "required"
        elif _is_artifact(spec.type) or spec.default is None:
            default = "none"
        else:
            default = f"`{json.dumps(spec.default)}`"
        rows.append(f"| `{name}` | {_name_type(spec.type)} | {default} | {_flatten(described.get(name, ''))} |")
    return "\n".join(rows)


def _render_outputs(outputs: dict[str, Any], described: dict[str, str]) -> str:
    rows = ["| name | type | description |", "|---|---|---|"]
    for name, spec in outputs.items():
        rows.append(
            f"| `{name}` | {_name_type(spec.type)} | {_flatten(described.get(name) or spec.description or '')} |"
        )
    return "\n".join(rows)


def _render_commands(name: str, module: str) -> str:
    return (
        f"```bash\nkfp-mindspore run {name}\nkfp-mindspore pipeline compile {name} -o pipeline.yaml\n```\n\n"
        f"In Python: `from {module} import {name}`."
    )


def _is_artifact(kind: str) -> bool:
    return "@" in kind


def _name_type(kind: str) -> str:
    """Return `Dataset` for `system.Dataset@0.0.1`, and KFP's parameter types by their Python names."""
    if _is_artifact(kind):
        return kind.partition("@")[0].rpartition(".")[2]
    if kind.startswith(("List", "Dict")):
        kind = kind[:4]
    names = {"String": "str", "Integer": "int", "Float": "float", "Boolean": "bool", "List": "list", "Dict": "dict"}
    return names.get(kind, kind)


def _flatten(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
