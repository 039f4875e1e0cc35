"""Steps that write bundles of language models: published ones, and untrained ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore import events
from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.errors import UserError
from kfp_mindspore.steps.language_model.examples import choose_source

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.lm.options import NetworkOptions


def import_model(model: dsl.Model, source: str, given: dsl.Model | None = None) -> None:
    """Write a published model as a bundle.

    Args:
        model: Receives the bundle.
        source: `smollm2`, `rewriter`, a path or a URI; empty for `given`.
        given: An artifact with a Hugging Face directory or a GGUF file.

    Raises:
        UserError: Neither or both are given, or the model is not supported.
        KfpMindSporeError: A graph differs from the full forward pass, or the source's server fails.
    """
    if bool(source) == (given is not None):
        raise UserError("source: give either a name, path or URI, or an artifact, got both or none")
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.lm.bundle.causal import import_source

    with events.span("lm.import"):
        difference = import_source(source if given is None else given.path, Path(model.path))
    model.metadata.update(ModelBundle.open(model.path).signature.metadata, framework="mindspore")
    print(f"verified, graphs differ from the full forward pass by {difference:.1e} of the largest output", flush=True)


def create_model(
    model: dsl.Model, options: NetworkOptions, *, data: str = "", dataset: dsl.Dataset | None = None
) -> None:
    """Write an untrained decoder, with a tokenizer trained on examples, as a bundle.

    Args:
        model: Receives the bundle.
        options: The network's options.
        data: `new_testament`, a path or a URI; empty for `dataset`.
        dataset: JSON lines, a file or a directory with one.

    Raises:
        UserError: Neither or both data are given, or the examples are not usable.
    """
    source = choose_source(data, dataset)
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.lm.bundle.creation import create_bundle

    created = create_bundle(source, Path(model.path), options)
    model.metadata.update(ModelBundle.open(model.path).signature.metadata, framework="mindspore")
    print(f"{created['weights']:,} weights, a vocabulary of {created['vocabulary']} tokens", flush=True)
