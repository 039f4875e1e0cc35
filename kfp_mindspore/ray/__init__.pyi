from .batches import iter_mindspore_batches as iter_mindspore_batches
from .train import MindSporeConfig as MindSporeConfig
from .train import MindSporeTrainer as MindSporeTrainer
from .tune import to_trainable as to_trainable
