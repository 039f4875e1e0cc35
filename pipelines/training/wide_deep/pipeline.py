"""Wide & Deep: train on MovieLens ratings, export, evaluate on later ratings, deploy."""

from kfp import dsl


@dsl.pipeline(
    name="wide-deep",
    description="Train a Wide & Deep network on the earlier ratings of MovieLens, evaluate it on the later ones "
    "by the area under the ROC curve, deploy it if it reaches the threshold, and test the service.",
)
def wide_deep(
    dataset: str = "movielens",
    split: str = "time:timestamp",
    epochs: int = 4,
    learning_rate: float = 0.001,
    threshold: float = 0.65,
    seed: int = 42,
    service_name: str = "wide-deep",
    namespace: str = "",
    service_account: str = "",
):
    """Train a recommender on user ids, movie ids and genres, and serve it.

    The test split is the latest fifth of the ratings; most are by users without a rating in the training split.

    Args:
        dataset: `movielens`, or a dataset directory with its columns and preprocessing.
        split: How the ratings are split; empty for a dataset directory, which is split.
        epochs: Most passes over the training data; the epoch with the best validation is exported.
        learning_rate: Learning rate.
        threshold: Minimum area under the ROC curve on the test split for deployment, 0 to 1.
        seed: Seed for the initial parameters and the sample order.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import train_msjob
    from kfp_mindspore.pipelines.shared.training import get_command, train_and_deploy

    data = {"name": dataset, "split": split}
    hyperparameters = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed}
    training = {"command": get_command("wide_deep"), "hyperparameters": hyperparameters}
    train_and_deploy(train_msjob, data, training, threshold, service_name, namespace, service_account, metric="roc_auc")


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(wide_deep, package_path=__file__.replace(".py", ".yaml"))
