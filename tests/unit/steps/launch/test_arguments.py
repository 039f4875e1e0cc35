from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.options import to_text
from kfp_mindspore.steps.launch.arguments import parse_numbers
from kfp_mindspore.steps.launch.train import to_arguments


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5.0, "5"),
        (-2.0, "-2"),
        (0.5, "0.5"),
        (1e-5, "1e-05"),
        (1e300, "1e+300"),
        (True, "true"),
        (7, "7"),
        ("5.0", "5.0"),
        ("", ""),
        ({"a": 1}, '{"a": 1}'),
        (None, "null"),
    ],
)
def test_value_to_text(value: Any, expected: str) -> None:
    assert to_text(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"epochs": 5.0, "learning_rate": 0.01}, ["--epochs", "5", "--learning-rate", "0.01"]),
        # A pipeline parameter inside a dict: text from kfp.local, an integer from a cluster.
        ({"epochs": "5.0"}, ["--epochs", "5"]),
        ({"epochs": "5"}, ["--epochs", "5"]),
        ({"rate": "0.50"}, ["--rate", "0.50"]),
        ({"version": "1.2.0"}, ["--version", "1.2.0"]),
        ({"nesterov": True, "quiet": False, "seed": None}, ["--nesterov"]),
        ({"name": "a b"}, ["--name", "a b"]),
    ],
)
def test_hyperparameters_to_arguments(values: dict[str, Any], expected: list[str]) -> None:
    assert to_arguments(values) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", 5),
        ("5.0", 5),
        (5.0, 5),
        ("-0.25", -0.25),
        ("1e-3", 0.001),
        ("007", "007"),
        ("nan", "nan"),
        ("1_000", "1_000"),
        ("", ""),
        ("fast", "fast"),
        (True, True),
        (None, None),
        ([5.0], [5.0]),
    ],
)
def test_numbers_keep_their_type(value: Any, expected: Any) -> None:
    parsed = parse_numbers({"x": value})["x"]
    assert (parsed, type(parsed)) == (expected, type(expected))
