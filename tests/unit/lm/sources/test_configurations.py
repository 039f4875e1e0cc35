"""Every key of transformers' configurations is used, known not to matter, or refused by name.

The keys and defaults are those of transformers 4.57.1; tests/peers compares them with the installed library.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.network.encoder import EncoderConfig
from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig
from kfp_mindspore.lm.sources.bert import parse_bert
from kfp_mindspore.lm.sources.huggingface import parse_config, read_generation
from kfp_mindspore.lm.sources.t5 import parse_t5

pytestmark = pytest.mark.mindspore

# Keys of transformers' base class, none of which changes a network.
BASE = """
architectures bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping
encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id id2label label2id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
num_beams num_return_sequences output_attentions output_hidden_states output_scores prefix problem_type
remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens
task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torchscript transformers_version
typical_p use_bfloat16 use_cache _name_or_path
""".split()  # noqa: SIM905
SWITCHES = {"pruned_heads": {"0": [1]}, "tie_encoder_decoder": True, "add_cross_attention": True}
LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 99, "rms_norm_eps": 1e-5, "hidden_act": "gelu",
    "tie_word_embeddings": True, "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "head_dim": 8,
}  # fmt: skip
ROTARY_SMALL = {
    "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 40,
    "max_position_embeddings": 64,
}  # fmt: skip
WINDOW = {"use_sliding_window": True, "max_window_layers": 0}
WINDOW_KEYS: dict[str, Any] = {"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 1}
# By family: a small configuration; keys with a value that changes the network; with one that is refused; the others.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "gpt2": (
        {"n_embd": 16, "n_head": 4, "n_layer": 1, "vocab_size": 40},
        {
            "vocab_size": 50, "n_positions": 99, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": 40,
            "activation_function": "gelu", "layer_norm_epsilon": 1e-6, "tie_word_embeddings": False,
        },
        {
            **SWITCHES, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True,
            "is_encoder_decoder": True,
        },
        "resid_pdrop embd_pdrop attn_pdrop initializer_range summary_type summary_use_proj summary_activation "
        "summary_proj_to_labels summary_first_dropout reorder_and_upcast_attn is_decoder pad_token_id",
    ),
    "llama": (
        ROTARY_SMALL,
        {**LLAMA_LIKE, "attention_bias": True, "mlp_bias": True},
        {**SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True},
        "initializer_range attention_dropout pretraining_tp is_decoder pad_token_id",
    ),
    "gemma3_text": (
        {**ROTARY_SMALL, "head_dim": 4},
        {
            **{name: value for name, value in LLAMA_LIKE.items() if name != "hidden_act"},
            "hidden_activation": "gelu", "tie_word_embeddings": False, "rope_local_base_freq": 5e3,
            "query_pre_attn_scalar": 64, "sliding_window": 32, "layer_types": ["full_attention"],
            "attention_bias": True,
        },
        {
            **SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True, "mlp_bias": True,
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "use_bidirectional_attention": True,
        },
        # The pattern's key with an underscore is read by no version of transformers.
        "initializer_range attention_dropout is_decoder pad_token_id _sliding_window_pattern",
    ),
    "mistral": (
        {**ROTARY_SMALL, "sliding_window": None},
        {**LLAMA_LIKE, "sliding_window": 32},
        {
            **SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True, "attention_bias": True,
            "mlp_bias": True,
        },
        "initializer_range attention_dropout is_decoder pad_token_id",
    ),
    "qwen2": (
        {**ROTARY_SMALL, **WINDOW, "sliding_window": 16},
        {**LLAMA_LIKE, **WINDOW_KEYS},
        {
            **SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True,
            "layer_types": ["chunked_attention"], "mlp_bias": True,
        },
        "initializer_range attention_dropout is_decoder attention_bias pad_token_id",
    ),
    "qwen3": (
        {**ROTARY_SMALL, **WINDOW, "sliding_window": 16},
        {**LLAMA_LIKE, **WINDOW_KEYS, "attention_bias": True},
        {
            **SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True,
            "layer_types": ["chunked_attention"], "mlp_bias": True,
        },
        "initializer_range attention_dropout is_decoder pad_token_id",
    ),
    "granite": (
        ROTARY_SMALL,
        {
            **LLAMA_LIKE, "attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.1,
            "residual_multiplier": 0.5,
        },
        {**SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True},
        # The first two are folded into the weights.
        "embedding_multiplier logits_scaling initializer_range attention_dropout is_decoder pad_token_id",
    ),
    "olmo2": (
        ROTARY_SMALL,
        {**LLAMA_LIKE, "rms_norm_eps": 1e-6, "attention_bias": True},
        {**SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True, "mlp_bias": True},
        "initializer_range attention_dropout is_decoder pad_token_id",
    ),
    "phi3": (
        ROTARY_SMALL,
        {
            **{name: value for name, value in LLAMA_LIKE.items() if name != "head_dim"}, "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-6, "sliding_window": 32,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]},
        },
        {
            **SWITCHES, "is_encoder_decoder": True, "attention_bias": True,
            "auto_map": {"AutoConfig": "configuration_other.Phi3Config"}, "head_dim": 8,
        },
        "original_max_position_embeddings resid_pdrop embd_pdrop initializer_range attention_dropout is_decoder "
        "pad_token_id",
    ),
    "smollm3": (
        {**ROTARY_SMALL, "no_rope_layer_interval": 1, "use_sliding_window": True, "sliding_window": 16},
        {
            **LLAMA_LIKE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False,
            "no_rope_layers": [1], "no_rope_layer_interval": 2, "sliding_window": 32, "use_sliding_window": False,
        },
        {
            **SWITCHES, "partial_rotary_factor": 0.5, "is_encoder_decoder": True,
            "layer_types": ["chunked_attention"],
        },
        "initializer_range attention_dropout is_decoder pad_token_id",
    ),
    "t5": (
        {"num_layers": 1},
        {
            "vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3,
            "num_heads": 2, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 64,
            "layer_norm_epsilon": 1e-5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
            "pad_token_id": 3, "n_positions": 99,
        },
        {**SWITCHES, "is_encoder_decoder": False, "dense_act_fn": "gelu_new", "is_gated_act": True},
        "dropout_rate initializer_factor classifier_dropout is_decoder",
    ),
    "bert": (
        {"num_hidden_layers": 1},
        {
            "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 40, "hidden_act": "relu", "max_position_embeddings": 99, "type_vocab_size": 3,
            "layer_norm_eps": 1e-6,
        },
        {**SWITCHES, "is_encoder_decoder": True, "is_decoder": True, "position_embedding_type": "relative_key"},
        "hidden_dropout_prob attention_probs_dropout_prob initializer_range classifier_dropout tie_word_embeddings "
        "pad_token_id",
    ),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "gpt2": DecoderConfig(
        50257, 768, 12, 12, 12, 64, 3072, 1024, rope_theta=0, epsilon=1e-5, norm="layer", activation="gelu_tanh",
        gated=False, tied=True, qkv_bias=True, out_bias=True, mlp_bias=True,
    ),
    "llama": DecoderConfig(32000, 4096, 32, 32, 32, 128, 11008, 2048, epsilon=1e-6),
    "gemma3_text": DecoderConfig(
        262208, 2304, 26, 8, 4, 256, 9216, 131072, rope_theta=1e6, epsilon=1e-6, activation="gelu_tanh", tied=True,
        qk_norm=True, attention_scale=0.0625, norm_twice=True, window=4096, window_theta=1e4,
        windowed=tuple(layer for layer in range(26) if layer not in (5, 11, 17, 23)),
    ),
    "mistral": DecoderConfig(
        32000, 4096, 32, 32, 8, 128, 14336, 131072, epsilon=1e-6, window=4096, windowed=tuple(range(32))
    ),
    "qwen2": DecoderConfig(151936, 4096, 32, 32, 32, 128, 22016, 32768, epsilon=1e-6, qkv_bias=True),
    "qwen3": DecoderConfig(151936, 4096, 32, 32, 32, 128, 22016, 32768, epsilon=1e-6, qk_norm=True),
    "granite": DecoderConfig(32000, 4096, 32, 32, 32, 128, 11008, 2048, epsilon=1e-6, attention_scale=1.0),
    "olmo2": DecoderConfig(50304, 4096, 32, 32, 32, 128, 11008, 2048, joint_qk_norm=True, norm_after=True),
    "phi3": DecoderConfig(32064, 3072, 32, 32, 32, 96, 8192, 4096, epsilon=1e-5),
    "smollm3": DecoderConfig(
        128256, 2048, 36, 16, 4, 128, 11008, 32768, rope_theta=2e6, epsilon=1e-6, tied=True,
        unrotated=(3, 7, 11, 15, 19, 23, 27, 31, 35),
    ),
    "t5": Seq2SeqConfig(32128, 512, 6, 6, 8, 64, 2048),
    "bert": EncoderConfig(30522, 768, 12, 12, 3072, 512, 2, 512),
}  # fmt: skip
KEYS = {
    family: {*BASE, *used, *refused, *ignored.split(), "model_type"}
    for family, (_, used, refused, ignored) in FAMILIES.items()
}


def parse(family: str, **values: Any) -> Any:
    values["model_type"] = family
    if family == "t5":
        return parse_t5(values, "config.json")
    return parse_bert(values, {}, "config.json") if family == "bert" else parse_config(values, "config.json")


def find_error(family: str, **values: Any) -> str:
    try:
        parse(family, **values)
    except ValidationError as error:
        return str(error)
    return ""


def list_cases(part: int) -> list[Any]:
    return [
        pytest.param(family, key, value, id=f"{family}-{key}")
        for family, parts in FAMILIES.items()
        for key, value in parts[part].items()
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_keys_are_the_familys_own(family: str) -> None:
    assert parse(family) == DEFAULTS[family]


@pytest.mark.parametrize(("family", "key", "value"), list_cases(1))
def test_key_changes_the_network(family: str, key: str, value: Any) -> None:
    small = FAMILIES[family][0]
    assert parse(family, **{**small, key: value}) != parse(family, **small)


@pytest.mark.parametrize(("family", "key", "value"), list_cases(2))
def test_key_is_refused_by_name(family: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"config.json is invalid: {key}: "):
        parse(family, **{**FAMILIES[family][0], key: value})


@pytest.mark.parametrize("family", FAMILIES)
def test_other_keys_change_nothing(family: str) -> None:
    small, _, _, ignored = FAMILIES[family]
    expected = parse(family, **small)
    checked: dict[str, Any] = {"sliding_window": 32, "max_window_layers": 5, "use_sliding_window": False}
    checked |= dict.fromkeys(("embedding_multiplier", "logits_scaling"), 2.0)
    checked |= {"original_max_position_embeddings": 32, "pad_token_id": 2, "tie_word_embeddings": True}
    checked |= dict.fromkeys(("eos_token_id", "bos_token_id", "decoder_start_token_id", "top_k"), 7)
    checked |= {"architectures": None, "temperature": 0.5, "top_p": 0.5, "repetition_penalty": 2.0}
    for key in (*BASE, *ignored.split()):
        assert parse(family, **{**small, key: checked.get(key, ["other"])}) == expected, key


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", [None, "1", -1, 0, 2.0, True, [1], {"a": 1}, math.nan, 1 << 40], ids=repr)
def test_any_value_is_used_or_refused_by_name(family: str, value: Any) -> None:
    for key in KEYS[family] - {"model_type"}:
        message = find_error(family, **{**FAMILIES[family][0], key: value})
        # A value may fit its key and no other one.
        assert not message or any(text in message for text in (key, "must divide", "must be >")), (key, message)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama", {"rope_theta": 0}, "rope_theta: must be a number > 0, got 0"),
        ("llama", {"rope_theta": "10000"}, "rope_theta: must be a number > 0, got '10000'"),
        ("llama", {"rms_norm_eps": -1e-5}, "rms_norm_eps: must be a number > 0 and < 1, got -1e-05"),
        ("llama", {"num_hidden_layers": 2.0}, "num_hidden_layers: must be a whole number from 1 to 4096, got 2.0"),
        ("llama", {"rope_scaling": [1]}, r"rope_scaling: must be an object or null, got \[1\]"),
        ("llama", {"sliding_window": 8}, "sliding_window: not known, got 8"),
        ("llama", {"logit_scale": 0.5}, "logit_scale: not known, got 0.5\nDelete a key from config.json only if"),
        ("llama", {"atention_bias": True}, "atention_bias: not known, got True; did you mean 'attention_bias'?"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "architectures: must be one of LlamaForC"),
        ("llama", {"head_dim": 3}, "head_dim: must be an even number >= 1, got 3"),
        ("llama", {"hidden_size": 36, "num_attention_heads": 12}, "num_attention_heads: must divide hidden_size 36"),
        ("gpt2", {"hidden_size": 32}, "hidden_size: must equal n_embd 16, got 32"),
        ("gpt2", {"n_head": 3}, "n_head: must divide n_embd 16, got 3"),
        ("mistral", {"sliding_window": 0}, "sliding_window: must be a whole number >= 1, got 0"),
        (
            "qwen2",
            {"layer_types": ["sliding_attention"], "use_sliding_window": False},
            "layer_types: must be full_attention, got 'sliding_attention'",
        ),
        ("gemma3_text", {"layer_types": ["full_attention"] * 2}, r"layer_types: must be a list of 1 names, got \["),
        ("granite", {"residual_multiplier": 1e-4}, r"residual_multiplier: must be > sqrt\(rms_norm_eps 1e-06\), got"),
        ("phi3", {"partial_rotary_factor": 0.3}, "partial_rotary_factor: must give an even part of head size 4, got 1"),
        (
            "phi3",
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}},
            "rope_scaling.short_factor: must have 2 numbers, got 1",
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling.rope_type: must be one of default, longrope, got 'linear'",
        ),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers: must have 1 values, num_hidden_layers, got 2"),
        ("smollm3", {"no_rope_layers": [2]}, "no_rope_layers: must be a list with 0 or 1 for each layer, or null"),
        ("qwen3", {"head_dim": None}, "head_dim: must be an even number >= 1, got None"),
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn: must be 'relu' with feed_forward_proj 'relu', got 'silu'"),
    ],
)
def test_wrong_values_are_refused(family: str, change: dict[str, Any], message: str) -> None:
    small = FAMILIES[family][0]
    with pytest.raises(ValidationError, match=message):
        parse(family, **{**small, **change})


PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
        "vocab_size": 49152,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
    },
    "gemma-3-270m": {
        "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1,
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 640, "initializer_range": 0.02, "intermediate_size": 2048,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0.dev0", "use_bidirectional_attention": False, "use_cache": True,
        "vocab_size": 262144,
    },
    "R1-Distill-Qwen-1.5B": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02,
        "intermediate_size": 8960, "max_position_embeddings": 131072, "max_window_layers": 21, "model_type": "qwen2",
        "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 10000, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.44.0", "use_cache": True, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "granite-3.3-2b": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000000.0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.49.0", "use_cache": True,
        "vocab_size": 49159,
    },
    "OLMo-2-1B": {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "olmo2",
        "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 100277,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False,
        "torch_dtype": "float32", "transformers_version": "4.49.0", "use_cache": True, "vocab_size": 100352,
    },
    "Phi-4-mini": {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
            "AutoTokenizer": "Xenova/gpt-4o",
        },
        "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
        "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1,
        "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0", "use_cache": True, "vocab_size": 200064,
    },
    "SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False,
        "use_sliding_window": False, "vocab_size": 128256,
    },
    "Mistral-7B-v0.3": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.0.dev0", "use_cache": True, "vocab_size": 32768,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_accepted(name: str) -> None:
    values = PUBLISHED[name]
    config = parse_config(values, name)
    assert (config.width, config.layers) == (values["hidden_size"], values["num_hidden_layers"])
    assert (config.rope_scaling is not None) == bool(values.get("rope_scaling"))


def test_keys_that_are_off_or_private_are_accepted() -> None:
    small = FAMILIES["llama"][0]
    others = {"_attn_implementation_autoset": True, "logit_scale": None, "use_qk_norm": False, "experts": []}
    assert parse("llama", **small, **others) == parse("llama", **small)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"temperature": "hot"}, "temperature: must be a number >= 0, got 'hot'"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id: must be a token ID, a list of them or null"),
        ({"top_p": 2}, "top_p: must be a number from 0 to 1, got 2"),
    ],
)
def test_sampling_defaults_are_checked(value: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({**value, "transformers_version": "4.57.1"}))
    with pytest.raises(UserError, match=message):
        read_generation(tmp_path, {})
