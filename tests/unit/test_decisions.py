"""Decisions are made on data: no code matches the words of a message."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kfp_mindspore
import mindsporeserver

PACKAGES = (Path(kfp_mindspore.__file__).parent, Path(mindsporeserver.__file__).parent)
# Other programs' sentences, where there is no field: read once, at the edge.
EDGES = {
    "kube/errors.py": "admission plugins of Kubernetes respond with a sentence only",
    "kube/logs.py": "the kubelet has no reason for a container that has not started",
    "operator/decisions/pod_view.py": "the scheduler has no field for the reason why no node fits",
    "formats/mindrecord.py": "MindSpore's exception has lines of C++ around the one with the fault",
    "steps/missing_modules.py": "python exits with 1 for a missing module, as for any error",
    "training/checks/diagnosis.py": "MindSpore's operators have no exceptions of their own",
    "images/builders/cluster.py": "the builder's termination message is its result",
    "images/builders/docker_messages.py": "the daemon's messages are objects, not text",
    "runs/workflow.py": "Argo has no field for a step's exit code",
    "training/distributed.py": "MindSpore has no exception for a lost peer",
}
# Not partition: it shortens a message for output as well.
METHODS = {"startswith", "endswith", "find", "index", "match", "search", "fullmatch", "findall"}
NAMES = frozenset({"message", "waiting", "sentence", "reason"})
# Methods whose result is still the message, or a part of it.
PARTS = {"strip", "lstrip", "rstrip", "lower", "split", "splitlines", "partition", "rpartition", "join", "removeprefix"}


def is_message(node: ast.AST, names: frozenset[str] = NAMES) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(isinstance(argument, ast.Name) and argument.id in ("error", "exception") for argument in node.args)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARTS:
        return any(is_message(part, names) for part in (node.func.value, *node.args))
    if isinstance(node, ast.Attribute):
        return node.attr in NAMES - {"reason"}
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return is_message(node.value, names)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(is_message(part, names) for part in node.elts)
    return isinstance(node, ast.Name) and node.id in names


def list_names(scope: ast.AST) -> frozenset[str]:
    """Return the names that a function gives to messages and their lines, such as `text = str(error)`."""
    names, before = NAMES, frozenset[str]()
    while names != before:
        before = names
        for node in ast.walk(scope):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, (ast.For, ast.comprehension)):
                targets, value = [node.target], node.iter
            elif isinstance(node, ast.NamedExpr):
                targets, value = [node.target], node.value
            if targets and is_message(value, names):
                names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def list_matches(source: str) -> Iterator[int]:
    """Yield the lines that search a message for words."""
    tree = ast.parse(source)
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    yield from sorted({line for scope in scopes or [tree] for line in _list_matches(scope, list_names(scope))})


def _list_matches(scope: ast.AST, names: frozenset[str]) -> Iterator[int]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Compare):
            operators = zip(node.ops, node.comparators, strict=True)
            # A line break is no word.
            is_match = ast.unparse(node.left) != repr("\n") and any(
                isinstance(operator, (ast.In, ast.NotIn)) and is_message(right, names) for operator, right in operators
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            is_match = any(is_message(part, names) for part in (node.func.value, *node.args))
        else:
            continue
        if is_match:
            yield node.lineno


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ('"forbidden" in error.message', True),
        ('if "x" not in str(error): pass', True),
        ('message.startswith("pod ")', True),
        ("next(item for item in failures if decision.message.startswith(item.message))", True),
        ("PATTERN.search(status.waiting)", True),
        ('text = str(error)\n"quota" in text', True),
        ('text = "\\n".join((error.message, *error.log))\nre.search("No module", text)', True),
        ('[line for line in str(error).splitlines() if "[ERROR]" in line]', True),
        ('"quota" in reason', True),
        ('text = file.read_text()\ntext.startswith("{")', False),
        ('error.cause == "quota"', False),
        ('f"{error.message}; its last line"', False),
        ('"status" in document', False),
    ],
)
def test_matched_words_are_found(source: str, is_found: bool) -> None:
    assert bool(list(list_matches(source))) is is_found


def test_no_decision_matches_words() -> None:
    found = []
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            name = file.relative_to(package).as_posix()
            if name in EDGES or "tests" in file.parts:
                continue
            found += [f"{name}:{line}" for line in list_matches(file.read_text(encoding="utf-8"))]
    assert not found, f"decide by a field, not by the words of a message: {found}"


@pytest.mark.parametrize("name", sorted(EDGES))
def test_edges_still_match_words(name: str) -> None:
    assert list(list_matches((PACKAGES[0] / name).read_text(encoding="utf-8")))
