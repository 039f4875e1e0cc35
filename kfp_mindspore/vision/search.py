"""Search for pictures by words or by a picture: an index of their embeddings, its evaluation, and what was found."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore import files
from kfp_mindspore.data.fetch import fetch_source, raise_errors, resolve_path
from kfp_mindspore.data.sources.images import SUFFIXES
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError, ValidationError
from kfp_mindspore.evaluation.curves import build_environment
from kfp_mindspore.formats.bundle import MODEL_FILE, TEXT_MODEL_FILE, ModelBundle
from kfp_mindspore.formats.shards import import_pyarrow
from kfp_mindspore.lm.options import RECALL
from kfp_mindspore.lm.search import embed_by_words, rank_right, summarise_ranks
from kfp_mindspore.lm.text.examples import read_examples
from kfp_mindspore.outputs import check_output_file
from kfp_mindspore.stores.artifact_store import join_uri
from kfp_mindspore.stores.config import StoreAccess, open_source
from kfp_mindspore.transform.base import TransformInputError, fill_objects
from kfp_mindspore.transform.declaration import build_pipeline
from kfp_mindspore.vision.index_options import IndexOptions
from kfp_mindspore.vision.serving import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

MOST_FOUND = 100
_BATCH, _MOST_BYTES = 32, 1 << 26
_METADATA = b"kfp_mindspore.pictures"
_THUMBNAIL, _SHOWN = 160, 8


class PictureReader:
    """Reads pictures at paths and URIs, with one connection for each bucket."""

    def __init__(self) -> None:
        self._stores: dict[str, StoreAccess] = {}

    def list(self, source: str) -> dict[str, str]:
        """Return the pictures' addresses by ID, the name below the source, in order.

        Args:
            source: A folder, also of folders; its URI; or a file `*.txt` with a path or URI a line, which are the IDs.

        Raises:
            NotFoundError: There is nothing, or no PNG or JPEG file.
            UserError: The store denies the request.
        """
        if "://" in source:
            access = self._open(source)
            with raise_errors(source, access):
                names = sorted(access.store.list_files(source))
            found = {name: join_uri(source, name) for name in names}
        elif (path := resolve_path(source)).is_file() and path.suffix == ".txt":
            return {line: line for line in path.read_text().splitlines() if line.strip()}
        else:
            found = {file.relative_to(path).as_posix(): str(file) for file in sorted(path.rglob("*"))}
        pictures = {
            name: place
            for name, place in found.items()
            if name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in name.split("/"))
        }
        if not pictures:
            raise NotFoundError(f"{source}: has no picture, expected files that end in {', '.join(SUFFIXES)}")
        return pictures

    def read(self, address: str) -> bytes:
        """Return a picture's file.

        Raises:
            UserError: It is missing, denied or has more than 64 MiB.
            KfpMindSporeError: Its store cannot be reached.
        """
        if "://" in address:
            access = self._open(address)
            with raise_errors(address, access):
                content = access.store.read_bytes(address)
            if content is None:
                raise NotFoundError(f"{address}: nothing there")
            return content
        try:
            if (size := Path(address).stat().st_size) > _MOST_BYTES:
                raise UserError(f"{address}: must have at most {_MOST_BYTES} bytes, has {size}")
            return Path(address).read_bytes()
        except OSError as error:
            raise NotFoundError(f"{address}: cannot be read: {error.strerror}") from None

    def _open(self, uri: str) -> StoreAccess:
        root = "/".join(uri.split("/", 3)[:3])
        if root not in self._stores:
            self._stores[root] = open_source(uri)
        return self._stores[root]


class PictureEncoder:
    """Computes a dual encoder's embeddings of picture files and of texts.

    Args:
        directory: A `dual-encoder` bundle.

    Raises:
        UserError: It is a bundle of another kind.
        CorruptBundleError: A file is not readable or has another digest than signed.
    """

    def __init__(self, directory: Path) -> None:
        self._runner = load(directory)
        self.bundle = ModelBundle.open(directory, verify=False)
        self.width = self._runner.width
        self._pipeline = build_pipeline({"pre": self.bundle.read_preprocessing()["pre"]})

    @property
    def digest(self) -> str:
        """The towers' digest, by which an index knows its model."""
        entries = self.bundle.signature.files
        return files.digest_bytes("".join(entries[name]["sha256"] for name in (MODEL_FILE, TEXT_MODEL_FILE)).encode())

    def embed_text(self, texts: Sequence[str]) -> Vectors:
        """Return embeddings with length 1, float32 with shape (n, width).

        Raises:
            UserError: A text is empty, or longer than the model's.
        """
        if not all(text.strip() for text in texts):
            raise UserError("query: must not be empty")
        return self._runner.texts.embed(texts)

    def embed_picture(self, content: bytes, name: str) -> Vectors:
        """Return a picture's embedding with length 1, float32 with shape (width,).

        Args:
            content: PNG or JPEG file.
            name: For messages.

        Raises:
            UserError: It is no such picture.
        """
        pixels = self._prepare(content)
        if isinstance(pixels, str):
            raise UserError(f"{name}: {pixels}")
        row: Vectors = self._runner.compute([pixels])[0]
        return row

    def embed_all(self, addresses: Sequence[str], reader: PictureReader) -> Iterator[Vectors | str]:
        """Yield each picture's embedding, or the reason why it has none.

        Args:
            addresses: Paths or URIs.
            reader: Reads them.
        """

        def prepare(address: str) -> NDArray[np.float32] | str:
            try:
                return self._prepare(reader.read(address))
            except UserError as error:
                return error.message.removeprefix(f"{address}: ")

        batches = [addresses[start : start + _BATCH] for start in range(0, len(addresses), _BATCH)]
        # Pillow decodes without the interpreter's lock, and the next batch while this one is computed.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ahead = pool.map(prepare, batches[0] if batches else [])
            for batch in (*batches[1:], []):
                current, ahead = list(ahead), pool.map(prepare, batch)
                pixels = [found for found in current if not isinstance(found, str)]
                rows = iter(self._runner.compute(pixels) if pixels else ())
                yield from (found if isinstance(found, str) else next(rows) for found in current)

    def _prepare(self, content: bytes) -> NDArray[np.float32] | str:
        try:
            pixels: NDArray[np.float32] = self._pipeline.preprocess({"image": fill_objects([content])})["image"][0]
        except TransformInputError as error:
            return error.message.removeprefix("image: ")
        return pixels


