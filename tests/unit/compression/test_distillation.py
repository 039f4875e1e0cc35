"""The distillation loss beside NumPy, and a teacher that nothing changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn

from kfp_mindspore.compression.distillation import DistillationLoss, Teacher, build_distillation

pytestmark = pytest.mark.mindspore

ROWS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
TARGETS = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)


class WithLoss(nn.Cell):  # type: ignore[misc]
    """What `fit` passes on: a network, its loss and how many of a batch's arrays are inputs."""

    def __init__(self, network: Any, loss: Any) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss, self.inputs = network, loss, 1

    def construct(self, *batch: Any) -> Any:
        return self.loss(self.network(*batch[:1]), *batch[1:])


def build_network(seed: int) -> Any:
    network = nn.Dense(4, 3)
    generator = np.random.default_rng(seed)
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    return network


def log_softmax(values: Any) -> Any:
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def compute(student: Any, teacher: Any, weight: float, temperature: float, *, is_logits: bool) -> float:
    loss = DistillationLoss(WithLoss(student, nn.MSELoss()), Teacher(teacher), weight, temperature, is_logits=is_logits)
    return float(loss(Tensor(ROWS), Tensor(TARGETS)).asnumpy())


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("is_logits", "temperature"), [(False, 4.0), (True, 1.0), (True, 4.0)])
def test_loss_is_the_weighted_sum(weight: float, is_logits: bool, temperature: float) -> None:
    student, teacher = build_network(1), build_network(2)
    found, expected = (network(Tensor(ROWS)).asnumpy() for network in (student, teacher))
    if is_logits:
        wanted = log_softmax(expected / temperature)
        distance = (np.exp(wanted) * (wanted - log_softmax(found / temperature))).sum(-1).mean() * temperature**2
    else:
        distance = ((found - expected) ** 2).mean()
    total = (1 - weight) * ((found - TARGETS) ** 2).mean() + weight * distance

    assert compute(student, teacher, weight, temperature, is_logits=is_logits) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("is_logits", [True, False])
def test_distance_of_equal_networks_is_0(is_logits: bool) -> None:
    assert compute(build_network(1), build_network(1), 1.0, 2.0, is_logits=is_logits) == pytest.approx(0, abs=1e-6)


def test_teacher_stays_in_evaluation_mode() -> None:
    teacher = Teacher(nn.SequentialCell(nn.BatchNorm1d(4), nn.Dropout(p=0.9)))
    outer = nn.SequentialCell(teacher, nn.Dropout(p=0.5))

    outer.set_train(True)

    assert not any(cell.training for _, cell in teacher.network.cells_and_names())
    assert outer[1].training


def test_step_trains_the_student_and_not_the_teacher() -> None:
    student, teacher = build_network(1), build_network(2)
    own = {parameter.name for parameter in student.get_parameters()}
    before = {parameter.name: parameter.asnumpy().copy() for parameter in teacher.get_parameters()}
    optimizer = nn.SGD(student.trainable_params(), 0.1)
    step = build_distillation(teacher, 1.0, 1.0, is_logits=False)(WithLoss(student, nn.MSELoss()), optimizer)

    losses = [float(step(Tensor(ROWS), Tensor(TARGETS)).asnumpy()) for _ in range(5)]

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    for parameter in teacher.get_parameters():
        name = parameter.name.removeprefix("teacher.")
        assert parameter.name not in own
        np.testing.assert_array_equal(parameter.asnumpy(), before[name])
