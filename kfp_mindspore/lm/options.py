"""Options for an untrained network, fine-tuning and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.options import check_options, option

BEST, LAST = "best", "last"
# By `kfp_mindspore.lm.metrics`; the first one is the only one of which less is better.
PERPLEXITY, EXACT_MATCH = "perplexity", "exact_match"
TEXT_METRICS = (PERPLEXITY, EXACT_MATCH, "rouge_l", "valid_json")
# Of embedding models, by `kfp_mindspore.lm.search`.
RECALL, MRR = "recall_at_5", "mrr"
METRICS = (*TEXT_METRICS, RECALL, MRR)


@dataclass(frozen=True)
class NetworkOptions:
    """Options for an untrained decoder and its tokenizer, checked when they are built.

    Args:
        vocabulary: Most tokens in the tokenizer, the 256 bytes and two special ones included.
        width: Hidden size; an even multiple of `heads`.
        layers: Blocks.
        heads: Attention heads.
        max_length: Most positions, prompt and answer together.
        held_out: Fraction of examples that the tokenizer is not trained on; the same as the fine-tuning's.
        seed: Seed for the weights.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    vocabulary: int = option(1000, minimum=258)
    width: int = option(128, minimum=2)
    layers: int = option(2, minimum=1)
    heads: int = option(4, minimum=1)
    max_length: int = option(256, minimum=64)
    held_out: float = option(0.1, exclusiveMinimum=0, exclusiveMaximum=1)
    seed: int = option(0, minimum=0)

    def __post_init__(self) -> None:
        check_options(self, subject="the network")
        if self.width % (2 * self.heads):
            raise ValidationError([f"width: must be an even multiple of {self.heads} heads, got {self.width}"])


@dataclass(frozen=True)
class FinetuneOptions:
    """Fine-tuning options, checked when they are built.

    Args:
        epochs: Passes over the training examples.
        learning_rate: Peak learning rate (Adam, cosine schedule).
        batch_size: Windows per step.
        accumulate: Parts that each batch is computed in: less memory, the same result.
        length: Tokens per window, which holds one or several examples.
        lora_rank: The adapter updates' rank; 0 trains all weights, as an encoder-decoder needs.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        lora_dropout: Fraction of an update's inputs that is set to 0 in training.
        lora_attn_modules: Projections with an update: q_proj, k_proj, v_proj, output_proj.
        keep: The weights to keep: the `best` epoch's, by the loss on held-out examples, or the `last` one's.
        held_out: Fraction of examples that is not trained on, chosen by the prompt's hash.
        max_examples: Training examples to use; 0 for all.
        chat: Whether a prompt and its completion are chat messages, if the model has a chat template.
        seed: Seed for the adapter's initial values and the order.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    epochs: int = option(2, minimum=1)
    learning_rate: float = option(1e-3, exclusiveMinimum=0)
    batch_size: int = option(8, minimum=1)
    accumulate: int = option(4, minimum=1)
    length: int = option(128, minimum=2)
    lora_rank: int = option(8, minimum=0)
    lora_alpha: float = option(16.0, exclusiveMinimum=0)
    lora_dropout: float = option(0.0, minimum=0, exclusiveMaximum=1)
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
    """A language model's evaluation options, checked when they are built.

    The default metric is perplexity for causal-lm, exact_match for seq2seq, recall_at_5 for embedding.

    Args:
        metric: `perplexity`, `exact_match`, `rouge_l`, `valid_json`, `recall_at_5` or `mrr`; default by kind.
        min_improvement: Least improvement over the base: a part of its perplexity, or another metric's difference.
        length: Most tokens in an example whose loss is computed.
        max_examples: Examples to evaluate; 0 for all.
        generated: How many of them are answered by greedy decoding, for the metrics other than perplexity.
        max_tokens: Most tokens in an answer.
        chat: Whether a prompt and its completion are chat messages, if the model has a chat template.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    metric: str = option("", enum=list(METRICS))
    min_improvement: float = 0.0
    length: int = option(128, minimum=2)
    max_examples: int = option(0, minimum=0)
    generated: int = option(16, minimum=1)
    max_tokens: int = option(48, minimum=1)
    chat: bool = True

    def __post_init__(self) -> None:
        check_options(self, subject="evaluation")