@dataclass(frozen=True)
class PictureIndex:
    """Pictures' embeddings.

    Args:
        source: The pictures' folder or URI; empty where IDs are addresses.
        model: `PictureEncoder.digest`.
        ids: Names below the source.
        vectors: Float32 with shape (n, width), each with length 1.
        skipped: Reasons by ID for pictures that could not be read.
    """

    source: str
    model: str
    ids: Sequence[str]
    vectors: Vectors
    skipped: Mapping[str, str]

    def write(self, file: Path) -> None:
        """Write a Parquet file with the columns `id` and `vector`; an earlier index is replaced.

        Raises:
            UserError: There is another file.
        """
        check_index_file(file)
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        values = pyarrow.array(self.vectors.ravel(), pyarrow.float32())
        vectors = pyarrow.FixedSizeListArray.from_arrays(values, self.vectors.shape[1])
        about = json.dumps({"source": self.source, "model": self.model, "skipped": dict(self.skipped)})
        table = pyarrow.table({"id": pyarrow.array(self.ids, pyarrow.string()), "vector": vectors})
        content = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata({_METADATA: about}), content)
        files.write_bytes(file, content.getvalue())

    @classmethod
    def read(cls, file: Path) -> PictureIndex:
        """Read an index.

        Raises:
            NotFoundError: There is no such file.
            UserError: It is no index.
        """
        if not file.is_file():
            raise NotFoundError(f"{file}: no such index", hint="Make one: kfp-mindspore vision index FOLDER --model …")
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        try:
            table = parquet.read_table(file)
            about = json.loads((table.schema.metadata or {})[_METADATA])
            column = table["vector"].combine_chunks()
            vectors = column.flatten().to_numpy().reshape(len(table), column.type.list_size)
            return cls(about["source"], about["model"], table["id"].to_pylist(), vectors, about["skipped"])
        except (pyarrow.ArrowException, KeyError, ValueError, AttributeError) as error:
            raise UserError(
                f"{file}: not an index of pictures ({type(error).__name__})",
                hint="Make one: kfp-mindspore vision index FOLDER --model MODEL -o FILE",
            ) from None

    def search(self, query: Vectors, count: int) -> list[tuple[str, float]]:
        """Return the IDs most similar to a query, with cosines, the best first.

        Args:
            query: With length 1, shape (width,).
            count: How many.
        """
        scores = self.vectors @ query
        order = np.argsort(-scores, kind="stable")[:count]
        return [(self.ids[row], float(scores[row])) for row in order]

    def locate(self, name: str) -> str:
        """Return a picture's path or URI."""
        return name if not self.source else join_uri(self.source, name)


