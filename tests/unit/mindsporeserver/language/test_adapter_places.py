"""The places of a model's adapters, while requests are in progress."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mindsporeserver.language.adapters import BASE, Adapters
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.models.inference_executor import InferenceExecutor
from tests.support.language.numpy_decoder import NumpyDecoder


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    (tmp_path / "adapter_config.json").write_text("1")
    return str(tmp_path)


def create_adapters(most: int) -> Adapters:
    return Adapters(NumpyDecoder(64), InferenceExecutor(), most, {})


def test_place_is_used_until_last_answer_ends(adapter: str) -> None:
    async def run() -> None:
        adapters = create_adapters(most=1)
        first = await adapters.load("first", adapter)
        with first.requests:
            adapters.unload("first")
            with pytest.raises(
                LanguageError, match=r"at most 1 adapters \(--max-loras\), all are loaded or still answer"
            ):
                await adapters.load("second", adapter)
        second = await adapters.load("second", adapter)
        assert (second.number, second.key != first.key) == (1, True)

    asyncio.run(run())


def test_adapter_is_loaded_while_base_model_answers(adapter: str) -> None:
    async def run() -> None:
        adapters = create_adapters(most=1)
        with BASE.requests:
            await adapters.load("first", adapter)
        assert list(adapters.loaded) == ["first"]

    asyncio.run(run())
