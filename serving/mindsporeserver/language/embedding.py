"""A served embedding model: one bundle of the kind `embedding` or `dual-encoder`, loaded and warm."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.formats.bundle import PREPROCESSING_FILE, TOKENIZER_FILE, ModelBundle
from kfp_mindspore.transform.base import TransformFailedError, TransformInputError, fill_objects
from kfp_mindspore.transform.load import load_transform
from mindsporeserver.errors import (
    DeadlineExceededError,
    GraphError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    RequestError,
)
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.images import MESSAGE_FIELDS, Part, parse_parts
from mindsporeserver.language.fields.pairs import TextPairs
from mindsporeserver.language.fields.requests import parse_embedding, parse_embedding_format
from mindsporeserver.language.memory import MemoryPlan, read_memory_limit
from mindsporeserver.language.text_model import TextModel, build_length_error, check_queue
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.served_model import NO_PARAMETERS, TensorModel
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.protocols.tensors import InputReader, describe

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from kfp_mindspore.transform.bound import BoundTransform

    Arrays = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)

# Texts that wait may have as many tokens as this many of the longest ones.
_QUEUE_TEXTS = 2048
_MAX_BATCH = 32


class EmbeddingRunner(Protocol):
    """An encoder; used in the executor thread only, except for the sizes."""

    vocabulary_size: int
    max_length: int
    width: int
    lower_case: bool

    def fit_length(self, length: int) -> int:
        """Return the graph length for a sequence of `length` tokens."""

    def fit_batch(self, count: int) -> int:
        """Return how many of `count` sequences the next graph computes."""

    def compute(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Compute sequences in one graph, (n, width)."""


@dataclass(eq=False)
class _Text:
    ids: NDArray[np.int32]
    result: asyncio.Future[NDArray[np.float32]]
    deadline: float | None
    is_cancelled: bool = field(default=False)


