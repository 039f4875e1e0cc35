"""A small untrained T5, which a pipeline trains from scratch, and tokenizer training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig, initialise_weights
from kfp_mindspore.lm.options import FinetuneOptions
from kfp_mindspore.lm.sources.t5 import SourceSeq2Seq
from kfp_mindspore.lm.text.examples import hold_out
from kfp_mindspore.lm.text.rewrites import build_rewrites

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_VOCABULARY = 400


def build_rewriter(seed: int = 0) -> SourceSeq2Seq:
    """Return a T5 with 0.2 million untrained weights for `build_rewrites`.

    Its byte-level BPE knows each digit apart. It is trained on the examples that a fine-tuning with the default
    `held_out` trains on.

    Args:
        seed: Seed for the weights.
    """
    from tokenizers import pre_tokenizers, processors

    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    training, _ = hold_out(build_rewrites(), FinetuneOptions().held_out)
    texts = (text for record in training for text in record.values())
    tokenizer = train_tokenizer(texts, _VOCABULARY, ["<pad>", "</s>"], pre_tokenizers.Sequence(split))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    config = Seq2SeqConfig(
        tokenizer.get_vocab_size(), 64, layers=2, decoder_layers=2, heads=4, head_size=16, hidden=128, max_length=128
    )
    generation = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "temperature": 0}
    return SourceSeq2Seq(config, initialise_weights(config, seed), tokenizer.to_str(), generation, "t5")


def train_tokenizer(texts: Iterable[str], vocabulary: int, special: list[str], split: Any) -> Tokenizer:
    """Return a byte-level BPE.

    Args:
        texts: Texts to train it on.
        vocabulary: Most tokens.
        special: Special tokens, which get the first IDs.
        split: The pre-tokenizer, which ends with a byte-level one.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
