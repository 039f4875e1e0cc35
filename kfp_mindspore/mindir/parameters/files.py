"""Parameter files by any script: found, read, renamed and compared with a network.

The forms are a file `.ckpt` or `.safetensors`, a directory that holds one, a checkpoint by `fit`, a sharded checkpoint
and a model bundle or `.mindir`.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.compat.protobuf import load_standalone
from kfp_mindspore.errors import NotFoundError, UserError, join_names
from kfp_mindspore.formats.bundle import MODEL_FILE, SIGNATURE_FILE, ModelBundle
from kfp_mindspore.formats.checkpoint import DESCRIPTION, HINT, Checkpoint, NetworkSpec
from kfp_mindspore.formats.packed import PACKED_FILE, read_packed
from kfp_mindspore.mindir.environment import import_mindspore
from kfp_mindspore.mindir.graph.metadata import read_weights
from kfp_mindspore.mindir.options import parse_renames
from kfp_mindspore.mindir.parameters.shards import is_sharded, merge_shards, open_sharded

if TYPE_CHECKING:
    from mindspore import nn
    from numpy.typing import NDArray

SUFFIXES = (".ckpt", ".safetensors")

# First bytes of other programs' files.
_MAGIC = {
    b"PK\x03\x04": "a zip archive, as PyTorch and NumPy write",
    b"\x80": "a Python pickle, as PyTorch writes",
    b"\x89HDF": "HDF5, as Keras writes",
    b"\x1f\x8b": "gzip",
}
_HEADER = re.compile(rb'[\x00-\xff]{8}\{\s*"')
_PIECE = re.compile(r".+-\d+-of-\d+\.safetensors")
_STEP = re.compile(r"(.*?)(?:_(\d+))?-(\d+)_(\d+)\.ckpt")


@dataclass(frozen=True)
class Mismatch:
    """How a file's parameters differ from a network's.

    Args:
        missing: The network's parameters without a value, with their shapes.
        unused: The file's without a place in the network, with their shapes.
        unfit: Parameters with other shapes or dtypes: (file's, network's).
        matched: How many fit.
    """

    missing: Mapping[str, str]
    unused: Mapping[str, str]
    unfit: Mapping[str, tuple[str, str]]
    matched: int

    def without(self, optional: Sequence[str]) -> Mismatch:
        """Return the differences without the parameters whose names match a pattern."""

        def is_needed(name: str) -> bool:
            return not any(fnmatch.fnmatchcase(name, pattern) for pattern in optional)

        return replace(
            self,
            missing={name: value for name, value in self.missing.items() if is_needed(name)},
            unfit={name: value for name, value in self.unfit.items() if is_needed(name)},
        )

    def describe(self) -> str:
        """Return the differences that leave parameters without a value; empty when every parameter has one."""
        parts = []
        if self.missing:
            parts.append(f"no value for {_join(self.missing)}")
        if self.unfit:
            listed = [
                f"{name}: {found} in the file, {wanted} in the network" for name, (found, wanted) in self.unfit.items()
            ]
            parts.append(f"other shapes, {join_names(listed)}")
        if parts and self.unused:
            parts.append(f"the file's {_join(self.unused)} have no place")
        return "; ".join(parts)

    def suggest(self) -> str:
        """Return a rename that explains the differences, or an empty text."""
        for one, other in ((self.missing, self.unused), (self.unused, self.missing)):
            prefixes = {full.removesuffix(name) for name in one for full in other if full.endswith(f".{name}")}
            for prefix in sorted(prefixes):
                if all(prefix + name in other for name in one):
                    longer, shorter = (re.escape(prefix), "") if other is self.unused else ("", prefix)
                    return f"--rename '^{longer}={shorter}'"
        return ""


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint in any form; one by another script has no epoch, network and preprocessing.

    Raises:
        NotFoundError: There is no such file or directory, or it holds no parameters.
        UserError: It is a file or directory in another form; the message names what was found.
        CorruptBundleError: A file differs from the checkpoint's description.
    """
    path = Path(path)
    if is_sharded(path):
        return open_sharded(path)
    if path.is_dir() and (path / DESCRIPTION).is_file():
        return Checkpoint.open(path)
    find_files(path)
    return Checkpoint(path, 0, 0, 0, NetworkSpec(""), {}, {}, {}, "")


