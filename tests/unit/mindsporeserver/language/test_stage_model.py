"""A second stage's calls: what is refused, and which caches survive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.lm.bundle.causal import import_model
from kfp_mindspore.lm.bundle.stages import split_model
from mindsporeserver.errors import InvalidRequestError, RequestError
from mindsporeserver.language.next_stage import StageCall, compute_pair
from mindsporeserver.language.stage_model import LostSessionError, StageModel
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.observability.metrics import ServerMetrics
from tests.support.language.tiny_language_model import WIDTH, write_source

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

Compute = Callable[..., Any]
TOKENS = np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """Compute a call of session 1 with 3 tokens for slot 0 from position 0; arguments replace its fields."""
    directory = tmp_path_factory.mktemp("stages")
    import_model(write_source(directory / "source"), directory / "whole")
    split_model(directory / "whole", 1, directory)
    bundle = ModelBundle.open(directory / "second")
    model = StageModel(
        *("chat", bundle),
        version="1",
        slots=2,
        max_length=32,
        executor=InferenceExecutor(),
        metrics=ServerMetrics(),
    )
    pair = compute_pair(bundle.signature.metadata["split"])

    async def infer(**fields: Any) -> Any:
        if not model.ready:
            await model.open()
        call = [pair, fields.get("session", 1), fields.get("count", 2), 32, fields.get("kind", StageCall.PREFILL)]
        call[0] += fields.get("other", 0)
        arrays = {"moves": np.array(fields.get("moves", [[0, 0, 0]]), np.int32), "call": np.array(call)}
        arrays |= {name: np.array(fields.get(name, [0]), np.int32) for name in ("slots", "positions")}
        outputs, _ = await model.infer({**arrays, "hidden": fields.get("hidden", TOKENS)})
        return outputs["logits"]

    return lambda **fields: asyncio.run(infer(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"other": 1}, "from another split"),
        ({"count": 3}, "the first server has --max-num-seqs 3, this one 2"),
        ({"slots": [2]}, r"input slots: must be from 0 to 1, got \[2, 0, 0\]"),
        ({"moves": [[0, -1, 3]]}, r"input slots: must be from 0 to 1, got \[0, 0, -1\]"),
        ({"slots": [0, 1]}, "input slots: must be 0 to B - 1 or, for a prompt, one slot"),
        ({"slots": [1], "kind": StageCall.DECODE}, "input slots: must be 0 to B - 1"),
        ({"kind": StageCall.DECODE}, "must have a row per slot"),
        ({"hidden": TOKENS[:0]}, "must have a row per slot"),
        ({"positions": [30]}, "input positions: a sequence has at most 32 tokens"),
    ],
)
def test_calls_beyond_limits_are_refused(compute: Compute, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        compute(**fields)


def test_session_keeps_its_caches_until_another_one_begins(compute: Compute) -> None:
    def decode(**fields: Any) -> Any:
        return compute(kind=StageCall.DECODE, hidden=TOKENS[:1], positions=[3], **fields)

    compute(session=2)
    expected = decode(session=2)
    compute(session=2, slots=[1])
    compute(session=2, hidden=-TOKENS)
    assert np.array_equal(decode(session=2, moves=[[1, 0, 3]]), expected)
    compute(session=3)
    for lost in ({"session": 2}, {"session": 4}, {"session": 3, "moves": [[1, 0, 3]]}):
        with pytest.raises(LostSessionError, match="this session's caches are gone"):
            decode(**lost)
    compute(session=5)
    assert np.array_equal(decode(session=5), expected)


def test_all_positions_have_logits(compute: Compute) -> None:
    scores = compute(kind=StageCall.PREFILL_ALL)
    last = compute()
    assert scores.shape == (3, last.shape[1])
    assert np.abs(scores[2] - last[0]).max() <= 1e-5 * np.abs(last).max()
    with pytest.raises(RequestError):
        compute(session=9, positions=[3])
