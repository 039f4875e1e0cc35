"""Keys in published configurations: a table per family says which are used, do not matter or are refused."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError, suggest

MOST_LAYERS = 4096
MOST_POSITIONS = 1 << 24
_MOST = (1 << 31) - 1
# The default of a key that a configuration must have.
REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Args:
        reason: The error's text where a value is not accepted.
        accepts: Returns whether a value is accepted.
        default: The family's value where the key is missing; `REQUIRED` refuses a configuration without it.
        same_as: The key that it is another name for.
    """

    reason: str = ""
    accepts: Callable[[Any], bool] = lambda value: True
    default: Any = None
    same_as: str = ""


# Changes nothing here: training, metadata, or read elsewhere.
IGNORED = Key()


def size(default: Any, *, most: int = _MOST, least: int = 1, multiple: int = 1) -> Key:
    """Return a key for a whole number.

    Args:
        default: The family's value.
        most: Largest value.
        least: Smallest value.
        multiple: What divides each value.
    """
    limits = f">= {least}" if most == _MOST else f"from {least} to {most}"
    described = f"must be {'an even' if multiple == 2 else 'a whole'} number {limits}"
    return Key(described, lambda value: type(value) is int and least <= value <= most and not value % multiple, default)


def number(default: Any, *, least: float | None = None, below: float = math.inf) -> Key:
    """Return a key for a finite number.

    Args:
        default: The family's value.
        least: Smallest value; None for any above 0.
        below: What each value is less than.
    """
    limits = ("> 0" if least is None else f">= {least}") + ("" if below == math.inf else f" and < {below}")

    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and (value > 0 if least is None else value >= least) and value < below

    return Key(f"must be a number {limits}", accepts, default)


def flag(default: bool | None) -> Key:
    """Return a key for true or false, with the family's default."""
    return Key("must be true or false", lambda value: isinstance(value, bool), default)


def choice(default: Any, names: Collection[str]) -> Key:
    """Return a key with several names, with the family's default."""
    return Key(f"must be one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names, default)


def only(*values: Any, reason: str = "") -> Key:
    """Return a key whose other values are refused; the first one is the default."""
    return Key(reason or f"must be {values[0]!r}", lambda value: value in values, values[0])


def off(reason: str = "not supported") -> Key:
    """Return a key that may only be null, false, 0 or empty."""
    return Key(reason, lambda value: not value)


def optional(key: Key) -> Key:
    """Return a key that may also be null."""
    return dataclasses.replace(key, accepts=lambda value: value is None or key.accepts(value))


def classes(*names: str) -> Key:
    """Return the key `architectures`, whose classes must be these, in any case; it may be missing or empty."""
    known = {name.lower() for name in names}

    def accepts(value: Any) -> bool:
        return not value or (isinstance(value, list) and all(str(name).lower() in known for name in value))

    return Key(f"must be one of {', '.join(names)}", accepts)


def alias(name: str) -> Key:
    """Return a key that must equal another one."""
    return Key(same_as=name)


def _is_token(value: Any) -> bool:
    return type(value) is int


TOKEN = Key("must be a token ID or null", lambda value: value is None or _is_token(value))
TOKENS = Key(
    "must be a token ID, a list of them or null",
    lambda value: TOKEN.accepts(value) or (isinstance(value, list) and all(map(_is_token, value))),
)
_FRACTION = optional(Key("must be a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1))
# Of config.json and generation_config.json.
GENERATION = {
    "eos_token_id": TOKENS,
    "bos_token_id": TOKEN,
    "pad_token_id": TOKEN,
    "decoder_start_token_id": TOKEN,
    "temperature": optional(number(None, least=0)),
    "top_p": _FRACTION,
    "top_k": optional(size(None, least=0)),
    "repetition_penalty": optional(number(None)),
}
# Keys of transformers' base class (4.57 and older), and those that other programs add.
COMMON: Mapping[str, Key] = {
    **dict.fromkeys(
        (
            *("model_type", "name_or_path", "transformers_version", "torch_dtype", "dtype", "use_bfloat16"),
            *("return_dict", "use_cache", "torchscript", "tf_legacy_loss", "attn_implementation", "is_decoder"),
            *("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate", "output_past"),
            *("finetuning_task", "problem_type", "id2label", "label2id", "num_labels", "task_specific_params"),
            *("tokenizer_class", "prefix", "sep_token_id", "unk_token_id", "mask_token_id", "cls_token_id"),
            *("chunk_size_feed_forward", "cross_attention_hidden_size", "gradient_checkpointing"),
            *("initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout", "classifier_dropout"),
            *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
            *("diversity_penalty", "length_penalty", "typical_p", "no_repeat_ngram_size", "num_return_sequences"),
            *("encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
            *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
            *("exponential_decay_length_penalty", "model_max_length", "max_sequence_length"),
            *("transformers.js_config", "unsloth_fixed", "unsloth_version", "is_llama_config"),
        ),
        IGNORED,
    ),
    **GENERATION,
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder", "pruned_heads"), off()),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts"), off("mixtures of experts are not supported")
    ),
    "quantization_config": off("not supported; import the float weights"),
    "auto_map": off("the author's code is never run"),
    "is_causal": only(True),
    "rope_interleaved": only(False),
}


def read_keys(
    values: Mapping[str, Any], table: Mapping[str, Key], subject: str, *, prefix: str = "", hint: str = ""
) -> dict[str, Any]:
    """Return a configuration's values with defaults for missing keys, after each was checked.

    Keys that the table has not are refused, unless they are null, false, 0 or empty or begin with an underscore.

    Args:
        values: The configuration.
        table: The family's keys.
        subject: The configuration's origin, for messages.
        prefix: Before each key in messages.
        hint: The next step after an unknown key.

    Raises:
        ValidationError: The message names all refused keys.
    """
    errors, is_unknown = [], False
    for name, value in values.items():
        key = table.get(name)
        if key is None and value and not name.startswith("_"):
            is_unknown = True
            errors.append(
                f"{prefix}{name}: not known, got {_show(value)}{suggest(name, table, cutoff=0.8, listed=False)}"
            )
        elif key is not None and not key.accepts(value):
            errors.append(f"{prefix}{name}: {key.reason}, got {_show(value)}")
    errors += [
        f"{prefix}{name}: missing" for name, key in table.items() if key.default is REQUIRED and name not in values
    ]
    found = {name: key.default for name, key in table.items() if not key.same_as} | dict(values)
    errors += [
        f"{prefix}{name}: must equal {key.same_as} {_show(found[key.same_as])}, got {_show(values[name])}"
        for name, key in table.items()
        if key.same_as and name in values and values[name] != found[key.same_as]
    ]
    refuse(errors, subject, hint if is_unknown else "")
    return found


def refuse(errors: Collection[str], subject: str, hint: str = "") -> None:
    """Raise when there are errors.

    Args:
        errors: A sentence per key.
        subject: The configuration's origin.
        hint: The next step.

    Raises:
        ValidationError: The message has all errors.
    """
    if errors:
        raise ValidationError(list(errors), subject=subject, hint=hint)


def _show(value: Any) -> str:
    return reprlib.repr(value)
