"""A notebook as a step: `kfp-mindspore run examples/notebook_step/pipeline.py`.

The step embeds the notebook and executes it with the values that `dsl.run_notebook` injects after the cell with the
tag `parameters`. Its image needs the extra `notebook` of this package and whatever the notebook imports.
"""

from pathlib import Path

from kfp import dsl
from kfp.dsl import Dataset, Input, Markdown, Output

from kfp_mindspore.components import load_dataset
from kfp_mindspore.settings import PLACEHOLDER_IMAGE


@dsl.notebook_component(
    notebook_path=str(Path(__file__).parent / "describe_dataset.ipynb"),
    base_image=PLACEHOLDER_IMAGE,
    install_kfp_package=False,
    packages_to_install=[],
)
def describe_dataset(dataset: Input[Dataset], report: Output[Markdown], split: str = "train"):
    """Count the samples of each class by a notebook.

    Args:
        dataset: The dataset directory.
        report: Table of the classes, written by the notebook.
        split: Split of the dataset.
    """
    dsl.run_notebook(dataset_dir=dataset.path, report_file=report.path, split=split)


@dsl.pipeline(name="notebook-step")
def notebook_step(name: str = "digits", split: str = "train"):
    """Load a dataset and describe it by a notebook.

    Args:
        name: Name, path or URI of the dataset.
        split: Split that is described.
    """
    data = load_dataset(name=name)
    describe_dataset(dataset=data.outputs["dataset"], split=split)
