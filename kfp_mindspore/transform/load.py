"""Loading a model's transform: declared in its directory, a `transform.py` there, or registered by a package."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import sys
import traceback
import types
import weakref
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import PREPROCESSING_FILE, TRANSFORM_FILE, ModelBundle
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.transform.base import Transform
from kfp_mindspore.transform.bound import BoundTransform, bind_transform
from kfp_mindspore.transform.declaration import build_pipeline, list_light_methods

ENTRY_POINTS = "kfp_mindspore.transforms"

_ALLOW_HINT = (
    "If you trust whoever wrote the model directory, start the server with --allow_model_code true (or kfp-mindspore "
    "serve --allow-model-code). A transform of an installed package, registered in the entry point group "
    f"{ENTRY_POINTS}, needs no flag."
)
_numbers = itertools.count(1)


def load_transform(bundle: ModelBundle, *, allow_code: bool = False) -> BoundTransform | None:
    """Load a bundle's transform.

    Args:
        bundle: An opened bundle.
        allow_code: Whether a `transform.py` in the directory may be run; a declared preprocessing and a registered
            transform need no permission.

    Returns:
        The transform, or None when the bundle has none.

    Raises:
        UserError: It is code and not allowed, cannot be imported (named by file and line), is not registered, or does
            not fit the model.
        CorruptBundleError: `transform.py` or `preprocessing.json` has another digest than signed, or is not signed.
    """
    signature, file = bundle.signature, bundle.path / TRANSFORM_FILE
    for path in (file, bundle.path / PREPROCESSING_FILE):
        if path.name not in signature.files and path.exists():
            raise CorruptBundleError(
                f"{path}: not among the files of the model's signature: it was added later",
                hint="Remove it, or export the model again with it: kfp-mindspore model export",
            )
    name, entry = signature.transform, signature.files.get(TRANSFORM_FILE)
    kinds = [kind for kind in (PREPROCESSING_FILE, TRANSFORM_FILE) if kind in signature.files]
    if len(kinds) + bool(name) > 1:
        named = [f"names the transform {name!r}"] if name else []
        raise UserError(f"{bundle.path}: has {' and '.join([*kinds, *named])}: must be one of them")
    if PREPROCESSING_FILE in kinds:
        where, declaration = bundle.path / PREPROCESSING_FILE, bundle.read_preprocessing()
        try:
            pipeline = build_pipeline(declaration)
        except UserError as error:
            raise UserError(f"{where}: {error.message}", hint=error.hint) from None
        bound = bind_transform(pipeline, signature, f"{bundle.path.name}/{PREPROCESSING_FILE}")
        inputs = bound.inputs if signature.rows is None else signature.rows.name_columns(bound.inputs)
        return dataclasses.replace(bound, inputs=inputs, light=list_light_methods(pipeline))
    if entry is None:
        return load_registered(name, signature) if name else None
    if not allow_code:
        raise UserError(f"{file}: the model directory contains code, which is not allowed", hint=_ALLOW_HINT)
    source = file.read_bytes()
    # Execute the bytes that were digested: the file may be replaced after the check.
    if (digest := hashlib.sha256(source).hexdigest()) != entry["sha256"]:
        raise CorruptBundleError(f"{file}: sha256 must be {entry['sha256']}, is {digest}: the file was changed")
    return load_transform_source(file, source, signature)


def read_transform(transform: Path | str, signature: Signature) -> tuple[BoundTransform, bytes]:
    """Load a transform for export.

    Args:
        transform: A file, or a registered transform's name.
        signature: Model signature.

    Returns:
        The transform, and the file's content; empty for a registered one.

    Raises:
        NotFoundError: There is no such file and nothing registered by this name.
        UserError: It cannot be loaded or does not fit the model; file and line are named.
    """
    source = read_transform_source(transform)
    if not source:
        return load_registered(str(transform), signature), b""
    return load_transform_source(Path(transform), source, signature), source


def read_transform_source(transform: Path | str) -> bytes:
    """Return a transform file's content; empty for a registered transform.

    Args:
        transform: A file, or a registered transform's name.

    Raises:
        NotFoundError: There is no such file and nothing registered by this name.
        UserError: The file cannot be read, or is empty.
    """
    file = Path(transform)
    if file.suffix != ".py" and not file.is_file():
        _get_entry_point(str(transform))
        return b""
    try:
        source = file.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such transform file") from None
    except OSError as error:
        raise UserError(f"{file}: transform: {error.strerror}") from error
    if not source:
        raise UserError(f"{file}: the transform file is empty")
    return source


def load_registered(name: str, signature: Signature) -> BoundTransform:
    """Load a transform that an installed package registers: an object, a class, or a function taking the signature.

    Args:
        name: Its name in the entry point group `kfp_mindspore.transforms`.
        signature: The graph's inputs and outputs.

    Raises:
        NotFoundError: No installed package registers it.
        UserError: It cannot be imported, or does not fit the model.
    """
    entry = _get_entry_point(name)
    where = f"transform {name!r}"
    try:
        value = entry.load()
        transform = _build(value, signature)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{where} ({entry.value}): {describe_error(error, '')}") from error
    return bind_transform(_require(transform, where), signature, where)


def _get_entry_point(name: str) -> importlib.metadata.EntryPoint:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    entry = next((entry for entry in found if entry.name == name), None)
    if entry is None:
        raise NotFoundError(
            f"transform {name!r}: not registered, found {', '.join(sorted({entry.name for entry in found})) or 'none'}",
            hint=f"Install the package that registers it in the entry point group {ENTRY_POINTS}.",
        )
    return entry


def load_transform_source(file: Path, source: bytes, signature: Signature) -> BoundTransform:
    """Execute a transform's source and bind the transform that it defines.

    Each call creates its own module, so the files of two models or two model versions are independent.

    Args:
        file: Source path, for messages.
        source: Python that defines `transform`, or `build_transform(signature)`.
        signature: The graph's inputs and outputs.

    Raises:
        UserError: Naming the file and the line.
    """
    name = f"kfp_mindspore_transform_{next(_numbers)}_{hashlib.sha256(source).hexdigest()[:12]}"
    module = types.ModuleType(name)
    module.__file__ = str(file)
    # Dataclasses, pickle and type hints resolve a class's module by its name.
    sys.modules[name] = module
    try:
        try:
            exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
            build, transform = module.__dict__.get("build_transform"), module.__dict__.get("transform")
            if (build is None) == (transform is None):
                raise UserError(f"{file}: must define `transform` or `build_transform(signature)`, and not both")
            if build is not None and not callable(build):
                raise UserError(f"{file}: build_transform: must be a function, got {type(build).__name__}")
            transform = _build(transform if build is None else build, signature)
        except UserError as error:
            if error.__traceback__ is not None and (line := _get_line(error, str(file))):
                raise UserError(f"{file}:{line}: {error.message}", hint=error.hint) from error
            raise
        except (Exception, SystemExit) as error:
            hint = "Install it where the model is served." if isinstance(error, ModuleNotFoundError) else ""
            raise UserError(describe_error(error, str(file)), hint=hint) from error
        bound = bind_transform(_require(transform, str(file)), signature, f"{file.parent.name}/{file.name}")
    except BaseException:
        sys.modules.pop(name, None)
        raise
    weakref.finalize(bound, sys.modules.pop, name, None)
    return bound


def _build(value: Any, signature: Signature) -> Any:
    if isinstance(value, Transform):
        return value
    if isinstance(value, type) and issubclass(value, Transform):
        return value()
    return value(signature) if callable(value) else value


def _require(transform: Any, where: str) -> Transform:
    if not isinstance(transform, Transform):
        raise UserError(
            f"{where}: must define a kfp_mindspore.transform.Transform, such as a Pipeline, got "
            f"{type(transform).__name__}"
        )
    return transform


def describe_error(error: BaseException, file: str) -> str:
    """Return an error as `file:line: Type: text`, with the innermost line in that file in the traceback, if any."""
    line = _get_line(error, file)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{file}{f':{line}' if line else ''}: {kind}" if file else kind


def _get_line(error: BaseException, file: str) -> int:
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno or 0
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return frames[-1].lineno or 0 if frames else 0
