"""Fine-tuning for a cut network on its data and the whole one's outputs (Hinton et al., 2015, arXiv:1503.02531)."""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops


class Teacher(nn.Cell):  # type: ignore[misc]
    """A network that only computes: its normalizations and dropouts stay in evaluation mode.

    Args:
        network: The network; its parameters get the prefix `teacher.` and are not trained.
    """

    def __init__(self, network: Any) -> None:
        super().__init__(auto_prefix=False)
        for parameter in network.get_parameters():
            parameter.requires_grad = False
            parameter.name = f"teacher.{parameter.name}"
        self.network = network

    def add_flags_recursive(self, **flags: object) -> Any:
        """Set flags other than the training mode."""
        return super().add_flags_recursive(**{**flags, **({"training": False} if "training" in flags else {})})

    def construct(self, *inputs):  # type: ignore[no-untyped-def]  # noqa: D102
        return ops.stop_gradient(self.network(*inputs))


class DistillationLoss(nn.Cell):  # type: ignore[misc]
    """The loss on the targets and the distance from a teacher's outputs, weighted.

    Args:
        with_loss: The network with its loss, `fit`'s.
        teacher: The whole network.
        weight: The distance's weight, 0 to 1.
        temperature: Divides the logits.
        is_logits: Whether the outputs are logits along the last axis, which are compared by the Kullback-Leibler
            divergence; others by the mean squared error.
    """

    def __init__(self, with_loss: Any, teacher: Teacher, weight: float, temperature: float, *, is_logits: bool) -> None:
        super().__init__(auto_prefix=False)
        self.student = with_loss.network
        self.loss = with_loss.loss
        self.inputs = with_loss.inputs
        self.teacher = teacher
        self.weight = weight
        self.temperature = temperature
        self.is_logits = is_logits

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        outputs = self.student(*batch[: self.inputs])
        loss = self.loss(outputs, *batch[self.inputs :])
        expected = self.teacher(*batch[: self.inputs])
        if self.is_logits:
            wanted = ops.log_softmax(expected / self.temperature, -1)
            found = ops.log_softmax(outputs / self.temperature, -1)
            gaps = ops.sum(ops.exp(wanted) * (wanted - found), -1)
            distance = ops.mean(gaps) * self.temperature * self.temperature
        else:
            distance = ops.mean(ops.square(outputs - expected))
        return (1 - self.weight) * loss + self.weight * distance


def build_distillation(teacher: Any, weight: float, temperature: float, *, is_logits: bool) -> Any:
    """Return a `train_step` for `fit` that distils a teacher.

    Args:
        teacher: The whole network, which this changes; see `Teacher`.
        weight: As in `DistillationLoss`.
        temperature: As in `DistillationLoss`.
        is_logits: As in `DistillationLoss`.
    """

    def build_step(with_loss: Any, optimizer: Any) -> Any:
        loss = DistillationLoss(with_loss, Teacher(teacher), weight, temperature, is_logits=is_logits)
        return nn.TrainOneStepCell(loss, optimizer)

    return build_step
