"""load_dataset options as texts, as in command lines and component parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import ValidationError


def join_sources(source: str, validation: str, test: str) -> str | Mapping[str, str]:
    """Return the source, or the sources by split when a validation or test source is given."""
    given = {"validation": validation, "test": test}
    return {"train": source, **{split: uri for split, uri in given.items() if uri}} if any(given.values()) else source


def parse_preprocessing(text: str) -> str | Sequence[Mapping[str, Any]]:
    """Return `standardize`, `none` or empty as it is, and a JSON list of steps as a list.

    Raises:
        ValidationError: It begins like JSON and is invalid, or is no list.
    """
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        steps = json.loads(text)
    except ValueError as error:
        raise ValidationError([f"preprocessing: not valid JSON ({error})"], subject="load_dataset") from None
    if isinstance(steps, dict):
        # A dataset's or bundle's declaration.
        steps = steps.get("pre")
    if not isinstance(steps, list):
        raise ValidationError([f"preprocessing: must be a list of steps, got {text:.80}"], subject="load_dataset")
    return steps


def parse_missing(text: str) -> str | float:
    """Return a rule for missing values; a number as such."""
    try:
        return float(text)
    except ValueError:
        return text
