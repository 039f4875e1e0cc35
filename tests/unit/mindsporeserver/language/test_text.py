"""Tokens to text: whole characters, and no beginning of a stop text."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import MissingExtraError, UserError
from mindsporeserver.language.text import TextBuffer, TokenVocabulary


def test_encoding_and_decoding_are_inverse(vocabulary: TokenVocabulary) -> None:
    text = "Zürich, 5 € 你好 🙂 the quick"
    ids = vocabulary.encode(text)
    assert b"".join(map(vocabulary.get_bytes, ids)).decode() == text == vocabulary.decode(ids)
    assert vocabulary.get_bytes(vocabulary.size - 1) == b""


def test_sentencepiece_tokens_have_blanks_and_bytes(tmp_path: Path) -> None:
    """As tokenizer.json of Llama 2, TinyLlama and Mistral."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thefox"]
    table = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    table |= {first + second: len(table) + index for index, (first, second) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(table, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = TokenVocabulary(tmp_path / "tokenizer.json", tokenizer.get_vocab_size(), [2])
    ids = vocabulary.encode("the fox 🙂\n the")
    pieces = list(map(vocabulary.get_bytes, ids))
    assert pieces[:3] == [b" the", b" ", b"f"]
    assert pieces[-3:] == [b"\x82", b"\n", b" the"]
    assert vocabulary.decode(ids) == " the fox 🙂\n the"
    assert [vocabulary.get_bytes(table[f"<0x{byte:02X}>"]) for byte in range(256)] == [bytes([i]) for i in range(256)]


def test_each_byte_of_byte_level_tokens_is_kept(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    table = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(table, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = TokenVocabulary(tmp_path / "tokenizer.json", tokenizer.get_vocab_size(), [len(table)])
    assert sorted(map(vocabulary.get_bytes, table.values())) == [bytes([byte]) for byte in range(256)]


def test_pieces_hold_whole_characters() -> None:
    for seed in range(50):
        data = "aé€🙂".encode() * 3
        cuts = sorted(random.Random(seed).sample(range(len(data)), 8))
        buffer = TextBuffer()
        parts = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        pieces = [buffer.push(part) for part in parts]
        assert "".join([*pieces, buffer.flush()]) == "aé€🙂" * 3
        assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("data", [b"\x80\x80\x80\xe2\x82\xac", b"a\xffb", b"\xe2\x82", b"\xf0\x9f\x98a"])
def test_invalid_bytes_are_replaced_as_in_whole_text(data: bytes) -> None:
    buffer = TextBuffer()
    text = "".join(buffer.push(data[index : index + 1]) for index in range(len(data))) + buffer.flush()
    assert text == data.decode("utf-8", "replace")


@given(text=st.text("ab.", max_size=30), stops=st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_first_stop_text(text: str, stops: list[str]) -> None:
    buffer = TextBuffer(stops)
    received, seen = "", ""
    for character in text:
        received += buffer.push(character.encode())
        seen += character
        ends = [seen.find(stop) for stop in stops if stop in seen]
        assert buffer.is_stopped == bool(ends)
        if ends:
            assert received == seen[: min(ends)]
            return
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
        held = max((len(part) for part in beginnings if seen.endswith(part)), default=0)
        assert received == seen[: len(seen) - held]
    assert received + buffer.flush() == text


def test_special_tokens_among_stop_texts_are_found(vocabulary: TokenVocabulary) -> None:
    assert vocabulary.list_stop_ids(["<|im_start|>", "the", "<tool_call>"]) == {1}


def test_missing_library_and_broken_tokenizer_are_user_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer that can be served"):
        TokenVocabulary(file, 10, [0])
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match="llguidance is not installed"):
        TokenVocabulary(file, 10, [0])


def test_stop_text_counts_only_where_an_answer_may_end() -> None:
    buffer = TextBuffer(["end"])
    assert buffer.push(b"an end, en", may_stop=False) == "an end, en"
    assert (buffer.push(b"d "), buffer.is_stopped) == ("d ", False)
    assert (buffer.push(b"or end."), buffer.is_stopped) == ("or ", True)
