"""The second stage of a language model that is cut at a layer, served by V2.

Stage calls come from one first server, whose slots this server's caches mirror. Nothing is freed by a call: a sequence
that begins in a slot replaces the one before, so the caches are bound by slots and length.

call       int64 (5,): the split's and the session's number, the first server's slots and longest sequence, `StageCall`
moves      int32 (M, 3): cache rows to move first: from slot, to slot, count; 0 moves nothing
slots      int32 (B,): 0 to B - 1 when decoding, else one
positions  int32 (B,): tokens that the slots hold
hidden     float32 (B, width) when decoding, else (tokens, width)
logits     float32 (B, V), or one row per token
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.formats.bundle import WEIGHTS_FILE, ModelBundle, TensorSpec
from mindsporeserver.errors import InvalidRequestError, NotReadyError, RequestError
from mindsporeserver.language.memory import MemoryPlan, read_memory_limit
from mindsporeserver.language.next_stage import StageCall, compute_pair
from mindsporeserver.language.runner import DEFAULT_LENGTH
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.served_model import NO_PARAMETERS, RequestCounter, TensorModel
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.protocols.tensors import InputReader, describe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)

PLATFORM = "mindspore_causal_lm_stage"


class LostSessionError(RequestError):
    """A call continues sequences whose cache rows this server does not hold."""

    status = 409
    code = "FAILED_PRECONDITION"
    reason = "invalid"

    def __init__(self) -> None:
        super().__init__("inputs positions and moves: this session's caches are gone; begin all prompts again")


class StageModel(TensorModel):
    """Serves a second stage.

    Args:
        name: Name in requests; the first server's model has the same.
        bundle: An opened bundle.
        version: The version.
        slots: Sequences at once.
        max_length: Most tokens of a sequence; 0 for the model's own limit, at most 2048.
        executor: The process' inference executor.
        metrics: The process' metrics.
    """

    def __init__(
        self,
        name: str,
        bundle: ModelBundle,
        *,
        version: str,
        slots: int,
        max_length: int,
        executor: InferenceExecutor,
        metrics: ServerMetrics,
    ) -> None:
        super().__init__(name, bundle, version, metrics.for_model(name))
        self._executor = executor
        metadata = bundle.signature.metadata
        self._max_length = max_length or min(int(metadata["max_length"]), DEFAULT_LENGTH)
        self._pair = compute_pair(metadata["split"])
        self._session = 0
        self._held = [0] * slots
        self._runner: Any = None
        self.rows, self.output_names, self.max_batch = None, ("logits",), 0
        self._inputs: tuple[TensorSpec, ...] = ()
        self._outputs: tuple[TensorSpec, ...] = ()

    async def open(self) -> None:
        """Load the network and compile the graphs.

        Raises:
            UserError: The bundle is damaged, or the model needs more memory than the container has.
        """
        start = time.perf_counter()
        await asyncio.to_thread(self.bundle.verify)
        runner = await asyncio.wrap_future(self._executor.call(self._load))
        weights = int(self.bundle.signature.files[WEIGHTS_FILE]["size"])
        plan = MemoryPlan(weights, runner.slots * runner.max_length * runner.row_bytes, 0, graphs=runner.graph_bytes)
        plan.check(read_memory_limit())
        for compile_graph in runner.list_compilations():
            await asyncio.wrap_future(self._executor.call(compile_graph))
        shapes = {"call": ("int64", (5,)), "moves": ("int32", (-1, 3)), "slots": ("int32", (-1,))}
        shapes |= {"positions": ("int32", (-1,)), "hidden": ("float32", (-1, runner.config.width))}
        self._inputs = tuple(TensorSpec(name, *spec) for name, spec in shapes.items())
        self._outputs = (TensorSpec("logits", "float32", (-1, runner.vocabulary_size)),)
        # Hidden states that are not finite end one answer in the first server, not the call.
        self.readers = {spec.name: InputReader(spec, finite=False) for spec in self._inputs}
        self._runner, self.ready = runner, True
        elapsed = time.perf_counter() - start
        logger.info("model %s version %s: ready in %.2f s, second stage: %s", self.name, self.version, elapsed, plan)

    def _load(self) -> Any:
        load = importlib.import_module("kfp_mindspore.lm.serving.runner").load
        return load(self.bundle.path, slots=len(self._held), max_length=self._max_length)

    async def close(self) -> None:
        """Return when admitted requests are answered, and release the network."""
        self.ready = False
        await self.requests.wait_idle()
        self._runner = None

    def expire(self) -> None:
        """Do nothing: the first server's calls come one after another."""

    def describe(self) -> dict[str, Any]:
        """Return the model's V2 metadata."""
        described: dict[str, Any] = {"name": self.name, "versions": [self.version], "platform": PLATFORM}
        return {**described, "inputs": describe(self._inputs), "outputs": describe(self._outputs)}

    def admit(self) -> RequestCounter:
        """Return the context of a request, which `close` waits for.

        Raises:
            NotReadyError: The model is loading or unloaded.
        """
        if not self.ready:
            raise NotReadyError(self.name)
        return self.requests

    async def infer(
        self, inputs: Arrays, *, deadline: float | None = None, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> tuple[Arrays, None]:
        """Compute a stage call.

        Raises:
            InvalidRequestError: The call is another split's, or beyond this server's limits.
            LostSessionError: It continues sequences that this server does not hold.
        """
        logits = await asyncio.wrap_future(self._executor.call(self._compute, inputs))
        return {"logits": logits}, None

    def _compute(self, inputs: Arrays) -> NDArray[Any]:
        """Check and compute a call, in the executor thread."""
        pair, session, slots, length, kind = inputs["call"].tolist()
        self._check_server(pair, slots, length)
        hidden, moves = inputs["hidden"], inputs["moves"].tolist()
        numbers, positions = inputs["slots"].tolist(), inputs["positions"].tolist()
        is_decoding = kind == StageCall.DECODE
        tokens = 1 if is_decoding else len(hidden)
        if numbers != list(range(len(numbers))) if is_decoding else len(numbers) != 1:
            raise InvalidRequestError(f"input slots: must be 0 to B - 1 or, for a prompt, one slot, got {numbers}")
        if len(positions) != len(numbers) or not (len(hidden) == len(numbers) if is_decoding else tokens):
            raise InvalidRequestError("inputs positions and hidden: must have a row per slot, a prompt's per token")
        indices = [*numbers, *(slot for move in moves for slot in move[:2])]
        if min(indices, default=0) < 0 or max(indices, default=0) >= len(self._held):
            raise InvalidRequestError(f"input slots: must be from 0 to {len(self._held) - 1}, got {indices}")
        if min(positions) < 0 or max(positions) + tokens > self._max_length:
            raise InvalidRequestError(f"input positions: a sequence has at most {self._max_length} tokens")
        if session != self._session:
            self._session, self._held = session, [0] * len(self._held)
        for source, target, count in (move for move in moves if move[2]):
            if not 0 < count <= self._held[source]:
                raise LostSessionError
            self._runner.write_rows(target, 0, self._runner.read_rows(source, 0, count))
            self._held[target] = count
        if any(self._held[slot] < position for slot, position in zip(numbers, positions, strict=True)):
            raise LostSessionError
        if is_decoding:
            logits: NDArray[Any] = self._runner.decode(numbers, hidden, inputs["positions"])
        else:
            every = kind == StageCall.PREFILL_ALL
            logits = self._runner.prefill(numbers[0], hidden, positions[0], all_positions=every)
            logits = logits if every else logits[None]
        for slot, position in zip(numbers, positions, strict=True):
            self._held[slot] = position + tokens
        return logits

    def _check_server(self, pair: int, slots: int, length: int) -> None:
        if pair != self._pair:
            raise InvalidRequestError(f"input call: model {self.name} is from another split; serve both stages of one")
        for flag, found, own in (
            ("--max-num-seqs", slots, len(self._held)),
            ("--max-model-len", length, self._max_length),
        ):
            if found > own:
                raise InvalidRequestError(f"input call: the first server has {flag} {found}, this one {own}")
