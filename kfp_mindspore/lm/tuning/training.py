"""Fine-tuning of a bundle on examples by `fit`."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import dataset as ms_dataset
from mindspore import nn
from numpy.typing import NDArray

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import OUTPUT, SEQ2SEQ_KIND, ModelBundle
from kfp_mindspore.lm.bundle.causal import read_model, write_model
from kfp_mindspore.lm.network.lora import LoraConfig
from kfp_mindspore.lm.network.seq2seq import TrainedSeq2Seq
from kfp_mindspore.lm.options import BEST, FinetuneOptions
from kfp_mindspore.lm.seq2seq_bundle import read_seq2seq_model, write_seq2seq_model
from kfp_mindspore.lm.sources.peft import OUTPUT as ADAPTER
from kfp_mindspore.lm.sources.peft import write_adapter
from kfp_mindspore.lm.text.data import LanguageModelData
from kfp_mindspore.lm.text.examples import ExampleEncoder, hold_out, open_examples, read_examples
from kfp_mindspore.lm.tuning.decoder import TrainedDecoder, build_arrays
from kfp_mindspore.lm.tuning.pairs import encode_parts, read_pairs
from kfp_mindspore.outputs import check_output_file, check_replaceable
from kfp_mindspore.training import TrainingConfig, fit

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _Task:
    """A network with its data.

    Args:
        network: Returns the loss.
        arrays: Training rows, with `counts`.
        validation: Held-out rows in the same shape.
        write: Writes the trained weights: the adapter, and the tuned bundle.
        truncated: Training examples whose end is cut.
        dropped: Training examples that are left out.
    """

    network: Any
    arrays: Mapping[str, NDArray[Any]]
    validation: Mapping[str, NDArray[Any]]
    write: Callable[[Path, Path | None], None]
    truncated: int
    dropped: int


@dataclass(frozen=True)
class FinetuneResult:
    """A fine-tuning's result.

    Args:
        examples: Training examples.
        held_out: Held-out examples.
        tokens: Tokens in the training examples that the loss counts.
        truncated: Training examples whose end is beyond a window.
        dropped: Training examples without an answer within a window, or pairs beyond the length.
        loss: Mean loss per counted held-out token in nats, with the final weights.
        perplexity: exp(loss).
        best_epoch: The final weights' epoch.
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
        UserError: The bundle is no language model, the examples are missing, too few or too long, or an output's
            directory has other content.
        ValidationError: An example or an option is invalid; the message has its number or field.
        KfpMindSporeError: The loss is no longer finite.
    """
    begun = time.perf_counter()
    options = options or FinetuneOptions()
    check_replaceable(tuned, OUTPUT, [bundle, data])
    if adapter is not None:
        check_replaceable(adapter, ADAPTER, [bundle, data])
    prepare = _prepare_pairs if ModelBundle.open(bundle).signature.kind == SEQ2SEQ_KIND else _prepare_windows
    if prepare is _prepare_pairs and options.lora_rank:
        raise UserError(
            f"lora_rank: must be 0 for an encoder-decoder, all of whose weights are trained, got {options.lora_rank}"
        )
    with open_examples(data) as file:
        records = read_examples(file)
    if held_out is not None:
        lines = {json.dumps(record) for record in records}

        def is_earlier(file: Path) -> bool:
            return lines.issuperset(file.read_text(errors="replace").splitlines())

        check_output_file(held_out, "held-out examples of the same data", is_earlier, [data])
    training, held = hold_out(records, options.held_out)
    if options.max_examples and options.max_examples < len(training):
        chosen = np.random.default_rng(options.seed).choice(len(training), options.max_examples, replace=False)
        training = [training[index] for index in sorted(chosen)]
    task = prepare(bundle, data, training, held, options)
    if held_out is not None:
        files.write_text(held_out, "".join(json.dumps(record) + "\n" for record in held))
    counts = task.arrays["counts"]
    batch_size, counted = min(options.batch_size, len(counts)), float(counts.sum())
    parts = min(options.accumulate, batch_size)
    result = fit(
        task.network,
        task.arrays,
        optimizer=nn.Adam(task.network.trainable_params(), options.learning_rate),
        validation=_build_validation(task.validation, -(-batch_size // parts), counted / len(counts)),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=batch_size,
            accumulate=parts,
            seed=options.seed,
            schedule="cosine",
            clip_norm=1.0,
            keep_best="eval_loss" if options.keep == BEST else None,
            export_check="off",
            verbose=verbose,
        ),
    )
    task.write(tuned, adapter)
    loss = float(result.metrics["eval_loss"])
    return FinetuneResult(
        len(training),
        len(held),
        int(counted),
        task.truncated,
        task.dropped,
        loss,
        math.exp(loss) if loss < 700 else math.inf,
        result.best_epoch or result.epochs,
        result.history,
        time.perf_counter() - begun,
    )


def _prepare_windows(bundle: Path, data: str, training: Records, held: Records, options: FinetuneOptions) -> _Task:
    lora = None
    if options.lora_rank:
        lora = LoraConfig(options.lora_rank, options.lora_alpha, tuple(options.lora_attn_modules), options.lora_dropout)
    model = read_model(bundle)
    if options.length > model.config.max_length:
        limit = model.config.max_length
        raise UserError(f"length: must be at most {limit}, the model's positions, got {options.length}")
    encoder = ExampleEncoder(bundle, chat=options.chat)
    packed, validation = (
        LanguageModelData.pack(encoder.encode_all(part, data), length=options.length) for part in (training, held)
    )
    for name, found in (("training", packed), ("held-out", validation)):
        if not len(found):
            raise UserError(
                f"{data}: no {name} example has an answer within {options.length} tokens",
                hint="Set a larger length, or give more examples.",
            )
    mean = float(packed.weights.sum()) / len(packed)
    network = TrainedDecoder(model.config, model.weights, tokens_per_window=mean, lora=lora, seed=options.seed)

    def write(tuned: Path, adapter: Path | None) -> None:
        if adapter is not None and lora is not None and model.architecture != "gpt2":
            write_adapter(adapter, network.get_adapter(), lora)
        write_model(dataclasses.replace(model, weights=network.get_weights()), tuned, subject=str(tuned))

    arrays = build_arrays(packed), build_arrays(validation)
    return _Task(network, *arrays, write, packed.truncated, packed.dropped)


def _prepare_pairs(bundle: Path, data: str, training: Records, held: Records, options: FinetuneOptions) -> _Task:
    from tokenizers import Tokenizer

    model = read_seq2seq_model(bundle)
    parts, dropped = encode_parts(
        [read_pairs(records, data) for records in (training, held)],
        Tokenizer.from_str(model.tokenizer),
        start_id=model.generation["decoder_start_token_id"],
        pad_id=model.config.pad_id,
        length=min(options.length, model.config.max_length),
    )
    counts = parts[0]["counts"]
    network = TrainedSeq2Seq(
        model.config,
        model.weights,
        source_length=parts[0]["source"].shape[1],
        target_length=counts.shape[1],
        tokens_per_sample=float(counts.sum()) / len(counts),
    )

    def write(tuned: Path, _: Path | None) -> None:
        write_seq2seq_model(dataclasses.replace(model, weights=network.get_weights()), tuned, subject=str(tuned))

    return _Task(network, parts[0], parts[1], write, 0, dropped[0])


def _build_validation(rows: Mapping[str, NDArray[Any]], batch_size: int, tokens_per_row: float) -> Any:
    """Return equally shaped batches, whose mean loss is the mean per counted token.

    The network divides by the training data's constant, so that the counts are scaled by its ratio to this data's.
    """
    padding = -len(rows["counts"]) % batch_size
    arrays = {name: np.pad(array, [(0, padding), *[(0, 0)] * (array.ndim - 1)]) for name, array in rows.items()}
    mean = float(arrays["counts"].mean(0).sum())
    arrays["counts"] = (arrays["counts"] * np.float32(tokens_per_row / mean)).astype(np.float32)
    return ms_dataset.NumpySlicesDataset(arrays, shuffle=False).batch(batch_size)
