"""Train a model, compress it, compare both on the same samples, and deploy the small one as a canary."""

from kfp import dsl


@dsl.pipeline(
    name="compress-and-deploy",
    description="Train a model as an MSJob, cut half of its parameters, export both to MindIR, compare them on the "
    "same held-out samples and, if the small one is not worse by more than allowed, deploy it as a canary, test it, "
    "and promote it or roll it back.",
)
def compress_and_deploy(
    data: str = "digits",
    epochs: int = 30,
    seed: int = 42,
    workers: int = 1,
    pruned: float = 0.5,
    min_pruned: float = 0.45,
    max_accuracy_lost: float = 0.005,
    method: str = "scop",
    weights: str = "float32",
    metric: str = "accuracy",
    margin: float = -0.03,
    confidence: float = 0.95,
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
    canary: int = 10,
):
    """Train a model and deploy a compressed one that is not worse than it by more than chance allows.

    The compression is fine-tuned and gated on the validation split, the comparison by paired bootstrap is on the test
    split. A service that runs gets the small model as a canary first.

    Args:
        data: Dataset name, path or URI, see `load_dataset`.
        epochs: Passes over the training split.
        seed: Seed for the initial parameters and the sample order; it does not change the split.
        workers: Training worker count.
        pruned: Fraction of parameters that is cut, 0 to below 1.
        min_pruned: Least fraction, if the first one loses too much.
        max_accuracy_lost: Most that the metric may worsen on the validation split.
        method: Scores by which channels are kept: l1, bn, taylor, scop or random.
        weights: How weights are stored: float32, float16, int8, slb4, slb2 or slb1.
        metric: Comparison metric, see `evaluate_mindir`.
        margin: Improvement over the whole model that its whole interval must exceed; below 0 accepts a decrease.
        confidence: The improvement interval's confidence, between 0 and 1.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
        canary: The new version's request percentage during its test, 1 to 99.
    """
    from kfp_mindspore.components import (
        compare_models,
        compress_model,
        export_mindir,
        load_dataset,
        train_msjob,
    )
    from kfp_mindspore.pipelines.shared.deployment import deploy
    from kfp_mindspore.pipelines.shared.retraining import CANARY_WORSENING
    from kfp_mindspore.pipelines.shared.training import get_command

    dataset = load_dataset(name=data).outputs["dataset"]
    training = train_msjob(
        dataset=dataset,
        command=get_command("digits"),
        hyperparameters={"epochs": epochs, "seed": seed},
        workers=workers,
        namespace=namespace,
    )
    whole = export_mindir(model=training.outputs["model"], dataset=dataset).outputs["bundle"]
    compression = compress_model(
        model=training.outputs["model"],
        dataset=dataset,
        pruned=pruned,
        min_pruned=min_pruned,
        max_accuracy_lost=max_accuracy_lost,
        method=method,
        weights=weights,
        metric=metric,
        augment="kfp_mindspore.workloads.digits.train:distort",
    )
    with dsl.If(compression.outputs["passed"] == True):
        small = export_mindir(model=compression.outputs["compressed"], dataset=dataset).outputs["bundle"]
        comparison = compare_models(
            candidate=small, baseline=whole, dataset=dataset, metric=metric, margin=margin, confidence=confidence
        )
        gate, options = comparison.outputs["better"], {"canary": canary, "max_worsening": CANARY_WORSENING}
        deploy(small, gate, service_name, namespace, service_account, **options)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(compress_and_deploy, package_path=__file__.replace(".py", ".yaml"))
