"""Fine-tuning of a bundle by `fit`: all weights or adapters, on windows or on pairs."""

from __future__ import annotations

from kfp_mindspore.lm.text.data import LanguageModelData
from kfp_mindspore.lm.tuning.decoder import TrainedDecoder
from kfp_mindspore.lm.tuning.training import finetune

__all__ = ["LanguageModelData", "TrainedDecoder", "finetune"]
