"""The documentation: links, reference, and the commands, Python and YAML of its pages."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import textwrap
import zlib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from kfp_mindspore.cli.main import cli
from kfp_mindspore.msjob.validation import list_errors
from tests.unit.test_public_names import PACKAGES

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def list_blocks(page: Path, language: str) -> Iterator[str]:
    for block in re.findall(rf"^ *```{language}\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE):
        yield textwrap.dedent(block)


def list_commands(page: Path) -> Iterator[list[str]]:
    for block in list_blocks(page, "bash"):
        for line in re.findall(r"(?:^|\| |&& )kfp-mindspore (.*)", block.replace("\\\n", " "), re.MULTILINE):
            yield shlex.split(re.split(r" \| | && ", line)[0], comments=True)
    for span in re.findall(r"`kfp-mindspore (\w[^`…\n]*)`", page.read_text()):
        yield shlex.split(span)


def parse_command(words: list[str]) -> None:
    """Parse the arguments of `kfp-mindspore` without running it."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name, child, words = command.resolve_command(context, words)
        assert name is not None
        assert child is not None
        command, context = child, click.Context(child, context)
    try:
        command.make_context(command.name, words)
    except click.MissingParameter:
        pass  # prose names a command without its arguments
    except click.BadParameter as error:
        # Files of an example do not exist here.
        if error.param is None or not isinstance(error.param.type, click.Path):
            raise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_page_have_existing_options(page) -> None:
    for words in list_commands(page):
        parse_command(words)


def has_name(module: str, name: str) -> bool:
    """Return whether a module has a name, without the import of modules such as networks, which need MindSpore."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    if spec.submodule_search_locations:
        return importlib.util.find_spec(f"{module}.{name}") is not None or name in dir(importlib.import_module(module))
    return re.search(rf"^((async )?def |class |){name}\b", Path(str(spec.origin)).read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_page_compiles_and_imports_existing_names(page) -> None:
    for block in list_blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("kfp_mindspore", "mindsporeserver")
            ):
                for alias in node.names:
                    assert has_name(str(node.module), alias.name), f"{node.module}.{alias.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_jobs_of_page_are_valid(page) -> None:
    for block in list_blocks(page, "yaml"):
        for document in yaml.safe_load_all(block):
            if isinstance(document, dict) and document.get("kind") == "MSJob":
                assert list_errors(document) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))  # strict: a warning fails the build
    return folder


@pytest.mark.slow
def test_site_has_no_broken_link_and_reference_of_every_public_name(site) -> None:
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    documented = {line.split()[0] for line in inventory.splitlines()}
    for package in PACKAGES:
        if package not in ("kfp_mindspore", "kfp_mindspore.components", "kfp_mindspore.pipelines"):
            assert {f"{package}.{name}" for name in importlib.import_module(package).__all__} <= documented


@pytest.mark.slow
@pytest.mark.parametrize(("query", "page"), [("csv cluster", "csv-on-a-cluster"), ("my csv", "csv-on-a-cluster")])
def test_search_of_site_finds_page_first(site, query, page) -> None:
    """Material for MkDocs searches by lunr, with this boost of titles."""
    from lunr import lunr

    documents = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    fields = [{"field_name": "title", "boost": 1000}, "text"]
    found = lunr(ref="location", fields=fields, documents=documents).search(query)
    assert found[0]["ref"].partition("/")[0] == page
