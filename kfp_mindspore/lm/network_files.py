"""A network's configuration, weights, tokenizer and verified prompts in a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import mindspore
import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import CorruptBundleError
from kfp_mindspore.formats.bundle import WEIGHTS_FILE, Signature, write_bundle

NETWORK_FILE = "network.json"
TOKENIZER_FILE = "tokenizer.json"
PROMPTS_FILE = "prompts.npz"

Config = TypeVar("Config")


class Source(Protocol):
    """A published model, as `write_network` needs it."""

    @property
    def config(self) -> Any:
        """The network's configuration, with `to_dict` and `max_length`."""

    @property
    def weights(self) -> Mapping[str, NDArray[np.float32]]:
        """Arrays by name, float32."""

    @property
    def tokenizer(self) -> str:
        """The text of tokenizer.json."""

    @property
    def architecture(self) -> str:
        """The published model's architecture."""


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
    model: Source,
    *,
    kind: str,
    prompts: Mapping[str, NDArray[Any]],
    verified: Mapping[str, float],
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write a model as a signed bundle.

    Args:
        bundle: The bundle's directory; replaced when it exists.
        model: The model.
        kind: The bundle's kind.
        prompts: Arrays of the verified prompts.
        verified: For the signature: how many prompts, the largest difference and its tolerance.
        texts: Further files' texts by name.
    """
    from safetensors.numpy import save_file

    with write_bundle(bundle) as writer:
        directory = writer.directory
        (directory / NETWORK_FILE).write_text(json.dumps(model.config.to_dict(), indent=2))
        save_file({name: np.ascontiguousarray(model.weights[name]) for name in model.weights}, directory / WEIGHTS_FILE)
        for name, text in {TOKENIZER_FILE: model.tokenizer, **(texts or {})}.items():
            (directory / name).write_text(text)
        np.savez(directory / PROMPTS_FILE, **prompts)
        metadata = {"kind": kind, "architecture": model.architecture, "max_length": str(model.config.max_length)}
        writer.sign(Signature((), (), mindspore.__version__, verified=dict(verified), metadata=metadata))
