"""Training pipelines that differ in data, script and defaults: load, train, export, evaluate, deploy if good enough."""

import inspect
from dataclasses import dataclass, field
from typing import Any, List

# Each parameter's type and description; a row's `descriptions` replace the latter. Row defaults choose parameters.
PARAMETERS: dict[str, tuple[Any, str]] = {
    "dataset": (str, "Name, path or URI of a dataset."),
    "target": (
        List[str],
        "Field of the classes or numbers to predict; default the field named target, label or class.",
    ),
    "features": (List[str], "Fields of the features; default all others."),
    "missing": (str, "Rule for missing values: `refuse`, `mean`, `median`, `drop` or a number."),
    "limit": (int, "Number of images to keep of each split of the dataset; 0 for all."),
    "split": (str, "Split of the ratings; empty for a dataset directory, which is split."),
    "length": (int, "Characters of a window: what the network has seen when it predicts the next one, at most."),
    "epochs": (int, "Passes over the training split."),
    "learning_rate": (float, "Step size of the optimizer."),
    "noise": (float, "Deviation of the noise that is added to the standardised features in training."),
    "metric": (str, "Metric of the gate, such as `rmse` or `mae` for numbers, `log_loss` or `accuracy` for classes."),
    "threshold": (float, "Minimum accuracy on the test split for deployment, 0 to 1."),
    "seed": (int, "Seed of the initial parameters and the order of the samples."),
    "split_seed": (int, "Seed of the split."),
    "service_name": (str, "Name of the service and of the model in its URLs."),
    "namespace": (str, "Namespace of the job and the service; default the steps'."),
    "service_account": (str, "Service account of the service's pods, with the credentials of the model's store."),
}
# Parameters passed to load_dataset, by its argument, and to the training script.
LOADING = {
    "split_seed": "seed",
    **{name: name for name in ("target", "features", "missing", "limit", "split", "length")},
}
HYPERPARAMETERS = ("epochs", "learning_rate", "noise", "seed")


@dataclass(frozen=True)
class TrainingPipeline:
    """One pipeline.

    Args:
        workload: Its package name in `kfp_mindspore.workloads`, and the function's name.
        overview: Its documentation's first paragraphs.
        description: The compiled pipeline's description.
        defaults: Parameters in their order, with their defaults.
        descriptions: Descriptions that differ from those in PARAMETERS.
        metric: Gate metric where it is no parameter.
    """

    workload: str
    overview: str
    description: str
    defaults: dict[str, Any]
    descriptions: dict[str, str] = field(default_factory=dict)
    metric: str = "accuracy"


