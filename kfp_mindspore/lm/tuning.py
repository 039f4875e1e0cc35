"""Fine-tuning of a bundle on examples by `fit`."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import dataset as ms_dataset
from mindspore import nn

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.bundle import read_model, write_model
from kfp_mindspore.lm.data import LanguageModelData
from kfp_mindspore.lm.examples import Encoder, hold_out, open_examples, read_examples
from kfp_mindspore.lm.finetune import LoraConfig, TrainedDecoder, build_arrays, write_adapter
from kfp_mindspore.lm.options import BEST, FinetuneOptions
from kfp_mindspore.training import TrainingConfig, fit


@dataclass(frozen=True)
class FinetuneResult:
    """A fine-tuning's result.

    Args:
        examples: Training examples.
        held_out: Held-out examples.
        tokens: Tokens of the training examples that the loss counts.
        truncated: Training examples whose end is beyond a window.
        dropped: Training examples without an answer within a window.
        loss: Mean loss per counted held-out token in nats, with the final weights.
        perplexity: Its exponential.
        best_epoch: Epoch of the final weights.
        history: One record per epoch, as in metrics.jsonl.
        seconds: Wall-clock time, the bundle's verification included.
    """

    examples: int
    held_out: int
    tokens: int
    truncated: int
    dropped: int
    loss: float
    perplexity: float
    best_epoch: int
    history: Sequence[Mapping[str, Any]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the history."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "history"}


def finetune(
    bundle: Path,
    data: str,
    tuned: Path,
    options: FinetuneOptions | None = None,
    *,
    adapter: Path | None = None,
    held_out: Path | None = None,
    verbose: bool = True,
) -> FinetuneResult:
    """Fine-tune a language model, and write the tuned one as a bundle.

    Args:
        bundle: The base model's bundle.
        data: Examples, see `open_examples`.
        tuned: The tuned bundle's directory, the adapter merged; replaced when it exists.
        options: See `FinetuneOptions`.
        adapter: Directory for the adapter in peft's format; replaced when it exists. It is not written when all weights
            are trained, nor for GPT-2, whose projections peft stacks.
        held_out: File for the held-out examples, as JSON lines.
        verbose: Whether to print a line per epoch.

    Raises:
        UserError: The bundle is no language model, or the examples are missing, too few or too long.
        ValidationError: An example or an option is invalid; the message has its number or field.
        KfpMindSporeError: The loss is no longer finite.
    """
    begun = time.perf_counter()
    options = options or FinetuneOptions()
    lora = None
    if options.lora_rank:
        lora = LoraConfig(options.lora_rank, options.lora_alpha, tuple(options.lora_attn_modules))
    model = read_model(bundle)
    if options.length > model.config.max_length:
        limit = model.config.max_length
        raise UserError(f"length: must be at most {limit}, the model's positions, got {options.length}")
    with open_examples(data) as file:
        records = read_examples(file)
    training, held = hold_out(records, options.held_out)
    if options.max_examples and options.max_examples < len(training):
        chosen = np.random.default_rng(options.seed).choice(len(training), options.max_examples, replace=False)
        training = [training[index] for index in sorted(chosen)]
    encoder = Encoder(bundle, chat=options.chat)
    packed, validation = (
        LanguageModelData.pack(encoder.encode_all(part, data), length=options.length) for part in (training, held)
    )
    for name, found in (("training", packed), ("held-out", validation)):
        if not len(found):
            raise UserError(
                f"{data}: no {name} example has an answer within {options.length} tokens",
                hint="Set a larger length, or give more examples.",
            )
    if held_out is not None:
        held_out.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(held_out, "".join(json.dumps(record) + "\n" for record in held))
    batch_size = min(options.batch_size, len(packed))
    counted = float(packed.weights.sum())
    network = TrainedDecoder(
        model.config, model.weights, tokens_per_window=counted / len(packed), lora=lora, seed=options.seed
    )
    result = fit(
        network,
        build_arrays(packed),
        optimizer=nn.Adam(network.trainable_params(), options.learning_rate),
        validation=_build_validation(validation, batch_size, counted / len(packed)),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=batch_size,
            seed=options.seed,
            schedule="cosine",
            clip_norm=1.0,
            keep_best="eval_loss" if options.keep == BEST else None,
            export_check="off",
            verbose=verbose,
        ),
    )
    weights = network.get_weights()
    if adapter is not None and lora is not None and model.architecture != "gpt2":
        write_adapter(adapter, network.get_adapter(), lora)
    write_model(dataclasses.replace(model, weights=weights), tuned, subject=str(tuned))
    loss = float(result.metrics["eval_loss"])
    return FinetuneResult(
        len(training),
        len(held),
        int(counted),
        packed.truncated,
        packed.dropped,
        loss,
        math.exp(loss) if loss < 700 else math.inf,
        result.best_epoch or result.epochs,
        result.history,
        time.perf_counter() - begun,
    )


def _build_validation(data: LanguageModelData, batch_size: int, tokens_per_window: float) -> Any:
    """Return batches of one shape, whose mean loss is the mean per counted token.

    The network divides by the training data's constant, so that the counts are scaled by its ratio to this data's.
    """
    padding = -len(data) % batch_size
    arrays = {
        name: np.pad(array, [(0, padding), *[(0, 0)] * (array.ndim - 1)]) for name, array in build_arrays(data).items()
    }
    mean = float(data.weights.sum()) / (len(data) + padding)
    arrays["counts"] = (arrays["counts"] * np.float32(tokens_per_window / mean)).astype(np.float32)
    return ms_dataset.NumpySlicesDataset(arrays, shuffle=False).batch(batch_size)
