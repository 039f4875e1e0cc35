"""Steps that create, import, fine-tune and evaluate language models."""

from __future__ import annotations

from kfp_mindspore.steps.language_model.bundles import create_model, import_model
from kfp_mindspore.steps.language_model.evaluation import evaluate_examples
from kfp_mindspore.steps.language_model.tuning import finetune_model

__all__ = ["create_model", "evaluate_examples", "finetune_model", "import_model"]
