"""Channel and head scores: the least are cut first.

`l1` (Li et al., Pruning Filters for Efficient ConvNets, ICLR 2017) and `bn` (Liu et al., Learning Efficient
Convolutional Networks through Network Slimming, ICCV 2017) read the weights. `taylor` (Molchanov et al., Importance
Estimation for Neural Network Pruning, CVPR 2019) needs gradients, `scop` samples and some training steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.compression.cutting import Cutter
    from kfp_mindspore.compression.groups import Group, Slot

    Scores = dict[str, NDArray[np.float64]]
    Arrays = Mapping[str, NDArray[Any]]

_GAMMA = ".gamma"


def compute_scores(
    method: str, cutter: Cutter, loss: Any, batches: Sequence[tuple[NDArray[Any], ...]], inputs: int, seed: int
) -> Scores:
    """Return a score for each unit in each group.

    Args:
        method: `l1`, `bn`, `taylor`, `scop` or `random`.
        cutter: The network with its groups.
        loss: Loss function with arguments (outputs, *targets).
        batches: Training batches: the network's inputs and the targets.
        inputs: How many arrays in a batch are inputs.
        seed: Seed for random numbers.

    Raises:
        UserError: `bn` without a BatchNorm, or `scop` with inputs that are no real numbers.
    """
    groups = cutter.groups.groups
    if method == "random":
        generator = np.random.default_rng(seed)
        return {name: generator.random(len(group)) for name, group in groups.items()}
    if method == "bn":
        return score_batch_norm(cutter)
    if method == "taylor":
        return score_taylor(cutter, loss, batches, inputs)
    if method == "scop":
        from kfp_mindspore.compression.scop import score_scop

        return score_scop(cutter, loss, batches, inputs, seed)
    return score_magnitude(cutter)


def score_magnitude(cutter: Cutter) -> Scores:
    """Return the mean absolute weight that computes each unit, relative to its layer's."""
    return {
        name: _sum_slots(group, {slot: np.abs(cutter.values[slot[0]]) for slot in _list_weights(group, cutter.values)})
        for name, group in cutter.groups.groups.items()
    }


def score_batch_norm(cutter: Cutter) -> Scores:
    """Return each unit's absolute BatchNorm scale; groups without one have their magnitude.

    Raises:
        UserError: No group has a BatchNorm.
    """
    from kfp_mindspore.errors import UserError

    scores = score_magnitude(cutter)
    found = False
    for name, group in cutter.groups.groups.items():
        slots = [slot for slot in group.slots if _is_scale(slot, cutter.values)]
        if slots:
            scores[name] = _sum_slots(group, {slot: np.abs(cutter.values[slot[0]]) for slot in slots})
            found = True
    if not found:
        raise UserError(
            "method: 'bn' needs BatchNorm layers behind the layers to cut, found none", hint="Use scop or taylor."
        )
    return scores


def score_taylor(cutter: Cutter, loss: Any, batches: Sequence[tuple[NDArray[Any], ...]], inputs: int) -> Scores:
    """Return |sum of weight · gradient| for each unit, over batches: how much the loss changes without it."""
    import mindspore

    network = cutter.cut(cutter.groups.whole)
    parameters = list(network.trainable_params())

    def forward(*arrays: Any) -> Any:
        return loss(network(*arrays[:inputs]), *arrays[inputs:])

    compute = mindspore.value_and_grad(forward, None, parameters)
    scores = {name: np.zeros(len(group)) for name, group in cutter.groups.groups.items()}
    for batch in batches:
        _, gradients = compute(*map(mindspore.Tensor, batch))
        products = {
            parameter.name: parameter.asnumpy() * gradient.asnumpy()
            for parameter, gradient in zip(parameters, gradients, strict=True)
        }
        for name, group in cutter.groups.groups.items():
            for slot in _list_weights(group, products):
                scores[name] += np.abs(_sum_units(group, slot, products[slot[0]]))
    return scores


def _list_weights(group: Group, values: Arrays) -> list[Slot]:
    """Return the weights that compute a group's units, without normalization weights."""
    return [slot for slot in group.produced if slot[0] in values]


def _is_scale(slot: Slot, values: Arrays) -> bool:
    name = slot[0]
    return name.endswith(_GAMMA) and name.removesuffix(_GAMMA) + ".moving_mean" in values


def _sum_slots(group: Group, values: Mapping[Slot, NDArray[Any]]) -> NDArray[np.float64]:
    total = np.zeros(len(group))
    for slot, value in values.items():
        part = _sum_units(group, slot, value)
        total += part / max(float(part.mean()), 1e-12)
    return total


def _sum_units(group: Group, slot: Slot, value: NDArray[Any]) -> NDArray[np.float64]:
    units = group.slots[slot]
    by_index = np.moveaxis(np.asarray(value, np.float64), slot[1], 0).reshape(len(units), -1).sum(1)
    inside = units >= 0
    sums: NDArray[np.float64] = np.bincount(units[inside], by_index[inside], len(group)).astype(np.float64)
    return sums
