from .batches import iter_mindspore_batches as iter_mindspore_batches
from .data import load_dataset as load_dataset
from .predict import predict_rows as predict_rows
from .serve import bind_model as bind_model
from .train import MindSporeConfig as MindSporeConfig
from .train import MindSporeTrainer as MindSporeTrainer
from .tune import to_trainable as to_trainable
