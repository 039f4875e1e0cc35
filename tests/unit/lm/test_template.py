"""Chat templates: rendered as transformers does, and bounded."""

from __future__ import annotations

import time

import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.template import ChatTemplate

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
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' }}{% for j in range(999) %}xxxxxxxx{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ '%01000000000d' % 5 }}",
        "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ 1 / 0 }}",
        "{{ messages[5].content.x }}",
    ],
)
def test_template_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfp_mindspore.lm.template._SECONDS", 0.2)
    started = time.monotonic()
    with pytest.raises(UserError, match="template"):
        ChatTemplate(text, {}).render(MESSAGES)
    assert time.monotonic() - started < 20


def test_invalid_template_is_refused() -> None:
    with pytest.raises(UserError, match=r"chat_template\.jinja: not a valid jinja2 template"):
        ChatTemplate("{% if %}", {})
