"""Chat templates: rendered as transformers does, and bounded."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.text.template import TEMPLATE_FILE, ChatTemplate, read_special_tokens, read_template
from tests.support.language.numpy_decoder import write_tokenizer

MESSAGES = [{"role": "user", "content": "a < b"}]


def test_template_reads_messages_tools_and_tokens() -> None:
    text = (
        "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}\n[{{ m.role }}] {{ m['content'] | trim }}\n"
        "  {% endif %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% if add_generation_prompt %}>{% endif %}{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x * 3 }}"
    )
    template = ChatTemplate(text, {"bos_token": "<s>"})
    assert template.render(MESSAGES, [{"a": "<é>"}]) == '<s>[user] a < b\n[{"a": "<é>"}]>6'
    assert template.render(MESSAGES, generation_prompt=False) == "<s>[user] a < b\n6"


def test_refusal_of_template_is_error_of_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ValidationError, match=r"messages: .*roles must alternate"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}", "[a < b]"),
        ("{% for m in messages %}{% break %}{% endfor %}{{ '=' * 10 }}", "=========="),
        ("{{ '%s: %03d' % ('a', 5) }} {{ 'x{}'.format(1) }} {{ '%s' | format(2) }}", "a: 005 x1 2"),
        ("{{ 'a\nb' | indent(2) }} {{ 'a' | center(3) }}{{ 'a'.ljust(3) }}|", "a\n  b  a a  |"),
        ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": "\\u00e9", "b": 1}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ strftime_now('%d') | length }}{{ pad_token is defined }}", "2False"),
    ],
)
def test_template_may_do_what_transformers_allows(text: str, expected: str) -> None:
    assert ChatTemplate(text, {}).render(MESSAGES) == expected


def test_variables_of_request_reach_template() -> None:
    template = ChatTemplate("{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}", {})
    assert template.render(MESSAGES) == ""
    assert template.render(MESSAGES, variables={"enable_thinking": False}) == "<think></think>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "0.2 s"),
        ("{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}", "64 MiB|0.2 s"),
        ("{{ [1] | batch(2000000000, 1) | list }}", "64 MiB"),
        ("{{ [1] | slice(1000000000) | list }}", "64 MiB|0.2 s"),
        ("{{ [1] * 10 ** 9 }}", "64 MiB"),
        ("{{ 'x' * 10 ** 10 }}", "64 MiB"),
        ("{{ 9 ** (10 ** 9) }}", "0.2 s"),
        ("{{ 'x'.ljust(10 ** 10) }}", "64 MiB"),
        ("{{ 'x' | center(10000000000) }}", "64 MiB"),
        ("{{ 'x\ny' | indent(1000000000) }}", "64 MiB"),
        ("{{ '%01000000000d' % 5 }}", "64 MiB"),
        ("{{ '{:>10000000000}'.format(1) }}", "64 MiB"),
        ("{{ ('x' * 10 ** 7) | join('yyyyyyyy') }}", "64 MiB|0.2 s"),
        (
            "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "64 MiB",
        ),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ lipsum(n=100000) }}", "'lipsum' is undefined"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ().__class__.__bases__[0].__subclasses__() }}", "unsafe"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[5].content.x }}", "list object has no element 5"),
    ],
)
def test_template_is_bounded(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfp_mindspore.lm.text.template._SECONDS", 0.2)
    # No limit of this process helps.
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    with pytest.raises(UserError, match=rf"template.*({reason})"):
        ChatTemplate(text, {}).render(MESSAGES)


def test_template_answers_after_a_limit() -> None:
    template = ChatTemplate("{{ 'x' * messages[0].n }}", {})
    with pytest.raises(ValidationError, match="64 MiB"):
        template.render([{"n": 10**10}])
    assert template.render([{"n": 3}]) == "xxx"


def test_texts_of_any_characters_are_rendered() -> None:
    content = "\ud800 \x00 🙂\n\u2028"
    assert ChatTemplate("{{ messages[0].content }}", {}).render([{"content": content}]) == content


def test_process_ends_with_its_template() -> None:
    template = ChatTemplate("x", {})
    assert len(children := psutil.Process().children()) >= 1
    del template
    assert len(psutil.Process().children()) < len(children)


def test_invalid_template_is_refused() -> None:
    with pytest.raises(UserError, match=r"chat_template\.jinja: not a valid jinja2 template"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        # The tokenizer's end, not the first of generation's; without one of its own a name is undefined.
        (
            {"eos_token_id": [0, 2], "bos_token_id": 0, "special_tokens": {"eos_token": "<|im_end|>"}},
            "<|im_end|>||False",
        ),
        ({"eos_token_id": [0, 2], "bos_token_id": 0}, "<|endoftext|>|<|endoftext|>|True"),
    ],
)
def test_tokens_are_the_tokenizers(tmp_path: Path, generation: dict[str, Any], expected: str) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / TEMPLATE_FILE).write_text("{{ eos_token }}|{{ bos_token }}|{{ bos_token is defined }}")
    template = read_template(tmp_path, Tokenizer.from_file(str(tmp_path / "tokenizer.json")), generation)
    assert template is not None
    assert template.render(MESSAGES) == expected


def test_special_tokens_are_read_from_texts_and_objects() -> None:
    older = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    newer = {"eos_token": {"content": "<end>"}, "pad_token": None, "add_bos_token": True, "unk_token": "?"}
    assert read_special_tokens(older, newer) == {"bos_token": "<s>", "eos_token": "<end>", "unk_token": "?"}