class EmbeddingModel(TextModel):
    """Serves one embedding model; texts of concurrent requests share graphs.

    Args:
        name: Name in requests.
        bundle: An opened bundle.
        version: The version.
        max_queue_tokens: Most tokens that waiting texts may have; 0 for 2,048 of the longest texts.
        executor: The process' inference executor.
        metrics: The process' metrics.
    """

    platform = "mindspore_embedding"
    # Has `load`, which returns the runner of a bundle's directory.
    runner_module: ClassVar[str] = "kfp_mindspore.lm.embedding"
    tokenizer: Tokenizer

    def __init__(
        self,
        name: str,
        bundle: ModelBundle,
        *,
        version: str,
        max_queue_tokens: int,
        executor: InferenceExecutor,
        metrics: ServerMetrics,
    ) -> None:
        super().__init__(name, bundle, version, metrics.for_model(name))
        self._executor = executor
        self._max_queue_tokens = max_queue_tokens
        self._runner: EmbeddingRunner | None = None
        self._waiting: deque[_Text] = deque()
        self._lock = threading.Lock()
        self._is_submitted = False
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> None:
        """Load the network, and compile the smallest graph.

        Raises:
            UserError: The bundle is damaged, or the network or tokenizer cannot be loaded.
        """
        start = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.bundle.verify)
        plan = MemoryPlan(sum(int(entry["size"]) for entry in self.bundle.signature.files.values()), 0, 0)
        plan.check(read_memory_limit())
        self.tokenizer = await asyncio.to_thread(_read_tokenizer, self.bundle.path / TOKENIZER_FILE)
        load: Callable[[Path], EmbeddingRunner] = importlib.import_module(self.runner_module).load
        runner = await asyncio.wrap_future(self._executor.call(load, self.bundle.path))
        self._runner, self.max_length = runner, runner.max_length
        self._max_queue_tokens = self._max_queue_tokens or _QUEUE_TEXTS * runner.max_length
        self.ready = True
        elapsed = time.perf_counter() - start
        logger.info("model %s version %s: ready in %.2f s, %s", self.name, self.version, elapsed, plan)

    async def close(self) -> None:
        """Return when all requests are answered, and release the network."""
        self.ready = False
        await self.requests.wait_idle()
        self._runner = None

    def expire(self) -> None:
        """Refuse waiting texts whose deadline has passed."""
        now = time.monotonic()
        with self._lock:
            late = [text for text in self._waiting if text.deadline is not None and now > text.deadline]
            for text in late:
                self._waiting.remove(text)
        for text in late:
            if not text.result.done():
                text.result.set_exception(DeadlineExceededError())

    def encode_inputs(self, fields: Mapping[str, Any]) -> tuple[list[NDArray[np.int32]], bool]:
        """Return a request's token IDs, and whether embeddings are sent as base64; called in a thread.

        Raises:
            LanguageError: A field is invalid, or a text is longer than the model's limit.
        """
        runner = self._get_runner()
        inputs, is_base64 = parse_embedding(fields, runner.vocabulary_size, runner.width)
        params = ["input"] if len(inputs) == 1 else [f"input[{index}]" for index in range(len(inputs))]
        return [self._encode_input(value, param) for value, param in zip(inputs, params, strict=True)], is_base64

    def encode_pairs(self, pairs: TextPairs) -> list[NDArray[np.int32]]:
        """Return the texts' token IDs; called in a thread.

        Raises:
            LanguageError: A text is empty or longer than the model's limit.
        """
        return [self._encode_input(text, param) for text, param in zip(pairs.texts, pairs.params, strict=True)]

    def _encode_input(self, value: str | tuple[int, ...], param: str) -> NDArray[np.int32]:
        ids = self.encode(value, param) if isinstance(value, str) else list(value)
        if len(ids) > self.max_length:
            message = f"this model's longest text has {self.max_length} tokens, got {len(ids)}"
            raise build_length_error(message, param)
        return np.array(ids, np.int32)

    def encode(self, text: str, param: str) -> list[int]:
        """Return a text's token IDs, special tokens included.

        Raises:
            LanguageError: It is empty.
        """
        if not text.strip():
            raise LanguageError(f"{param}: must not be empty", param)
        ids: list[int] = self.tokenizer.encode(text.lower() if self._get_runner().lower_case else text).ids
        return ids

    async def embed(
        self, sequences: Sequence[NDArray[np.int32]], deadline: float | None, *, is_base64: bool
    ) -> dict[str, Any]:
        """Compute a request's embeddings.

        Args:
            sequences: Token IDs.
            deadline: `time.monotonic()` by which each text must begin; None without one.
            is_base64: Whether an embedding is base64 of little-endian float32.

        Raises:
            RequestError: The queue is full, the deadline has passed, or the network has failed.
        """
        rows = await self._compute(sequences, deadline)
        data = [
            {"object": "embedding", "index": index, "embedding": _encode_row(row, is_base64=is_base64)}
            for index, row in enumerate(rows)
        ]
        return {"object": "list", "data": data, "model": self.name, "usage": _count_tokens(sequences)}

    async def compare(
        self, route: str, pairs: TextPairs, sequences: Sequence[NDArray[np.int32]], deadline: float | None
    ) -> dict[str, Any]:
        """Compute the cosine similarities of a request's texts.

        Args:
            route: `score` or `rerank`.
            pairs: The compared texts.
            sequences: Their token IDs.
            deadline: As `embed` has it.

        Raises:
            RequestError: As `embed` raises it.
        """
        rows = np.stack(await self._compute(sequences, deadline))
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        scores = [float(rows[first] @ rows[second]) for first, second in pairs.pairs]
        head = {"id": f"{route}-{uuid.uuid4().hex}", "model": self.name, "usage": _count_tokens(sequences)}
        if route == "score":
            data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
            return {**head, "object": "list", "created": int(time.time()), "data": data}
        # Equal scores keep their order.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: pairs.top or None]
        results = [
            {"index": index, "document": {"text": pairs.texts[index + 1]}, "relevance_score": scores[index]}
            for index in order
        ]
        return {**head, "results": results}

    async def _compute(
        self, sequences: Sequence[NDArray[np.int32]], deadline: float | None
    ) -> list[NDArray[np.float32]]:
        needed = sum(map(_weigh, sequences))
        texts = [_Text(ids, self._loop.create_future(), deadline) for ids in sequences]
        with self._lock:
            check_queue(sum(_weigh(text.ids) for text in self._waiting), needed, self._max_queue_tokens)
            self._waiting.extend(texts)
        self._submit()
        try:
            return await asyncio.gather(*(text.result for text in texts))
        finally:
            for text in texts:
                text.is_cancelled = True

    def _get_runner(self) -> EmbeddingRunner:
        if self._runner is None:
            raise NotReadyError(self.name)
        return self._runner

    def _submit(self) -> None:
        with self._lock:
            if self._is_submitted or not self._waiting:
                return
            self._is_submitted = True
        self._executor.put(self._run_batch)

    def _deliver(self, texts: Sequence[_Text], rows: NDArray[np.float32] | None, error: RequestError | None) -> None:
        for index, text in enumerate(texts):
            if text.result.done():
                continue
            if rows is not None and np.isfinite(rows[index]).all():
                text.result.set_result(rows[index])
            else:
                text.result.set_exception(error or GraphError("the embedding is not finite"))

    # The methods below run in the executor thread.

    def _run_batch(self) -> None:
        texts = self._take_batch()
        rows, error = None, None
        if texts:
            try:
                rows = self._get_runner().compute([text.ids for text in texts])
            except Exception as failure:
                logger.exception("the network failed for %d texts", len(texts))
                error = GraphError(f"{type(failure).__name__}; the server's log has the trace")
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._deliver, texts, rows, error)
        with self._lock:
            self._is_submitted = False
        self._submit()

    def _take_batch(self) -> list[_Text]:
        """Remove the oldest text and the next ones whose graph has the same length."""
        runner = self._runner
        with self._lock:
            self._waiting = deque(text for text in self._waiting if not text.is_cancelled)
            if runner is None or not self._waiting:
                return []
            length = runner.fit_length(len(self._waiting[0].ids))
            texts = [text for text in self._waiting if runner.fit_length(len(text.ids)) == length][:_MAX_BATCH]
            texts = texts[: runner.fit_batch(len(texts))]
            taken = set(texts)
            self._waiting = deque(text for text in self._waiting if text not in taken)
        return texts


