from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import jsonschema
import pytest
from click.testing import CliRunner

from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.options import (
    build_schema,
    build_table,
    check_options,
    check_values,
    from_json,
    from_literals,
    list_options,
    merge_values,
    option,
    read_descriptions,
    to_json,
)

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Brew:
    """Options of a pot.

    Args:
        cups: Number of cups. The pot
            holds nine.
        strength: `mild` or `strong`.
        heat: Degrees | Celsius.
        sugar: Whether to add sugar.
        lid: Whether the lid is closed.
        labels: Labels of the pot.
        filters: Names of filters.
        recipe: Steps by name, JSON types.
        price: Price of a cup.
        tray: Its directory.

    Raises:
        ValidationError: Never.
    """

    cups: int | None = option(None, minimum=1, maximum=9)
    strength: str = option("mild", enum=["mild", "strong"])
    heat: float = option(90.0, exclusiveMinimum=0)
    sugar: bool = False
    lid: bool = True
    labels: Mapping[str, str] = option({})
    filters: Sequence[str] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    price: Decimal | None = None
    tray: Path | None = None


@click.command(cls=StrictCommand)
@dataclass_options(Brew, names={"filters": "--filter"}, without=["price"], into="brew")
def command(brew: Brew) -> None:
    click.echo(to_json(brew))


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, words, terminal_width=100)
    return result.exit_code, result.output


def test_fields_have_type_default_limits_and_description() -> None:
    cups, strength, *_ = declared = list_options(Brew)

    assert [entry.name for entry in declared] == [entry.name for entry in dataclasses.fields(Brew)]
    assert (cups.kind, cups.is_optional, cups.default, cups.literal_default) == (int, True, None, 0)
    assert (cups.description, cups.summary) == ("Number of cups. The pot holds nine.", "Number of cups")
    assert (strength.kind, strength.default, strength.limits) == (str, "mild", {"enum": ["mild", "strong"]})
    assert [entry.name for entry in declared if entry.is_repeatable] == ["labels", "filters"]


def test_field_without_description_is_refused() -> None:
    @dataclass
    class Mute:
        """Options of nothing."""

        volume: int = 0

    with pytest.raises(TypeError, match=r"Mute\.volume: has no line under Args"):
        list_options(Mute)


def test_descriptions_are_read_from_args_and_attributes_only() -> None:
    text = "Do it.\n\nArgs:\n    one: First.\n        More.\n    **rest: Others.\n\nReturns:\n    two: No argument.\n"

    assert read_descriptions(text) == {"one": "First. More.", "rest": "Others."}
    assert read_descriptions(text.replace("Args", "Attributes"))["one"] == "First. More."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cups": 0}, "cups: must be an integer ≥ 1 and ≤ 9, got 0"),
        ({"cups": True}, "cups: must be an integer ≥ 1 and ≤ 9, got True"),
        ({"strength": "weak"}, "strength: must be one of mild, strong, got 'weak'"),
        ({"strength": None}, "strength: must be one of mild, strong, got None"),
        ({"heat": 0}, "heat: must be a number > 0, got 0"),
        ({"sugar": 1}, "sugar: must be True or False, got 1"),
        ({"labels": {"a": 1}}, "labels.a: must be a string, got 1"),
        ({"filters": "ab"}, "filters: must be a list, got 'ab'"),
        ({"filters": ["a", None]}, "filters.1: must be a string, got None"),
        ({"recipe": []}, "recipe: must be a dict, got []"),
    ],
)
def test_invalid_value_is_named(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check_options(Brew(**changes), subject="brew")

    assert str(caught.value) == f"brew is invalid: {message}"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(json.dumps(changes)), build_schema(Brew))


def test_valid_values_pass() -> None:
    check_options(Brew(cups=9, heat=1, labels={"a": "b"}, filters=["x"], recipe={"a": [1]}, tray=Path("t")))


def test_argument_names_of_call_are_in_messages() -> None:
    with pytest.raises(ValidationError, match=r"^set_pot is invalid: count: must be an integer ≥ 1 and ≤ 9, got 0$"):
        check_values(Brew, {"cups": 0}, subject="set_pot", names={"cups": "count"})


def test_values_known_later_are_not_checked() -> None:
    check_values(Brew, {"cups": "later", "labels": {"a": "later"}}, is_unknown=lambda value: value == "later")


