"""The network with a loss: several inputs and outputs, and sample weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore import Tensor, nn, ops

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.predictions import has_padding
from kfp_mindspore.training.samples.data import Layout

# Metrics that a training reports unless others are named.
TASK_METRICS = {
    "classification": ("accuracy",),
    "multi_label": ("f1_macro",),
    "regression": ("rmse",),
    "language_model": ("perplexity",),
    "detection": ("map50",),
}
# Losses that compare arrays with one shape. MindSpore broadcasts (N, 1) and (N,) to (N, N) without an error.
_ELEMENTWISE = (nn.MSELoss, nn.RMSELoss, nn.MAELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss)


class _LossWrapper(nn.Cell):  # type: ignore[misc]
    """A loss that calls another one."""

    def __init__(self, loss: Any) -> None:
        super().__init__(auto_prefix=False)
        self.loss = loss


class LossOfShape(_LossWrapper):
    """A loss on outputs in the target shape, such as (N,) for outputs with shape (N, 1).

    Args:
        loss: Loss function for two arrays with one shape.
    """

    def construct(self, outputs, target):  # type: ignore[no-untyped-def]  # noqa: D102
        return self.loss(ops.reshape(outputs, target.shape), target)


class CheckedLoss(_LossWrapper):
    """A loss that refuses outputs whose shape differs from the target's.

    Args:
        loss: Loss function for two arrays with one shape.
    """

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        self.name = type(loss).__name__

    def construct(self, outputs, target):  # type: ignore[no-untyped-def]  # noqa: D102
        if outputs.shape != target.shape:
            raise ValueError(f"For '{self.name}', the output has shape {outputs.shape}, the target {target.shape}")
        return self.loss(outputs, target)


class TokenLoss(_LossWrapper):
    """Cross-entropy of logits with shape (N, L, V) or (N·L, V) and ids with shape (N, L).

    Args:
        loss: Cross-entropy of logits (T, V) and ids (T,).
    """

    def construct(self, outputs, target):  # type: ignore[no-untyped-def]  # noqa: D102
        return self.loss(ops.reshape(outputs, (-1, outputs.shape[-1])), ops.reshape(target, (-1,)))


def build_task_loss(task: str, labels: Sequence[str] = ()) -> Any:
    """Return a task's default loss; None when the network returns a loss.

    classification and language_model have cross-entropy on logits, multi_label binary cross-entropy on logits,
    regression and ranking the mean squared error, detection the matched loss for one box a picture.

    Args:
        task: The dataset's task.
        labels: Its labels; a language model whose id 0 is padding has no loss at padding.
    """
    if task == "classification":
        return nn.CrossEntropyLoss()
    if task == "language_model":
        return TokenLoss(nn.CrossEntropyLoss(ignore_index=0) if has_padding(labels) else nn.CrossEntropyLoss())
    if task == "detection":
        from kfp_mindspore.training.detection import DetectionLoss

        return DetectionLoss(1.0)
    if task == "multi_label":
        return LossOfShape(nn.BCEWithLogitsLoss())
    return LossOfShape(nn.MSELoss()) if task in ("regression", "ranking") else None


class LossPerOutput(nn.Cell):  # type: ignore[misc]
    """Losses summed over the network's outputs, one per output.

    Args:
        losses: Loss functions with arguments (output, target) by the output name.
        targets: Target names, in argument order.
    """

    def __init__(self, losses: Mapping[str, Any], targets: tuple[str, ...]) -> None:
        super().__init__(auto_prefix=False)
        self.losses = tuple(losses.values())
        self.names = tuple(losses)
        self.indices = tuple(targets.index(name) for name in losses)

    def construct(self, outputs, *targets):  # type: ignore[no-untyped-def]  # noqa: D102
        total = 0.0
        for index in range(len(self.losses)):
            output = outputs[self.names[index]] if isinstance(outputs, dict) else outputs[index]
            total = total + self.losses[index](output, targets[self.indices[index]])
        return total


class MeanOfWeighted(_LossWrapper):
    """The mean loss × weight over samples, for a loss that returns one value per sample.

    Args:
        loss: Loss function that returns a tensor with shape (N, …).
    """

    def construct(self, outputs, *targets):  # type: ignore[no-untyped-def]  # noqa: D102
        weight = targets[-1]
        values = self.loss(outputs, *targets[:-1])
        return ops.mean(ops.mean(ops.reshape(values, (weight.shape[0], -1)), 1) * weight)


class Matcher:
    """Replaces a batch's targets by what the loss matches with the outputs, outside the graph.

    Args:
        network: The network.
        loss: A loss with the method `match` (outputs, *targets) → the new target, all as NumPy arrays; another loss
            leaves the targets as they are.
        layout: The batches' layout.
    """

    def __init__(self, network: Any, loss: Any, layout: Layout) -> None:
        self._network = network
        self._match = getattr(loss, "match", None)
        self._inputs, self._targets = len(layout.inputs), len(layout.targets)

    def __call__(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a batch's tensors with matched targets; a batch without samples stays as it is."""
        if self._match is None or not len(tensors[0]):
            return tensors
        outputs = self._network(*tensors[: self._inputs])
        arrays = tuple(output.asnumpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,)))
        last = self._inputs + self._targets
        targets = [tensor.asnumpy() for tensor in tensors[self._inputs : last]]
        return (*tensors[: self._inputs], Tensor(self._match(arrays, *targets)), *tensors[last:])


