"""The first stage of a language model that is cut at a layer: the further layers are computed by another server.

A stage's call is a V2 request with hidden states and slot numbers; the second server holds the caches of the layers for
the same slots. `Stage calls` in `mindsporeserver.language.stage_model` has the tensors.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from kfp_mindspore.compat.protobuf import load_generated
from kfp_mindspore.errors import UserError
from mindsporeserver.language.errors import LanguageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mindsporeserver.language.runner import Runner

logger = logging.getLogger(__name__)

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
# Longer than compiling a graph takes.
_CALL_SECONDS = 120
# How long the start waits for the second server to be ready.
_START_SECONDS = 600
_DATATYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}
# A request with these was understood, and the second server is another model's or has other flags.
_PERMANENT = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class StageCall(IntEnum):
    """What a stage computes."""

    DECODE = 0
    PREFILL = 1
    PREFILL_ALL = 2


class StagedRunner:
    """A `Runner` of two stages.

    Both hold the caches of the same slots. A failed call ends the session: the second server accepts the next one only
    with prompts from their beginning.

    Args:
        first: The first stage's runner.
        address: The second server's gRPC address.
        model: The model's name there.
        pair: Number of the split that both stages come from.
    """

    whole_prompts = False
    adapter_bytes = 0

    def __init__(self, first: Runner, address: str, model: str, pair: int) -> None:
        self._first, self._address, self._pair = first, address, pair
        self.vocabulary_size, self.max_length, self.slots = first.vocabulary_size, first.max_length, first.slots
        self.row_bytes, self.graph_bytes = first.row_bytes, first.graph_bytes
        self._model = model
        self._pb: Any = load_generated("kserve.protocol.grpc.grpc_predict_v2_pb2", "serving")
        # Without the limit a channel would refuse calls for up to two minutes after the second server is back.
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 1000)]
        self._infer = grpc.insecure_channel(address, options=options).unary_unary(
            _METHOD,
            request_serializer=self._pb.ModelInferRequest.SerializeToString,
            response_deserializer=self._pb.ModelInferResponse.FromString,
        )
        self._moves: list[tuple[int, int, int]] = []
        self._session = 0
        self._begin_session()

    def list_compilations(self) -> Sequence[Callable[[], Any]]:
        """Return the first stage's, and `wait`."""
        return [*self._first.list_compilations(), self.wait]

    def wait(self) -> None:
        """Return when the second server computes.

        Raises:
            UserError: It has another model or smaller limits, or is not ready within 10 minutes.
        """
        deadline = time.monotonic() + _START_SECONDS
        is_logged = False
        while True:
            try:
                self._compute(StageCall.PREFILL, [0], self._first.prefill(0, np.zeros(1, np.int32), 0)[None], [0])
                return
            except grpc.RpcError as error:
                found = f"{error.code().name}: {error.details()}"
                if error.code() in _PERMANENT or time.monotonic() > deadline:
                    raise UserError(f"--next-stage: {self._address}: {found}") from None
            if not is_logged:
                logger.info("waiting for the second stage at %s (%s)", self._address, found)
                is_logged = True
            time.sleep(1)

    def prefill(
        self, slot: int, ids: NDArray[np.int32], position: int, *, adapter: int = 0, all_positions: bool = False
    ) -> NDArray[np.float32]:
        """Compute a prompt's tokens from a position on, as `Runner` describes it.

        Raises:
            LanguageError: The second server does not answer or has lost the caches (503).
        """
        hidden = self._first.prefill(slot, ids, position, all_positions=True)
        kind = StageCall.PREFILL_ALL if all_positions else StageCall.PREFILL
        logits = self._call(kind, [slot], hidden, [position])
        return logits if all_positions else logits[0]

    def decode(
        self, slots: Sequence[int], ids: NDArray[np.int32], positions: NDArray[np.int32], adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """Compute one token for each sequence, as `Runner` describes it.

        Raises:
            LanguageError: The second server does not answer or has lost the caches (503).
        """
        return self._call(StageCall.DECODE, slots, self._first.decode(slots, ids, positions), positions)

    def read_adapter(self, directory: Path) -> Callable[[int], None]:
        """Refuse an adapter.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{directory}: a model's stages have no adapters")

    def read_rows(self, slot: int, start: int, stop: int) -> tuple[int, Any]:
        """Return rows for an immediate `write_rows`: the second stage's are moved there by the next call."""
        return slot, self._first.read_rows(slot, start, stop)

    def write_rows(self, slot: int, start: int, rows: tuple[int, Any]) -> None:
        """Move a slot's rows, all from token 0 on, to another slot."""
        source, copied = rows
        self._first.write_rows(slot, start, copied)
        self._moves.append((source, slot, len(copied)))

    def _begin_session(self) -> None:
        self._moves = []
        # Two servers that use one second server by mistake never compute on each other's caches.
        self._session = int(np.random.default_rng().integers(1, 1 << 62))

    def _call(
        self, kind: StageCall, slots: Sequence[int], hidden: NDArray[np.float32], positions: Sequence[int] | Any
    ) -> NDArray[np.float32]:
        try:
            return self._compute(kind, slots, hidden, positions)
        except grpc.RpcError as error:
            self._begin_session()
            logger.warning("the second stage at %s failed: %s: %s", self._address, error.code().name, error.details())
            message = "the server of the model's second stage does not answer; retry later"
            raise LanguageError(message, status=503) from None

    def _compute(
        self, kind: StageCall, slots: Sequence[int], hidden: NDArray[np.float32], positions: Sequence[int] | Any
    ) -> NDArray[np.float32]:
        arrays: dict[str, NDArray[Any]] = {
            "call": np.array([self._pair, self._session, self.slots, self.max_length, kind], np.int64),
            # V2 has no empty tensors: a row with count 0 moves nothing.
            "moves": np.array(self._moves or [(0, 0, 0)], np.int32),
            "slots": np.array(slots, np.int32),
            "positions": np.array(positions, np.int32),
            "hidden": hidden,
        }
        request = self._pb.ModelInferRequest(model_name=self._model)
        for name, array in arrays.items():
            request.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
            request.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
        response = self._infer(request, timeout=_CALL_SECONDS)
        self._moves = []
        logits: NDArray[np.float32] = np.frombuffer(response.raw_output_contents[0], np.float32)
        return logits.reshape(response.outputs[0].shape)


def compute_pair(split: str) -> int:
    """Return a split's number, from the text that both bundles have as `split` in their metadata."""
    return int.from_bytes(hashlib.sha256(split.encode()).digest()[:7], "big")
