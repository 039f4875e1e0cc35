"""Regression or classification on table rows: load, train, export, evaluate, deploy if good enough, smoke test."""

from typing import List

from kfp import dsl


@dsl.pipeline(
    name="tabular",
    description="Train a network on rows of numbers and categories, for a regression or a classification as the "
    "target requires; export it to MindIR, evaluate it and, if its metric passes the threshold, "
    "deploy and test it.",
)
def tabular(
    dataset: str = "diabetes",
    target: List[str] = [],
    features: List[str] = [],
    missing: str = "refuse",
    epochs: int = 100,
    learning_rate: float = 0.003,
    noise: float = 0.4,
    metric: str = "rmse",
    threshold: float = 60.0,
    seed: int = 42,
    split_seed: int = 42,
    service_name: str = "tabular",
    namespace: str = "",
    service_account: str = "",
):
    """Train, evaluate and serve a network for a table's rows.

    Args:
        dataset: A dataset's name, path or URI, such as `diabetes`, `breast_cancer` or a CSV file.
        target: Field with the classes or numbers to predict; default the field named target, label or class.
        features: Feature fields; default all others.
        missing: Rule for missing values: `refuse`, `mean`, `median`, `drop` or a number.
        epochs: Passes over the training split.
        learning_rate: Initial learning rate.
        noise: Standard deviation of the noise added to the standardised features in training, for classes.
        metric: The gate's metric, such as `rmse` or `mae` for numbers, `log_loss` or `accuracy` for classes.
        threshold: Metric threshold on the test split for deployment.
        seed: Seed for the initial parameters, the noise and the sample order.
        split_seed: Split seed.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import train_msjob
    from kfp_mindspore.pipelines.shared.training import get_command, train_and_deploy

    data = {"name": dataset, "seed": split_seed, "target": target, "features": features, "missing": missing}
    hyperparameters = {"epochs": epochs, "learning_rate": learning_rate, "noise": noise, "seed": seed}
    training = {"command": get_command("tabular"), "hyperparameters": hyperparameters}
    train_and_deploy(train_msjob, data, training, threshold, service_name, namespace, service_account, metric=metric)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(tabular, package_path=__file__.replace(".py", ".yaml"))
