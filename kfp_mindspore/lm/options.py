"""Fine-tuning and evaluation options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfp_mindspore.options import check_options, option

BEST, LAST = "best", "last"
# By `kfp_mindspore.lm.metrics`; the first one is the only one of which less is better.
PERPLEXITY = "perplexity"
METRICS = (PERPLEXITY, "exact_match", "rouge_l", "valid_json")


@dataclass(frozen=True)
class FinetuneOptions:
    """Options of fine-tuning, checked when they are built.

    Args:
        epochs: Passes over the training examples.
        learning_rate: Peak learning rate (Adam, cosine schedule).
        batch_size: Windows per step.
        length: Tokens per window, which holds one or several examples.
        lora_rank: Rank of the adapter's updates; 0 trains all weights.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        lora_attn_modules: Projections with an update: q_proj, k_proj, v_proj, output_proj.
        keep: Weights of the `best` epoch, by the loss on held-out examples, or of the `last`.
        held_out: Part of the examples that is not trained on, chosen by a hash of the prompt.
        max_examples: Training examples to use; 0 for all.
        chat: Whether a prompt and its completion are messages of a chat, if the model has a chat template.
        seed: Seed for the adapter's initial values and the order.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    epochs: int = option(2, minimum=1)
    learning_rate: float = option(1e-3, exclusiveMinimum=0)
    batch_size: int = option(8, minimum=1)
    length: int = option(128, minimum=2)
    lora_rank: int = option(8, minimum=0)
    lora_alpha: float = option(16.0, exclusiveMinimum=0)
    lora_attn_modules: Sequence[str] = ("q_proj", "v_proj")
    keep: str = option(BEST, enum=[BEST, LAST])
    held_out: float = option(0.1, exclusiveMinimum=0, exclusiveMaximum=1)
    max_examples: int = option(0, minimum=0)
    chat: bool = True
    seed: int = option(0, minimum=0)

    def __post_init__(self) -> None:
        check_options(self, subject="fine-tuning")


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of a language model's evaluation, checked when they are built.

    Args:
        metric: Metric of the gate: `perplexity`, `exact_match`, `rouge_l` or `valid_json`.
        min_improvement: Least improvement over the base: part of its perplexity, or a difference of another metric.
        length: Most tokens of an example whose loss is computed.
        max_examples: Examples to evaluate; 0 for all.
        generated: How many of them are answered by greedy decoding, for the metrics other than perplexity.
        max_tokens: Most tokens of an answer.
        chat: Whether a prompt and its completion are messages of a chat, if the model has a chat template.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    metric: str = option(PERPLEXITY, enum=list(METRICS))
    min_improvement: float = 0.0
    length: int = option(128, minimum=2)
    max_examples: int = option(0, minimum=0)
    generated: int = option(16, minimum=1)
    max_tokens: int = option(48, minimum=1)
    chat: bool = True

    def __post_init__(self) -> None:
        check_options(self, subject="evaluation")
