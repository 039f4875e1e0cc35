"""Decoders in Hugging Face directories: each family's keys with transformers' defaults (4.57), and its network."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.network.rope import RopeScaling, get_yarn_magnitude
from kfp_mindspore.lm.sources.fields import (
    COMMON,
    IGNORED,
    MOST_LAYERS,
    MOST_POSITIONS,
    REQUIRED,
    Key,
    choice,
    classes,
    flag,
    number,
    off,
    only,
    optional,
    read_keys,
    refuse,
    size,
)
from kfp_mindspore.lm.sources.fields import alias as same_as

GEMMA = "gemma3_text"
CLASSES = {
    GEMMA: "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
}
HINT = "Delete a key from config.json only if it does not change the network's numbers."
_FULL, _WINDOWED = "full_attention", "sliding_attention"


# Published configurations of Phi name their first code, whose place transformers' own has taken.
_PHI_CODE = ("configuration_phi3.Phi3Config", "modeling_phi3.Phi3ForCausalLM", "modeling_phi3.Phi3Model")


def _is_phi_code(value: Any) -> bool:
    # The tokenizer is read from tokenizer.json, whatever its class.
    known = (*_PHI_CODE, isinstance(value, dict) and value.get("AutoTokenizer"))
    return not value or (isinstance(value, dict) and all(name in known for name in value.values()))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) in (int, float) and 0 < item < math.inf for item in value)


def _is_bits(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(type(item) is int and item in (0, 1) for item in value))


_ROTARY: Mapping[str, Key] = {
    **COMMON,
    "vocab_size": size(32000),
    "hidden_size": size(4096),
    "intermediate_size": size(11008),
    "num_hidden_layers": size(32, most=MOST_LAYERS),
    "num_attention_heads": size(32),
    "num_key_value_heads": optional(size(None)),
    "head_dim": optional(size(None, multiple=2)),
    "hidden_act": choice("silu", ACTIVATIONS),
    "max_position_embeddings": size(2048, most=MOST_POSITIONS),
    "rms_norm_eps": number(1e-6, below=1),
    "tie_word_embeddings": flag(False),
    "rope_theta": number(10000.0),
    "rope_scaling": IGNORED,
    "rope_parameters": IGNORED,
    "partial_rotary_factor": optional(only(1.0)),
    # Read by no family's attention here but Llama's and Qwen3's.
    "attention_bias": off("this family has no biases"),
    "mlp_bias": off("this family has no biases"),
    "pretraining_tp": IGNORED,
}
_QWEN: Mapping[str, Key] = {
    **_ROTARY,
    "vocab_size": size(151936),
    "intermediate_size": size(22016),
    "num_key_value_heads": optional(size(32)),
    "max_position_embeddings": size(32768, most=MOST_POSITIONS),
    "use_sliding_window": flag(False),
    "sliding_window": optional(size(4096)),
    "max_window_layers": size(28, least=0),
    "layer_types": IGNORED,
    "use_mrope": off(),
}
FAMILIES: Mapping[str, Mapping[str, Key]] = {
    "gpt2": {
        **COMMON,
        "architectures": classes(CLASSES["gpt2"], "GPT2Model"),
        "vocab_size": size(50257),
        "n_embd": size(768),
        "n_layer": size(12, most=MOST_LAYERS),
        "n_head": size(12),
        "n_inner": optional(size(None)),
        "n_positions": size(1024, most=MOST_POSITIONS),
        "activation_function": choice("gelu_new", ACTIVATIONS),
        "layer_norm_epsilon": number(1e-5, below=1),
        "tie_word_embeddings": flag(True),
        "scale_attn_weights": only(True),
        "scale_attn_by_inverse_layer_idx": off(),
        # Another order of the same products.
        "reorder_and_upcast_attn": IGNORED,
        **dict.fromkeys(("n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop"), IGNORED),
        **dict.fromkeys(("summary_type", "summary_use_proj", "summary_activation"), IGNORED),
        **dict.fromkeys(("summary_proj_to_labels", "summary_first_dropout"), IGNORED),
        "hidden_size": same_as("n_embd"),
        "num_hidden_layers": same_as("n_layer"),
        "num_attention_heads": same_as("n_head"),
        "max_position_embeddings": same_as("n_positions"),
    },
    GEMMA: {
        **{name: key for name, key in _ROTARY.items() if name != "hidden_act"},
        "architectures": classes(CLASSES[GEMMA], "Gemma3TextModel"),
        "vocab_size": size(262208),
        "hidden_size": size(2304),
        "intermediate_size": size(9216),
        "num_hidden_layers": size(26, most=MOST_LAYERS),
        "num_attention_heads": size(8),
        "num_key_value_heads": optional(size(4)),
        "head_dim": size(256, multiple=2),
        "hidden_activation": choice("gelu_pytorch_tanh", ACTIVATIONS),
        "max_position_embeddings": size(131072, most=MOST_POSITIONS),
        "tie_word_embeddings": flag(True),
        "rope_theta": number(1000000.0),
        "rope_local_base_freq": number(10000.0),
        "attention_bias": flag(False),
        "query_pre_attn_scalar": number(256),
        "sliding_window": size(4096),
        "sliding_window_pattern": size(6),
        "layer_types": IGNORED,
        "final_logit_softcapping": off(),
        "attn_logit_softcapping": off(),
        "use_bidirectional_attention": off(),
        "cache_implementation": IGNORED,
    },
    "llama": {
        **_ROTARY,
        "architectures": classes(CLASSES["llama"], "LlamaModel"),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
    },
    "granite": {
        **_ROTARY,
        "architectures": classes(CLASSES["granite"], "GraniteModel"),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        **dict.fromkeys(("embedding_multiplier", "logits_scaling", "residual_multiplier"), number(1.0)),
        "attention_multiplier": number(1.0),
    },
    "mistral": {
        **_ROTARY,
        "architectures": classes(CLASSES["mistral"], "MistralModel"),
        "intermediate_size": size(14336),
        "num_key_value_heads": optional(size(8)),
        "max_position_embeddings": size(131072, most=MOST_POSITIONS),
        "sliding_window": optional(size(4096)),
    },
    "olmo2": {
        **_ROTARY,
        "architectures": classes(CLASSES["olmo2"], "Olmo2Model"),
        "vocab_size": size(50304),
        "rms_norm_eps": number(1e-5, below=1),
        "attention_bias": flag(False),
    },
    "phi3": {
        **{name: key for name, key in _ROTARY.items() if name != "head_dim"},
        "architectures": classes(CLASSES["phi3"], "Phi3Model"),
        "auto_map": Key("the author's code is never run", _is_phi_code),
        "vocab_size": size(32064),
        "hidden_size": size(3072),
        "intermediate_size": size(8192),
        "max_position_embeddings": size(4096, most=MOST_POSITIONS),
        "original_max_position_embeddings": size(4096, least=2),
        "rms_norm_eps": number(1e-5, below=1),
        "partial_rotary_factor": Key(
            "must be a number > 0 and <= 1", lambda value: type(value) in (int, float) and 0 < value <= 1, 1.0
        ),
        "sliding_window": optional(size(None)),
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), IGNORED),
        # Phi-3-small's, another network.
        **dict.fromkeys(("full_attn_mod", "interpolate_factor"), only(1)),
    },
    # Its queries, keys and values have biases without a key.
    "qwen2": {**_QWEN, "architectures": classes(CLASSES["qwen2"], "Qwen2Model"), "attention_bias": IGNORED},
    "qwen3": {
        **_QWEN,
        "architectures": classes(CLASSES["qwen3"], "Qwen3Model"),
        "head_dim": size(128, multiple=2),
        "attention_bias": flag(False),
    },
    "smollm3": {
        **_ROTARY,
        "architectures": classes(CLASSES["smollm3"], "SmolLM3Model"),
        "vocab_size": size(128256),
        "hidden_size": size(2048),
        "num_hidden_layers": size(36, most=MOST_LAYERS),
        "num_attention_heads": size(16),
        "num_key_value_heads": optional(size(4)),
        "max_position_embeddings": size(32768, most=MOST_POSITIONS),
        "rope_theta": number(2000000.0),
        "tie_word_embeddings": flag(True),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "use_sliding_window": flag(False),
        "sliding_window": optional(size(None)),
        "layer_types": IGNORED,
        "no_rope_layers": Key("must be a list with 0 or 1 for each layer, or null", _is_bits),
        "no_rope_layer_interval": size(4),
        "max_window_layers": IGNORED,
    },
}
_FACTOR = number(REQUIRED, least=1)
_FACTORS = Key("must be a list of numbers > 0", _is_numbers, REQUIRED)
_ROPE: Mapping[str, Mapping[str, Key]] = {
    "default": {},
    # Long texts, whose factors transformers uses beyond original_max_position_embeddings, are not imported.
    "longrope": {"short_factor": _FACTORS, "long_factor": _FACTORS},
    "linear": {"factor": _FACTOR},
    "llama3": {
        "factor": _FACTOR,
        "low_freq_factor": number(REQUIRED),
        "high_freq_factor": number(REQUIRED),
        "original_max_position_embeddings": size(REQUIRED),
    },
    "yarn": {
        "factor": _FACTOR,
        "original_max_position_embeddings": optional(size(None)),
        "attention_factor": optional(number(None)),
        "beta_fast": optional(number(None)),
        "beta_slow": optional(number(None)),
        "mscale": optional(number(None, least=0)),
        "mscale_all_dim": optional(number(None, least=0)),
        "truncate": flag(True),
        "finetuned": IGNORED,
    },
}


def build_config(values: Mapping[str, Any], subject: str) -> DecoderConfig:
    """Return the decoder's configuration.

    Args:
        values: config.json for one of `FAMILIES`.
        subject: The file's path, for messages.

    Raises:
        ValidationError: A key is not known, not supported or has a wrong value; the message names all such keys.
    """
    kind = values["model_type"]
    found = read_keys(values, FAMILIES[kind], subject, hint=HINT)
    return _build_gpt2(found, subject) if kind == "gpt2" else _build_rotary(found, values, subject)


def _build_gpt2(found: Mapping[str, Any], subject: str) -> DecoderConfig:
    width, heads = found["n_embd"], found["n_head"]
    refuse([f"n_head: must divide n_embd {width}, got {heads}"] if width % heads else [], subject)
    return DecoderConfig(
        *(found["vocab_size"], width, found["n_layer"], heads, heads, width // heads),
        *(found["n_inner"] or 4 * width, found["n_positions"]),
        rope_theta=0,
        epsilon=found["layer_norm_epsilon"],
        norm="layer",
        activation=ACTIVATIONS[found["activation_function"]],
        gated=False,
        tied=found["tie_word_embeddings"],
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def _build_rotary(found: Mapping[str, Any], values: Mapping[str, Any], subject: str) -> DecoderConfig:
    kind, width, heads = found["model_type"], found["hidden_size"], found["num_attention_heads"]
    own_size = found.get("head_dim")
    kv_heads, head_size = found["num_key_value_heads"] or heads, own_size or width // heads
    unrotated, errors = _list_unrotated(found)
    windowed, wrong = _list_windowed(found, kind, unrotated)
    errors += wrong
    if heads % kv_heads:
        errors.append(f"num_key_value_heads: must divide num_attention_heads {heads}, got {kv_heads}")
    if not own_size and (width % heads or head_size % 2):
        errors.append(f"num_attention_heads: must divide hidden_size {width} into even parts, got {heads}")
    # Residuals in units of their multiplier: the norms see the same values, but for epsilon.
    residual = found.get("residual_multiplier", 1.0)
    epsilon = found["rms_norm_eps"] / residual**2
    if not 0 < epsilon < 1:
        errors.append(f"residual_multiplier: must be > sqrt(rms_norm_eps {found['rms_norm_eps']}), got {residual}")
    refuse(errors, subject)
    theta, scaling = _parse_rope(found, values, subject)
    if kind == "phi3":
        scaling = _build_partial(found, theta, head_size, subject)
    return DecoderConfig(
        *(found["vocab_size"], width, found["num_hidden_layers"], heads, kv_heads, head_size),
        *(found["intermediate_size"], _get_length(found)),
        rope_theta=theta,
        epsilon=epsilon,
        activation=ACTIVATIONS[found["hidden_activation" if kind == GEMMA else "hidden_act"]],
        tied=found["tie_word_embeddings"],
        qk_norm=kind in ("qwen3", GEMMA),
        joint_qk_norm=kind == "olmo2",
        norm_after=kind == "olmo2",
        qkv_bias=kind == "qwen2" or bool(found["attention_bias"]),
        out_bias=kind != "qwen2" and bool(found["attention_bias"]),
        mlp_bias=bool(found["mlp_bias"]),
        rope_scaling=scaling,
        unrotated=unrotated,
        attention_scale=found["query_pre_attn_scalar"] ** -0.5
        if kind == GEMMA
        else found.get("attention_multiplier", 0.0),
        norm_twice=kind == GEMMA,
        window=found["sliding_window"] if windowed else 0,
        windowed=windowed,
        window_theta=found["rope_local_base_freq"] if kind == GEMMA and windowed else 0.0,
    )


def _get_longrope(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return longrope's parameters, empty without."""
    parameters = found["rope_parameters"] or found["rope_scaling"]
    return parameters if isinstance(parameters, dict) and "short_factor" in parameters else {}