def test_json_has_changed_fields_and_is_read_back() -> None:
    brew = Brew(cups=2, labels={"b": "1", "a": "2"}, tray=None)

    assert to_json(brew) == '{"cups": 2, "labels": {"a": "2", "b": "1"}}'
    assert from_json(Brew, to_json(brew), source="BREW") == brew
    assert to_json(Brew()) == "{}"
    assert from_json(Brew, "", source="BREW") == Brew()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "BREW: not valid JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("[]", "BREW: expected a JSON object, got list"),
        ('{"cup": 1}', "BREW: unknown field 'cup'\nUpdate it."),
    ],
)
def test_invalid_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_json(Brew, text, source="BREW", hint="Update it." if "unknown" in message else "")

    assert str(caught.value) == message


def test_unknown_value_is_named() -> None:
    with pytest.raises(ValidationError, match=r"^pot is invalid: cup: unknown, must be one of cups, strength, heat"):
        check_values(Brew, {"cup": 1}, subject="pot")


def test_merged_mappings_keep_entries_and_none_changes_nothing() -> None:
    values = {"cups": 1, "labels": {"a": "1", "b": "1"}, "filters": ["x"]}

    merged = merge_values(values, {"cups": None, "labels": {"b": "2"}, "filters": ["y"], "lid": False})

    assert merged == {"cups": 1, "labels": {"a": "1", "b": "2"}, "filters": ["y"], "lid": False}
    assert values["labels"] == {"a": "1", "b": "1"}


@pytest.mark.parametrize(("cups", "expected"), [(0, None), (3, 3)])
def test_literal_of_a_component_stands_for_none(cups: int, expected: int | None) -> None:
    assert from_literals(Brew, {"cups": cups, "sugar": False}).cups == expected


def test_argument_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="cup"):
        from_literals(Brew, {"cup": 1})


def test_schema_has_types_limits_and_descriptions() -> None:
    schema = build_schema(Brew)

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["cups"] == {
        "type": "integer",
        "description": "Number of cups. The pot holds nine.",
        "minimum": 1,
        "maximum": 9,
    }
    assert schema["properties"]["labels"]["additionalProperties"] == {"type": "string"}
    with pytest.raises(jsonschema.ValidationError, match="cup"):
        jsonschema.validate({"cup": 1}, schema)


def test_table_has_row_for_each_field() -> None:
    rows = build_table(Brew).splitlines()

    assert len(rows) == 2 + len(dataclasses.fields(Brew))
    assert rows[2] == "| `cups` | integer |  | Number of cups. The pot holds nine. |"
    assert rows[3] == "| `strength` | `mild` or `strong` | `mild` | `mild` or `strong`. |"
    assert rows[4] == "| `heat` | number | `90.0` | Degrees \\| Celsius. |"


def test_command_gets_instance() -> None:
    code, output = call(
        *("--cups", "3", "--strength", "strong", "--sugar", "--no-lid", "--labels", "a=b", "--labels", "c=d"),
        *("--filter", "x", "--filter", "y", "--recipe", '{"z": [1]}', "--heat", "80"),
    )

    assert code == 0, output
    assert json.loads(output) == {
        "cups": 3,
        "strength": "strong",
        "heat": 80.0,
        "sugar": True,
        "lid": False,
        "labels": {"a": "b", "c": "d"},
        "filters": ["x", "y"],
        "recipe": {"z": [1]},
    }


def test_command_without_options_gets_defaults() -> None:
    assert call() == (0, "{}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cups", "10"), "10 is not in the range 1<=x<=9"),
        (("--strength", "weak"), "'weak' is not one of 'mild', 'strong'"),
        (("--heat", "0"), "0.0 is not in the range x>0"),
        (("--recipe", "{"), "must be JSON, got '{'"),
        (("--cups", "1", "--cups", "2"), "--cups: given 2 times, expected once"),
        (("--labels", "a=1", "--labels", "a=2"), "--labels a: given 2 times, expected once"),
    ],
)
def test_command_refuses_invalid_options(words: tuple[str, ...], message: str) -> None:
    code, output = call(*words)

    assert code == 2
    assert message in output


def test_help_is_description() -> None:
    output = " ".join(call("--help")[1].split())

    assert "--cups INTEGER RANGE Number of cups. [1<=x<=9]" in output
    assert "--strength [mild|strong] mild or strong. [default: mild]" in output
    assert "--labels KEY=VALUE Labels of the pot; repeatable." in output
    assert "--sugar Whether to add sugar." in output
    assert "--price" not in output