def is_foreign(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has no description."""
    return not (checkpoint.path / DESCRIPTION).is_file() and not is_sharded(checkpoint.path)


def get_source(checkpoint: Checkpoint) -> Path:
    """Return the file or directory with a checkpoint's parameters."""
    is_described = not is_foreign(checkpoint) and not is_sharded(checkpoint.path)
    return checkpoint.network_file if is_described else checkpoint.path


def find_files(path: Path) -> tuple[Path, ...]:
    """Return the parameter files that a path names: itself, or a directory's one checkpoint.

    Of several files `PREFIX-EPOCH_STEP.ckpt` it is the newest; files `NAME-1-of-N.safetensors` are one checkpoint.

    Raises:
        NotFoundError: There is no such file or directory, or it holds no parameters.
        UserError: The file has another suffix, or the directory holds several checkpoints.
    """
    if path.is_file():
        if path.suffix == ".mindir":
            raise UserError(
                f"{path}: a MindIR, which holds a graph", hint="Make it a bundle by: kfp-mindspore model import FILE"
            )
        if path.suffix not in SUFFIXES:
            kind = _recognize(path)
            raise UserError(
                f"{path}: must be a file {' or '.join(SUFFIXES)}, got {path.suffix or 'no suffix'!r}"
                + (f" ({kind})" if kind else ""),
                hint="Save the parameters by mindspore.save_checkpoint, or as safetensors.",
            )
        return (path,)
    if not path.is_dir():
        raise NotFoundError(f"{path}: no such checkpoint directory or file", hint=HINT)
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if not found:
        held = join_names(sorted(file.name for file in path.iterdir())) or "nothing"
        raise NotFoundError(
            f"{path}: {DESCRIPTION} is missing, so this is no checkpoint, and no file is {' or '.join(SUFFIXES)}; it "
            f"holds {held}",
            hint="Name the directory of one checkpoint, such as OUTPUT_DIR/checkpoint, or its file.",
        )
    if len(found) == 1 or all(_PIECE.fullmatch(file.name) for file in found):
        return tuple(found)
    steps = {
        (int(match[2] or 0), int(match[3]), int(match[4])): (match[1], file)
        for file in found
        if (match := _STEP.fullmatch(file.name))
    }
    if len(steps) == len(found) and len({prefix for prefix, _ in steps.values()}) == 1:
        return (steps[max(steps)][1],)
    raise UserError(
        f"{path}: holds several parameter files without {DESCRIPTION}: {join_names([file.name for file in found])}",
        hint="Name one of them.",
    )


def read_checkpoint(checkpoint: Checkpoint, scratch: Path, strategy: Path | str | None = None) -> dict[str, Any]:
    """Read a checkpoint's parameters in any form.

    Args:
        checkpoint: By `open_checkpoint`.
        scratch: An existing directory for a sharded checkpoint's merged file.
        strategy: A sharded checkpoint's strategy, see `merge_shards`.

    Returns:
        Tensors by name.

    Raises:
        UserError: A file is damaged or holds something else; the message names it.
    """
    if is_sharded(checkpoint.path):
        return _read_file(merge_shards(checkpoint.path, scratch, strategy))
    if (source := get_source(checkpoint)).name == PACKED_FILE:
        from mindspore import Tensor

        return {name: Tensor(value) for name, value in read_packed(source).items()}
    stored: dict[str, Any] = {}
    for file in find_files(source):
        stored |= _read_file(file)
    return stored


def read_parameters(path: Path, key: bytes | None = None) -> dict[str, Any]:
    """Read a checkpoint's, bundle's or MindIR's parameters.

    Args:
        path: The file or directory.
        key: An encrypted model's key.

    Returns:
        Tensors by name.

    Raises:
        UserError: There are no parameters, or a file is damaged; the message names it.
    """
    from mindspore import Tensor

    from kfp_mindspore.mindir.parameters.network import scratch_directory

    is_bundle = (path / SIGNATURE_FILE).is_file() or (path / MODEL_FILE).is_file()
    if is_bundle or path.suffix == ".mindir":
        file = ModelBundle.open(path).mindir if is_bundle else path
        return {name: Tensor(array) for name, array in read_weights(file, key=key).items()}
    with scratch_directory() as scratch:
        return read_checkpoint(open_checkpoint(path), scratch)


def rename_parameters(stored: Mapping[str, Any], renames: Sequence[str], source: Path) -> dict[str, Any]:
    """Apply renames in their order to all names.

    Args:
        stored: Tensors by name.
        renames: See `parse_renames`.
        source: The file, for messages.

    Raises:
        UserError: A pattern matches no name, or two parameters get one name.
    """
    named = dict(stored)
    for pattern, replacement in parse_renames(renames):
        if not any(map(pattern.search, named)):
            raise UserError(f"rename: {pattern.pattern!r} matches no parameter in {source}: {_join(named)}")
        changed: dict[str, str] = {}
        for name in named:
            new = pattern.sub(replacement, name)
            if new in changed:
                raise UserError(f"rename: {pattern.pattern!r} gives {changed[new]!r} and {name!r} the one name {new!r}")
            changed[new] = name
        named = {new: named[name] for new, name in changed.items()}
    return named


def load_matching(
    network: nn.Cell, stored: Mapping[str, Any], source: Path | str, *, optional: Sequence[str] = (), hint: str = ""
) -> Mismatch:
    """Set a network's parameters to a file's values by name.

    Floating-point values are converted to the parameter's precision. Nothing is changed when it raises.

    Args:
        network: The network.
        stored: Tensors by name.
        source: The file, for messages.
        optional: Patterns (fnmatch) for parameters that keep their value when the file has none with their shape.
        hint: The next step when they do not fit; default a rename by the command line.

    Returns:
        What did not fit.

    Raises:
        UserError: A parameter has no value or another shape, or none fits, and the message lists names and shapes both
            ways; or a pattern matches no parameter.
    """
    mismatch, values = _match(network, stored)
    names = [parameter.name for parameter in network.get_parameters()]
    for pattern in optional:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise UserError(f"initial_optional: {pattern!r} matches no parameter; found {join_names(names) or 'none'}")
    problem = (mismatch.without(optional) if mismatch.matched else mismatch).describe()
    if problem:
        total = mismatch.matched + len(mismatch.missing) + len(mismatch.unfit)
        rename = mismatch.suggest()
        default = (
            f"Rename the file's parameters: {rename}"
            if rename
            else "Name the network that was trained, with the arguments it was trained with, or rename: "
            "--rename PATTERN=REPLACEMENT."
        )
        raise UserError(
            f"{source} does not fit the network: {problem}; {mismatch.matched} of {type(network).__name__}'s {total} "
            "parameters match",
            hint=hint or default,
        )
    for parameter, value in values:
        parameter.set_data(value)
    return mismatch


def _match(network: nn.Cell, stored: Mapping[str, Any]) -> tuple[Mismatch, list[tuple[Any, Any]]]:
    values: list[tuple[Any, Any]] = []
    missing: dict[str, str] = {}
    unfit: dict[str, tuple[str, str]] = {}
    unused = {name: str(tuple(value.shape)) for name, value in stored.items()}
    for path, parameter in network.parameters_and_names():
        # `save_checkpoint` of a network names by attributes, fit by the parameter's own name.
        name = parameter.name if parameter.name in stored else path
        if name not in stored:
            missing[parameter.name] = str(tuple(parameter.shape))
            continue
        unused.pop(name, None)
        value = stored[name]
        if value.size == 1 and parameter.size == 1:
            value = value.reshape(parameter.shape)
        if value.dtype != parameter.dtype and value.is_floating_point() and parameter.is_floating_point():
            value = value.astype(parameter.dtype)
        found, wanted = ((tuple(item.shape), item.dtype) for item in (value, parameter))
        if found == wanted:
            values.append((parameter, value))
        elif found[0] == wanted[0]:
            unfit[name] = f"{found[1]}".lower(), f"{wanted[1]}".lower()
        else:
            unfit[name] = str(found[0]), str(wanted[0])
    return Mismatch(missing, unused, unfit, len(values)), values


def _read_file(file: Path) -> dict[str, Any]:
    mindspore = import_mindspore()
    found = _recognize(file)
    kind = "safetensors" if _HEADER.match(_read_head(file)) else "ckpt"
    if found or kind != file.suffix[1:]:
        raise UserError(
            f"{file}: must be a MindSpore checkpoint {file.suffix}, got {found or kind}",
            hint="Rename the file, or save the parameters by mindspore.save_checkpoint."
            if not found and kind == "safetensors"
            else "Save the parameters by mindspore.save_checkpoint, or as safetensors.",
        )
    try:
        if kind == "ckpt":
            stored = {name: mindspore.Tensor(array) for name, array in _read_ckpt(file).items()}
        else:
            stored = mindspore.load_checkpoint(str(file), format=kind)
    except Exception as error:
        # safetensors raises its own SafetensorError, protobuf a DecodeError, MindSpore 2.9 any built-in type.
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"{file}: cannot be read as a checkpoint: it is damaged, incomplete or encrypted ({reason:.200})",
            hint="Copy the file again from where it came from.",
        ) from error
    tensors = {name: value for name, value in stored.items() if isinstance(value, mindspore.Tensor)}
    if not tensors:
        raise UserError(f"{file}: holds no parameters")
    return tensors


