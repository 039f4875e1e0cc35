"""A network's configuration, weights, tokenizer and verified prompts in a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import mindspore
import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError, UserError
from kfp_mindspore.formats.bundle import (
    NETWORK_FILE,
    PROMPTS_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    ModelBundle,
    Signature,
    write_bundle,
)

_TOLERANCE = 1e-5

Config = TypeVar("Config")
Array: TypeAlias = NDArray[Any]
Pairs: TypeAlias = Sequence[tuple[Array, Array]]


class NetworkSource(Protocol):
    """A published model, as `write_network` needs it."""

    @property
    def config(self) -> Any:
        """The network's configuration, with `to_dict` and `max_length`."""

    @property
    def weights(self) -> Mapping[str, NDArray[np.float32]]:
        """Arrays by name, float32."""

    @property
    def tokenizer(self) -> str:
        """tokenizer.json's text."""

    @property
    def architecture(self) -> str:
        """The published model's architecture."""


def open_kind(directory: Path, kind: str) -> ModelBundle:
    """Open a bundle of one kind.

    Args:
        directory: The bundle.
        kind: The expected kind.

    Raises:
        UserError: It is a bundle of another kind.
        CorruptBundleError: A file is not readable or has another digest than signed.
    """
    opened = ModelBundle.open(directory)
    if opened.signature.kind != kind:
        raise UserError(f"{directory}: metadata.kind: must be {kind}, got {opened.signature.kind}")
    return opened


def read_network_files(
    directory: Path, build: Callable[..., Config], list_shapes: Callable[[Config], Mapping[str, tuple[int, ...]]]
) -> tuple[Config, dict[str, NDArray[np.float32]]]:
    """Read a bundle's configuration and weights.

    Args:
        directory: The bundle.
        build: Builds the configuration from its fields.
        list_shapes: Returns the weights' shapes by name.

    Raises:
        CorruptBundleError: A file is not readable, or the weights do not fit the configuration.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = directory / NETWORK_FILE
    try:
        config = build(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CorruptBundleError(f"{file}: not readable: {error}") from None
    file = directory / WEIGHTS_FILE
    try:
        weights = load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise CorruptBundleError(f"{file}: not readable: {error}") from None
    for name, shape in list_shapes(config).items():
        found = weights[name].shape if name in weights else "nothing"
        if found != shape:
            raise CorruptBundleError(f"{file}: {name}: shape must be {shape}, got {found}")
    return config, weights


def write_network(
    bundle: Path,
    model: NetworkSource,
    kind: str,
    prompts: Mapping[str, Array],
    pairs: Pairs,
    texts: Mapping[str, str],
    metadata: Mapping[str, str] | None = None,
    *,
    subject: str,
) -> float:
    """Write a model as a signed bundle.

    Args:
        bundle: The bundle's directory; replaced when it exists.
        model: The model.
        kind: The bundle's kind.
        prompts: The verified prompts' arrays.
        pairs: Each prompt's output from the graphs and from an exact computation.
        texts: Further files' texts by name.
        metadata: Further metadata for the signature.
        subject: The model's origin, for messages.

    Returns:
        The graphs' largest difference, relative to the exact output's largest value.

    Raises:
        KfpMindSporeError: It is more than 1e-5, or NaN.
    """
    from safetensors.numpy import save_file

    # np.max, unlike max, returns NaN when one is NaN.
    difference = float(np.max([np.abs(found - exact).max() / np.abs(exact).max() for found, exact in pairs]))
    if not difference <= _TOLERANCE:
        raise KfpMindSporeError(
            f"{subject}: a graph's output must differ by at most {_TOLERANCE} from the full forward pass without "
            f"padding, got {difference:.1e} of its largest value"
        )
    verified = {"samples": len(pairs), "max_abs_diff": difference, "tolerance": _TOLERANCE}
    with write_bundle(bundle) as writer:
        directory = writer.directory
        (directory / NETWORK_FILE).write_text(json.dumps(model.config.to_dict(), indent=2))
        save_file({name: np.ascontiguousarray(model.weights[name]) for name in model.weights}, directory / WEIGHTS_FILE)
        for name, text in {TOKENIZER_FILE: model.tokenizer, **texts}.items():
            (directory / name).write_text(text)
        np.savez(directory / PROMPTS_FILE, **prompts)
        described = {"kind": kind, "architecture": model.architecture, "max_length": str(model.config.max_length)}
        described |= metadata or {}
        writer.sign(Signature((), (), mindspore.__version__, verified=verified, metadata=described))
    return difference
