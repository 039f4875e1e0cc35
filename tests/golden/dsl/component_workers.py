"""`@msjob_component` with arguments, artifacts and several outputs."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output

from kfp_mindspore.components.data_processing.load_dataset import load_dataset
from kfp_mindspore.dsl import msjob_component


def scale(value: float) -> float:
    return value * 2


@msjob_component(
    workers=2,
    env={"OMP_NUM_THREADS": "1"},
    restart_policy="ExitCode",
    backoff_limit=1,
    active_deadline_seconds=600,
    additional_funcs=[scale],
)
def train(
    dataset: Input[Dataset],
    model: Output[Model],
    metrics: Output[Metrics],
    epochs: int = 1,
) -> NamedTuple("Outputs", [("accuracy", float), ("epochs_done", int)]):
    """Train on two workers.

    Args:
        dataset: The dataset.
        model: The trained model.
        metrics: Accuracy of the model.
        epochs: Number of epochs.
    """
    metrics.log_metric("accuracy", scale(0.5))
    return 1.0, epochs


@dsl.pipeline(name="component-workers")
def golden(epochs: int = 2):
    data = load_dataset(name="wine")
    train(dataset=data.outputs["dataset"], epochs=epochs)
