"""Continuous batching on a decoder in NumPy whose rows do not depend on the batch."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mindsporeserver.errors import DeadlineExceededError, GraphError, RequestError
from mindsporeserver.language.adapters import Adapter
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.requests import SamplingOptions
from mindsporeserver.language.metrics import LanguageFamilies, LanguageMetrics
from mindsporeserver.language.prefix_cache import BLOCK, PrefixCache
from mindsporeserver.language.sampling import TokenSampler
from mindsporeserver.language.scheduler import Answer, AnswerStream, Scheduler
from mindsporeserver.language.text import TextBuffer, TokenVocabulary
from mindsporeserver.models.inference_executor import InferenceExecutor
from tests.support.language.numpy_decoder import NumpyDecoder

Result = TypeVar("Result")


class Bench:
    """A scheduler with its decoder, in a running event loop."""

    def __init__(self, vocabulary: TokenVocabulary, **options: Any) -> None:
        cache, queue, loras = options.pop("cache", 0), options.pop("queue", 100_000), options.pop("max_loras", 0)
        self.vocabulary = vocabulary
        self.runner = NumpyDecoder(vocabulary.size, **options)
        self.executor = InferenceExecutor()
        self.registry = CollectorRegistry()
        metrics = LanguageMetrics(LanguageFamilies(self.registry), "chat", loras)
        self.scheduler = Scheduler(
            self.runner, self.executor, vocabulary, metrics, max_queue_tokens=queue, prefix_cache_bytes=cache
        )

    def build(self, text: str, max_tokens: int = 20, *, stream: AnswerStream | None = None, **options: Any) -> Answer:
        ids = np.array(self.vocabulary.encode(text), np.int32)
        names = ("logprobs", "scores_prompt", "deadline", "adapter")
        fields = {name: options.pop(name) for name in names if name in options}
        sampler = TokenSampler(SamplingOptions(**{"seed": 1, **options}), 0, ids)
        return Answer(
            ids, sampler, TextBuffer(), stream or AnswerStream(), max_tokens, self.vocabulary.eos_ids, **fields
        )

    async def run(self, text: str, max_tokens: int = 20, **options: Any) -> Answer:
        """Compute an answer and return it, its text in `buffer.text`."""
        answer = self.build(text, max_tokens, **options)
        self.scheduler.submit([answer])
        answer.buffer.text = await read_text(answer)  # type: ignore[attr-defined]
        return answer


async def read_text(answer: Answer, most: int = 1 << 30) -> str:
    text, pieces = "", 0
    while True:
        for delta in await answer.stream.read():
            if delta.error is not None:
                raise delta.error
            text += delta.text
            pieces += 1
            if delta.finish or pieces >= most:
                return text


def run(vocabulary: TokenVocabulary, scenario: Callable[[Bench], Awaitable[Result]], **options: Any) -> Result:
    async def main() -> Result:
        bench = Bench(vocabulary, **options)
        try:
            return await asyncio.wait_for(scenario(bench), 600)
        finally:
            bench.executor.close()

    return asyncio.run(main())


PROMPT = "the quick brown fox jumps over the lazy dog Wie schön ist das Wetter "


def list_prompts(count: int) -> list[str]:
    chosen = random.Random(5)
    return [PROMPT[: chosen.randrange(8, len(PROMPT))] * chosen.randrange(1, 3) for _ in range(count)]


def test_thousand_joins_and_leaves_give_texts_of_single_runs(vocabulary: TokenVocabulary) -> None:
    prompts = list_prompts(40)
    lengths = [random.Random(index).randrange(1, 24) for index in range(40)]

    async def scenario(bench: Bench) -> None:
        alone = [(await bench.run(text, length)).buffer.text for text, length in zip(prompts, lengths, strict=True)]
        bench.runner.batches.clear()
        chosen, gate = random.Random(1), asyncio.Semaphore(9)

        async def join(number: int) -> None:
            async with gate:
                index = number % len(prompts)
                answer = bench.build(prompts[index], lengths[index])
                bench.scheduler.submit([answer])
                if chosen.random() < 0.3:
                    text = await read_text(answer, chosen.randrange(1, 4))
                    bench.scheduler.cancel([answer])
                    assert alone[index].startswith(text)
                else:
                    assert await read_text(answer) == alone[index]

        await asyncio.gather(*(join(number) for number in range(1000)))
        assert max(bench.runner.batches) == bench.runner.slots
        assert bench.registry.get_sample_value("vllm:kv_cache_usage_perc", {"model_name": "chat"}) == 0

    run(vocabulary, scenario, cache=1 << 18)


def test_prompt_chunks_are_small_while_others_stream(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.build("the", 100)
        bench.scheduler.submit([first])
        await read_text(first, 1)
        second = bench.build(PROMPT * 4, 1)
        bench.scheduler.submit([second])
        await read_text(second)
        await read_text(first)
        await bench.run(PROMPT * 4 + "!", 1)
        assert set(bench.runner.chunks) <= {*range(1, 17), 64, len(second.prompt) % 64, (len(second.prompt) + 1) % 64}
        assert bench.runner.chunks.count(16) >= len(second.prompt) // 16
        assert 64 in bench.runner.chunks

    run(vocabulary, scenario, max_length=512)


def test_prefix_cache_changes_nothing_but_time(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.run(PROMPT * 2, 10)
        again = await bench.run(PROMPT * 2, 10)
        longer = await bench.run(PROMPT * 2 + first.buffer.text + " dog", 10)
        assert first.cached == 0
        assert again.cached == (len(again.prompt) - 1) // BLOCK * BLOCK
        assert longer.cached >= again.cached
        assert again.buffer.text == first.buffer.text
        assert longer.buffer.text == plain[1]
        other = bench.build(PROMPT * 2, 1)
        other.adapter = Adapter("tuned", key="1")
        bench.scheduler.submit([other])
        await read_text(other)
        assert other.cached == 0
        assert read("vllm:prefix_cache_hits_total", bench) == again.cached + longer.cached

    def read(name: str, bench: Bench) -> Any:
        return bench.registry.get_sample_value(name, {"model_name": "chat"})

    async def compute_plain(bench: Bench) -> tuple[str, str]:
        first = await bench.run(PROMPT * 2, 10)
        return first.buffer.text, (await bench.run(PROMPT * 2 + first.buffer.text + " dog", 10)).buffer.text

    plain = run(vocabulary, compute_plain)
    run(vocabulary, scenario, cache=1 << 20)


def test_prefix_cache_drops_least_recently_used_blocks() -> None:
    cache = PrefixCache(4 * BLOCK * 8 + 7, 8)
    first, second = (cache.list_keys(np.arange(start, start + 3 * BLOCK, dtype=np.int32)) for start in (0, 1000))
    rows = np.zeros((BLOCK, 2), np.float32)
    for key in first:
        cache.put(key, rows)
    assert len(cache.get(first)) == 3
    for key in second:
        cache.put(key, rows)
    assert len(cache) == 4
    # The beginning is the last to go: later blocks are of no use without it.
    assert [len(cache.get(first)), len(cache.get(second))] == [1, 3]
    assert cache.list_keys(np.arange(BLOCK, dtype=np.int32), "tuned")[0] != first[0]
    assert not PrefixCache(0, 8).lacks(first[0])


def test_cancelled_answer_frees_its_slot_within_step(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        running, waiting = bench.build("the", 200), bench.build("fox", 5)
        bench.scheduler.submit([running])
        await read_text(running, 1)
        bench.scheduler.submit([waiting])
        bench.scheduler.cancel([running])
        steps = len(bench.runner.batches)
        await read_text(waiting)
        # One step may have been under way.
        assert len(bench.runner.batches) <= steps + 2 + 5

    run(vocabulary, scenario, slots=1)


def test_answer_cancelled_before_its_prefill_is_never_computed(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        running, waiting = bench.build("the", 30), bench.build(PROMPT, 5)
        bench.scheduler.submit([running])
        bench.scheduler.submit([waiting])
        bench.scheduler.cancel([waiting])
        await read_text(running)
        assert bench.runner.chunks == [len(running.prompt)]

    run(vocabulary, scenario, slots=1)


def test_full_queue_and_deadline_refuse(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        running = bench.build("the", 200)
        bench.scheduler.submit([running])
        await read_text(running, 1)
        late = bench.build("fox", 10, deadline=time.monotonic() - 1)
        bench.scheduler.submit([late])
        with pytest.raises(LanguageError, match="overloaded: waiting requests need") as raised:
            bench.scheduler.submit([bench.build("fox", 200)])
        assert (raised.value.status, raised.value.retry_after) == (429, 1)
        bench.scheduler.expire()
        with pytest.raises(DeadlineExceededError):
            await read_text(late)
        bench.scheduler.submit([running := bench.build("fox", 200)])
        bench.scheduler.cancel([running])

    run(vocabulary, scenario, slots=1, queue=205)


def test_logits_that_are_not_finite_end_that_answer_only(vocabulary: TokenVocabulary) -> None:
    poison = vocabulary.size - 1

    async def scenario(bench: Bench) -> None:
        expected = (await bench.run("the", 20)).buffer.text
        answers = [bench.build("the", 20) for _ in range(3)]
        answers[1].prompt = np.append(answers[1].prompt, np.int32(poison))
        biased = bench.build("the", 20, logit_bias={poison: 100})
        bench.scheduler.submit([*answers, biased])
        results = await asyncio.gather(*map(read_text, [*answers, biased]), return_exceptions=True)
        assert [results[0], results[2]] == [expected, expected]
        for result in (results[1], results[3]):
            assert isinstance(result, GraphError)
            assert "not finite" in result.message

    run(vocabulary, scenario, poison=poison)


def test_failing_network_ends_its_answers_and_serves_the_next(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        decode = bench.runner.decode

        def fail(*_: Any) -> Any:
            raise MemoryError

        bench.runner.decode = fail  # type: ignore[method-assign]
        for result in await asyncio.gather(*(bench.run("the") for _ in range(3)), return_exceptions=True):
            assert isinstance(result, RequestError)
        bench.runner.decode = decode  # type: ignore[method-assign]
        assert (await bench.run("the")).generated

    run(vocabulary, scenario)


def test_reader_that_is_too_slow_is_ended(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        ended = asyncio.Event()
        answer = bench.build("the", 2000, stream=AnswerStream(ended.set), logit_bias={2: -100, 0: -100})
        bench.scheduler.submit([answer])
        await ended.wait()
        assert answer.is_cancelled
        assert (await bench.run("fox", 3)).generated

    run(vocabulary, scenario, max_length=2100, slots=1)


def test_score_of_prompt_equals_score_of_answer(vocabulary: TokenVocabulary) -> None:
    async def scenario(bench: Bench) -> None:
        answer = bench.build(PROMPT * 2, 1, temperature=0, logprobs=2)
        bench.scheduler.submit([answer])
        ((delta,),) = [await answer.stream.read()]
        longer = bench.build(PROMPT * 2, 0, logprobs=2, scores_prompt=True)
        longer.prompt = np.append(longer.prompt, np.int32(answer.generated[0]))
        bench.scheduler.submit([longer])
        await read_text(longer)
        assert len(longer.prompt_logprobs) == len(longer.prompt)
        assert longer.prompt_logprobs[0] is None
        assert longer.prompt_logprobs[-1] == delta.logprobs[0]
        assert delta.logprobs[0].top[0] == (answer.generated[0], delta.logprobs[0].logprob)

    run(vocabulary, scenario)


def test_metrics_name_adapters_that_run_and_wait(vocabulary: TokenVocabulary) -> None:
    labels = 'max_lora="3",running_lora_adapters="first,third",waiting_lora_adapters="second"'

    async def scenario(bench: Bench) -> None:
        answers = [
            bench.build("fox", 100, logit_bias={2: -100, 0: -100}, adapter=Adapter(name, key=name))
            for name in ("third", "first", "second")
        ]
        bench.scheduler.submit(answers)
        await read_text(answers[1], 1)
        found = [line for line in generate_latest(bench.registry).decode().splitlines() if "requests_info{" in line]
        assert [line.partition("}")[0] for line in found] == [f"vllm:lora_requests_info{{{labels}"]

    run(vocabulary, scenario, slots=2, max_loras=3)
