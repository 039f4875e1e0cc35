"""Digits from training to a served prediction: train, export, evaluate, gate, deploy, smoke-test."""

from kfp import dsl

from kfp_mindspore.components.data_processing.load_dataset import load_dataset
from kfp_mindspore.components.deployment.deploy_kserve import deploy_kserve
from kfp_mindspore.components.deployment.smoke_test import smoke_test
from kfp_mindspore.components.evaluation.evaluate_mindir import evaluate_mindir
from kfp_mindspore.components.training.export_mindir import export_mindir
from kfp_mindspore.components.training.train_msjob import train_msjob

TRAINING_COMMAND = ["python", "-m", "kfp_mindspore.pipelines.digits_lifecycle.train"]


@dsl.pipeline(
    name="digits-lifecycle",
    description="Train LeNet-5 on scikit-learn's digits as an MSJob, export it to MindIR, evaluate it on held-out "
    "images and, if it is accurate enough, deploy it behind KServe's protocols and ask it for predictions.",
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
):
    """Take the digits from training to a served prediction.

    Args:
        epochs: Passes over the training split.
        threshold: Least accuracy on the test split, 0 to 1, for the model to be deployed.
        seed: Seed of the split, the network's parameters and the order of the samples.
        workers: Number of workers that train.
        batch_size: Samples a step, over all workers.
        service_name: Name of the service and of the model in its URLs.
        namespace: Namespace of the job and the service; by default that of the steps.
        smoke_samples: Number of held-out samples that the smoke test asks for by each protocol.
    """
    data = load_dataset(name="digits", seed=seed)
    training = train_msjob(
        dataset=data.outputs["dataset"],
        command=TRAINING_COMMAND,
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
