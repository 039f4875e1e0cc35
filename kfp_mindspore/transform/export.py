"""Trying a transform before it becomes part of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import VerifiedSamples
from kfp_mindspore.formats.example_request import ExampleRequest
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.transform.base import Arrays, TransformFailedError
from kfp_mindspore.transform.bound import BoundTransform, has_batch, widen
from kfp_mindspore.transform.load import describe_failure, load_registered, load_transform_source

_EXAMPLE_ROWS = 2


def read_transform(transform: Path | str, signature: Signature) -> tuple[BoundTransform, bytes]:
    """Load a transform that is to become part of a model.

    Args:
        transform: A file, or the name of a registered transform.
        signature: Of the model that it is for.

    Returns:
        The transform, and the file's content; nothing for a registered one.

    Raises:
        NotFoundError: There is no such file and nothing registered by this name.
        UserError: It cannot be loaded or does not fit the model; file and line are named.
    """
    file = Path(transform)
    if file.suffix != ".py" and not file.is_file():
        return load_registered(str(transform), signature), b""
    try:
        source = file.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such transform file") from None
    except OSError as error:
        raise UserError(f"{file}: transform: {error.strerror}") from error
    return load_transform_source(file, source, signature), source


def try_transform(
    bound: BoundTransform, samples: VerifiedSamples, compute: Callable[[Arrays], Arrays], file: Path | None = None
) -> ExampleRequest | None:
    """Send an example through a transform and the graph: real samples where clients send them, else what it makes up.

    Args:
        bound: The transform.
        samples: Real inputs of the model and what its network gave for them.
        compute: The graph.
        file: Where the transform's source is, to name a line of it.

    Returns:
        The example and its answer; None when the transform has none, then only `postprocess` was tried.

    Raises:
        UserError: A method fails, or its result does not fit; the message names the line.
    """
    where = "" if file is None else str(file)
    try:
        inputs = _find_example(bound, samples)
        if inputs is None:
            bound.run_postprocess(samples.outputs)
            return None
        return ExampleRequest(inputs, bound.run_postprocess(compute(bound.run_preprocess(inputs))))
    except TransformFailedError as error:
        cause = error.__cause__
        text = error.message if cause is None else f"{describe_failure(cause, where)} ({error.message})"
        raise UserError(f"transform: tried on an example: {text}") from error
    except KfpMindSporeError as error:
        raise UserError(f"{bound.name}: refuses an example: {error.message}", hint=error.hint) from error


def _find_example(bound: BoundTransform, samples: VerifiedSamples) -> Arrays | None:
    batched = has_batch(bound.signature)
    if bound.inputs == widen(bound.signature.inputs, batched):
        return {name: array[:_EXAMPLE_ROWS] if batched else array for name, array in samples.inputs.items()}
    try:
        found: Any = bound.transform.make_example(bound.signature)
    except (Exception, SystemExit) as error:
        raise UserError(f"{bound.name}: make_example failed: {type(error).__name__}: {error}") from error
    return found if found is None else dict(found)
