"""Texts, prompt-completion pairs and chats as packed token windows, with the loss on the answers only."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.errors import NotFoundError, UserError, ValidationError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    # Token IDs, and whether the loss counts each of them.
    Example = tuple[NDArray[np.int32], NDArray[np.bool_]]

# Returns a chat's text from its messages; the second argument is the template's `add_generation_prompt`.
Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
_FORMS = "text, prompt with completion, or messages"


@dataclass(frozen=True)
class LanguageModelData:
    """Windows with L tokens, each holding one or several examples.

    Attention stays within a segment, and positions restart with it, so that an example's loss does not depend on the
    others in its window. Only targets with weight 1 count: answers, or each token in a plain text.

    Args:
        ids: Input tokens, int32 with shape (N, L).
        targets: The next tokens, int32 with shape (N, L).
        weights: 1 where the loss counts, else 0, float32 with shape (N, L).
        positions: Positions within the segment, int32 with shape (N, L).
        segments: The example's number within its window from 1, 0 for padding, int32 with shape (N, L).
        truncated: How many examples end beyond a window.
        dropped: How many examples have no answer within their window.
    """

    ids: NDArray[np.int32]
    targets: NDArray[np.int32]
    weights: NDArray[np.float32]
    positions: NDArray[np.int32]
    segments: NDArray[np.int32]
    truncated: int = 0
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(
        cls, path: Path | str, tokenizer: Tokenizer, *, length: int, eos_id: int, render: Render | None = None
    ) -> LanguageModelData:
        """Read a JSON lines file.

        Args:
            path: Each line has `text`, `prompt` and `completion`, or `messages` with `role` and `content`.
            tokenizer: The model's.
            length: L, tokens per window.
            eos_id: Token that ends a text and a completion; a chat's end is in its template.
            render: The model's chat template; needed for `messages`.

        Raises:
            NotFoundError: There is no such file.
            UserError: It has no example whose loss counts.
            ValidationError: A line is invalid; the message has its number and field.
        """
        path = Path(path)
        if not path.is_file():
            raise NotFoundError(f"{path}: no such file", hint=f"Give a file of JSON lines with {_FORMS}.")
        examples = []
        for number, record in read_records(path):
            try:
                examples.append(encode_example(record, tokenizer, eos_id=eos_id, render=render))
            except ValidationError as error:
                raise ValidationError(error.errors, subject=f"{path}: line {number}") from None
        data = cls.pack(examples, length=length)
        if not len(data):
            raise UserError(
                f"{path}: no example has an answer within {length} tokens: {data.dropped} of {len(examples)} dropped",
                hint="Give more lines, or longer windows.",
            )
        return data

    @classmethod
    def pack(cls, examples: Iterable[Example], *, length: int) -> LanguageModelData:
        """Pack examples by best fit, the longest first.

        A plain text longer than a window is divided; a longer answer's end is cut.

        Args:
            examples: Token IDs and whether the loss counts each of them.
            length: L, tokens per window.

        Raises:
            ValidationError: `length` is below 1.
        """
        if length < 1:
            raise ValidationError([f"length: must be >= 1, got {length}"])
        pieces: list[Example] = []
        truncated = dropped = 0
        for ids, counts in examples:
            parts = list(_divide(ids, counts, length))
            truncated += len(parts) == 1 and len(ids) > length + 1
            kept = [part for part in parts if part[1][1:].any()]
            dropped += not kept
            pieces += kept
        windows = _fit([len(ids) - 1 for ids, _ in pieces], length)
        shape = (len(windows), length)
        ids, targets, positions, segments = (np.zeros(shape, np.int32) for _ in range(4))
        weights = np.zeros(shape, np.float32)
        for row, window in enumerate(windows):
            start = 0
            for segment, index in enumerate(window, 1):
                tokens, counts = pieces[index]
                place = np.s_[row, start : start + len(tokens) - 1]
                ids[place], targets[place], weights[place] = tokens[:-1], tokens[1:], counts[1:]
                positions[place], segments[place] = np.arange(len(tokens) - 1), segment
                start += len(tokens) - 1
        return cls(ids, targets, weights, positions, segments, truncated, dropped)


def encode_example(
    record: Mapping[str, Any], tokenizer: Tokenizer, *, eos_id: int, render: Render | None = None
) -> Example:
    """Return a record's token IDs, int32 (n,), and whether the loss counts each.

    A prompt is encoded by itself, as the server encodes it.

    Args:
        record: With `text`, `prompt` and `completion`, or `messages`.
        tokenizer: The model's.
        eos_id: Token that ends a text and a completion.
        render: The model's chat template.

    Raises:
        ValidationError: A field is missing or has another type, or the template does not fit the messages.
    """
    if "messages" in record:
        parts, end = list(_split_chat(record["messages"], render)), []
    elif "text" in record:
        parts, end = [(_get_text(record, "text"), True)], [eos_id]
    elif "prompt" in record:
        parts, end = [(_get_text(record, "prompt"), False), (_get_text(record, "completion"), True)], [eos_id]
    else:
        raise ValidationError([f"must have {_FORMS}, got {', '.join(record) or 'no field'}"])
    special = "messages" not in record
    encoded = [
        (tokenizer.encode(text, add_special_tokens=special and index == 0).ids, counts)
        for index, (text, counts) in enumerate(parts)
    ]
    encoded.append((end, True))
    ids = np.array([token for tokens, _ in encoded for token in tokens], np.int32)
    return ids, np.array([counts for tokens, counts in encoded for _ in tokens], np.bool_)


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each JSON line's number and object; blank lines are left out.

    Raises:
        ValidationError: A line is no JSON object; the message has its number.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValidationError([f"must be JSON: {error}"], subject=f"{path}: line {number}") from None
            if not isinstance(record, dict):
                raise ValidationError(
                    [f"must be an object, got {type(record).__name__}"], subject=f"{path}: line {number}"
                )
            yield number, record


def _get_text(record: Mapping[str, Any], name: str) -> str:
    text = record.get(name)
    if not isinstance(text, str):
        raise ValidationError([f"{name}: must be a text, got {type(text).__name__ if name in record else 'nothing'}"])
    return text


def _split_chat(messages: Any, render: Render | None) -> Iterator[tuple[str, bool]]:
    """Yield a chat's text in order, answers apart from what precedes them."""
    if render is None:
        raise ValidationError(["messages: the model has no chat template; give prompt and completion"])
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    ):
        raise ValidationError(["messages: must be a list of objects with role and content"])
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers or answers[0] == 0:
        raise ValidationError(["messages: must have an assistant's message after another one"])
    done = ""
    for index in answers:
        prompt, whole = render(messages[:index], True), render(messages[: index + 1], False)
        if not (prompt.startswith(done) and whole.startswith(prompt)):
            raise ValidationError(
                [f"messages[{index}]: the chat template changes earlier text; give one answer per line"]
            )
        yield prompt[len(done) :], False
        yield whole[len(prompt) :], True
        done = whole


def _divide(ids: NDArray[np.int32], counts: NDArray[np.bool_], length: int) -> Iterator[Example]:
    """Yield a plain text's windows, which share one token, or another example's first window."""
    stop = max(len(ids) - 1, 0) if counts.all() else min(len(ids) - 1, 1)
    for start in range(0, stop, length):
        yield ids[start : start + length + 1], counts[start : start + length + 1]


def _fit(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return windows as their pieces' indexes, each in the window with the least sufficient space."""
    windows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        place = bisect.bisect_left(spaces, (sizes[index], 0))
        if place == len(spaces):
            space, window = length, len(windows)
            windows.append([])
        else:
            space, window = spaces.pop(place)
        windows[window].append(index)
        if space > sizes[index]:
            bisect.insort(spaces, (space - sizes[index], window))
    return windows
