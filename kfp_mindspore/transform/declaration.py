"""A pipeline as JSON: {"inputs": [specs of requests], "pre": [steps], "post": [steps]}.

A step is {"type": its class's name, argument: value, …}. Only the package's own classes are built, so a declaration is
data: reading it executes no code by its author.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform.base import Arrays
from kfp_mindspore.transform.boxes import LetterboxImage, SelectBoxes
from kfp_mindspore.transform.categories import OneHot, Tokenize, Vocabulary
from kfp_mindspore.transform.columns import Cast, Concatenate, Rename
from kfp_mindspore.transform.images import CenterCrop, DecodeImage, Resize
from kfp_mindspore.transform.lists import Pad
from kfp_mindspore.transform.pipeline import Pipeline, Step
from kfp_mindspore.transform.scaling import MinMax, Standardize
from kfp_mindspore.transform.values import Label, Normalize, Softmax, TopK

STEPS: Mapping[str, type[Step]] = {
    step.__name__: step
    for step in (
        Cast,
        CenterCrop,
        Concatenate,
        DecodeImage,
        Label,
        LetterboxImage,
        MinMax,
        Normalize,
        OneHot,
        Pad,
        Rename,
        Resize,
        SelectBoxes,
        Softmax,
        Standardize,
        Tokenize,
        TopK,
        Vocabulary,
    )
}
# Arithmetic and look-ups: their time is linear in the element count.
_LIGHT_STEPS = (Cast, Concatenate, Label, Normalize, OneHot, Pad, Rename, SelectBoxes, Softmax, TopK, Vocabulary)
_PARTS = ("inputs", "pre", "post")
_CODE_HINT = "Steps of your own belong in a transform: kfp-mindspore model export --transform FILE"


def declare(pipeline: Pipeline) -> dict[str, Any]:
    """Return a pipeline's declaration, JSON types only.

    Raises:
        UserError: A step's class is outside this package.
    """
    declaration: dict[str, Any] = {}
    if pipeline.inputs is not None:
        declaration["inputs"] = [spec.to_dict() for spec in pipeline.inputs]
    for part, steps in (("pre", pipeline.pre), ("post", pipeline.post)):
        declaration[part] = [declare_step(step) for step in steps]
    return declaration


def declare_step(step: Step) -> dict[str, Any]:
    """Return a step's declaration: its type, and the arguments that differ from their defaults.

    Raises:
        UserError: The step's class is outside this package.
    """
    name = type(step).__name__
    if STEPS.get(name) is not type(step):
        raise UserError(f"preprocessing: {name}: only {', '.join(STEPS)} can be declared", hint=_CODE_HINT)
    arguments = {
        argument: _to_json(getattr(step, argument))
        for argument, parameter in inspect.signature(type(step)).parameters.items()
        if _to_json(getattr(step, argument)) != _to_json(parameter.default)
    }
    return {"type": name, **arguments}


def build_pipeline(declaration: Mapping[str, Any]) -> Pipeline:
    """Build a pipeline from `declare`'s result.

    Args:
        declaration: `inputs`, `pre` and `post`, each optional.

    Raises:
        UserError: The message names the part, the step and its argument.
    """
    if not isinstance(declaration, Mapping):
        raise UserError(f"preprocessing: must be a JSON object, got {declaration!r:.80}")
    if unknown := [name for name in declaration if name not in _PARTS]:
        raise UserError(f"preprocessing: {unknown[0]}: unknown, must be one of {', '.join(_PARTS)}")
    inputs = declaration.get("inputs")
    try:
        specs = None if inputs is None else tuple(TensorSpec.from_dict(spec) for spec in inputs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"preprocessing: inputs: must be specs of name, dtype and shape ({error})") from None
    return Pipeline(
        build_steps(declaration.get("pre", ()), "pre"), build_steps(declaration.get("post", ()), "post"), inputs=specs
    )


def list_light_methods(pipeline: Pipeline) -> frozenset[str]:
    """Return a pipeline's methods, `preprocess` and `postprocess`, that contain light steps only."""
    parts = {"preprocess": pipeline.pre, "postprocess": pipeline.post}
    return frozenset(name for name, steps in parts.items() if all(type(step) in _LIGHT_STEPS for step in steps))


def build_steps(declarations: Sequence[Mapping[str, Any]], part: str = "pre") -> tuple[Step, ...]:
    """Build steps from their declarations.

    Args:
        declarations: Such as [{"type": "Resize", "size": [32, 32]}].
        part: List name, for messages.

    Raises:
        UserError: The message names the step and its argument.
    """
    if isinstance(declarations, str | Mapping) or not isinstance(declarations, Sequence):
        raise UserError(f"preprocessing: {part}: must be a list of steps, got {declarations!r:.80}")
    return tuple(_build_step(value, f"preprocessing: {part}[{index}]") for index, value in enumerate(declarations))


def fit_steps(steps: Sequence[Step], arrays: Arrays) -> tuple[tuple[Step, ...], Arrays]:
    """Fit steps on the training split, each on the preceding steps' result.

    Args:
        steps: Preprocessing steps in order.
        arrays: The training split's raw columns by name, each with shape (N, …).

    Returns:
        The fitted steps, and the arrays after the last one.

    Raises:
        UserError: A step does not fit the arrays.
    """
    fitted: list[Step] = []
    for step in steps:
        fitted.append(step.fit(arrays))
        arrays = fitted[-1].apply(arrays)
    return tuple(fitted), arrays


def _build_step(value: Any, where: str) -> Step:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise UserError(f'{where}: must be an object such as {{"type": "Resize", "size": [32, 32]}}, got {value!r:.80}')
    kind = value["type"]
    if kind not in STEPS:
        raise UserError(f"{where}: type: must be one of {', '.join(STEPS)}, got {kind!r}", hint=_CODE_HINT)
    arguments = {name: item for name, item in value.items() if name != "type"}
    parameters = inspect.signature(STEPS[kind]).parameters
    if unknown := [name for name in arguments if name not in parameters]:
        raise UserError(f"{where}: {kind}: {unknown[0]}: unknown, must be one of {', '.join(parameters)}")
    missing = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in arguments
    ]
    if missing:
        raise UserError(f"{where}: {kind}: {missing[0]}: missing")
    try:
        return STEPS[kind](**arguments)
    except UserError as error:
        raise UserError(f"{where}: {error.message}", hint=error.hint) from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {kind}: {error}") from None


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
