"""A bundle's evaluation on held-out examples, beside its base model."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.evaluation.curves import build_environment
from kfp_mindspore.formats.bundle import CAUSAL_KIND, EMBEDDING_KIND, SEQ2SEQ_KIND, ModelBundle
from kfp_mindspore.lm.metrics import compute_perplexity, score_answers
from kfp_mindspore.lm.options import EXACT_MATCH, METRICS, MRR, PERPLEXITY, RECALL, TEXT_METRICS, EvaluationOptions
from kfp_mindspore.lm.search import search_answers
from kfp_mindspore.lm.serving.greedy import generate
from kfp_mindspore.lm.serving.runner import CausalRunner, read_network
from kfp_mindspore.lm.text.examples import ExampleEncoder, open_examples, read_examples
from kfp_mindspore.lm.tuning.pairs import PairEvaluator, read_pairs

if TYPE_CHECKING:
    from kfp_mindspore.lm.text.data import Example

_SLOTS = 8
TUNED, BASE = "model", "base"
_DEFAULTS = {EMBEDDING_KIND: RECALL, SEQ2SEQ_KIND: EXACT_MATCH}


@dataclass(frozen=True)
class Sample:
    """One answered example.

    Args:
        prompt: The prompt, as the model reads it.
        reference: The expected answer.
        answers: The model's answer and, if there is one, its base's; a search's first ones.
    """

    prompt: str
    reference: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class LanguageEvaluation:
    """An evaluation's result.

    Args:
        options: The options, with the metric's name.
        scores: Metrics by name, for `model` and, if there is one, `base`.
        samples: The answered examples.
        examples: How many examples were evaluated.
        tokens: How many tokens the perplexity counts.
        improvement: The gate metric's improvement over the base; 0 without a base.
        passed: Whether the improvement is sufficient; True without a base.
        seconds: Wall-clock time.
    """

    options: EvaluationOptions
    scores: Mapping[str, Mapping[str, float]]
    samples: Sequence[Sample]
    examples: int
    tokens: int
    improvement: float
    passed: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result without the samples."""
        found: dict[str, Any] = {
            "metric": self.options.metric,
            **{name: dict(self.scores[name]) for name in self.scores},
        }
        found |= {"examples": self.examples, "tokens": self.tokens, "improvement": self.improvement}
        return {**found, "passed": self.passed, "seconds": self.seconds}

    def render(self) -> str:
        """Return a self-contained HTML page with the metrics and the answers."""
        environment = build_environment(Path(__file__).with_name("templates"))
        return environment.get_template("language_model.html.j2").render(
            metrics=[name for name in METRICS if any(name in found for found in self.scores.values())],
            metric=self.options.metric,
            least=self.options.min_improvement,
            scores=self.scores,
            samples=self.samples,
            generated=len(self.samples),
            examples=self.examples,
            tokens=self.tokens,
            improvement=self.improvement,
            passed=self.passed,
        )


def evaluate(
    bundle: Path,
    data: str,
    options: EvaluationOptions | None = None,
    *,
    base: Path | None = None,
    verbose: bool = False,
) -> LanguageEvaluation:
    """Evaluate a language model on examples that it was not trained on.

    The perplexity counts the answers' tokens. The other metrics compare greedy answers to the first
    prompts with their references. An embedding model searches all answers for each question's, see `search_answers`.

    Args:
        bundle: The model's bundle.
        data: Examples, see `open_examples`.
        options: See `EvaluationOptions`.
        base: The bundle that it was tuned from, which has to be improved upon by the gate's metric; without it an
            embedding model is compared with TF-IDF.
        verbose: Whether to print how many texts an embedding model has read.

    Raises:
        UserError: A bundle is no language model or its base has another kind, or the metric does not fit the kind
            or the examples.
        ValidationError: An example is invalid; the message has its number.
    """
    begun = time.perf_counter()
    options = options or EvaluationOptions()
    kind = ModelBundle.open(bundle).signature.kind
    options = dataclasses.replace(options, metric=options.metric or _DEFAULTS.get(kind, PERPLEXITY))
    known = (RECALL, MRR) if kind == EMBEDDING_KIND else TEXT_METRICS
    if options.metric not in known:
        raise UserError(f"metric: must be one of {', '.join(known)} for the kind {kind}, got {options.metric}")
    if options.min_improvement and base is None and kind != EMBEDDING_KIND:
        raise ValidationError(
            [f"min_improvement: needs a base that is improved, got {options.min_improvement:g} alone"],
            subject="evaluate",
        )
    with open_examples(data) as file:
        records = read_examples(file)
    if options.max_examples:
        records = records[: options.max_examples]
    if kind == EMBEDDING_KIND:
        return _evaluate_search((bundle, base), records, data, options, begun, verbose)
    found = {
        name: _measure(path, records, data, options)
        for name, path in ((TUNED, bundle), (BASE, base))
        if path is not None
    }
    tuned, scores = found[TUNED], {name: measured.scores for name, measured in found.items()}
    if options.metric not in scores[TUNED]:
        raise UserError(f"metric: {options.metric} needs examples with a prompt, {data} has none")
    improvement = _compare(options.metric, scores) if base is not None else 0.0
    answers = zip(*(measured.answers for measured in found.values()), strict=True)
    samples = [Sample(*row) for row in zip(tuned.prompts, tuned.references, answers, strict=True)]
    return LanguageEvaluation(
        options,
        scores,
        samples,
        len(records),
        tuned.tokens,
        improvement,
        # NaN does not pass.
        base is None or improvement >= options.min_improvement,
        time.perf_counter() - begun,
    )


