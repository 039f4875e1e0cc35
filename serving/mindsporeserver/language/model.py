"""A served language model: one bundle of the kind `causal-lm` or `seq2seq`, loaded and warm."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.bundle import (
    CAUSAL_KIND,
    FIRST_STAGE_KIND,
    GENERATION_FILE,
    SEQ2SEQ_KIND,
    TOKENIZER_FILE,
    ModelBundle,
)
from kfp_mindspore.lm.text.template import ChatTemplate, read_template
from mindsporeserver.language.adapters import BASE, Adapter, Adapters
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.messages import merge_variables
from mindsporeserver.language.fields.requests import GenerationRequest
from mindsporeserver.language.grammar import Matcher
from mindsporeserver.language.memory import MemoryPlan, read_memory_limit
from mindsporeserver.language.metrics import LanguageFamilies, LanguageMetrics
from mindsporeserver.language.next_stage import StagedRunner, compute_pair
from mindsporeserver.language.parsers.answer import AnswerParsers
from mindsporeserver.language.parsers.reasoning import BEGIN, ReasoningParser
from mindsporeserver.language.parsers.tools import ToolParser, build_constraint, get_arguments_key
from mindsporeserver.language.runner import DEFAULT_LENGTH, Runner
from mindsporeserver.language.sampling import TokenSampler
from mindsporeserver.language.scheduler import Answer, AnswerStream, Scheduler
from mindsporeserver.language.text import TextBuffer, TokenVocabulary
from mindsporeserver.language.text_model import TextModel, build_length_error
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.observability.metrics import ServerMetrics

logger = logging.getLogger(__name__)

ADAPTER_FILE = "adapter_config.json"
WEIGHTS_FILE = "weights.safetensors"
# Waiting requests may need as many tokens as this many full rounds of slots.
_QUEUE_ROUNDS = 16


@dataclass(frozen=True)
class LanguageSettings:
    """Settings for all language models on a server.

    Args:
        max_model_len: Most tokens of a prompt and the answer; 0 for the model's own limit, at most 2048.
        max_num_seqs: Answers computed together.
        max_queue_tokens: Most tokens that waiting requests may need; 0 for 16 times all slots.
        prefix_cache_bytes: Most bytes of the prefix cache; 0 disables it.
        max_loras: Most adapters at once; 0 for a network without adapters.
        max_lora_rank: Most rank of an adapter.
        next_stage: gRPC address of the second stage's server; empty for a whole model.
        lora_modules: Adapters' directories by name, changed when adapters are loaded and unloaded.
        allow_lora_updates: Whether clients may load and unload adapters.
        separates_reasoning: Whether a chat's text between `<think>` and `</think>` is `reasoning_content`.
        decode_operator: Computes single tokens, see `kfp_mindspore.lm.serving.runner.CausalRunner`.
    """

    max_model_len: int = 0
    max_num_seqs: int = 8
    max_queue_tokens: int = 0
    prefix_cache_bytes: int = 256 << 20
    max_loras: int = 0
    max_lora_rank: int = 16
    next_stage: str = ""
    lora_modules: dict[str, str] = field(default_factory=dict)
    allow_lora_updates: bool = False
    separates_reasoning: bool = False
    decode_operator: str = "float32"


# The prompt's last tokens, among which `<think>` is looked for.
_BEGIN_TOKENS = 16
# Returns the network from directory, length and settings.
RunnerLoader = Callable[[Path, int, LanguageSettings], Runner]


class LanguageModel(TextModel):
    """Serves one language model.

    Args:
        name: Name in requests.
        bundle: An opened bundle.
        version: The version.
        settings: See `LanguageSettings`.
        executor: The process' inference executor.
        metrics: The process' metrics.
        families: The process' metrics of language models.
        load_runner: See `load_runner`.
    """

    platform = "mindspore_causal_lm"
    vocabulary: TokenVocabulary
    template: ChatTemplate | None
    scheduler: Scheduler
    adapters: Adapters

    def __init__(
        self,
        name: str,
        bundle: ModelBundle,
        *,
        version: str,
        settings: LanguageSettings,
        executor: InferenceExecutor,
        metrics: ServerMetrics,
        families: LanguageFamilies,
        load_runner: RunnerLoader,
    ) -> None:
        super().__init__(name, bundle, version, metrics.for_model(name))
        self.settings = settings
        self._executor = executor
        self._metrics = LanguageMetrics(families, name, settings.max_loras)
        self._load_runner = load_runner
        self._continues = True
        self.defaults: dict[str, Any] = {}

    async def open(self) -> None:
        """Load and warm the network; other models compute between two steps.

        Raises:
            UserError: The bundle is damaged, or the network, tokenizer or template cannot be loaded.
        """
        start = time.perf_counter()
        settings = self.settings
        for name, path in settings.lora_modules.items():
            # Compiling the graphs takes a minute; a wrong path is named before.
            if not Path(path, ADAPTER_FILE).is_file():
                raise UserError(f"--lora-modules: {name}: {path} must be a peft directory, it has no {ADAPTER_FILE}")
        await asyncio.to_thread(self.bundle.verify)
        length = self._resolve_length()
        runner = await asyncio.wrap_future(self._executor.call(self._load, length))
        self.max_length, self._continues = runner.max_length, not runner.whole_prompts
        weights = int(self.bundle.signature.files.get(WEIGHTS_FILE, {}).get("size", 0))
        slots = runner.slots * runner.max_length * runner.row_bytes
        # A second stage's rows stay in its server.
        has_rows = self._continues and not settings.next_stage
        prefix_cache_bytes = settings.prefix_cache_bytes if has_rows else 0
        plan = MemoryPlan(weights, slots, prefix_cache_bytes, runner.adapter_bytes, runner.graph_bytes)
        logger.info("model %s: memory: %s", self.name, plan)
        # The caches are zeros that the kernel has not backed with memory yet.
        plan.check(read_memory_limit())
        for compile_graph in runner.list_compilations():
            await asyncio.wrap_future(self._executor.call(compile_graph))
        await asyncio.to_thread(self._read_texts, runner.vocabulary_size)
        self.adapters = Adapters(runner, self._executor, settings.max_loras, settings.lora_modules)
        for name, path in list(settings.lora_modules.items()):
            try:
                await self.adapters.load(name, path)
            except (UserError, LanguageError) as error:
                raise UserError(f"--lora-modules: {name}: {error.message}") from None
        queue = settings.max_queue_tokens or _QUEUE_ROUNDS * runner.slots * runner.max_length
        self.scheduler = Scheduler(
            runner,
            self._executor,
            self.vocabulary,
            self._metrics,
            max_queue_tokens=queue,
            prefix_cache_bytes=prefix_cache_bytes,
        )
        self.ready = True
        logger.info(
            "model %s version %s: ready in %.2f s, %d slots of %d tokens",
            *(self.name, self.version, time.perf_counter() - start, runner.slots, runner.max_length),
        )

    def _load(self, length: int) -> Runner:
        runner, settings = self._load_runner(self.bundle.path, length, self.settings), self.settings
        if not settings.next_stage:
            return runner
        pair = compute_pair(self.bundle.signature.metadata["split"])
        return StagedRunner(runner, settings.next_stage, self.name, pair)

    async def close(self) -> None:
        """Return when all answers are finished."""
        self.ready = False
        await self.requests.wait_idle()

    def expire(self) -> None:
        """Refuse waiting answers whose deadline has passed."""
        if self.ready:
            self.scheduler.expire()

    def describe_model(self, adapter: Adapter = BASE) -> dict[str, Any]:
        """Return the model, or one of the adapters, as the OpenAI protocol lists it."""
        described = super().describe_model()
        if adapter is not BASE:
            described |= {"id": adapter.name, "created": adapter.created, "root": adapter.path, "parent": self.name}
        return described

    def build_answers(
        self, request: GenerationRequest, adapter: Adapter, stream: AnswerStream, deadline: float | None
    ) -> tuple[list[Answer], list[AnswerParsers | None]]:
        """Return a request's answers, to be submitted, and the parsers of their texts, None without.

        Called in a thread: a template and a schema may take long.

        Args:
            request: The parsed request.
            adapter: The adapter that computes the answers.
            stream: Receives the answers' pieces.
            deadline: `time.monotonic()` by which the first step must begin; None without one.

        Raises:
            LanguageError: The prompt is too long, or a field does not fit the model.
        """
        if request.echo and not self._continues:
            raise LanguageError(f"echo: model {self.name} is an encoder-decoder, no answer continues a prompt", "echo")
        if request.messages:
            prompts, param = [self.encode_chat(request)], "messages"
        else:
            param = "prompt"
            prompts = [
                self.encode(prompt, param, add_special_tokens=request.add_special_tokens)
                if isinstance(prompt, str)
                else list(prompt)
                for prompt in request.prompts
            ]
        constraint = request.constraint
        if self.template is not None and request.tools:
            arguments = get_arguments_key(self.template.text)
            constraint = build_constraint(request.tools, request.tool_choice, arguments) or constraint
        matcher = Matcher(self.vocabulary, constraint) if constraint is not None else None
        stop_ids = frozenset({*self.vocabulary.list_stop_ids(request.stop), *request.stop_ids})
        stop_ids |= frozenset() if request.ignore_eos else self.vocabulary.eos_ids
        names = [tool["function"]["name"] for tool in request.tools] if request.tool_choice != "none" else []
        answers: list[Answer] = []
        for prompt in prompts:
            max_tokens = self._limit_tokens(request, len(prompt), param)
            ids = np.array(prompt, np.int32)
            for choice in range(request.choices):
                answer = Answer(
                    ids,
                    TokenSampler(
                        request.sampling, choice, ids, matcher.copy() if matcher is not None else None, stop_ids
                    ),
                    TextBuffer(request.stop, is_whole=not self._continues),
                    stream,
                    max_tokens,
                    stop_ids,
                    index=len(answers),
                    logprobs=request.logprobs,
                    scores_prompt=request.echo and request.logprobs is not None,
                    adapter=adapter,
                    deadline=deadline,
                )
                answers.append(answer)
        if (total := sum(answer.size for answer in answers)) > self.scheduler.max_queue_tokens:
            name = "n" if request.choices > 1 else param
            raise LanguageError(
                f"{name}: all answers together may need at most {self.scheduler.max_queue_tokens} tokens, got {total}",
                name,
            )
        most = None if request.parallel_calls else 1
        # A constraint is about the whole answer, which then has no reasoning.
        reasons = self.settings.separates_reasoning and bool(request.messages) and matcher is None
        if not (reasons or names):
            return answers, [None] * len(answers)
        is_begun = reasons and self.vocabulary.decode(prompts[0][-_BEGIN_TOKENS:]).rstrip().endswith(BEGIN)
        return answers, [
            AnswerParsers(
                ReasoningParser(is_begun=is_begun) if reasons else None, ToolParser(names, most) if names else None
            )
            for _ in answers
        ]

    def encode(self, text: str, param: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return a text's token IDs.

        Raises:
            LanguageError: It has more tokens than the model's context; the longest are counted only roughly.
        """
        least = len(text) // self.vocabulary.longest
        if least > self.max_length:
            raise self._get_length_error(f"at least {least}", param)
        return self.vocabulary.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(self, request: GenerationRequest) -> list[int]:
        """Return a chat's prompt as token IDs.

        Raises:
            LanguageError: The model has no chat template, it refuses the messages, or the prompt is too long.
        """
        if self.template is None:
            raise LanguageError(f"messages: model {self.name} has no chat template; send completions", "messages")
        tools = request.tools if request.tool_choice != "none" else ()
        variables = merge_variables(request.variables, request.effort, self.template.text)
        try:
            text = self.template.render(
                request.messages,
                tools,
                generation_prompt=request.generation_prompt,
                variables=variables,
            )
        except ValidationError as error:
            raise LanguageError(error.message, "messages") from None
        if request.continues:
            text = _cut_last_message(text, request.messages[-1]["content"])
        return self.encode(text, "messages", add_special_tokens=request.add_special_tokens)

    def _limit_tokens(self, request: GenerationRequest, length: int, param: str) -> int:
        if not length:
            raise LanguageError(f"{param}: must have at least one token, got 0", param)
        least = 0 if request.max_tokens == 0 else 1
        if length + least > self.max_length:
            raise self._get_length_error(str(length), param)
        if request.max_tokens is None:
            return self.max_length - length
        if length + request.max_tokens > self.max_length:
            name = request.max_tokens_field
            raise self._get_length_error(f"{length} in the prompt and {request.max_tokens} in {name}", name)
        return request.max_tokens

    def _get_length_error(self, found: str, param: str) -> LanguageError:
        return build_length_error(f"this model's context is {self.max_length} tokens, got {found}", param)

    def _resolve_length(self) -> int:
        own = int(self.bundle.signature.metadata.get("max_length", DEFAULT_LENGTH))
        length = self.settings.max_model_len
        if length > own:
            raise UserError(
                f"--max-model-len: must be at most {own}, the positions of model {self.name}, got {length}",
                hint="Omit the flag for the model's own limit.",
            )
        return length or min(own, DEFAULT_LENGTH)

    def _read_texts(self, vocabulary_size: int) -> None:
        path = self.bundle.path
        try:
            generation = json.loads((path / GENERATION_FILE).read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{path / GENERATION_FILE}: not readable: {error}") from None
        eos = generation.get("eos_token_id")
        eos_ids = [eos] if isinstance(eos, int) else list(eos or ())
        self.vocabulary = TokenVocabulary(path / TOKENIZER_FILE, vocabulary_size, eos_ids)
        self.defaults = generation
        self.template = read_template(path, self.vocabulary.tokenizer, generation)


def _cut_last_message(text: str, content: str) -> str:
    """Return a chat's text up to the end of the last message's content."""
    # A template may remove the blanks around it.
    stripped = content.strip()
    start = text.rfind(stripped) if stripped else -1
    if start < 0:
        name = "continue_final_message"
        found = "an empty text" if not stripped else "a template that changes it"
        raise LanguageError(f"{name}: needs the last message's content at the end of the prompt, got {found}", name)
    whole = content.lstrip()
    return text[: start + len(whole if text.startswith(whole, start) else stripped)]


def is_language_bundle(bundle: ModelBundle) -> bool:
    """Return whether a bundle holds a language model that generates texts."""
    return bundle.signature.kind in (CAUSAL_KIND, SEQ2SEQ_KIND, FIRST_STAGE_KIND)


def load_runner(directory: Path, max_length: int, settings: LanguageSettings) -> Runner:
    """Load a bundle's network.

    Args:
        directory: The bundle.
        max_length: Most tokens of a sequence.
        settings: The server's.
    """
    sizes: dict[str, Any] = {"slots": settings.max_num_seqs, "max_length": max_length}
    if ModelBundle.open(directory, verify=False).signature.kind == SEQ2SEQ_KIND:
        name = "kfp_mindspore.lm.seq2seq_bundle"
    else:
        name = "kfp_mindspore.lm.serving.runner"
        sizes |= {"max_loras": settings.max_loras, "max_lora_rank": settings.max_lora_rank}
        sizes["decode_operator"] = settings.decode_operator
    runner: Runner = importlib.import_module(name).load(directory, **sizes)
    return runner
