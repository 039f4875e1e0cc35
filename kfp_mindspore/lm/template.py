"""Chat templates: a bundle's jinja2 text, rendered in a sandbox within limits on time and size."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kfp_mindspore.errors import UserError, ValidationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
_SECONDS = 2.0
_MAX_CHARACTERS = 4 << 20
# Methods and filters that build a text of any length from a number.
_GROWING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "indent", "wordwrap"})


class _LimitError(TemplateError):
    """The template exceeds a limit."""


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that checks time and size wherever a template calls a function or reads an attribute."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], cache_size=0)
        self.deadline = 0.0
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _format_now}
        self.filters = {name: value for name, value in self.filters.items() if name not in _GROWING}
        self.filters["tojson"] = _to_json

    def check(self, value: Any = "") -> Any:
        if time.monotonic() > self.deadline:
            raise _LimitError(f"it takes more than {_SECONDS:g} s")
        if isinstance(value, (str, list, tuple)) and len(value) > _MAX_CHARACTERS:
            raise _LimitError(f"it makes a value of more than {_MAX_CHARACTERS} characters")
        return value

    def call(self, context: Any, obj: Any, *arguments: Any, **named: Any) -> Any:
        self.check()
        if getattr(obj, "__name__", "") in _GROWING:
            raise SecurityError(f"{obj.__name__} is not allowed")
        return self.check(super().call(context, obj, *arguments, **named))

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.check(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return self.check(super().getitem(obj, argument))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        values = (left, right)
        numbers = (int, float)
        # 4,096 bits for numbers; no repetition and no formatting of texts.
        if not all(isinstance(value, numbers) and abs(value) < 1 << 64 for value in values):
            raise SecurityError(f"the operator {operator} is allowed for numbers only")
        if operator == "**" and abs(right) > 64:
            raise SecurityError("an exponent must be at most 64")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A model's chat template.

    Args:
        text: The template.
        tokens: Values by name, such as `bos_token`.
        param: Where the template is, for errors.

    Raises:
        UserError: It is no valid template.
    """

    def __init__(self, text: str, tokens: Mapping[str, str], param: str = TEMPLATE_FILE) -> None:
        self.text = text
        self._tokens = dict(tokens)
        try:
            _Environment().from_string(text)
        except TemplateError as error:
            raise UserError(f"{param}: not a valid jinja2 template: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Return a chat's text.

        Args:
            messages: With `role` and `content`.
            tools: In the OpenAI protocol's form.
            generation_prompt: Whether the text ends with the beginning of the next assistant message.

        Raises:
            ValidationError: The template refuses the messages, or exceeds its limits.
        """
        environment = _Environment()
        environment.deadline = time.monotonic() + _SECONDS
        values = {"messages": messages, "tools": list(tools) or None, "add_generation_prompt": generation_prompt}
        pieces, size = [], 0
        try:
            for piece in environment.from_string(self.text).generate({**self._tokens, **values}):
                size += len(piece)
                if size > _MAX_CHARACTERS:
                    raise _LimitError(f"it makes more than {_MAX_CHARACTERS} characters")
                environment.check()
                pieces.append(piece)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ValidationError([f"messages: the model's chat template failed: {error}"]) from None
        return "".join(pieces)


def read_template(bundle: Path, tokenizer: Tokenizer, generation: Mapping[str, Any]) -> ChatTemplate | None:
    """Read a bundle's chat template.

    Args:
        bundle: The bundle.
        tokenizer: Its tokenizer.
        generation: Its generation.json, with the special tokens' IDs.

    Returns:
        The template; None without one.

    Raises:
        UserError: It is no valid template.
    """
    file = bundle / TEMPLATE_FILE
    if not file.is_file():
        return None
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token"):
        number = generation.get(f"{name}_id")
        number = number[0] if isinstance(number, list) else number
        tokens[name] = (tokenizer.id_to_token(number) or "") if number is not None else ""
    return ChatTemplate(file.read_text(), tokens, str(file))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _format_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern[:100])


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # jinja2's own filter escapes characters of HTML.
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(indent, 8))
