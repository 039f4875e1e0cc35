"""Searched low-bit weights: scales, layers that mix a codebook's values, and the temperature that ends the mixing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from kfp_mindspore.compression.lowbit import Cooling, SearchedLayer, compute_scale, search_weights
from kfp_mindspore.formats.packed import build_levels, pack, widen

pytestmark = pytest.mark.mindspore

LAYERS: dict[str, Any] = {
    "dense": lambda: nn.Dense(5, 4),
    "without bias": lambda: nn.Dense(5, 4, has_bias=False),
    "activated": lambda: nn.Dense(5, 4, activation="relu"),
    "convolution": lambda: nn.Conv2d(5, 4, 3, has_bias=True),
}


def build_temperature(value: float) -> Any:
    return Parameter(Tensor([value], mindspore.float32), name="temperature", requires_grad=False)


def round_rows(weight: Any, levels: Any, scale: Any) -> Any:
    rows = weight.reshape(len(weight), -1)
    nearest = levels[np.abs((rows / scale[:, None])[..., None] - levels).argmin(-1)]
    return nearest * scale[:, None]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_scale_rounds_no_worse_than_the_largest_weight_does(bits: int) -> None:
    weight, levels = np.random.default_rng(bits).normal(size=(6, 40)).astype(np.float32), build_levels(bits)

    scale = compute_scale(weight, levels)

    errors, plain = (
        ((round_rows(weight, levels, found) - weight) ** 2).sum(1) for found in (scale, np.abs(weight).max(1))
    )
    assert (errors <= plain * (1 + 1e-5)).all()
    np.testing.assert_allclose(compute_scale(weight * 8, levels), scale * 8, rtol=1e-5)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_weights_on_the_codebook_are_found_again(bits: int) -> None:
    levels = build_levels(bits)
    codes = np.random.default_rng(0).integers(0, len(levels), (3, 5))
    codes[:, 0] = 0
    layer = nn.Dense(5, 3, has_bias=False)
    layer.weight.set_data(Tensor(levels[codes] * np.float32(0.25)))

    found, scale = SearchedLayer(layer, bits, build_temperature(1.0)).read()

    np.testing.assert_array_equal(found, codes)
    np.testing.assert_allclose(scale, 0.25, rtol=1e-5)


def test_scale_of_zeros_is_positive() -> None:
    assert (compute_scale(np.zeros((2, 3)), build_levels(2)) > 0).all()


@pytest.mark.parametrize("kind", LAYERS)
def test_cold_layer_computes_with_the_weights_that_are_stored(kind: str) -> None:
    # A weight between two values mixes them at any temperature: these weights are not.
    generator, layer = np.random.default_rng(0), LAYERS[kind]()
    layer.weight.set_data(Tensor(generator.uniform(-0.2, 0.2, layer.weight.shape).astype(np.float32)))
    shape = (2, 5, 6, 6) if kind == "convolution" else (2, 5)
    samples = Tensor(generator.normal(size=shape).astype(np.float32))
    searched = SearchedLayer(layer, 4, build_temperature(1e-4))

    found = searched(samples).asnumpy()

    stored = widen(pack(layer.weight.asnumpy(), "slb4", searched.read()), layer.weight.shape)
    layer.weight.set_data(Tensor(stored))
    np.testing.assert_allclose(found, layer(samples).asnumpy(), rtol=1e-3, atol=1e-4)


def test_searched_layer_trains_logits_and_scale_but_not_its_weight() -> None:
    layer = nn.Dense(5, 4)
    weight = layer.weight.name

    searched = SearchedLayer(layer, 2, build_temperature(1.0))

    names = {parameter.name for parameter in searched.trainable_params()}
    assert names == {layer.bias.name, f"{weight}.logits", f"{weight}.scale"}


@pytest.mark.parametrize(("epochs", "expected"), [(1, [1.0]), (3, [1.0, 0.1, 0.01]), (2, [1.0, 0.01])])
def test_temperature_falls_by_a_constant_factor(epochs: int, expected: list[float]) -> None:
    temperature = build_temperature(5.0)
    cooling = Cooling(temperature, epochs)
    found = []
    for epoch in range(1, epochs + 1):
        context = SimpleNamespace(original_args=lambda epoch=epoch: SimpleNamespace(cur_epoch_num=epoch))
        cooling.on_train_epoch_begin(context)
        found.append(float(temperature.asnumpy()[0]))

    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("count", "searched"), [(1, []), (2, []), (3, ["1.weight"]), (4, ["1.weight", "2.weight"])])
def test_first_and_last_layer_are_not_searched(count: int, searched: list[str]) -> None:
    network = nn.SequentialCell(*(nn.Dense(3, 3) for _ in range(count)))

    layers, _ = search_weights(network, 4)

    assert list(layers) == searched
