"""Examples in a JSON-lines file: fetched, held out by hash, and encoded as the server encodes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kfp_mindspore.canonical import digest_json
from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.data.sources import new_testament
from kfp_mindspore.data.sources.base import Source, SourceRequest
from kfp_mindspore.data.sources.text import read_text
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.files import write_text
from kfp_mindspore.lm.text.data import Render, encode_example, read_records
from kfp_mindspore.lm.text.demo_weights import DEMO_PAIRS, REWRITES, fetch_demo_pairs
from kfp_mindspore.lm.text.rewrites import build_rewrites
from kfp_mindspore.lm.text.template import ChatTemplate, read_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kfp_mindspore.lm.text.data import Example

Record = Mapping[str, Any]
_FIELDS = {"messages", "prompt", "text"}


class ExampleEncoder:
    """A bundle's tokenizer and chat template.

    Args:
        bundle: The bundle.
        chat: Whether a prompt and its completion are chat messages, if the model has a chat template.

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
        """Return a record's token IDs, int32 (n,), and whether the loss counts each.

        Raises:
            ValidationError: A field is missing or has another type, or the template refuses the messages.
        """
        if self._chat and isinstance(record.get("prompt"), str) and isinstance(record.get("completion"), str):
            roles = (("user", record["prompt"]), ("assistant", record["completion"]))
            record = {"messages": [{"role": role, "content": content} for role, content in roles]}
        render = None if self._template is None else _get_render(self._template)
        return encode_example(record, self.tokenizer, eos_id=self.eos_ids[0], render=render)

    def encode_all(self, records: Sequence[Record], subject: str) -> list[Example]:
        """Encode records; an error names the record by its number, from 1."""
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
        data: `chatterbot` (English pairs, fetched by pip), `rewrites` (dates and numbers in words, generated),
            `new_testament` (extra `workloads`), a path, or a URI that fsspec reads. A file `*.txt` has a text per line.

    Raises:
        NotFoundError: There is nothing.
        UserError: It cannot be read.
        KfpMindSporeError: pip or the URI's server fails.
    """
    if data in DEMO_PAIRS and not Path(data).exists():
        with TemporaryDirectory() as directory:
            yield fetch_demo_pairs(data, Path(directory))
        return
    if data in _BUILDERS and not Path(data).exists():
        with _write_records(_BUILDERS[data]()) as file:
            yield file
        return
    known = ", ".join((*DEMO_PAIRS, *_BUILDERS))
    with fetch_source(data, hint=f"Give a file of JSON lines or texts, a URI, or {known}.") as path:
        if path.suffix != ".txt":
            yield path
            return
        with _write_records(_list_texts(read_text(path, SourceRequest(text_lines=True)))) as file:
            yield file


def check_examples(data: str, held_out: float | None = None) -> None:
    """Read a local file's examples, before what is costly: see `open_examples` and `read_examples`.

    Args:
        data: A path; names and URIs are not checked.
        held_out: The part that a fine-tuning holds out; None for none.

    Raises:
        UserError: There is no such file, or it has too few examples.
        ValidationError: A line is no example; the message has its number.
    """
    if "://" in data or (data in (*DEMO_PAIRS, *_BUILDERS) and not Path(data).exists()):
        return
    with open_examples(data) as file:
        records = read_examples(file)
    if held_out is not None:
        hold_out(records, held_out)


@contextmanager
def _write_records(records: Iterable[Record]) -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        file = Path(directory, "examples.jsonl")
        write_text(file, "".join(json.dumps(record) + "\n" for record in records))
        yield file


def _list_texts(source: Source) -> list[dict[str, str]]:
    return [{"text": line.decode()} for line in source.columns["text"]]


_BUILDERS: Mapping[str, Callable[[], Sequence[Record]]] = {
    REWRITES: build_rewrites,
    new_testament.NAME: lambda: _list_texts(new_testament.read_new_testament(SourceRequest(text_lines=True))),
}


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file's records.

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
        part: The second list's expected part, between 0 and 1.

    Returns:
        Records to train on, and held-out records.

    Raises:
        ValidationError: A record has no known field; the message has its number.
        UserError: A list would be empty.
    """
    for number, record in enumerate(records, 1):
        if not _FIELDS & record.keys():
            found = ", ".join(record) or "no field"
            raise ValidationError(
                [f"needs messages, text, or prompt and completion, got {found}"], subject=f"example {number}"
            )
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
    return int(digest_json(key)[:16], 16) / 2**64


def _get_render(template: ChatTemplate) -> Render:
    return lambda messages, generation_prompt: template.render(messages, generation_prompt=generation_prompt)
