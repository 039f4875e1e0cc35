"""Trying a transform before it becomes part of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kfp_mindspore.bundle import VerifiedSamples
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.signature import Signature
from kfp_mindspore.transform.base import Arrays, TransformFailedError
from kfp_mindspore.transform.bound import BoundTransform, has_batch, widen
from kfp_mindspore.transform.load import describe_failure, load_registered, load_transform_source


def export_transform(transform: Path | str, signature: Signature, samples: VerifiedSamples) -> tuple[bytes, str]:
    """Load a transform and try it on what is known: an example request, and the network's own outputs.

    Args:
        transform: A file, or the name of a registered transform.
        signature: Of the model that it is for.
        samples: Real inputs of the model and what its network gave for them.

    Returns:
        The file's content and no name, or nothing and the registered name.

    Raises:
        NotFoundError: There is no such file and nothing registered by this name.
        UserError: It cannot be loaded, does not fit the model or fails; file and line are named.
    """
    file = Path(transform)
    if file.suffix != ".py" and not file.is_file():
        bound = load_registered(str(transform), signature)
        try_transform(bound, samples)
        return b"", str(transform)
    try:
        source = file.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such transform file") from None
    except OSError as error:
        raise UserError(f"{file}: transform: {error.strerror}") from error
    bound = load_transform_source(file, source, signature)
    try_transform(bound, samples, file)
    return source, ""


def try_transform(bound: BoundTransform, samples: VerifiedSamples, file: Path | None = None) -> None:
    """Run a transform on an example request and on real outputs.

    Args:
        bound: The transform.
        samples: Real inputs of the model and what its network gave for them.
        file: Where the transform's source is, to name a line of it.

    Raises:
        UserError: A method fails, or its result does not fit; the message names the line.
    """
    where = "" if file is None else str(file)
    try:
        if bound.preprocesses and (example := _find_example(bound, samples)) is not None:
            bound.run_preprocess(example)
        bound.run_postprocess(samples.outputs)
    except TransformFailedError as error:
        cause = error.__cause__
        text = error.message if cause is None else f"{describe_failure(cause, where)} ({error.message})"
        raise UserError(f"transform: tried on an example: {text}") from error
    except KfpMindSporeError as error:
        raise UserError(f"{bound.name}: refuses an example: {error.message}", hint=error.hint) from error


def _find_example(bound: BoundTransform, samples: VerifiedSamples) -> Arrays | None:
    if bound.inputs == widen(bound.signature.inputs, has_batch(bound.signature)):
        return dict(samples.inputs)
    try:
        found: Any = bound.transform.make_example(bound.signature)
    except (Exception, SystemExit) as error:
        raise UserError(f"{bound.name}: make_example failed: {type(error).__name__}: {error}") from error
    return found if found is None else dict(found)
