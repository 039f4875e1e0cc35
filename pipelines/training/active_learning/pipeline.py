"""Active learning: train on the labelled samples, select the next ones to label, repeat, deploy."""

from kfp import dsl

# A loop in the pipeline has a fixed round count: each round reads the dataset that the previous one wrote.
ROUNDS = 3


@dsl.pipeline(
    name="active-learning",
    description="Train a classifier on a few random labels; in three rounds select the samples to label next by the "
    "scores of the network, and train again; evaluate and deploy the last model.",
)
def active_learning(
    dataset: str = "digits",
    strategy: str = "margin",
    first: int = 40,
    count: int = 20,
    epochs: int = 60,
    threshold: float = 0.85,
    seed: int = 42,
    service_name: str = "active-learning",
    namespace: str = "",
    service_account: str = "",
):
    """Train, select the samples to label next, repeat three times, and serve the last model.

    The dataset's labels stand for the person who labels the selected samples: other samples' labels are never used.

    Args:
        dataset: Name, path or URI of a classification dataset with one input.
        strategy: `entropy`, `margin`, `k_centre`, or `random` for comparison.
        first: Labels for the first model, selected at random.
        count: Labels added by each round.
        epochs: Passes over the labelled samples, in each round.
        threshold: Minimum accuracy on the test split for deployment, 0 to 1.
        seed: Seed for the first labels, the initial parameters and the sample order; not for the split.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the jobs and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import export_mindir, load_dataset, select_samples, train_msjob
    from kfp_mindspore.pipelines.shared.deployment import deploy_if_passed
    from kfp_mindspore.pipelines.shared.training import get_command

    training = {"command": get_command("active_learning"), "hyperparameters": {"epochs": epochs, "seed": seed}}
    data = load_dataset(name=dataset).outputs["dataset"]
    labelled = select_samples(dataset=data, strategy="random", count=first, seed=seed).outputs["selected"]
    for _ in range(ROUNDS):
        model = train_msjob(dataset=labelled, namespace=namespace, **training).outputs["model"]
        bundle = export_mindir(model=model, dataset=labelled).outputs["bundle"]
        selection = select_samples(dataset=labelled, bundle=bundle, strategy=strategy, count=count, seed=seed)
        labelled = selection.outputs["selected"]
    model = train_msjob(dataset=labelled, namespace=namespace, **training).outputs["model"]
    deploy_if_passed(model, labelled, threshold, service_name, namespace, service_account)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(active_learning, package_path=__file__.replace(".py", ".yaml"))
