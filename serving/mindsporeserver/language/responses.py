"""Responses of the OpenAI protocol: one object, or a stream of chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from mindsporeserver.language.fields.requests import GenerationRequest
from mindsporeserver.language.parsers.answer import AnswerParsers
from mindsporeserver.language.sampling import TokenLogprob
from mindsporeserver.language.scheduler import Answer, Delta
from mindsporeserver.language.text import TokenVocabulary

DONE = b"data: [DONE]\n\n"


def encode_event(value: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


@dataclass
class _Choice:
    """One answer as far as it was received."""

    index: int
    parsers: AnswerParsers | None
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    offset: int = 0
    is_begun: bool = False


class ResponseBuilder:
    """Builds one request's response from the answers' pieces.

    Args:
        request: The parsed request.
        answers: The answers; several may have the same prompt.
        vocabulary: The model's.
        parsers: Each answer's; None for a text that is not divided.
    """

    def __init__(
        self,
        request: GenerationRequest,
        answers: Sequence[Answer],
        vocabulary: TokenVocabulary,
        parsers: Sequence[AnswerParsers | None],
    ) -> None:
        self._request = request
        self._answers = answers
        self._vocabulary = vocabulary
        self._is_chat = bool(request.messages)
        self._choices = [_Choice(answer.index, parser) for answer, parser in zip(answers, parsers, strict=True)]
        self._tokens = 0
        chat_kind = "chat.completion.chunk" if request.is_stream else "chat.completion"
        prefix, kind = ("chatcmpl", chat_kind) if self._is_chat else ("cmpl", "text_completion")
        self._head: dict[str, Any] = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time())}
        self._head["model"] = request.model

    def add(self, delta: Delta) -> dict[str, Any] | None:
        """Add a piece; return the chunk of a streamed response, None for none.

        Raises:
            RequestError: The answer has failed.
        """
        if delta.error is not None:
            raise delta.error
        choice, text = self._choices[delta.index], delta.text
        self._tokens += delta.tokens
        logprobs: list[TokenLogprob | None] = list(delta.logprobs)
        if self._request.echo and not choice.is_begun:
            answer = self._answers[delta.index]
            text = self._vocabulary.decode(answer.prompt.tolist()) + text
            logprobs = [*answer.prompt_logprobs, *logprobs]
        reasoning = ""
        if choice.parsers is not None:
            reasoning, text, choice.calls = choice.parsers.push(text, is_last=bool(delta.finish))
        if not self._request.includes_reasoning:
            reasoning = ""
        choice.finish = "tool_calls" if choice.calls and delta.finish == "stop" else delta.finish or ""
        choice.text += text
        choice.reasoning += reasoning
        if not self._request.is_stream:
            choice.is_begun = True
            choice.logprobs += logprobs
            return None
        if not (text or reasoning or logprobs or delta.finish):
            return None
        usage = {"usage": None} if self._request.include_usage else {}
        described = self._describe(choice, text, reasoning, logprobs, is_stream=True)
        return {**self._head, "choices": [described], **usage}

    def build_usage(self) -> dict[str, Any]:
        """Return the token counts."""
        prompts = {answer.index // self._request.choices: answer for answer in reversed(self._answers)}
        total = sum(len(answer.prompt) for answer in prompts.values())
        cached = sum(answer.cached for answer in prompts.values())
        return {
            "prompt_tokens": total,
            "completion_tokens": self._tokens,
            "total_tokens": total + self._tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def build_usage_chunk(self) -> dict[str, Any]:
        """Return a stream's last chunk, which has no choices."""
        return {**self._head, "choices": [], "usage": self.build_usage()}

    def build(self) -> dict[str, Any]:
        """Return the whole response; of a stream without log-probabilities."""
        choices = [
            self._describe(choice, choice.text, choice.reasoning, choice.logprobs, is_stream=False)
            for choice in self._choices
        ]
        return {**self._head, "choices": choices, "usage": self.build_usage()}

    def _describe(
        self,
        choice: _Choice,
        text: str,
        reasoning: str,
        logprobs: Sequence[TokenLogprob | None],
        *,
        is_stream: bool,
    ) -> dict[str, Any]:
        described: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish or None, "logprobs": None}
        is_first, choice.is_begun = not choice.is_begun, True
        if not self._is_chat:
            described["text"] = text
            if self._request.logprobs is not None:
                described["logprobs"] = self._list_completion_logprobs(choice, logprobs)
            return described
        message: dict[str, Any] = {"content": text if text or not (choice.calls or reasoning) else None}
        message |= {"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}
        message |= {"role": "assistant"} if is_first or not is_stream else {}
        message |= {} if is_stream else {"refusal": None}
        if choice.calls:
            numbered = [{"index": index, **call} for index, call in enumerate(choice.calls)]
            message["tool_calls"] = numbered if is_stream else choice.calls
        described["delta" if is_stream else "message"] = message
        if self._request.logprobs is not None:
            content = [self._describe_token(item) for item in logprobs if item is not None]
            described["logprobs"] = {"content": content, "refusal": None}
        return described

    def _describe_token(self, item: TokenLogprob) -> dict[str, Any]:
        top = [self._describe_pair(token, value) for token, value in item.top]
        return {**self._describe_pair(item.token, item.logprob), "top_logprobs": top}

    def _describe_pair(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._vocabulary.get_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}

    def _list_completion_logprobs(
        self, choice: _Choice, logprobs: Iterable[TokenLogprob | None]
    ) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        first = TokenLogprob(int(self._answers[choice.index].prompt[0]), 0.0, [])
        for item in logprobs:
            token, logprob, top = item or first
            text = self._vocabulary.decode([token])
            named = {self._vocabulary.decode([other]): value for other, value in top}
            named.setdefault(text, logprob)
            lists["tokens"].append(text)
            lists["text_offset"].append(choice.offset)
            # A prompt's first token has no probability.
            lists["token_logprobs"].append(None if item is None else max(logprob, -9999.0))
            lists["top_logprobs"].append(None if item is None else named)
            choice.offset += len(text)
        return lists
