"""Evaluation after an epoch, with Model.fit's hooks."""

from __future__ import annotations

from typing import Any

from mindspore.train import RunContext

from kfp_mindspore.training.callbacks import CallbackList, CallbackParams
from kfp_mindspore.training.computation.evaluator import Evaluator
from kfp_mindspore.training.computation.steps import Trainer


class ValidationLoop:
    """Evaluates the trained or averaged weights.

    Args:
        evaluator: Computes the metrics.
        trainer: The trainer with the weights.
        callbacks: Those that run during evaluation.
    """

    def __init__(self, evaluator: Evaluator, trainer: Trainer, callbacks: CallbackList) -> None:
        self._evaluator = evaluator
        self._trainer = trainer
        self._callbacks = callbacks

    def run_with_hooks(self, params: CallbackParams) -> tuple[dict[str, Any], float]:
        """Evaluate as Model.fit does during training.

        Args:
            params: The callbacks' arguments; gets `metrics` and `eval_results`.

        Returns:
            The metrics by name, and the mean loss.
        """
        callbacks, context = self._callbacks, RunContext(params)
        kept = {name: params.get(name) for name in ("cur_step_num", "batch_num", "net_outputs")}
        params.update(
            mode="eval",
            cur_step_num=0,
            batch_num=self._evaluator.validation.steps,
            eval_network=self._evaluator.cell,
            valid_dataset=self._evaluator.validation.raw,
        )

        def begin_step(batch: Any) -> None:
            params.cur_step_num += 1
            params.eval_dataset_element = batch
            callbacks.call("on_eval_step_begin", context)

        def end_step(outputs: Any) -> None:
            params.net_outputs = outputs
            callbacks.call("on_eval_step_end", context)

        callbacks.call("on_eval_begin", context)
        callbacks.call("on_eval_epoch_begin", context)
        values, eval_loss = self.run(begin_step, end_step)
        callbacks.call("on_eval_epoch_end", context)
        params.metrics = values
        params.eval_results = {**values, "eval_loss": eval_loss}
        callbacks.call("on_eval_end", context)
        params.update(kept, mode="train")
        return values, eval_loss

    def run(self, before: Any = None, after: Any = None) -> tuple[dict[str, Any], float]:
        """Evaluate; arguments and result as in Evaluator.run."""
        self._trainer.set_train(False)
        self._evaluator.cell.set_train(False)
        try:
            with self._trainer.use_average():
                return self._evaluator.run(before, after)
        finally:
            self._trainer.set_train(True)
