"""Decisions are made on data: no code matches the words of a message."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kfp_mindspore
import mindsporeserver

PACKAGES = (Path(kfp_mindspore.__file__).parent, Path(mindsporeserver.__file__).parent)
# Output for people.
REPORTS = ("cli", "runs/report/page.py", "runs/report/progress.py")
# Other programs' sentences, where there is no field: read once, at the edge.
EDGES = {
    "kube/errors.py": "admission plugins of Kubernetes respond with a sentence only",
    "kube/logs.py": "the kubelet has no reason for a container that has not started",
    "images/builders/cluster.py": "the builder's termination message is its result",
    "images/builders/docker_messages.py": "the daemon's messages are objects, not text",
    "runs/workflow.py": "Argo has no field for a step's exit code",
    "training/distributed.py": "MindSpore has no exception for a lost peer",
}
# Not partition: it shortens a message for output as well.
METHODS = {"startswith", "endswith", "find", "index", "match", "search", "fullmatch"}
NAMES = {"message", "waiting", "sentence"}


def is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(isinstance(argument, ast.Name) and argument.id in ("error", "exception") for argument in node.args)
    if isinstance(node, ast.Attribute):
        return node.attr in NAMES
    return isinstance(node, ast.Name) and node.id in NAMES


def list_matches(source: str) -> Iterator[int]:
    """Yield the lines that search a message for words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operators = zip(node.ops, node.comparators, strict=True)
            is_match = any(
                isinstance(operator, (ast.In, ast.NotIn)) and is_message(right) for operator, right in operators
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            is_match = is_message(node.func.value) or any(map(is_message, node.args))
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
            if name.startswith(REPORTS) or name in EDGES or "tests" in file.parts:
                continue
            found += [f"{name}:{line}" for line in list_matches(file.read_text(encoding="utf-8"))]
    assert not found, f"decide by a field, not by the words of a message: {found}"


@pytest.mark.parametrize("name", sorted(EDGES))
def test_edges_still_match_words(name: str) -> None:
    assert list(list_matches((PACKAGES[0] / name).read_text(encoding="utf-8")))
