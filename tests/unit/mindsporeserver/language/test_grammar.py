"""JSON schemas as restrictions of tokens."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

import jsonschema
import numpy as np
import pytest

from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.constraints import Constraint
from mindsporeserver.language.fields.requests import parse_completion
from mindsporeserver.language.grammar import Matcher
from mindsporeserver.language.parsers.tools import ToolParser, build_constraint, get_arguments_key
from mindsporeserver.language.text import TokenVocabulary

TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "required": ["city"]}}},
    {"type": "function", "function": {"name": "put"}},
]


def generate(vocabulary: TokenVocabulary, schema: Any, seed: int) -> str:
    return follow(vocabulary, Constraint("json", json.dumps(schema), "schema"), seed)


def follow(vocabulary: TokenVocabulary, constraint: Constraint, seed: int) -> str:
    matcher, random, tokens = Matcher(vocabulary, constraint), np.random.default_rng(seed), []
    while not matcher.is_stopped and len(tokens) < 400:
        token = int(random.choice(np.flatnonzero(matcher.compute_mask())))
        matcher.consume(token)
        tokens.append(token)
    return vocabulary.decode([token for token in tokens if token not in vocabulary.special_ids])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
        {"enum": ["red", "grün", 5]},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        {"anyOf": [{"const": 1}, {"type": "string", "pattern": "^[a-c]{2,4}$"}]},
    ],
    ids=str,
)
def test_random_tokens_make_valid_compact_json(vocabulary: TokenVocabulary, schema: Any) -> None:
    for seed in range(5):
        text = generate(vocabulary, schema, seed)
        value = json.loads(text)
        jsonschema.validate(value, schema)
        assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"$ref": "#/definitions/missing"},
        {"type": "object", "properties": {f"key{i}": {"type": "integer"} for i in range(2000)}},
        {"type": "string", "pattern": "("},
        {"allOf": [{"type": "object", "properties": {f"a{i}": {"$ref": "#"}}} for i in range(500)]},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_schema_that_cannot_be_used_is_refused_soon(vocabulary: TokenVocabulary, schema: Any) -> None:
    started = time.monotonic()
    with pytest.raises(LanguageError) as raised:
        generate(vocabulary, schema, 0)
    assert (raised.value.status, raised.value.param) == (400, "schema")
    assert time.monotonic() - started < 20


def test_large_schema_and_exploding_regex_are_followed(vocabulary: TokenVocabulary) -> None:
    generate(vocabulary, {"type": "object", "properties": {f"key{i}": {"type": "integer"} for i in range(400)}}, 0)
    started = time.monotonic()
    assert generate(vocabulary, {"type": "string", "pattern": "(a|b)*a(a|b){30}(a|b)*c{1,3000}"}, 0)
    assert time.monotonic() - started < 20


ARITHMETIC = 'start: number (OPERATOR number)~1..3\nnumber: /[1-9][0-9]?/\nOPERATOR: "+" | "-"'
GBNF = 'root ::= number ("+" number | "-" number)\nnumber ::= [1-9] [0-9]?'


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("regex", "[a-f]{3}-[0-9]{1,4}", "[a-f]{3}-[0-9]{1,4}"),
        ("grammar", ARITHMETIC, r"\d+([+-]\d+){1,3}"),
        ("grammar", GBNF, r"\d+[+-]\d+"),
        ("choice", ['a "b"', "x|y", "new\nline", "::= ü€🙂", "start: x"], r'a "b"|x\|y|new\nline|::= ü€🙂|start: x'),
        ("json", {"const": 5}, "5"),
        ("json", '{"enum": [true]}', "true"),
    ],
    ids=str,
)
def test_random_tokens_match_constraint(vocabulary: TokenVocabulary, field: str, value: Any, pattern: str) -> None:
    for fields in ({f"guided_{field}": value}, {"structured_outputs": {field: value}}):
        request = parse_completion({"model": "chat", "prompt": "x", **fields}, 100, {})
        assert request.constraint is not None
        for seed in range(5):
            assert re.fullmatch(pattern, follow(vocabulary, request.constraint, seed))


# Each of these overflows a stack of 8 MiB, which ends the process.
DEEP: list[tuple[Any, str]] = [
    (
        "json",
        json.dumps(
            {
                "$defs": {f"a{i}": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/a{i + 1}"}]} for i in range(1100)}
                | {"a1100": {"type": "integer"}},
                "$ref": "#/$defs/a0",
            }
        ),
    ),
    ("grammar", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3500)) + 'r3500: "a"'),
    ("grammar", "start: r0\n" + "".join(f"r{i}: {'(' * 9}r{i + 1}{')' * 9}\n" for i in range(900)) + 'r900: "a"'),
    ("regex", "(" * 5000 + "a" + ")" * 5000),
    ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
]


@pytest.mark.parametrize(("kind", "text"), DEEP, ids=["schema", "rules", "groups", "regex", "gbnf"])
def test_deep_constraint_does_not_end_process(vocabulary: TokenVocabulary, kind: Any, text: str) -> None:
    # Some are refused.
    with contextlib.suppress(LanguageError):
        follow(vocabulary, Constraint(kind, text, "guided"), 0)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "("),
        ("grammar", ""),
        ("grammar", "start: missing"),
        ("grammar", "root ::= ["),
    ],
)
def test_invalid_constraint_is_refused(vocabulary: TokenVocabulary, kind: Any, text: str) -> None:
    with pytest.raises(LanguageError, match="guided: cannot be used: ") as raised:
        Matcher(vocabulary, Constraint(kind, text, "guided"))
    assert (raised.value.status, raised.value.param) == (400, "guided")


def read_schema(choice: str, arguments: str) -> Any:
    constraint = build_constraint(TOOLS, choice, arguments)
    assert constraint is not None
    return json.loads(constraint.text)


def test_required_call_matches_tool() -> None:
    assert build_constraint(TOOLS, "auto", "arguments") is None
    one = read_schema("function:get", "parameters")
    jsonschema.validate({"name": "get", "parameters": {"city": "x"}}, one)
    any_of = read_schema("required", "arguments")
    jsonschema.validate({"name": "put", "arguments": {}}, any_of)
    for wrong in ({"name": "get", "arguments": {}}, {"name": "drop", "arguments": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, any_of)


def test_key_of_arguments_follows_template() -> None:
    assert get_arguments_key('{"name": f, "parameters": {}}') == "parameters"
    assert get_arguments_key('<tool_call>\n{"name": f, "arguments": {}} "parameters"') == "arguments"


@pytest.mark.parametrize(
    ("text", "expected", "names"),
    [
        ("plain text", "plain text", []),
        ("a < b <tool", "a < b <tool", []),
        ('<tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>', "", ["get"]),
        ('Sure.<tool_call>{"name": "get", "arguments": {}}</tool_call>', "Sure.", ["get"]),
        (
            '<tool_call>{"name": "get", "arguments": {}}</tool_call>\n<tool_call>{"name": "put", "arguments": {}}'
            "</tool_call>",
            "",
            ["get", "put"],
        ),
        ('{"name": "put", "parameters": {"x": 1}}', "", ["put"]),
        ('{"name": "drop", "parameters": {}}', '{"name": "drop", "parameters": {}}', []),
        ('{"answer": 5}', '{"answer": 5}', []),
        ("<tool_call>broken", "<tool_call>broken", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_separated_from_text(text: str, expected: str, names: list[str], size: int) -> None:
    parser, received, calls = ToolParser(["get", "put"]), "", []
    for start in range(0, len(text), size):
        piece, calls = parser.push(text[start : start + size], is_last=start + size >= len(text))
        received += piece
    assert received.strip() == expected
    assert [call["function"]["name"] for call in calls] == names
    assert all(json.loads(call["function"]["arguments"]) is not None for call in calls)


def test_one_call_is_returned_without_parallel_calls() -> None:
    call = '<tool_call>{"name": "get", "arguments": {}}</tool_call>\n'
    for most, count in ((None, 3), (1, 1)):
        _, calls = ToolParser(["get"], most).push(call * 3, is_last=True)
        assert len(calls) == count