PIPELINES = {
    row.workload: row
    for row in (
        TrainingPipeline(
            "tabular",
            overview="Train, evaluate and serve a network for the rows of a table.",
            description="Train a network on rows of numbers and categories, for a regression or a classification as "
            "the target requires; export it to MindIR, evaluate it and, if its metric passes the threshold, deploy and "
            "test it.",
            defaults={
                "dataset": "diabetes",
                "target": [],
                "features": [],
                "missing": "refuse",
                "epochs": 100,
                "learning_rate": 0.001,
                "noise": 0.4,
                "metric": "rmse",
                "threshold": 60.0,
                "seed": 42,
                "split_seed": 42,
            },
            descriptions={
                "dataset": "Name, path or URI of a dataset, such as `diabetes`, `breast_cancer` or a CSV file.",
                "learning_rate": "Step size of the optimizer at the start.",
                "threshold": "Threshold of the metric on the test split for deployment.",
                "seed": "Seed of the initial parameters, the noise and the order of the samples.",
            },
        ),
        TrainingPipeline(
            "vit",
            overview="Train, evaluate and serve a Vision Transformer.",
            description="Train a small Vision Transformer on a part of Fashion-MNIST as an MSJob, export it to MindIR, "
            "evaluate it on test images and, if its accuracy reaches the threshold, deploy it: raw pixels in, label "
            "out.",
            defaults={
                "dataset": "fashion_mnist",
                "limit": 20000,
                "epochs": 10,
                "learning_rate": 0.003,
                "threshold": 0.84,
                "seed": 42,
            },
            descriptions={
                "dataset": "Name, path or URI of a dataset of square images of shape (channels, size, size) with "
                "labels.",
                "learning_rate": "Largest learning rate.",
                "seed": "Seed of the initial parameters and the order of the samples; not of the split.",
            },
        ),
        TrainingPipeline(
            "wide_deep",
            overview="Train a recommender on ids of users and movies and genres, and serve it.\n\n"
            "The test split is the latest fifth of the ratings, most of them by users without a rating in the training "
            "split.",
            description="Train a Wide & Deep network on the earlier ratings of MovieLens, evaluate it on the later "
            "ones by the area under the ROC curve, deploy it if it reaches the threshold, and test the service.",
            defaults={
                "dataset": "movielens",
                "split": "time:timestamp",
                "epochs": 4,
                "learning_rate": 0.001,
                "threshold": 0.65,
                "seed": 42,
            },
            descriptions={
                "dataset": "`movielens`, or a dataset directory with its columns and preprocessing.",
                "epochs": "Largest number of passes over the training data; the epoch with the best validation is "
                "exported.",
                "threshold": "Minimum area under the ROC curve on the test split for deployment, 0 to 1.",
            },
            metric="roc_auc",
        ),
        TrainingPipeline(
            "language_model",
            overview="Train a character language model and serve it.\n\n"
            "The text is split in its order: its end is the test split.",
            description="Train a causal transformer on windows of characters, evaluate it by its perplexity on the end "
            "of the text, deploy it if it is at most the threshold, and test the service, which returns the next "
            "character.",
            defaults={
                "dataset": "new_testament",
                "length": 64,
                "epochs": 1,
                "learning_rate": 0.002,
                "threshold": 8.0,
                "seed": 42,
            },
            descriptions={
                "dataset": "`new_testament`, or path or URI of a text file (UTF-8).",
                "threshold": "Maximum perplexity on the test split for deployment, at least 1.",
                "seed": "Seed of the initial parameters and the order of the windows.",
            },
            metric="perplexity",
        ),
    )
}


def build_pipeline(workload):
    """Return the KFP pipeline for a PIPELINES row.

    Args:
        workload: Row key.
    """
    from kfp import dsl

    row = PIPELINES[workload]
    name = workload.replace("_", "-")
    defaults = {**row.defaults, "service_name": name, "namespace": "", "service_account": ""}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            inspect.Parameter(key, kind, default=default, annotation=PARAMETERS[key][0])
            for key, default in defaults.items()
        ]
    )

    def pipeline(*arguments, **named):
        _train_and_serve(row, signature.bind(*arguments, **named).arguments)

    lines = [f"    {key}: {row.descriptions.get(key, PARAMETERS[key][1])}" for key in defaults]
    pipeline.__name__ = pipeline.__qualname__ = workload
    pipeline.__doc__ = "\n".join([row.overview, "", "Args:", *lines])
    # kfp 2.17 reads a pipeline's inputs by inspect.signature.
    pipeline.__signature__ = signature  # type: ignore[attr-defined]
    return dsl.pipeline(pipeline, name=name, description=row.description)


def _train_and_serve(row, given):
    from kfp_mindspore.components import load_dataset, train_msjob
    from kfp_mindspore.pipelines.shared.deployment import deploy_if_passed

    loading = {argument: given[key] for key, argument in LOADING.items() if key in given}
    data = load_dataset(name=given["dataset"], **loading).outputs["dataset"]
    training = train_msjob(
        dataset=data,
        command=["python", "-m", f"kfp_mindspore.workloads.{row.workload}.train"],
        hyperparameters={key: given[key] for key in HYPERPARAMETERS if key in given},
        namespace=given["namespace"],
    )
    deploy_if_passed(
        training.outputs["model"],
        data,
        metric=given.get("metric", row.metric),
        threshold=given["threshold"],
        service_name=given["service_name"],
        namespace=given["namespace"],
        service_account=given["service_account"],
    )