def _read_ckpt(file: Path) -> dict[str, NDArray[Any]]:
    """Read a .ckpt file's tensors.

    MindSpore 2.9's own reader writes beyond a tensor whose content is longer than the shape.
    """
    import numpy as np

    values = load_standalone("mindspore.train.checkpoint_pb2").Checkpoint.FromString(file.read_bytes()).value
    # A parameter over 512 MB has several values.
    contents: dict[str, list[bytes]] = {}
    kinds = {}
    for value in values:
        if not isinstance(value.tag, str):
            raise ValueError(f"the name {value.tag!r} is not UTF-8")
        contents.setdefault(value.tag, []).append(value.tensor.tensor_content)
        kinds[value.tag] = value.tensor.tensor_type.lower(), tuple(value.tensor.dims)
    arrays = {}
    for name, (kind, dims) in kinds.items():
        if not kind or kind == "str":
            continue
        content = b"".join(contents[name])
        # NumPy has no bfloat16: its bits are the upper half of a float32.
        dtype = np.dtype("uint16" if kind == "bfloat16" else kind)
        shape = () if dims == (0,) and content else dims
        if len(content) != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"{name} {shape} of {kind} has {len(content)} bytes")
        array = np.frombuffer(content, dtype).reshape(shape)
        arrays[name] = (array.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else array
    return arrays


def _recognize(file: Path) -> str:
    """Return what another program's file is by the first bytes, or an empty text."""
    head = _read_head(file)
    if not head:
        return "an empty file"
    # The length of safetensors' header precedes it, and may be a magic number.
    is_safetensors = _HEADER.match(head)
    return next((what for magic, what in _MAGIC.items() if head.startswith(magic) and not is_safetensors), "")


def _read_head(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(64)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error


def _join(names: Mapping[str, Any]) -> str:
    return join_names([f"{name} {value}" if isinstance(value, str) else name for name, value in names.items()])