def _get_length(found: Mapping[str, Any]) -> int:
    """Return the most positions; longrope's are those before its extension."""
    length: int = found["max_position_embeddings"]
    return min(length, found["original_max_position_embeddings"]) if _get_longrope(found) else length


def _build_partial(found: Mapping[str, Any], theta: float, head_size: int, subject: str) -> RopeScaling | None:
    """Return the scaling of Phi's positions: a part of each head rotates, with longrope's short factors."""
    rotated = int(head_size * found["partial_rotary_factor"])
    parameters = _get_longrope(found)
    short = parameters.get("short_factor")
    errors = []
    if rotated % 2 or not rotated:
        errors.append(f"partial_rotary_factor: must give an even part of head size {head_size}, got {rotated}")
    for name in ("short_factor", "long_factor"):
        if short and len(parameters[name]) != rotated // 2:
            errors.append(f"rope_scaling.{name}: must have {rotated // 2} numbers, got {len(parameters[name])}")
    refuse(errors, subject)
    length = found["original_max_position_embeddings"]
    ratio = found["max_position_embeddings"] / length
    magnitude = math.sqrt(1 + math.log(ratio) / math.log(length)) if short and ratio > 1 else 1.0
    return build_partial_rope(theta, head_size, rotated, short, magnitude)