@dataclass(frozen=True)
class Found:
    """What a query has found; a notebook shows its pictures.

    Args:
        query: The text, or the picture's name.
        matches: IDs with cosines, the best first.
        index: Where it was searched.
    """

    query: str
    matches: Sequence[tuple[str, float]]
    index: PictureIndex

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {"query": self.query, "found": [{"id": name, "score": score} for name, score in self.matches]}

    def render(self) -> str:
        """Return a self-contained HTML page with the pictures."""
        return render_page(f"Pictures like {self.query!r}", [self])

    def _repr_html_(self) -> str:
        environment = build_environment(Path(__file__).with_name("templates"))
        return environment.get_template("found.html.j2").render(found=_show([self]))


@dataclass(frozen=True)
class Evaluation:
    """How well captions find their pictures.

    Args:
        scores: `recall_at_5` and `mrr` of the `model` and of `words`, see `evaluate_captions`.
        queries: Different captions.
        examples: What the first captions have found.
    """

    scores: Mapping[str, Mapping[str, float]]
    queries: int
    examples: Sequence[Found]

    @property
    def improvement(self) -> float:
        """Difference of recall_at_5 from the search by words."""
        return self.scores["model"][RECALL] - self.scores["words"][RECALL]


def check_index_file(file: Path, inputs: Sequence[Path | str | None] = ()) -> None:
    """Raise if a file may not be replaced by an index.

    Args:
        file: The file.
        inputs: What is read.

    Raises:
        UserError: It is another file, or an input.
    """

    def is_index(path: Path) -> bool:
        try:
            PictureIndex.read(path)
        except UserError:
            return False
        return True

    check_output_file(file, "an earlier index of pictures", is_index, inputs)


def index_pictures(source: str, encoder: PictureEncoder, options: IndexOptions | None = None) -> PictureIndex:
    """Embed the pictures of a folder.

    Args:
        source: See `PictureReader.list`.
        encoder: The model.
        options: See `IndexOptions`.

    Raises:
        NotFoundError: There is no picture.
        UserError: No picture can be read, or with `strict` one cannot; the message has its ID and the reason.
        KfpMindSporeError: A store cannot be reached.
    """
    options, reader = options or IndexOptions(), PictureReader()
    pictures = reader.list(source)
    names = list(pictures)[: options.max_pictures or None]
    ids, rows, skipped = [], [], {}
    for name, found in zip(names, encoder.embed_all([pictures[name] for name in names], reader), strict=True):
        if not isinstance(found, str):
            ids.append(name)
            rows.append(found)
            continue
        if options.strict:
            raise UserError(f"{name}: {found}", hint="Without strict, it is listed and left out.")
        skipped[name] = found
    if not rows:
        name, reason = next(iter(skipped.items()))
        raise UserError(f"{source}: none of {len(names)} pictures can be read; {name}: {reason}")
    is_list = source.endswith(".txt") and "://" not in source
    root = "" if is_list else source if "://" in source else str(Path(source).expanduser().resolve())
    return PictureIndex(root, encoder.digest, ids, np.stack(rows), skipped)


def search_pictures(
    index: PictureIndex, encoder: PictureEncoder, *, text: str = "", picture: Path | None = None, count: int = 5
) -> Found:
    """Search for pictures by a text or by a picture.

    Args:
        index: The pictures.
        encoder: The model that has embedded them.
        text: The text; empty with a picture.
        picture: A PNG or JPEG file; None with a text.
        count: How many to find, 1 to 100.

    Raises:
        UserError: Both or none are given, the text is too long, the picture cannot be read, or the index is another
            model's.
    """
    if bool(text) == (picture is not None):
        raise UserError("query: give either a text or a picture, got both or none")
    if not 1 <= count <= MOST_FOUND:
        raise UserError(f"count: must be 1 to {MOST_FOUND}, got {count}")
    check_model(index, encoder)
    if picture is None:
        (row,) = encoder.embed_text([text])
    else:
        row = encoder.embed_picture(PictureReader().read(str(picture)), str(picture))
    return Found(text or str(picture), index.search(row, count), index)


