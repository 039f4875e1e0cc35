"""Transform validation on an example, before it is added to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.bundle import VerifiedSamples
from kfp_mindspore.formats.example_request import ExampleRequest
from kfp_mindspore.formats.tensors import list_mismatches
from kfp_mindspore.transform.base import Arrays, TransformFailedError
from kfp_mindspore.transform.bound import BoundTransform
from kfp_mindspore.transform.load import describe_error

_EXAMPLE_ROWS = 2


def try_transform(
    bound: BoundTransform,
    samples: VerifiedSamples,
    compute: Callable[[Arrays], Arrays],
    file: Path | None = None,
    *,
    raw: Mapping[str, NDArray[Any]] | None = None,
) -> ExampleRequest | None:
    """Run an example through a transform and the graph: real samples where they fit `inputs`, else `make_example`.

    The graph's inputs have precedence over the dataset's raw columns.

    Args:
        bound: The transform.
        samples: Real model inputs and its network's outputs.
        compute: The graph.
        file: The transform's source, to name a line in it.
        raw: The samples before the dataset's own preprocessing.

    Returns:
        The example and its response; None when the transform has no example: only `postprocess` was validated.

    Raises:
        UserError: A method fails, or its result does not fit; the message names the line.
    """
    where = "" if file is None else str(file)
    try:
        inputs = _make_example(bound, samples, raw or {})
        if inputs is None:
            bound.run_postprocess(samples.outputs)
            return None
        return ExampleRequest(inputs, bound.run_postprocess(compute(bound.run_preprocess(inputs))))
    except TransformFailedError as error:
        cause = error.__cause__
        text = error.message if cause is None else f"{describe_error(cause, where)} ({error.message})"
        raise UserError(f"transform: tried on an example: {text}") from error
    except KfpMindSporeError as error:
        raise UserError(f"{bound.name}: refuses an example: {error.message}", hint=error.hint) from error


def _make_example(bound: BoundTransform, samples: VerifiedSamples, raw: Mapping[str, NDArray[Any]]) -> Arrays | None:
    signature = bound.signature
    if bound.inputs == signature.free_batch(signature.inputs):
        batched = bool(signature.batch_size)
        return {name: array[:_EXAMPLE_ROWS] if batched else array for name, array in samples.inputs.items()}
    if raw and not list_mismatches(bound.inputs, raw, ragged=True):
        return {name: array[:_EXAMPLE_ROWS] for name, array in raw.items()}
    try:
        found: Any = bound.transform.make_example(signature)
    except (Exception, SystemExit) as error:
        raise UserError(f"{bound.name}: make_example failed: {type(error).__name__}: {error}") from error
    return found if found is None else dict(found)
