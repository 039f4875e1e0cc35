"""Examples are packed without influence on each other, and losses count on answers only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.lm.text.data import LanguageModelData, encode_example

EOS = 1
WORDS = ["?", "<eos>", "a", "b", "c", "d", "<user>", "<bot>", "<end>"]
A, B, C, D, USER, BOT, END = range(2, 9)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def render(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    names = {"user": "<user>", "assistant": "<bot>"}
    text = "".join(f"{names[message['role']]} {message['content']} <end> " for message in messages)
    return text + ("<bot> " if add_generation_prompt else "")


def drop_first(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    return render(messages[-2:], add_generation_prompt)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CHAT = [message("user", "a"), message("assistant", "b c"), message("user", "d"), message("assistant", "a")]


@pytest.mark.parametrize(
    ("record", "ids", "counted"),
    [
        ({"text": "a b"}, [A, B, EOS], [1, 1, 1]),
        ({"prompt": "a b", "completion": "c"}, [A, B, C, EOS], [0, 0, 1, 1]),
        (
            {"messages": CHAT},
            [USER, A, END, BOT, B, C, END, USER, D, END, BOT, A, END],
            [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1],
        ),
    ],
    ids=["text", "pair", "chat"],
)
def test_loss_counts_answers_only(
    record: dict[str, Any], ids: list[int], counted: list[int], tokenizer: Tokenizer
) -> None:
    found, counts = encode_example(record, tokenizer, eos_id=EOS, render=render)
    assert found.tolist() == ids
    assert counts.tolist() == [bool(count) for count in counted]


def test_every_counted_token_is_packed_once_with_positions_of_its_own() -> None:
    random = np.random.default_rng(2)
    examples = []
    for size in random.integers(2, 9, 50):
        counts = np.arange(size) >= random.integers(1, size)
        examples.append((random.integers(1, 100, size).astype(np.int32), counts))
    data = LanguageModelData.pack(examples, length=8)
    expected = sorted(tuple(ids.tolist()) for ids, _ in examples)
    found = []
    for row in range(len(data)):
        for segment in range(1, data.segments[row].max() + 1):
            place = data.segments[row] == segment
            found.append((*data.ids[row][place].tolist(), int(data.targets[row][place][-1])))
            assert data.positions[row][place].tolist() == list(range(int(place.sum())))
    assert sorted(found) == expected
    assert data.weights.sum() == sum(counts[1:].sum() for _, counts in examples)
    assert not data.weights[data.segments == 0].any()
    sizes = sum(len(ids) - 1 for ids, _ in examples)
    assert len(data) <= 1.25 * sizes / 8
    assert (data.truncated, data.dropped) == (0, 0)


def test_long_text_is_divided_and_long_answer_is_cut() -> None:
    ids = np.arange(1, 12, dtype=np.int32)
    text = LanguageModelData.pack([(ids, np.ones(11, np.bool_))], length=4)
    assert text.weights.sum() == 10
    assert text.truncated == 0
    cut = LanguageModelData.pack([(ids, ids > 3), (ids, ids > 8)], length=4)
    assert cut.weights.sum() == 2
    assert (len(cut), cut.truncated, cut.dropped) == (1, 2, 1)


def test_file_is_read_by_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n\n" + json.dumps({"messages": CHAT}) + "\n")
    data = LanguageModelData.read(file, tokenizer, length=16, eos_id=EOS, render=render)
    assert len(data) == 1
    assert data.weights.sum() == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is invalid: must be JSON"),
        ("[]", "must be an object, got list"),
        ("{}", "must have text, prompt with completion, or messages, got no field"),
        ('{"question": "a"}', "got question"),
        ('{"text": 3}', "text: must be a text, got int"),
        ('{"prompt": "a"}', "completion: must be a text, got nothing"),
        ('{"messages": "a"}', "messages: must be a list of objects"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "must have an assistant's message after another one"),
    ],
)
def test_invalid_line_is_named(line: str, message: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(ValidationError, match="line 2") as error:
        LanguageModelData.read(file, tokenizer, length=4, eos_id=EOS, render=render)
    assert message in str(error.value)


def test_chat_that_its_template_cannot_render_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValidationError, match=r"messages\[3\]: the chat template changes earlier text"):
        encode_example({"messages": CHAT}, tokenizer, eos_id=EOS, render=drop_first)
    with pytest.raises(ValidationError, match="no chat template"):
        encode_example({"messages": CHAT}, tokenizer, eos_id=EOS)


def test_file_without_examples_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        LanguageModelData.read(tmp_path / "none.jsonl", tokenizer, length=4, eos_id=EOS)
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "a b c d", "completion": "a"}\n')
    with pytest.raises(UserError, match="within 3 tokens: 1 of 1 dropped"):
        LanguageModelData.read(file, tokenizer, length=3, eos_id=EOS)
    with pytest.raises(ValidationError, match="length: must be >= 1, got 0"):
        LanguageModelData.pack([], length=0)
