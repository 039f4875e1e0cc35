"""READMEs have the format of kubeflow/pipelines-components, whose validator compares them byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.readme import render_index, render_readme

COMPONENT = '''
from typing import NamedTuple, Optional

from kfp import dsl


@dsl.component
def count_rows(
    table: dsl.Input[dsl.Dataset], limit: Optional[int] = None, name: str = "", options: dict = {"a": [1]}
) -> NamedTuple("Outputs", [("rows", int)]):
    """Count the rows of a table.

    A second paragraph that is longer than one line of a README is filled
    to its width, whatever the line breaks of the source, here one after "filled" and one more

    Args:
        table: The table.
        limit: Largest count.
        name: Name of the count.
        options: Further options.

    Returns:
        rows: Number of rows.
    """
'''
METADATA = """
name: count_rows
stability: {stability}
dependencies:
  kubeflow:
    - name: Pipelines
      version: ">=2.17.0"
  external_services: []
tags: [tables]
lastVerified: 2026-11-24T00:00:00Z
ci:
  skip_dependency_probe: false
links:
  issue_tracker: https://example.com/issues
"""
README = """# Count Rows ✨
{warning}
## Overview 🧾

Count the rows of a table.

A second paragraph that is longer than one line of a README is filled to its width, whatever the line breaks of the
source, here one after "filled" and one more

## Inputs 📥

| Parameter | Type | Default | Description |
|-----------|------|---------|-------------|
| `table` | `dsl.Input[dsl.Dataset]` | `None` | The table. |
| `limit` | `Optional[int]` | `None` | Largest count. |
| `name` | `str` | `""` | Name of the count. |
| `options` | `dict` | `{{'a': [1]}}` | Further options. |

## Outputs 📤

| Name | Type | Description |
|------|------|-------------|
| Output | `NamedTuple('Outputs', [('rows', int)])` | Number of rows. |

## Usage Examples 🧪

```python
count_rows()

```

## Metadata 🗂️

- **Name**: count_rows
- **Stability**: {stability}
- **Dependencies**:
  - Kubeflow:
    - Name: Pipelines, Version: >=2.17.0
  - External Services: None
- **Tags**:
  - tables
- **Last Verified**: 2026-11-24 00:00:00+00:00
- **Owners**:
  - Approvers:
    - somebody

## Additional Resources 📚

- **Issue Tracker**: [https://example.com/issues](https://example.com/issues)
"""
WARNING = "\n> ⚠️ **Stability: {stability}** — This asset is not yet stable and may change.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a component."""
    folder = tmp_path / "components" / "data_processing" / "count_rows"
    folder.mkdir(parents=True)
    (folder / "component.py").write_text(COMPONENT)
    (folder / "metadata.yaml").write_text(METADATA.format(stability="alpha"))
    (folder / "OWNERS").write_text("approvers: [somebody]\n")
    (folder / "example_pipelines.py").write_text("count_rows()\n")
    return folder


@pytest.mark.parametrize(("stability", "warning"), [("stable", ""), ("beta", WARNING.format(stability="beta"))])
def test_readme_has_upstream_format(folder: Path, stability: str, warning: str) -> None:
    (folder / "metadata.yaml").write_text(METADATA.format(stability=stability))
    assert render_readme(folder) == README.format(stability=stability, warning=warning)


@pytest.mark.parametrize("custom", ["<!-- custom-content -->", "<!-- custom-content -->\n\n## More\n\nText.\n"])
def test_custom_content_is_kept_below_generated_text(folder: Path, custom: str) -> None:
    generated = render_readme(folder)
    (folder / "README.md").write_text(f"# Old\n{custom}")
    assert render_readme(folder) == f"{generated}\n\n{custom}"


def test_index_lists_assets_by_title(folder: Path) -> None:
    other = folder.with_name("append_rows")
    other.mkdir()
    (other / "component.py").write_text(COMPONENT.replace("count_rows", "append_rows").replace("Count the", "Append"))
    assert render_index(folder.parent, [folder, other]) == (
        "# Data Processing Components\n\n"
        "This directory contains components in the **Data Processing** category:\n\n"
        "- [Append Rows](./append_rows/README.md): Append rows of a table.\n"
        "- [Count Rows](./count_rows/README.md): Count the rows of a table.\n"
    )
