"""Layers of kfp_mindspore.training.sequences beside MindSpore's, for test_sequences.py, in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scenario_runner import run_scenarios

from kfp_mindspore import training
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.training.sequences import (
    MaskedGRU,
    MaskedLSTM,
    MaskedTransformerEncoder,
    average_values,
    mask_lengths,
)

import mindspore as ms  # isort: skip
from mindspore import Tensor, nn  # isort: skip

GENERATOR = np.random.default_rng(0)
COUNTS = np.array([0, 1, 2, 4], np.int32)
SERIES = GENERATOR.normal(size=(4, 4, 4)).astype(np.float32)
MASK = (np.arange(4) < COUNTS[:, None]).astype(np.float32)
NAMES = {
    "inputs.weight": "weight_ih_l0",
    "inputs.bias": "bias_ih_l0",
    "hidden.weight": "weight_hh_l0",
    "hidden.bias": "bias_hh_l0",
    "projection.weight": "self_attn.in_proj_weight",
    "projection.bias": "self_attn.in_proj_bias",
    "out.weight": "self_attn.out_proj.weight",
    "out.bias": "self_attn.out_proj.bias",
}


class Classifier(nn.Cell):
    """Any of the recipes before a dense layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "transformer":
            self.encoder: nn.Cell = MaskedTransformerEncoder(4, 2, 8, 1)
        else:
            self.encoder = (MaskedGRU if kind == "gru" else MaskedLSTM)(4, 4, bidirectional=True)
        self.head = nn.Dense(4 if kind == "transformer" else 8, 2)

    def construct(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = mask_lengths(lengths, x.shape[1])
        if self.kind == "transformer":
            return self.head(average_values(self.encoder(x, mask), mask))
        outputs, final = self.encoder(x, lengths)
        return self.head(final + average_values(outputs, mask))


def copy_weights(network: nn.Cell, reference: nn.Cell, name: Callable[[str], str]) -> None:
    weights = {given: parameter.value() for given, parameter in reference.parameters_and_names()}
    for given, parameter in network.parameters_and_names():
        parameter.set_data(weights.pop(name(given)))
    assert not weights


def compare_recurrent(kind: Any, own: Any) -> dict[str, float]:
    """Return differences with two layers in both directions; MindSpore's takes no sequence of length 0."""

    def name(given: str) -> str:
        direction, layer, weight = given.split(".", 2)
        found = NAMES.get(weight, weight).replace("_l0", f"_l{layer}")
        return found + ("_reverse" if direction == "backward_layers" else "")

    reference, network = (
        kind(4, 3, num_layers=2, bidirectional=True, batch_first=True),
        own(4, 3, 2, bidirectional=True),
    )
    copy_weights(network, reference, name)
    outputs, final = (array.asnumpy() for array in network(Tensor(SERIES), Tensor(COUNTS)))
    expected, state = reference(Tensor(SERIES[1:]), seq_length=Tensor(COUNTS[1:]))
    hidden = (state[0] if isinstance(state, tuple) else state).asnumpy()[-2:].transpose(1, 0, 2).reshape(3, -1)
    noise = SERIES + 100 * (1 - MASK[..., None])
    other, _ = network(Tensor(noise.astype(np.float32)), Tensor(COUNTS))
    return {
        "outputs": float(np.abs(outputs[1:] - expected.asnumpy()).max()),
        "final": float(np.abs(final[1:] - hidden).max()),
        "empty": float(np.abs(outputs[0]).max() + np.abs(final[0]).max()),
        "padding": float(np.abs(other.asnumpy() - outputs).max()),
        "size": float(np.abs(expected.asnumpy()).max()),
    }


def gru(_: Path) -> Any:
    return compare_recurrent(nn.GRU, MaskedGRU)


def lstm(_: Path) -> Any:
    return compare_recurrent(nn.LSTM, MaskedLSTM)


def transformer(_: Path) -> Any:
    reference = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).set_train(False)
    network = MaskedTransformerEncoder(4, 2, 8, 2, dropout=0.5).set_train(False)

    def name(given: str) -> str:
        prefix, layer, weight = given.split(".", 2)
        return f"{prefix}.{layer}.{NAMES.get(weight, weight)}"

    copy_weights(network, reference, name)
    outputs = network(Tensor(SERIES), Tensor(MASK)).asnumpy()
    expected = reference(Tensor(SERIES[1:]), src_key_padding_mask=Tensor(MASK[1:] == 0)).asnumpy()
    noise = SERIES + 100 * (1 - MASK[..., None])
    other = network(Tensor(noise.astype(np.float32)), Tensor(MASK)).asnumpy()
    return {
        "outputs": float(np.abs((outputs[1:] - expected) * MASK[1:, :, None]).max()),
        "final": 0.0,
        "empty": 0.0 if np.isfinite(outputs).all() else 1.0,
        "padding": float(np.abs((other - outputs) * MASK[..., None]).max()),
        "size": float(np.abs(expected).max()),
    }


def trained(path: Path) -> Any:
    """Train each recipe on whether a sequence's last value is positive, and export it with a free batch."""
    lengths = GENERATOR.integers(1, 5, 256).astype(np.int32)
    series = GENERATOR.normal(size=(256, 4, 4)).astype(np.float32)
    labels = (series[np.arange(256), lengths - 1, 0] > 0).astype(np.int32)
    found = {}
    for kind in ("gru", "lstm", "transformer"):
        training.set_seed(1)
        network = Classifier(kind)
        result = training.fit(
            network,
            ({"x": series, "lengths": lengths}, labels),
            loss=nn.CrossEntropyLoss(),
            optimizer=nn.Adam(network.trainable_params(), 0.02),
            config=training.TrainingConfig(
                epochs=10, batch_size=32, output_dir=path / kind, network_arguments={"kind": kind}
            ),
        )
        samples = {"x": series[:9], "lengths": lengths[:9]}
        bundle = export_mindir(
            path / kind / "checkpoint", path / f"{kind}-model", network=Classifier(kind), samples=samples
        )
        found[kind] = {
            "losses": [record["loss"] for record in result.history],
            "difference": bundle.signature.verified["max_abs_diff"],
            "shape": bundle.signature.inputs[0].shape,
        }
    return found


SCENARIOS = {function.__name__: function for function in (gru, lstm, transformer, trained)}

if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    run_scenarios(SCENARIOS)
