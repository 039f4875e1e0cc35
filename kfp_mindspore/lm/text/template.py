"""Chat templates: a bundle's jinja2 text, rendered in a process with limits on time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
# The key of generation.json with the tokens that templates read, by name.
SPECIAL_TOKENS = "special_tokens"
TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_MODULE = "kfp_mindspore.lm.text.template_process"
# Processor time of a rendering, and memory of its process beside the interpreter's own.
_SECONDS, _BYTES = 2.0, 64 << 20
# A stopped process uses no processor time.
_WALL_SECONDS = 60.0


class _Renderer:
    """A process that has compiled one template, see `kfp_mindspore.lm.text.template_process`."""

    def __init__(self) -> None:
        theirs, requests = os.pipe()
        responses, theirs_too = os.pipe()
        self._requests = Connection(requests, readable=False)
        self._responses = Connection(responses, writable=False)
        command = [sys.executable, "-m", _MODULE, str(theirs), str(theirs_too), str(_SECONDS), str(_BYTES)]
        try:
            # A session of its own: Ctrl-C and a service's SIGTERM end it by the closed pipe, after the last answers.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs, theirs_too), start_new_session=True
            )
        finally:
            os.close(theirs)
            os.close(theirs_too)
        self.close = weakref.finalize(self, _close, self._process, self._requests, self._responses)

    def call(self, value: Any) -> str:
        """Return the response to a value.

        Raises:
            _TemplateError: The template failed.
            _LimitError: It has exceeded a limit; the process has ended.
        """
        try:
            self._requests.send_bytes(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
            if not self._responses.poll(_WALL_SECONDS):
                self._process.kill()
            response = json.loads(self._responses.recv_bytes().decode("utf-8", "surrogatepass"))
        except (EOFError, OSError):
            raise _LimitError(_describe_end(self._process.wait())) from None
        if "error" in response:
            raise _TemplateError(response["error"])
        text: str = response["text"]
        return text


class _TemplateError(Exception):
    """A template's own error."""


class _LimitError(_TemplateError):
    """The template's process has ended."""


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
        self._lock = threading.Lock()
        self._renderer: _Renderer | None = None
        try:
            self._renderer = self._start()
        except _TemplateError as error:
            raise UserError(f"{param}: not a valid jinja2 template: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a chat's text.

        Args:
            messages: With `role` and `content`.
            tools: In the OpenAI protocol's form.
            generation_prompt: Whether the text ends with the next assistant message's beginning.
            variables: The template's further variables, such as Qwen3's `enable_thinking`.

        Raises:
            ValidationError: The template refuses the messages, or exceeds its limits.
        """
        values = {"messages": list(messages), "tools": list(tools) or None, "add_generation_prompt": generation_prompt}
        try:
            with self._lock:
                return self._call({**self._tokens, **(variables or {}), **values})
        except _TemplateError as error:
            raise ValidationError([f"messages: the model's chat template failed: {error}"]) from None

    def _call(self, values: Mapping[str, Any]) -> str:
        if self._renderer is None:
            self._renderer = self._start()
        try:
            return self._renderer.call(values)
        except _LimitError:
            self._renderer.close()
            self._renderer = None
            raise

    def _start(self) -> _Renderer:
        renderer = _Renderer()
        renderer.call(self.text)
        return renderer


def read_template(bundle: Path, tokenizer: Tokenizer, generation: Mapping[str, Any]) -> ChatTemplate | None:
    """Read a bundle's chat template.

    Args:
        bundle: The bundle.
        tokenizer: The bundle's tokenizer.
        generation: The bundle's generation.json, with the special tokens or their IDs.

    Returns:
        The template; None without one.

    Raises:
        UserError: It is no valid template.
    """
    file = bundle / TEMPLATE_FILE
    if not file.is_file():
        return None
    return ChatTemplate(file.read_text(), get_special_tokens(tokenizer, generation), str(file))


def get_special_tokens(tokenizer: Tokenizer, generation: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that templates read, by name.

    Args:
        tokenizer: The model's tokenizer.
        generation: generation.json; without `special_tokens` each kind's first ID counts.
    """
    if SPECIAL_TOKENS in generation:
        return dict(generation[SPECIAL_TOKENS])
    tokens = {}
    for name in TOKEN_NAMES:
        number = generation.get(f"{name}_id")
        number = number[0] if isinstance(number, list) else number
        if number is not None and (token := tokenizer.id_to_token(number)) is not None:
            tokens[name] = token
    return tokens


def read_special_tokens(*configurations: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that a tokenizer's configurations name, the last one first.

    Args:
        configurations: special_tokens_map.json, tokenizer_config.json.
    """
    tokens = {}
    for name in TOKEN_NAMES:
        for configuration in configurations:
            # A text, or the fields of an added token.
            token = configuration.get(name)
            text = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(text, str):
                tokens[name] = text
    return tokens


def _describe_end(code: int) -> str:
    from kfp_mindspore.lm.text.template_process import OUT_OF_MEMORY

    if code == -signal.SIGPROF:
        return f"it takes more than {_SECONDS:g} s"
    if code == OUT_OF_MEMORY:
        return f"it takes more than {_BYTES >> 20} MiB"
    return f"its process has ended with exit code {code}"


def _close(process: subprocess.Popen[bytes], *pipes: Connection) -> None:
    for pipe in pipes:
        pipe.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
