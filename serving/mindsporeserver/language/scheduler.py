"""Continuous batching: sequences join and leave between two steps of the network.

The event loop submits and cancels answers and receives their text. The executor thread runs rounds: each has at most
one chunk of one prompt, and one step of all answers that are being generated. Answers occupy slots 0 to N - 1 in the
order of `_decoding`, and the prompt that is being read slot N, so that the network computes the smallest batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mindsporeserver.errors import DeadlineExceededError, GraphError, RequestError
from mindsporeserver.language.adapters import BASE, Adapter
from mindsporeserver.language.metrics import LanguageMetrics
from mindsporeserver.language.prefix_cache import BLOCK, PrefixCache
from mindsporeserver.language.runner import Runner
from mindsporeserver.language.sampling import TokenLogprob, TokenSampler, compute_logprobs, sample
from mindsporeserver.language.text import TextBuffer, TokenVocabulary
from mindsporeserver.language.text_model import check_queue
from mindsporeserver.models.inference_executor import InferenceExecutor

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Tokens of a prompt per round: fewer while other answers wait for their next token.
_CHUNK, _SMALL_CHUNK = 64, 16
# Pieces of text that a client has not read yet, beside what the kernel's and the transport's buffers hold.
_MAX_PENDING = 512


@dataclass(frozen=True)
class Delta:
    """A piece of an answer.

    Args:
        index: The answer's index in the request.
        text: Complete characters; may be empty.
        tokens: Tokens in the text.
        logprobs: Their log probabilities; empty unless requested.
        finish: stop or length in the last piece.
        error: Why the answer ended without a finish; None else.
    """

    index: int
    text: str = ""
    tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    error: RequestError | None = None


class AnswerStream:
    """The pieces of a request's answers, in the event loop.

    Args:
        on_overflow: Called when the client is too slow; None for a response that is sent at the end.
    """

    def __init__(self, on_overflow: Callable[[], None] | None = None) -> None:
        self._pending: list[Delta] = []
        self._arrived = asyncio.Event()
        self._on_overflow = on_overflow

    def push(self, delta: Delta) -> bool:
        """Add a piece; return whether the client is fast enough."""
        if self._on_overflow is not None and len(self._pending) >= _MAX_PENDING:
            self._on_overflow()
            return False
        self._pending.append(delta)
        self._arrived.set()
        return True

    async def read(self) -> list[Delta]:
        """Return the pieces that have arrived since the last call, at least one."""
        await self._arrived.wait()
        self._arrived.clear()
        pieces, self._pending = self._pending, []
        return pieces


@dataclass(eq=False)
class Answer:
    """One answer to one prompt.

    Args:
        prompt: Token IDs, int32 with shape (n,), at least one.
        sampler: Chooses tokens.
        buffer: Receives the text.
        stream: Receives the pieces.
        max_tokens: Most tokens; 0 for the prompt's log probabilities only.
        stop_ids: Tokens that end the answer.
        index: The index in the request.
        logprobs: Alternatives per token; None without log probabilities.
        scores_prompt: Whether the prompt's log probabilities are computed.
        adapter: The model's adapter.
        deadline: `time.monotonic()` by which the first step must begin; None without one.
        cached: Count of prompt tokens whose rows came from the prefix cache.
        prompt_logprobs: For each token of the prompt; None for the first.
    """

    prompt: NDArray[np.int32]
    sampler: TokenSampler
    buffer: TextBuffer
    stream: AnswerStream
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    index: int = 0
    logprobs: int | None = None
    scores_prompt: bool = False
    adapter: Adapter = BASE
    deadline: float | None = None
    cached: int = 0
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    arrived: float = field(default_factory=time.monotonic)
    # Set in the event loop; all below in the executor thread.
    is_cancelled: bool = False
    slot: int = -1
    position: int = 0
    generated: list[int] = field(default_factory=list)
    emitted: int = 0
    held: list[TokenLogprob] = field(default_factory=list)
    last_token: float = 0.0

    @property
    def size(self) -> int:
        """Most tokens of prompt and answer."""
        return len(self.prompt) + self.max_tokens


class Scheduler:
    """One model's answers.

    Args:
        runner: The network.
        executor: The process' executor.
        vocabulary: The model's.
        metrics: The model's.
        max_queue_tokens: Most tokens that waiting answers may need.
        prefix_cache_bytes: Most bytes of the prefix cache; 0 disables it.
    """

    def __init__(
        self,
        runner: Runner,
        executor: InferenceExecutor,
        vocabulary: TokenVocabulary,
        metrics: LanguageMetrics,
        *,
        max_queue_tokens: int,
        prefix_cache_bytes: int = 0,
    ) -> None:
        self._runner = runner
        self._executor = executor
        self._vocabulary = vocabulary
        self._metrics = metrics
        self.max_queue_tokens = max_queue_tokens
        self._prefixes = PrefixCache(prefix_cache_bytes, runner.row_bytes)
        self._waiting: deque[Answer] = deque()
        self._queued: set[Answer] = set()
        self._decoding: list[Answer] = []
        self._prefilling: Answer | None = None
        self._lock = threading.Lock()
        self._is_submitted = False
        self._loop: asyncio.AbstractEventLoop
        self._deltas: list[tuple[Answer, Delta]] = []
        self._started: list[Answer] = []
        self._report([])

    def submit(self, answers: Sequence[Answer]) -> None:
        """Queue a request's answers; called in the event loop.

        Raises:
            LanguageError: The queue is full (429).
        """
        self._loop = asyncio.get_running_loop()
        queued, needed = sum(answer.size for answer in self._queued), sum(answer.size for answer in answers)
        check_queue(queued, needed, self.max_queue_tokens)
        self._queued.update(answers)
        self._waiting.extend(answers)
        self._report(self._running)
        self._submit_round()

    def cancel(self, answers: Sequence[Answer]) -> None:
        """Drop answers: waiting ones now, others before the next step; called in the event loop."""
        for answer in answers:
            answer.is_cancelled = True
            with contextlib.suppress(ValueError):  # it has been started
                self._waiting.remove(answer)
                self._queued.discard(answer)
        self._report(self._running)

    def expire(self) -> None:
        """Refuse waiting answers whose deadline has passed; called in the event loop."""
        now = time.monotonic()
        late = [answer for answer in self._queued if answer.deadline is not None and now > answer.deadline]
        for answer in late:
            answer.stream.push(Delta(answer.index, error=DeadlineExceededError()))
        if late:
            self.cancel(late)

    def _submit_round(self) -> None:
        with self._lock:
            if self._is_submitted or not (self._waiting or self._decoding or self._prefilling):
                return
            self._is_submitted = True
        self._executor.put(self._run_round)

    def _deliver(
        self, started: Sequence[Answer], deltas: Sequence[tuple[Answer, Delta]], running: list[Answer]
    ) -> None:
        self._queued.difference_update(started)
        for answer, delta in deltas:
            if not answer.is_cancelled and not answer.stream.push(delta):
                logger.warning("a stream was ended: its client did not read %d pieces", _MAX_PENDING)
                answer.is_cancelled = True
        self._report(running)

    def _report(self, running: list[Answer]) -> None:
        self._running = running
        metrics = self._metrics
        metrics.waiting.set(len(self._queued))
        metrics.running.set(len(running))
        if metrics.max_loras:
            names = ({answer.adapter.name for answer in answers} for answers in (running, self._queued))
            metrics.families.set_adapters(metrics.max_loras, *names)

    # The methods below run in the executor thread.

    def _run_round(self) -> None:
        try:
            self._compute_round()
        except Exception as error:
            failure = error if isinstance(error, RequestError) else None
            if failure is None:
                logger.exception("the network failed for %d answers", len(self._list_running()))
                failure = GraphError(f"{type(error).__name__}; the server's log has the trace")
            self._deltas += [(answer, Delta(answer.index, error=failure)) for answer in self._list_running()]
            self._decoding, self._prefilling = [], None
        running = self._list_running()
        rows = sum(answer.position for answer in running)
        self._metrics.cache_usage.set(rows / (self._runner.slots * self._runner.max_length))
        started, self._started, deltas, self._deltas = self._started, [], self._deltas, []
        if started or deltas or not running:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._deliver, started, deltas, running)
        with self._lock:
            self._is_submitted = False
        self._submit_round()

    def _compute_round(self) -> None:
        for answer in self._list_running():
            if answer.is_cancelled:
                self._remove(answer)
        if self._prefilling is None and len(self._decoding) < self._runner.slots:
            self._start_next()
        if self._prefilling is not None:
            self._run_chunk(self._prefilling)
        if self._decoding:
            self._run_step()

    def _list_running(self) -> list[Answer]:
        return [*self._decoding, *([] if self._prefilling is None else [self._prefilling])]

    def _start_next(self) -> None:
        try:
            answer = self._waiting.popleft()
        except IndexError:
            return
        self._started.append(answer)
        if answer.is_cancelled:
            return
        answer.slot = len(self._decoding)
        self._prefilling = answer
        self._metrics.queue.observe(time.monotonic() - answer.arrived)
        if answer.scores_prompt:
            return
        # The last token is always computed: its logits are the first answer token's.
        keys = self._prefixes.list_keys(answer.prompt[:-1], answer.adapter.key)
        for rows in self._prefixes.get(keys):
            self._runner.write_rows(answer.slot, answer.position, rows)
            answer.position += BLOCK
        answer.cached = answer.position
        self._metrics.prefix_queries.inc(len(answer.prompt))
        self._metrics.prefix_hits.inc(answer.cached)

    def _run_chunk(self, answer: Answer) -> None:
        size = _SMALL_CHUNK if self._decoding else _CHUNK
        if self._runner.whole_prompts:
            size = len(answer.prompt)
        ids = answer.prompt[answer.position : answer.position + size]
        logits = self._runner.prefill(
            *(answer.slot, ids, answer.position),
            adapter=answer.adapter.number,
            all_positions=answer.scores_prompt,
        )
        # The runner's cache keeps no NaN: a later chunk's logits would be finite again.
        if not np.isfinite(logits.max()):
            self._fail(answer, _get_nonfinite_error())
            return
        if answer.scores_prompt:
            self._score_prompt(answer, logits)
            logits = logits[-1]
        answer.position += len(ids)
        if answer.position < len(answer.prompt):
            return
        self._prefilling = None
        self._decoding.append(answer)
        self._metrics.prompt_tokens.inc(len(answer.prompt))
        if answer.max_tokens:
            self._accept([answer], logits[None])
        else:
            self._deltas.append((answer, Delta(answer.index, finish="length")))
            self._remove(answer)
        if answer.slot >= 0:
            self._store_prefix(answer)

    def _run_step(self) -> None:
        answers = list(self._decoding)
        ids = np.array([answer.generated[-1] for answer in answers], np.int32)
        positions = np.array([answer.position for answer in answers], np.int32)
        adapters = [answer.adapter.number for answer in answers]
        logits = self._runner.decode(range(len(answers)), ids, positions, adapters)
        for answer in answers:
            answer.position += 1
        self._accept(answers, logits)

    def _accept(self, answers: Sequence[Answer], logits: NDArray[np.float32]) -> None:
        """Choose each answer's next token from its row of logits."""
        logits = np.array(logits, np.float32)
        finite = np.isfinite(logits.max(axis=1))
        chosen: list[tuple[Answer, int]] = []
        scored: dict[int, NDArray[np.float32]] = {}
        for row, answer in enumerate(answers):
            if not finite[row]:
                self._fail(answer, _get_nonfinite_error())
                continue
            if answer.logprobs is not None:
                scored[row] = logits[row].copy()
            try:
                answer.sampler.adjust(logits[row])
            except RequestError as error:
                self._fail(answer, error)
            else:
                chosen.append((answer, row))
        rows = [row for _, row in chosen]
        if len(rows) < len(answers):
            logits = logits[rows]
        if not rows:
            return
        tokens = sample(logits, [answer.sampler for answer, _ in chosen])
        now = time.monotonic()
        for (answer, row), token in zip(chosen, tokens.tolist(), strict=True):
            if answer.logprobs is not None:
                answer.held.append(compute_logprobs(scored[row], token, answer.logprobs))
            metrics, since = self._metrics, answer.last_token or answer.arrived
            (metrics.token if answer.generated else metrics.first_token).observe(now - since)
            metrics.generation_tokens.inc()
            answer.last_token = now
            self._append(answer, token)

    def _append(self, answer: Answer, token: int) -> None:
        """Record a token, and emit the text that is certain."""
        answer.generated.append(token)
        sampler, buffer = answer.sampler, answer.buffer
        sampler.count(token)
        finish = None
        text = ""
        if token in answer.stop_ids:
            finish = "stop"
        elif token not in self._vocabulary.special_ids:
            may_stop = len(answer.generated) > sampler.options.min_tokens
            text = buffer.push(self._vocabulary.get_bytes(token), may_stop=may_stop)
        if sampler.matcher is not None:
            sampler.matcher.consume(token)
            if sampler.matcher.is_stopped:
                finish = "stop"
        if buffer.is_stopped:
            finish = "stop"
        elif finish is None and len(answer.generated) >= answer.max_tokens:
            finish = "length"
        if finish is not None:
            text += buffer.flush()
        if text or finish:
            count = len(answer.generated)
            delta = Delta(answer.index, text, count - answer.emitted, tuple(answer.held), finish)
            self._deltas.append((answer, delta))
            answer.held, answer.emitted = [], count
        if finish is not None:
            self._metrics.finished[finish].inc()
            self._store_prefix(answer)
            self._remove(answer)

    def _fail(self, answer: Answer, error: RequestError) -> None:
        self._deltas.append((answer, Delta(answer.index, error=error)))
        self._metrics.finished["error"].inc()
        self._remove(answer)

    def _score_prompt(self, answer: Answer, logits: NDArray[np.float32]) -> None:
        scores = answer.prompt_logprobs or [None]
        following = answer.prompt[answer.position + 1 : answer.position + 1 + len(logits)]
        for row, token in zip(logits, following.tolist(), strict=False):
            scores.append(compute_logprobs(row, token, answer.logprobs or 0))
        answer.prompt_logprobs = scores

    def _store_prefix(self, answer: Answer) -> None:
        ids = np.concatenate([answer.prompt, np.array(answer.generated, np.int32)])[: answer.position]
        for index, key in enumerate(self._prefixes.list_keys(ids, answer.adapter.key)):
            if self._prefixes.lacks(key):
                start = index * BLOCK
                self._prefixes.put(key, self._runner.read_rows(answer.slot, start, start + BLOCK))

    def _remove(self, answer: Answer) -> None:
        """Free a slot and move the last sequences, so that the slots in use are the first ones."""
        slot, answer.slot = answer.slot, -1
        if answer is self._prefilling:
            self._prefilling = None
            return
        last = self._decoding.pop()
        if last is not answer:
            self._decoding[slot] = last
            self._move(last, slot)
        if self._prefilling is not None:
            self._move(self._prefilling, len(self._decoding))

    def _move(self, answer: Answer, slot: int) -> None:
        if answer.position:
            self._runner.write_rows(slot, 0, self._runner.read_rows(answer.slot, 0, answer.position))
        answer.slot = slot


def _get_nonfinite_error() -> GraphError:
    return GraphError("its logits are not finite: the weights or the prompt's length are at fault")