class DualEncoderModel(EmbeddingModel, TensorModel):
    """Serves a `dual-encoder` bundle: texts and images in one space; images by V1, V2 and gRPC too.

    An image is prepared to pixels (3, H, W) and waits among the texts' token IDs.
    """

    platform = "mindspore_dual_encoder"
    runner_module = "kfp_mindspore.vision.serving"
    rows = None
    max_batch = _MAX_BATCH
    _transform: BoundTransform

    async def open(self) -> None:
        """Load both towers.

        Raises:
            UserError: As `EmbeddingModel.open`.
        """
        transform = await asyncio.to_thread(load_transform, self.bundle)
        if transform is None:
            raise UserError(f"{self.bundle.path}: {PREPROCESSING_FILE} is missing", hint="Import the model again.")
        self._transform = transform
        self.readers = {spec.name: InputReader(spec, finite=True) for spec in transform.inputs}
        self.output_names = tuple(spec.name for spec in transform.outputs)
        await super().open()

    def describe(self) -> dict[str, Any]:
        """Return the model's V2 metadata: the image tower's tensors."""
        inputs, outputs = describe(self._transform.inputs), describe(self._transform.outputs)
        return {**super().describe(), "inputs": inputs, "outputs": outputs}

    async def infer(
        self, inputs: Arrays, *, deadline: float | None = None, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> tuple[Arrays, None]:
        """Compute the images' embeddings.

        Args:
            inputs: `image`, PNG or JPEG files, (N,).
            deadline: As `embed` has it.
            parameters: Ignored.

        Returns:
            `output`, float32 with shape (N, width).

        Raises:
            InvalidRequestError: An image is refused; the message has its row.
            RequestError: As `embed` raises it.
        """
        try:
            images = (await asyncio.to_thread(self._transform.run_preprocess, inputs))["image"]
        except TransformInputError as error:
            raise InvalidRequestError(error.message) from None
        except TransformFailedError as error:
            logger.exception("model %s", self.name)
            raise GraphError(error.message) from None
        try:
            rows = await self._compute(list(images), deadline)
        except LanguageError:
            queued = sum(_weigh(text.ids) for text in self._waiting)
            raise OverloadedError(queued, self._max_queue_tokens, what="tokens") from None
        return {self.output_names[0]: np.stack(rows)}, None

    def encode_inputs(self, fields: Mapping[str, Any]) -> tuple[list[NDArray[Any]], bool]:
        """Return a request's token IDs and pixels, and whether embeddings are sent as base64; called in a thread.

        Raises:
            LanguageError: A field is invalid, a text is longer than the model's limit, or an image is refused.
        """
        if fields.get("messages") is None:
            return super().encode_inputs(fields)
        if fields.get("input") is not None:
            raise LanguageError("input: must not be given with messages", "input")
        is_base64 = parse_embedding_format(fields, self._get_runner().width, MESSAGE_FIELDS)
        return [self._encode_part(part) for part in parse_parts(fields["messages"])], is_base64

    def _encode_part(self, part: Part) -> NDArray[Any]:
        if not part.image:
            return self._encode_input(part.text, part.param)
        try:
            pixels: NDArray[Any] = self._transform.run_preprocess({"image": fill_objects([part.image])})["image"][0]
        except TransformInputError as error:
            raise LanguageError(f"{part.param}: {error.message}", part.param) from None
        return pixels


def _weigh(sequence: NDArray[Any]) -> int:
    """Return an input's tokens in the queue's limit: 1 for each KiB of an image's pixels."""
    return len(sequence) if sequence.ndim == 1 else sequence.nbytes >> 10


def _count_tokens(sequences: Sequence[NDArray[np.int32]]) -> dict[str, int]:
    total = sum(len(sequence) for sequence in sequences if sequence.ndim == 1)
    return {"prompt_tokens": total, "total_tokens": total}


def _encode_row(row: NDArray[np.float32], *, is_base64: bool) -> str | list[float]:
    if is_base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    values: list[float] = row.tolist()
    return values


def _read_tokenizer(file: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("tokenizers", "lm") from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  tokenizers raises Exception itself
        raise UserError(f"{file}: not a tokenizer that can be served: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
