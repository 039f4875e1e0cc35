"""Component that loads and splits a dataset."""

from typing import List, NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def load_dataset(
    dataset: Output[Dataset],
    source: Input[Dataset] = None,
    name: str = "digits",
    seed: int = 42,
    validation_fraction: float = 0.15,
    test_fraction: float = 0.2,
    target: List[str] = [],
    features: List[str] = [],
    inputs: dict = {},
    weight: str = "",
    ids: List[str] = [],
    task: str = "",
    split: str = "",
    time_format: str = "",
    validation: str = "",
    test: str = "",
    preprocessing: str = "",
    missing: str = "refuse",
    unknown: str = "ignore",
    storage: str = "npz",
    texts: List[str] = [],
    merge_labels: str = "",
    infinite: str = "refuse",
    delimiter: str = "",
    format: str = "",
    length: int = 64,
    image_size: List[int] = [],
    limit: int = 0,
    engine: str = "memory",
) -> NamedTuple("Outputs", [("train_samples", int), ("validation_samples", int), ("test_samples", int)]):
    """Load data for any task, split it into train, validation and test, and fit its preprocessing.

    Reads named sets (`breast_cancer`, `diabetes`, `digits`, `fashion_mnist`, `iris`, `linnerud`, `movielens`,
    `new_testament`, `reviews`, `scenes`, `shapes`, `waves`, `wine`), CSV, Parquet, JSON lines, NPZ, NPY, IDX, text and
    MindRecord files, image folders (a folder for each class, or COCO, YOLO or VOC boxes) and dataset directories, from
    a path or a URI (s3, gs, http). The preprocessing is fitted on the training split and is in the dataset;
    `export_mindir` puts it into the bundle, the server runs it.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[data,pipelines].

    Args:
        dataset: The dataset directory, with task, labels, columns, splits, report and digest in its metadata.
        source: A table or folder of another component or of `dsl.importer`, in place of `name` (see docs/data.md).
        name: Set name, path or URI.
        seed: Split seed, 0 to 2³² - 1.
        validation_fraction: Fraction of all samples in the validation split, between 0 and 1.
        test_fraction: Fraction of all samples in the test split, between 0 and 1.
        target: Target fields; default the field named target, label, labels or class.
        features: Feature fields; default all without another role.
        inputs: The network's inputs: one field each, or a list of fields to stack; default one input `features`.
        weight: The sample weights' field.
        ids: Fields that identify a sample.
        task: Such as `classification`, `regression` or `language_model`; default guessed from the target.
        split: `stratified`, `random`, `contiguous`, `time:FIELD`, `group:FIELD` or `column:FIELD`; default by the task.
        time_format: The format of the texts in `split=time:FIELD`, such as `%d.%m.%Y`; default found.
        validation: The validation split's path or URI; default a fraction of the source.
        test: The test split's path or URI; default a fraction of the source.
        preprocessing: `standardize`, `imagenet`, `none`, or a JSON list of steps; default `standardize` for tables.
        missing: Rule for missing values: `refuse`, `mean`, `median`, `drop` or a number.
        unknown: Rule for a request's category that the training split does not have: `ignore` or `refuse`.
        storage: `npz`, `mindrecord`, or `parquet` for shards that training streams.
        texts: Fields that are texts although they look like numbers, such as postcodes with leading zeros.
        merge_labels: Join classes that differ in `blanks` around them, or in `case` too; default keep all apart.
        infinite: Rule for infinite numbers in features: `refuse`, or `missing` for the rule of missing values.
        delimiter: The character between two cells of a CSV file, or `tab`; default found.
        format: Such as `csv`, `parquet`, `jsonl`, `npz`, `images`, `coco`, `yolo` or `voc`; default by the name.
        length: Characters per window in a text file.
        image_size: Image height and width in a folder, or one number for both; default the most frequent size.
        limit: Samples to keep from the source, or from each split that it has; 0 for all.
        engine: `memory`, or `ray` for Parquet shards from data that need not fit in memory.

    Returns:
        train_samples: Samples in the train split.
        validation_samples: Samples in the validation split.
        test_samples: Samples in the test split.
    """
    from kfp_mindspore.data.options import DatasetOptions
    from kfp_mindspore.steps.data import prepare_dataset

    options = DatasetOptions(
        seed=seed,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        target=target,
        features=features,
        inputs=inputs,
        weight=weight,
        ids=ids,
        task=task,
        split=split,
        time_format=time_format,
        validation=validation,
        test=test,
        preprocessing=preprocessing,
        missing=missing,
        unknown=unknown,
        storage=storage,
        texts=texts,
        merge_labels=merge_labels,
        infinite=infinite,
        delimiter=delimiter,
        format=format,
        length=length,
        image_size=image_size,
        limit=limit,
        engine=engine,
    )
    return prepare_dataset(dataset, name, source, options)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(load_dataset, package_path=__file__.replace(".py", ".yaml"))
