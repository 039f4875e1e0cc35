from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.steps.arguments import spell_hyperparameters, spell_value


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
def test_value(value: Any, expected: str) -> None:
    assert spell_value(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"epochs": 5.0, "learning_rate": 0.01}, ["--epochs", "5", "--learning-rate", "0.01"]),
        # A parameter of a pipeline in a dict arrives as text from kfp.local, and as 5 from a cluster.
        ({"epochs": "5.0"}, ["--epochs", "5"]),
        ({"epochs": "5"}, ["--epochs", "5"]),
        ({"rate": "0.50"}, ["--rate", "0.50"]),
        ({"version": "1.2.0"}, ["--version", "1.2.0"]),
        ({"nesterov": True, "quiet": False, "seed": None}, ["--nesterov"]),
        ({"name": "a b"}, ["--name", "a b"]),
    ],
)
def test_hyperparameters(values: dict[str, Any], expected: list[str]) -> None:
    assert spell_hyperparameters(values) == expected