def _evaluate_search(
    bundles: tuple[Path, Path | None],
    records: Sequence[Mapping[str, Any]],
    data: str,
    options: EvaluationOptions,
    begun: float,
    verbose: bool,
) -> LanguageEvaluation:
    found = [search_answers(records, bundle, subject=data, verbose=verbose) for bundle in bundles]
    scores = {name: metrics for name, (metrics, _) in zip((TUNED, BASE), found, strict=True)}
    rows = list(zip(*(texts for _, texts in found), strict=True))
    improvement = _compare(options.metric, scores)
    samples = [Sample(own[0], own[1], (own[2], other[2])) for own, other in rows[: options.generated]]
    passed = improvement >= options.min_improvement
    return LanguageEvaluation(options, scores, samples, len(rows), 0, improvement, passed, time.perf_counter() - begun)


@dataclass(frozen=True)
class _Measured:
    """One bundle's metrics and answers; the prompts are as the model reads them."""

    scores: Mapping[str, float]
    prompts: Sequence[str]
    references: Sequence[str]
    answers: Sequence[str]
    tokens: int


def _measure(path: Path, records: Sequence[Mapping[str, Any]], data: str, options: EvaluationOptions) -> _Measured:
    kind = ModelBundle.open(path).signature.kind
    if kind == SEQ2SEQ_KIND:
        return _measure_pairs(path, records, data, options)
    if kind != CAUSAL_KIND:
        raise UserError(f"{path}: must be a bundle of the kind {CAUSAL_KIND} or {SEQ2SEQ_KIND}, got {kind}")
    encoder = ExampleEncoder(path, chat=options.chat)
    found = encoder.encode_all(records, data)
    examples = [(ids[: options.length + 1], counts[: options.length + 1]) for ids, counts in found]
    prompts = [pair for ids, counts in found if (pair := _split(ids, counts)) is not None][: options.generated]
    runner = _load(path, examples, prompts, options.max_tokens)
    references = [_decode(encoder, ids) for _, ids in prompts]
    sources = [ids for ids, _ in prompts]
    found_ids = generate(runner, sources, max_tokens=options.max_tokens, eos_ids=encoder.eos_ids)
    answers = [_decode(encoder, ids) for ids in found_ids]
    scores = {PERPLEXITY: _compute_perplexity(runner, examples, data)}
    if prompts:
        scores |= score_answers(answers, references)
    readable = [encoder.tokenizer.decode(ids.tolist(), skip_special_tokens=False) for ids, _ in prompts]
    return _Measured(scores, readable, references, answers, int(sum(counts[1:].sum() for _, counts in examples)))


def _measure_pairs(
    path: Path, records: Sequence[Mapping[str, Any]], data: str, options: EvaluationOptions
) -> _Measured:
    pairs, evaluator = read_pairs(records, data), PairEvaluator(path)
    perplexity, tokens = evaluator.compute_perplexity(pairs, options.length)
    prompts, references = zip(*pairs[: options.generated], strict=True)
    answers = evaluator.answer(prompts, options.max_tokens)
    return _Measured(
        {PERPLEXITY: perplexity, **score_answers(answers, references)}, prompts, references, answers, tokens
    )


def _load(
    path: Path,
    examples: Sequence[Example],
    prompts: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]],
    max_tokens: int,
) -> CausalRunner:
    config, weights = read_network(path)
    longest = max(len(ids) for ids, _ in prompts) if prompts else 1
    if longest >= config.max_length:
        raise UserError(f"a prompt has {longest} tokens, the model's positions are {config.max_length}")
    length = max(longest + max_tokens, *(len(ids) for ids, _ in examples), 2)
    slots = min(_SLOTS, max(len(prompts), 1))
    return CausalRunner(config, weights, slots=slots, max_length=min(length, config.max_length))


def _compute_perplexity(runner: CausalRunner, examples: Sequence[Example], subject: str) -> float:
    losses, weights = [], []
    for ids, counts in examples:
        ids, counts = ids[: runner.max_length + 1], counts[: runner.max_length + 1]
        if not counts[1:].any():
            continue
        logits = runner.prefill(0, ids[:-1], 0, all_positions=True)[counts[1:]].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        targets = ids[1:][counts[1:]]
        losses.append(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(targets)), targets])
        weights.append(np.ones(len(targets)))
    if not losses:
        raise UserError(f"{subject}: no example has an answer within the length", hint="Set a larger length.")
    return compute_perplexity(np.concatenate(losses), np.concatenate(weights))


def _compare(metric: str, scores: Mapping[str, Mapping[str, float]]) -> float:
    found, base = scores[TUNED][metric], scores[BASE][metric]
    if metric != PERPLEXITY:
        return found - base
    return 1 - found / base if math.isfinite(base) else math.nan


def _split(ids: NDArray[np.int32], counts: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Return an example's prompt and last answer; None without a prompt."""
    begins = np.flatnonzero(counts[1:] & ~counts[:-1])
    return (ids[: begins[-1] + 1], ids[begins[-1] + 1 :]) if len(begins) else None


def _decode(encoder: ExampleEncoder, ids: NDArray[np.int32]) -> str:
    return encoder.tokenizer.decode(ids.tolist(), skip_special_tokens=True).strip()