def check_model(index: PictureIndex, encoder: PictureEncoder) -> None:
    """Raise unless an index is this model's.

    Raises:
        UserError: It is another model's.
    """
    if index.model != encoder.digest:
        raise UserError(
            f"index: its pictures were embedded by another model ({index.model[:12]}) than {encoder.bundle.path} "
            f"({encoder.digest[:12]})",
            hint="Give the index's model, or index the pictures again.",
        )


def evaluate_captions(index: PictureIndex, encoder: PictureEncoder, captions: str) -> Evaluation:
    """Search for the pictures of captions, by the model and by words.

    A picture's first caption is a query; equal ones are one query, which any of their pictures answers. The search by
    words compares it, by TF-IDF, with what is known of pictures without looking at them: their other captions and their
    names.

    Args:
        index: The pictures.
        encoder: The model that has embedded them.
        captions: Path or URI of JSON lines with `image`, an ID, and `caption`.

    Raises:
        UserError: There is no caption of an indexed picture, or one is too long.
        ValidationError: A line has other fields, or names a picture that is not indexed; the message has its number.
    """
    check_model(index, encoder)
    places = {name: row for row, name in enumerate(index.ids)}
    known = [re.sub(r"[_\W]+", " ", name) for name in index.ids]
    right: dict[str, list[int]] = {}
    queried = set()
    with fetch_source(captions) as path:
        records = read_examples(path)
    for number, record in enumerate(records, 1):
        errors = [
            f"{field}: must be a text" for field in ("image", "caption") if not isinstance(record.get(field), str)
        ]
        if not errors and record["image"] not in places and record["image"] not in index.skipped:
            errors = [f"image: {record['image']!r} is not indexed"]
        if errors:
            raise ValidationError(errors, subject=f"{captions}: line {number}")
        row = places.get(record["image"])
        if row is None:
            continue
        if row in queried:
            known[row] += f" {record['caption']}"
        else:
            right.setdefault(record["caption"], []).append(row)
            queried.add(row)
    if not right:
        raise UserError(f"{captions}: has no caption of a picture that was read")
    queries = list(right)
    rows = encoder.embed_text(queries)
    found = {
        "model": rank_right(rows, index.vectors, list(right.values())),
        "words": rank_right(*embed_by_words(queries, known), list(right.values())),
    }
    examples = [Found(query, index.search(row, 5), index) for query, row in zip(queries[:_SHOWN], rows, strict=False)]
    return Evaluation({name: summarise_ranks(ranks) for name, (ranks, _) in found.items()}, len(queries), examples)


def render_page(
    title: str, found: Sequence[Found], evaluation: Evaluation | None = None, skipped: Mapping[str, str] | None = None
) -> str:
    """Return a self-contained HTML page with the pictures found.

    Args:
        title: The heading.
        found: The queries.
        evaluation: Shown above them; None for none.
        skipped: Reasons by ID for pictures that could not be read.
    """
    environment = build_environment(Path(__file__).with_name("templates"))
    return environment.get_template("pictures.html.j2").render(
        title=title, found=_show(found), evaluation=evaluation, skipped=skipped or {}
    )


def _show(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return each query with its pictures as data URLs; empty for one that is gone."""
    reader, shown = PictureReader(), []
    for one in found:
        rows = [
            {"id": name, "score": score, "picture": _shrink(reader, one.index.locate(name))}
            for name, score in one.matches
        ]
        shown.append({"query": one.query, "rows": rows})
    return shown


def _shrink(reader: PictureReader, address: str) -> str:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(reader.read(address)), formats=("PNG", "JPEG")) as image:
            small = ImageOps.exif_transpose(image).convert("RGB")
            small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    except (KfpMindSporeError, OSError, ValueError, Image.DecompressionBombError):
        return ""
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
