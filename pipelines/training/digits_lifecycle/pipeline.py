"""The digits lifecycle: train, export, evaluate, deploy if accurate enough, smoke test."""

from typing import List

from kfp import dsl


@dsl.pipeline(
    name="digits-lifecycle",
    description="Train LeNet-5 on scikit-learn's digits as an MSJob, export it to MindIR, evaluate it on held-out "
    "images and, if its accuracy reaches the threshold, deploy it with KServe's protocols and test the service.",
)
def digits_lifecycle(
    epochs: int = 30,
    threshold: float = 0.95,
    seed: int = 42,
    workers: int = 1,
    batch_size: int = 32,
    service_name: str = "digits",
    namespace: str = "",
    smoke_samples: int = 32,
    image: str = "",
    command: List[str] = ["python", "-m", "kfp_mindspore.digits.train"],
):
    """Train, evaluate and serve a classifier of digits.

    Args:
        epochs: Passes over the training split.
        threshold: Minimum accuracy on the test split for deployment, 0 to 1.
        seed: Seed of the split, the initial parameters and the order of the samples.
        workers: Number of training workers.
        batch_size: Samples per step over all workers.
        service_name: Name of the service and of the model in its URLs.
        namespace: Namespace of the job and the service; default the steps'.
        smoke_samples: Number of held-out samples that the smoke test sends by each protocol.
        image: Image of the training workers; default that of the steps.
        command: Command of the training workers.
    """
    from kfp_mindspore.components import (
        deploy_kserve,
        evaluate_mindir,
        export_mindir,
        load_dataset,
        smoke_test,
        train_msjob,
    )

    data = load_dataset(name="digits", seed=seed)
    training = train_msjob(
        dataset=data.outputs["dataset"],
        command=command,
        image=image,
        hyperparameters={"epochs": epochs, "batch_size": batch_size, "seed": seed},
        workers=workers,
        namespace=namespace,
    )
    exported = export_mindir(model=training.outputs["model"], dataset=data.outputs["dataset"])
    evaluation = evaluate_mindir(
        bundle=exported.outputs["bundle"], dataset=data.outputs["dataset"], threshold=threshold
    )
    with dsl.If(evaluation.outputs["accuracy"] >= threshold, name="accurate-enough"):
        deployment = deploy_kserve(
            bundle=exported.outputs["bundle"], service_name=service_name, namespace=namespace
        ).set_caching_options(False)
        smoke_test(
            bundle=exported.outputs["bundle"],
            url=deployment.outputs["url"],
            model_name=deployment.outputs["name"],
            sample_count=smoke_samples,
        ).set_caching_options(False)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(digits_lifecycle, package_path=__file__.replace(".py", ".yaml"))
