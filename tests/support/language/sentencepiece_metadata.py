"""A SentencePiece vocabulary with scores, as GGUF files have it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def build_metadata(texts: Sequence[str], *, merges: int = 60) -> dict[str, Any]:
    """Return the tokenizer's metadata by key: special tokens, bytes, merged tokens in order, single characters."""
    words = [list(BLANK + text.replace(" ", BLANK)) for text in texts]
    characters = sorted({character for word in words for character in word})
    merged: list[str] = []
    for _ in range(merges):
        pairs: dict[str, int] = {}
        for word in words:
            for first, second in pairwise(word):
                # No token goes beyond a word's end.
                if BLANK not in second:
                    pairs[first + second] = pairs.get(first + second, 0) + 1
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.__getitem__)
        merged.append(best)
        words = [_merge(word, best) for word in words]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *characters, "<mark>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(merged + characters), USER_DEFINED]
    scores = [*[0.0] * 259, *(-float(rank) for rank in range(len(merged + characters))), 0.0]
    prefix = "tokenizer.ggml"
    return {
        f"{prefix}.model": "llama",
        f"{prefix}.pre": "default",
        f"{prefix}.tokens": tokens,
        f"{prefix}.token_type": kinds,
        f"{prefix}.scores": scores,
        **{f"{prefix}.{name}_token_id": number for number, name in enumerate(("unknown", "bos", "eos"))},
    }


def write_model(file: Path, metadata: dict[str, Any]) -> None:
    """Write a Llama of one layer with random weights."""
    import gguf

    size, width = len(metadata["tokenizer.ggml.tokens"]), 32
    writer = gguf.GGUFWriter(file, "llama")
    numbers = {"context_length": 256, "embedding_length": width, "block_count": 1, "feed_forward_length": 64}
    for name, number in {**numbers, "attention.head_count": 4, "rope.dimension_count": 8}.items():
        writer.add_uint32(f"llama.{name}", number)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
    for name, value in metadata.items():
        add[type(value)](name, value)
    random = np.random.default_rng(2)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (size, width), "output_norm": (width,), "output": (size, width)}
    shapes |= {f"blk.0.{name}_norm": (width,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (64, width), "blk.0.ffn_up": (64, width), "blk.0.ffn_down": (width, 64)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(len(shape) == 1, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merge(word: list[str], token: str) -> list[str]:
    found: list[str] = []
    for piece in word:
        if found and found[-1] + piece == token:
            found[-1] = token
        else:
            found.append(piece)
    return found


def encode(text: str, metadata: dict[str, Any]) -> list[int]:
    """Return a text's IDs by SentencePiece's rule: again and again the neighbours whose token has the best score."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    known = {token: number for number, token in enumerate(tokens) if kinds[number] == NORMAL}
    pieces = list((BLANK + text).replace(" ", BLANK))
    while True:
        joined = [(scores[known[a + b]], -at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in known]
        if not joined:
            break
        at = -max(joined)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    ids = []
    for piece in pieces:
        ids += [known[piece]] if piece in known else [tokens.index(f"<0x{byte:02X}>") for byte in piece.encode()]
    return ids