class NetworkWithLoss(nn.Cell):  # type: ignore[misc]
    """Computes a batch's loss.

    Args:
        network: The network.
        loss: Loss function with arguments (outputs, *targets[, weight]).
        inputs: How many inputs the network has, the first tensors in a batch.
        with_outputs: Whether to return (loss, outputs, *targets), as an evaluation needs.
    """

    def __init__(self, network: Any, loss: Any, inputs: int, *, with_outputs: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss = loss
        self.inputs = inputs
        self.with_outputs = with_outputs

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        outputs = self.network(*batch[: self.inputs])
        loss = self.loss(outputs, *batch[self.inputs :])
        if self.with_outputs:
            return (loss, outputs, *batch[self.inputs :])
        return loss


def build_loss(loss: Any, layout: Layout) -> Any:
    """Return the loss function with arguments (outputs, *targets[, weight]) for `fit`'s argument `loss`.

    Args:
        loss: A loss function, or loss functions by output and target name.
        layout: Batch layout.

    Raises:
        UserError: A loss is not a function or has no target, or it returns no value per sample although the samples
            have weights.
    """
    losses = loss if isinstance(loss, Mapping) else {"": loss}
    for name, function in losses.items():
        subject = f"loss.{name}" if name else "loss"
        if isinstance(function, type):
            raise UserError(f"{subject}: must be an object, got the class {function.__name__}: {function.__name__}()")
        if not callable(function):
            raise UserError(f"{subject}: must be a function or a Cell, got {type(function).__name__}")
        if isinstance(loss, Mapping) and name not in layout.targets:
            raise UserError(f"{subject}: has no target, found {', '.join(layout.targets) or 'none'}")
    if not layout.targets:
        raise UserError(
            "loss: the data have no targets; give `labels`, or loss=None if the network returns its loss",
            hint="A dataset directory needs a target: load it again with --target NAME, or target=….",
        )
    losses = {
        name: CheckedLoss(function) if isinstance(function, _ELEMENTWISE) else function
        for name, function in losses.items()
    }
    if layout.weighted:
        losses = {name: _return_values(function, f"loss.{name}".rstrip(".")) for name, function in losses.items()}
    if isinstance(loss, Mapping):
        if layout.weighted:
            losses = {name: _ValuesPerSample(function) for name, function in losses.items()}
        combined: Any = LossPerOutput(losses, layout.targets)
    else:
        combined = losses[""]
    return MeanOfWeighted(combined) if layout.weighted else combined


def check_mean(loss: Any) -> None:
    """Check that MindSpore's losses are means over samples, which several workers and `accumulate` weight by part.

    Args:
        loss: `fit`'s argument `loss`.

    Raises:
        UserError: A loss has another reduction.
    """
    for name, function in (loss if isinstance(loss, Mapping) else {"": loss}).items():
        if isinstance(function, nn.LossBase) and not (function.reduce and function.average):
            subject = f"loss.{name}" if name else "loss"
            raise UserError(
                f"{subject}: several workers or accumulate need reduction='mean' of {type(function).__name__}"
            )


class _ValuesPerSample(_LossWrapper):
    """A loss with one value per sample, shape (N,)."""

    def construct(self, output, target):  # type: ignore[no-untyped-def]
        values = self.loss(output, target)
        return ops.mean(ops.reshape(values, (values.shape[0], -1)), 1)


def _return_values(loss: Any, subject: str) -> Any:
    """Return a MindSpore loss copied without reduction; a function must return one value per sample itself."""
    if isinstance(loss, (CheckedLoss, LossOfShape, TokenLoss)):
        return type(loss)(_return_values(loss.loss, subject))
    if not isinstance(loss, nn.LossBase):
        return loss
    values = copy.deepcopy(loss)
    values.reduce = values.average = False
    if hasattr(values, "reduction"):
        if loss.reduction == "sum":
            raise UserError(f"{subject}: weights of samples need reduction='mean' or 'none', got 'sum'")
        values.reduction = "none"
    return values
