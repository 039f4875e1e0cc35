"""Makes bundles that servers have a hard time with: `python make_serving_models.py DIRECTORY`.

a, b      the digits' classifier with other weights: what stands at a path before and after a reload
lookup    ids (-1, 3) into a table of ten rows: the graph raises when an id is not -10 to 9
unranged  the same, exported by version 0.1: the signature has no range, the graph has
shifted   ids that reach the table by arithmetic: neither signature nor graph has a range
loose     values (-1, -1): the signature says that any length will do, the graph takes 4 only
slow      the digits' images to ten numbers, with some milliseconds of work for each
endless   values (-1, -1) of any length, summed: a graph is compiled for each
tokens    values (-1, -1) padded to 4, 8 or 16 and summed
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import small_networks
from mindspore import nn, ops

from kfp_mindspore.formats.bundle import ModelBundle, Signature, TensorSpec, VerifiedSamples, write_bundle
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.mindir import export_mindir


class Lookup(nn.Cell):
    """Rows of a table, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def construct(self, ids):  # type: ignore[no-untyped-def]
        return self.table(ids).sum(axis=1)


class Shifted(Lookup):
    """Rows of a table, next to those of the ids."""

    def construct(self, ids):  # type: ignore[no-untyped-def]
        return self.table(ids + 1).sum(axis=1)


class Slow(nn.Cell):
    """Many layers that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.first = nn.Dense(64, 1024)
        self.middle = nn.Dense(1024, 1024)
        self.last = nn.Dense(1024, 10)

    def construct(self, image):  # type: ignore[no-untyped-def]
        values = self.first(self.flatten(image))
        for _ in range(30):
            values = ops.tanh(self.middle(values))
        return self.last(values)


class Summed(nn.Cell):
    """The sum of each row, and each value doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = mindspore.Parameter(mindspore.Tensor([2.0], mindspore.float32), name="scale")

    def construct(self, values):  # type: ignore[no-untyped-def]
        return values.sum(axis=1), values * self.scale


class Loose(nn.Cell):
    """One layer, which has as many inputs as it has."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 2)

    def construct(self, values):  # type: ignore[no-untyped-def]
        return self.dense(values)


def main(root: Path) -> None:
    random = np.random.default_rng(5)
    images = random.random((16, 1, 8, 8), np.float32)
    for name in ("a", "b"):
        network = small_networks.make_classifier()
        network.dense.weight.set_data(mindspore.Tensor(random.standard_normal((10, 64)).astype(np.float32)))
        _export(root, name, network, {"image": images})
    _export(root, "lookup", Lookup(), {"ids": random.integers(0, 10, (16, 3), np.int32)})
    _remove_ranges(root / "lookup", root / "unranged")
    _export(root, "ranged", Shifted(), {"ids": random.integers(0, 9, (16, 3), np.int32)})
    _remove_ranges(root / "ranged", root / "shifted")
    _export(root, "slow", Slow(), {"image": images})
    tokens = {"tokens": {"inputs": {"values": 1}, "outputs": {"output_1": 1}, "sizes": [4, 8, 16]}}
    _export(root, "tokens", Summed(), {"values": random.random((6, 7), np.float32)}, dimensions=tokens)
    values = random.random((6, 4), np.float32)
    # Exported with its true width; only the signature says that there is none.
    _write(root / "loose", Loose(), values, [None, 4])
    _write(root / "endless", Summed(), values, [None, None])


def _remove_ranges(source: Path, target: Path) -> None:
    """Write a bundle as version 0.1 did."""
    bundle = ModelBundle.open(source)
    with write_bundle(target) as writer:
        for name in ("model.mindir", "verified.npz"):
            shutil.copy(bundle.path / name, writer.directory)
        inputs = tuple(dataclasses.replace(spec, range=None) for spec in bundle.signature.inputs)
        writer.sign(dataclasses.replace(bundle.signature, inputs=inputs))


def _export(root: Path, name: str, network: nn.Cell, samples: dict[str, Any], **options: Any) -> None:
    spec = NetworkSpec("small_networks:make_nothing")
    with write_checkpoint(root / f"{name}_checkpoint", epoch=1, step=1, seed=1, network=spec) as directory:
        mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
    export_mindir(root / f"{name}_checkpoint", root / name, samples=samples, network=network, **options)


def _write(path: Path, network: nn.Cell, values: np.ndarray[Any, Any], shape: list[int | None]) -> None:
    """Write a bundle whose signature leaves everything free, without any sizes to pad to."""
    network.set_train(False)
    results = network(mindspore.Tensor(values))
    arrays = [result.asnumpy() for result in (results if isinstance(results, tuple) else [results])]
    names = ["output"] if len(arrays) == 1 else [f"output_{index}" for index in range(len(arrays))]
    outputs = dict(zip(names, arrays, strict=True))
    with write_bundle(path) as writer:
        free = mindspore.Tensor(shape=shape, dtype=mindspore.float32)
        mindspore.export(network, free, file_name=str(writer.directory / "model"), file_format="MINDIR")
        writer.write_verified(VerifiedSamples({"values": values}, outputs, None))
        writer.sign(
            Signature(
                inputs=(TensorSpec("values", "float32", (-1, -1)),),
                outputs=tuple(
                    TensorSpec(name, "float32", (-1, *(-1 for _ in array.shape[1:]))) for name, array in outputs.items()
                ),
                mindspore_version=mindspore.__version__,
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
