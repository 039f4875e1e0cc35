"""Private and undocumented names of other packages: few modules use them, under an upper bound of the version."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kfp_mindspore
import mindsporeserver

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGES = (Path(kfp_mindspore.__file__).parent, Path(mindsporeserver.__file__).parent)
# The distributions whose private or undocumented names a module uses.
USERS = {
    "compat/decryption.py": {"mindspore"},
    "compat/graph_executor.py": {"mindspore"},
    "compat/kfp_conditions.py": {"kfp"},
    "compat/kfp_tasks.py": {"kfp"},
    "compat/lazy_kfp.py": {"kfp"},
    # It builds the generated modules of all three.
    "compat/protobuf.py": {"protobuf", "mindspore", "kserve"},
    "connection.py": {"uvicorn"},
    # Reads pickles that name pandas' internals.
    "data/sources/movielens.py": {"pandas"},
    "dsl/component.py": {"kfp"},
    "dsl/task.py": {"kfp"},
    "images/sources/ignore.py": {"docker"},
    "images/registry/session.py": {"requests"},
    "kube/config.py": {"kubernetes"},
    "podside/functions.py": {"kfp"},
    "runs/local/pipeline_process.py": {"kfp"},
    "runs/remote/client.py": {"kfp"},
    "runs/compiled/sources.py": {"kfp"},
    "steps/deployment/register.py": {"model-registry"},
}
# Packages and attributes without documentation, by distribution.
UNDOCUMENTED = {
    "docker": ("docker.utils.build", "docker.utils.fnmatch"),
    "kfp": (
        *("kfp.client.", "kfp.dsl.base_", "kfp.dsl.executor", "kfp.dsl.graph_", "kfp.dsl.pipeline_channel"),
        *("kfp.dsl.python_", "kfp.dsl.types.", "kfp.local."),
    ),
    "kubernetes": ("kubernetes.config.kube_config", "config.kube_config"),
    "mindspore": ("mindspore.graph",),
    "model-registry": ("mr_openapi",),
    "protobuf": ("google.protobuf.internal",),
    "requests": ("requests.utils",),
    "uvicorn": ("uvicorn.protocols",),
}
OWN = ("kfp_mindspore", "mindsporeserver", "__future__")
# Underscored names that their libraries document: of namedtuples, hashlib's stubs and this package's own classes.
DOCUMENTED = {"_replace", "_fields", "_asdict", "_Hash", "_exit"}


def is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def list_names(source: str) -> Iterator[str]:
    """Yield the imported modules and names, and the attributes, of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] not in OWN:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"[\w.]+", name := ast.unparse(node)):
            yield name


def list_uses(source: str) -> set[str]:
    """Return the private and undocumented names of other packages."""
    own = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    own |= {"self", "cls"}
    found = set()
    for name in list_names(source):
        head, _, rest = name.partition(".")
        is_own = head in own or name.rpartition(".")[2] in DOCUMENTED | own
        if (is_private(rest) and not is_own) or name.startswith(
            tuple(prefix for prefixes in UNDOCUMENTED.values() for prefix in prefixes)
        ):
            found.add(name)
    return found


def read_modules() -> dict[str, str]:
    return {
        file.relative_to(package).as_posix(): file.read_text()
        for package in PACKAGES
        for file in package.rglob("*.py")
        if not {"components", "pipelines", "templates"} & set(file.relative_to(package).parts)
    }


def read_requirements(distribution: str) -> list[str]:
    """Return the requirements of a distribution in pyproject.toml, for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    users = [
        *project["dependencies"],
        *(line for name in extras if name not in ("dev", "docs") for line in extras[name]),
    ]
    return [line for line in users if re.split(r"[\[<>=!~; ]", line)[0] == distribution]


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("from mindspore.graph.api import _executor", {"mindspore.graph.api._executor"}),
        ("import pandas._libs", {"pandas._libs"}),
        ("from uvicorn.protocols.http import x", {"uvicorn.protocols.http.x"}),
        ("client._session.close()", {"client._session", "client._session.close"}),
        ("class A:\n    def _b(self): self._c; A._b; parts._replace()", set()),
    ],
)
def test_private_names_are_found(source: str, uses: set[str]) -> None:
    assert list_uses(source) == uses


def test_only_listed_modules_use_private_names_of_other_packages() -> None:
    found = {name: uses for name, source in read_modules().items() if (uses := list_uses(source))}
    assert {name: found[name] for name in found.keys() - USERS.keys()} == {}


def test_listed_modules_name_their_distribution() -> None:
    modules = read_modules()
    packages = {"model-registry": "model_registry"}
    missing = [
        f"{name}: {distribution}"
        for name, distributions in USERS.items()
        for distribution in distributions
        if packages.get(distribution, distribution) not in modules[name]
    ]
    assert missing == []


@pytest.mark.parametrize("distribution", sorted({name for names in USERS.values() for name in names}))
def test_distribution_with_private_uses_has_upper_bound(distribution: str) -> None:
    requirements = read_requirements(distribution)
    assert requirements, f"{distribution}: not in pyproject.toml"
    assert [line for line in requirements if "<" not in line] == []