def list_exponents(head_size: int, rotated: int) -> list[float]:
    """Return theta's exponents in the quotients of the network's frequencies, which count the whole head, and a part's.

    Args:
        head_size: Features per head.
        rotated: Those that rotate.
    """
    return [2 * index / rotated - 2 * index / head_size for index in range(rotated // 2)]


def build_partial_rope(
    theta: float, head_size: int, rotated: int, short: Sequence[float] | None, magnitude: float
) -> RopeScaling | None:
    """Return how positions are scaled that rotate a part of each head.

    Args:
        theta: The frequencies' base.
        head_size: Features per head.
        rotated: Those that rotate, an even number.
        short: longrope's factors, one per pair of features; None without.
        magnitude: Multiplies cosines and sines.
    """
    if rotated == head_size and not short:
        return None
    pairs = rotated // 2
    factors = [
        (short[index] if short else 1.0) * theta**power
        for index, power in enumerate(list_exponents(head_size, rotated))
    ]
    return RopeScaling(
        "factors",
        attention_factor=magnitude,
        factors=(*factors, *[1.0] * (head_size // 2 - pairs)),
        rotated=pairs if rotated < head_size else 0,
    )


def _list_unrotated(found: Mapping[str, Any]) -> tuple[tuple[int, ...], list[str]]:
    """Return the layers without rotary positions, and the error of a list with another length."""
    if (interval := found.get("no_rope_layer_interval")) is None:
        return (), []
    layers = found["num_hidden_layers"]
    # 1 is a layer with rotary positions, whatever the key's name says.
    rotated = found["no_rope_layers"]
    if rotated is None:
        return tuple(range(interval - 1, layers, interval)), []
    if len(rotated) != layers:
        return (), [f"no_rope_layers: must have {layers} values, num_hidden_layers, got {len(rotated)}"]
    return tuple(number for number, value in enumerate(rotated) if not value), []


def _list_windowed(
    found: Mapping[str, Any], kind: str, unrotated: Collection[int]
) -> tuple[tuple[int, ...], list[str]]:
    """Return the layers with a sliding window that a text can exceed, and the errors of `layer_types`."""
    layers, window, types = found["num_hidden_layers"], found.get("sliding_window"), found.get("layer_types")
    uses_window = found.get("use_sliding_window", True)
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            return (), [f"layer_types: must be a list of {layers} names, got {types!r}"]
        allowed = (_FULL, _WINDOWED) if uses_window else (_FULL,)
        if unknown := [name for name in types if name not in allowed]:
            return (), [f"layer_types: must be {' or '.join(allowed)}, got {unknown[0]!r}"]
    # Gemma's windowed layers have rotary positions of their own, whatever the text's length.
    if not uses_window or window is None or (window >= _get_length(found) and kind != GEMMA):
        return (), []
    if types is None:
        windowed: Collection[int] = range(layers)
        if kind.startswith("qwen"):
            windowed = range(found["max_window_layers"], layers)
        elif kind == "smollm3":
            windowed = unrotated
        elif kind == GEMMA:
            windowed = [number for number in range(layers) if (number + 1) % found["sliding_window_pattern"]]
        return tuple(windowed), []
    return tuple(number for number, name in enumerate(types) if name == _WINDOWED), []


def _parse_rope(found: Mapping[str, Any], values: Mapping[str, Any], subject: str) -> tuple[float, RopeScaling | None]:
    """Return the rotary positions' base and scaling."""
    name = "rope_parameters" if found["rope_parameters"] else "rope_scaling"
    parameters = found[name] or {}
    is_phi = found["model_type"] == "phi3"
    kinds = [each for each in _ROPE if each == "default" or (each == "longrope") == is_phi]
    if not isinstance(parameters, dict):
        refuse([f"{name}: must be an object or null, got {parameters!r}"], subject)
    if found["rope_parameters"] and found["rope_scaling"] not in (None, {}, parameters):
        refuse(["rope_scaling: must equal rope_parameters, or one of them be null"], subject)
    if parameters and name == "rope_scaling" and not {"rope_type", "type"} & parameters.keys():
        refuse([f"rope_scaling.rope_type: missing, must be one of {', '.join(kinds)}"], subject)
    # Older files call it `type`.
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if is_phi and kind in ("su", "yarn"):
        # Phi's first names for it.
        kind, parameters = "longrope", {**parameters, "type": "longrope"}
        parameters.pop("rope_type", None)
    if kind not in kinds:
        refuse([f"{name}.rope_type: must be one of {', '.join(kinds)}, got {kind!r}"], subject)
    table = {"rope_type": Key(default=kind), "type": same_as("rope_type"), "rope_theta": number(found["rope_theta"])}
    partial = only(found["partial_rotary_factor"]) if is_phi else only(1.0)
    table |= {"partial_rotary_factor": optional(partial), **_ROPE[kind]}
    read = read_keys(parameters, table, subject, prefix=f"{name}.", hint=HINT)
    if "rope_theta" in values and read["rope_theta"] != found["rope_theta"]:
        refuse([f"{name}.rope_theta: must equal rope_theta {found['rope_theta']}, got {read['rope_theta']}"], subject)
    try:
        return read["rope_theta"], _build_scaling(kind, read, found["max_position_embeddings"])
    except ValidationError as error:
        raise ValidationError([f"{name}.{text}" for text in error.errors], subject=subject) from None


def _build_scaling(kind: str, read: Mapping[str, Any], length: int) -> RopeScaling | None:
    if kind in ("default", "longrope"):
        return None
    if kind == "linear":
        return RopeScaling(kind, read["factor"])
    if kind == "llama3":
        return RopeScaling(
            *(kind, read["factor"], read["original_max_position_embeddings"]),
            low_freq_factor=read["low_freq_factor"],
            high_freq_factor=read["high_freq_factor"],
        )
    magnitude, factor = read["attention_factor"], read["factor"]
    if magnitude is None:
        magnitude = get_yarn_magnitude(factor)
        if read["mscale"] and read["mscale_all_dim"]:
            magnitude = get_yarn_magnitude(factor, read["mscale"]) / get_yarn_magnitude(factor, read["mscale_all_dim"])
    return RopeScaling(
        *(kind, factor, read["original_max_position_embeddings"] or length),
        beta_fast=read["beta_fast"] or 32.0,
        beta_slow=read["beta_slow"] or 1.0,
        truncate=read["truncate"],
        attention_factor=magnitude,
    )


def list_scales(values: Mapping[str, Any], config: DecoderConfig) -> dict[str, float]:
    """Return the factors by which weights are multiplied, by the network's names.

    Granite scales embeddings, residuals and logits. Residuals are stored divided by their multiplier, so that adapters
    of the published model fit the layers. Gemma scales embeddings.

    Args:
        values: A config.json that `build_config` has accepted.
        config: The decoder's.
    """
    residual, logits = (values.get(name, 1.0) for name in ("residual_multiplier", "logits_scaling"))
    if values["model_type"] == GEMMA:
        scale = config.width**0.5
    elif values["model_type"] == "granite":
        scale = values.get("embedding_multiplier", 1.0) / residual
    else:
        return {}
    # A tied head has the embedding's factor too, which the norm before it takes back.
    return {"embedding": scale, "norm.weight": 1 / logits / (scale if config.tied else 1.0)}


def unscale_gemma(config: DecoderConfig, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights without `list_scales`' factors.

    Args:
        config: The decoder's.
        weights: By the network's names.
    """
    scales = list_scales({"model_type": GEMMA}, config)
    # A Python number keeps an array's type.
    return {name: array / scales[name] if name in scales else array for name, array in weights.items()}


def describe_rope(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """Return config.json's `rope_scaling`; None without a scaling, or for one that it has no form for.

    Args:
        scaling: The network's.
    """
    if scaling is None or scaling.kind == "factors":
        return None
    value: dict[str, Any] = {"rope_type": scaling.kind, "factor": float(scaling.factor)}
    names = {"llama3": ["low_freq_factor", "high_freq_factor"]}
    names["yarn"] = ["beta_fast", "beta_slow", "truncate", "attention_factor"]
    value |= {name: getattr(scaling, name) for name in names.get(scaling.kind, [])}
    if scaling.original_length:
        value["original_max_position_embeddings"] = scaling.original_length
    return value
