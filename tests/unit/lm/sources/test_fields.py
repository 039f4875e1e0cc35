"""Tables of configuration keys: which values each kind of key accepts, and how a refused one is named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.sources.fields import (
    COMMON,
    IGNORED,
    REQUIRED,
    TOKEN,
    TOKENS,
    Key,
    alias,
    choice,
    classes,
    flag,
    number,
    off,
    only,
    optional,
    read_keys,
    size,
)

NOT_NUMBERS = [True, "1", None, [1]]


@pytest.mark.parametrize(
    ("key", "accepted", "refused", "reason"),
    [
        pytest.param(size(1), [1, 2**31 - 1], [0, -1, 1.0, 2**31, *NOT_NUMBERS], "a whole number >= 1", id="size"),
        pytest.param(size(4, most=8, least=2, multiple=2), [2, 8], [1, 3, 9, 10], "even number from 2 to 8", id="even"),
        pytest.param(number(1.0), [1, 0.5], [0, -1, math.inf, math.nan, *NOT_NUMBERS], "a number > 0", id="number"),
        pytest.param(number(0.5, least=0, below=1), [0, 0.5], [-0.1, 1, math.nan], "a number >= 0 and < 1", id="range"),
        pytest.param(flag(True), [True, False], [0, 1, "true", None], "must be true or false", id="flag"),
        pytest.param(choice("a", ("a", "b")), ["a", "b"], ["c", "A", None, ["a"]], "must be one of a, b", id="choice"),
        pytest.param(only(None, 1), [None, 1], [2, "x"], "must be None", id="only"),
        pytest.param(only(1, reason="one, please"), [1], [0], "one, please", id="only with a reason"),
        pytest.param(off(), [None, False, 0, "", [], {}], [1, "x", [0], {"a": 0}], "not supported", id="off"),
        pytest.param(optional(size(1)), [None, 1], [0, "1"], "a whole number >= 1", id="optional"),
        pytest.param(
            classes("NetForCausalLM", "Net"),
            [None, [], ["NetForCausalLM"], ["NETFORCAUSALLM", "net"]],
            ["Net", ["Other"], ["Net", "Other"]],
            "must be one of NetForCausalLM, Net",
            id="classes",
        ),
        pytest.param(TOKEN, [None, 0, 7], [True, "7", 7.0, [7]], "must be a token ID or null", id="token"),
        pytest.param(
            TOKENS, [None, 7, [7, 8], []], [[True], ["7"], [None], "7"], "a list of them or null", id="tokens"
        ),
        pytest.param(IGNORED, [None, 1, "x", {"a": []}], [], "", id="ignored"),
    ],
)
def test_key_accepts_its_values(key: Key, accepted: list[Any], refused: list[Any], reason: str) -> None:
    for value in accepted:
        assert read_keys({"key": value}, {"key": key}, "config.json") == {"key": value}
    for value in refused:
        with pytest.raises(ValidationError) as caught:
            read_keys({"key": value}, {"key": key}, "config.json")
        (error,) = caught.value.errors
        assert error.startswith("key: ")
        assert reason in error


TABLE = {"width": size(REQUIRED), "heads": size(4), "hidden": alias("width"), "bias": only(False)}


@pytest.mark.parametrize(
    ("values", "errors"),
    [
        ({}, ["width: missing"]),
        ({"width": 8, "hidden": 9}, ["hidden: must equal width 8, got 9"]),
        ({"width": 8, "widht": 1}, ["widht: not known, got 1; did you mean 'width'?"]),
        ({"width": 8, "extra": "x" * 100}, ["extra: not known, got 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"]),
        (
            {"width": 0, "bias": True, "other": 1},
            ["width: must be a whole number >= 1, got 0", "bias: must be False, got True", "other: not known, got 1"],
        ),
    ],
)
def test_all_refused_keys_are_named(values: dict[str, Any], errors: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        read_keys(values, TABLE, "config.json", prefix="text_config.", hint="Update the package.")
    assert list(caught.value.errors) == [f"text_config.{error}" for error in errors]
    assert caught.value.hint == ("Update the package." if any("not known" in error for error in errors) else "")


def test_missing_keys_have_defaults_of_family() -> None:
    assert read_keys({"width": 8}, TABLE, "config.json") == {"width": 8, "heads": 4, "bias": False}
    assert read_keys({"width": 8, "hidden": 8, "heads": 2}, TABLE, "x") == {
        "width": 8,
        "heads": 2,
        "bias": False,
        "hidden": 8,
    }


further_keys = st.text("abcxyz_", min_size=1, max_size=8).filter(lambda name: name not in TABLE)


@given(st.dictionaries(further_keys, st.sampled_from([None, False, 0, ""]), max_size=4))
def test_unknown_keys_that_are_off_are_accepted(further: dict[str, Any]) -> None:
    found = read_keys({"width": 8, **further, "_commit_hash": "abc"}, TABLE, "config.json")
    assert found["width"] == 8


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("quantization_config", {"bits": 4}, "import the float weights"),
        ("auto_map", {"AutoModel": "code.Net"}, "the author's code is never run"),
        ("num_local_experts", 8, "mixtures of experts are not supported"),
        ("pruned_heads", {"0": [1]}, "not supported"),
        ("is_causal", False, "must be True"),
        ("top_p", 1.5, "must be a number from 0 to 1"),
        ("temperature", -1, "must be a number >= 0"),
        ("repetition_penalty", 0, "must be a number > 0"),
    ],
)
def test_common_key_that_would_change_numbers_is_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_keys({name: value}, COMMON, "config.json")
    assert f"{name}: " in str(caught.value)
    assert reason in str(caught.value)
