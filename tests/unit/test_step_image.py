"""The extras of the documented image of steps, compared with what the step functions of the components import."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kfp_mindspore.images.runtime.extras import has_package, list_extras, list_missing_extras
from kfp_mindspore.images.runtime.image import DEFAULT_EXTRAS
from kfp_mindspore.runs.cluster.step_needs import STEP_NEEDS
from kfp_mindspore.stores.artifact_store import LIBRARIES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPONENTS = sorted(path.parent for path in (ROOT / "components").glob("*/*/component.py"))
# What single arguments of components need, by step module.
OPTIONAL = {
    "export": {"mlflow", "tensorboard"},
    "compress": {"mlflow", "tensorboard"},
    "deploy": {"registry"},
    "dual_encoder": {"mlflow", "tensorboard"},
    "language_model": {"mlflow", "tensorboard"},
}
# The other ones name their extra when the library is missing.
EXEMPT = {
    "kfp_mindspore.inference.backends.local",
    "kfp_mindspore.transform.subwords",
    "kfp_mindspore.sweeps.tune",
    "kfp_mindspore.ray.blocks",
    "kfp_mindspore.ray.data",
    "kfp_mindspore.ray.predict",
}
DISTRIBUTIONS = importlib.metadata.packages_distributions()


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", name, maxsplit=1)[0]).lower()


def list_requirements(distribution: str) -> list[str]:
    """Return the requirements of an installed distribution without those of its extras."""
    try:
        return [item for item in importlib.metadata.requires(distribution) or () if "extra ==" not in item]
    except importlib.metadata.PackageNotFoundError:
        return []


@cache
def list_distributions(*extras: str) -> set[str]:
    """Return the distributions of the package and of extras."""
    found = {normalize(name) for name in PROJECT["dependencies"]}
    for extra in extras:
        for requirement in PROJECT["optional-dependencies"][extra]:
            if nested := re.match(r"kfp-mindspore\[(.*)\]", requirement):
                found |= list_distributions(*nested[1].split(","))
            found.add(normalize(requirement))
    # What MindSpore and KFP bring along, such as protobuf.
    return found | {normalize(item) for name in found - {"kfp-mindspore"} for item in list_requirements(name)}


@cache
def list_imports(module: str) -> frozenset[str]:
    """Return the modules that a module imports anywhere in it, `package.name` for names of packages."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    names = _list_imports(ast.parse(Path(str(spec.origin)).read_text()))
    return frozenset(importlib.util.resolve_name(name, spec.parent) for name in names)


def _list_imports(tree: ast.AST) -> Iterator[str]:
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)
        nodes += ast.iter_child_nodes(node)


@cache
def find_stub(module: str) -> Path | None:
    """Return the file in which a package declares the names that it imports lazily; None for other modules."""
    spec = importlib.util.find_spec(module)
    stub = Path(spec.origin).with_suffix(".pyi") if spec is not None and spec.origin else None
    return stub if stub is not None and stub.is_file() else None


@cache
def resolve(name: str) -> str:
    """Return the module of an imported name: its own, or the one in which a lazy package declares it."""
    while True:
        try:
            if importlib.util.find_spec(name) is not None:
                return name
        except ModuleNotFoundError:
            pass
        package, _, attribute = name.rpartition(".")
        stub = find_stub(package)
        imports = _list_imports(ast.parse(stub.read_text())) if stub is not None else ()
        declared = [found for found in imports if found.endswith(f".{attribute}")]
        if not declared:
            return package
        name = importlib.util.resolve_name(declared[0], package)


def list_external(module: str) -> dict[str, set[str]]:
    """Return the distributions of what a module and the package's modules below it import, by top-level name."""
    pending, seen, found = [module], {module}, {}
    while pending:
        current = pending.pop()
        for name in list_imports(current):
            top = name.partition(".")[0]
            if top != "kfp_mindspore":
                found[top] = {normalize(distribution) for distribution in DISTRIBUTIONS.get(top, ())}
            elif (inner := resolve(name)) not in seen | EXEMPT:
                seen.add(inner)
                # A package that declares its names lazily imports none of them.
                if find_stub(inner) is None:
                    pending.append(inner)
    if "kfp_mindspore.data.fetch" in seen:
        found |= {library: {library} for scheme, (library, _) in LIBRARIES.items() if scheme != "gs"}
    return found


def read_documented() -> set[str]:
    """Return the extras of the page's command, which the file's comment and `image runtime` have too."""
    pages = [ROOT / "docs/pipelines.md", ROOT / "serving/Containerfile"]
    found = [re.findall(r"--target steps --build-arg EXTRAS=(\S+)", page.read_text()) for page in pages]
    assert found[0] == found[1]
    (extras,) = found[0]
    assert set(extras.split(",")) == set(DEFAULT_EXTRAS) - {"images"}
    return set(extras.split(","))


def get_step_function(component: Path) -> str:
    """Return the function of this package that a component calls, beside the classes of its options."""
    tree = ast.parse((component / "component.py").read_text())
    (function,) = {name for name in _list_imports(tree) if re.fullmatch(r"kfp_mindspore\.[a-z_.]+", name)}
    return function


def test_needs_of_each_component_are_declared_once() -> None:
    called = {get_step_function(component).rpartition(".")[2] for component in COMPONENTS}
    assert STEP_NEEDS.keys() == called | {"launch_function"}
    extras = PROJECT["optional-dependencies"].keys()
    assert all(extras >= set(needs.extras) for needs in STEP_NEEDS.values())


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda path: path.name)
def test_description_names_image_and_extras(component: Path) -> None:
    needs = STEP_NEEDS[get_step_function(component).rpartition(".")[2]]
    extras = ",".join(sorted({"pipelines", *needs.extras}))
    text = f"Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[{extras}]."
    assert text in (component / "component.py").read_text()


def test_extras_are_those_of_project() -> None:
    assert set(list_extras()) == PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    assert list_missing_extras(["lm", "tokenizers", "train"], ["train"]) == ["lm", "tokenizers"]
    assert list_missing_extras(["tokenizers", "kubernetes", "pipelines"], ["lm", "operator", "all"]) == []
    assert has_package(["all"], "mindspore")
    assert not has_package(["pipelines"], "mindspore")


def test_all_has_every_extra_that_kfp_allows() -> None:
    extras = PROJECT["optional-dependencies"]
    (requirement,) = extras["all"]
    assert requirement == f"kfp-mindspore[{','.join(sorted(extras.keys() - {'all', 'dev', 'docs', 'gcs'}))}]"


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda path: path.name)
def test_documented_image_has_what_component_imports(component: Path) -> None:
    module = get_step_function(component)
    optional = set().union(*(list_distributions(extra) for extra in PROJECT["optional-dependencies"])) - {
        "kfp-mindspore"
    }
    found = resolve(module)
    declared = STEP_NEEDS[module.rpartition(".")[2]].extras
    extras = read_documented() | set(declared) | OPTIONAL.get(found.rpartition(".")[2], set())
    present = list_distributions(*extras)
    assert not {top: names for top, names in list_external(found).items() if names & optional and not names & present}
