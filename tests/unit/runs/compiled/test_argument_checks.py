from typing import Any

import pytest
from kfp import dsl

from kfp_mindspore.components import (
    batch_predict,
    compare_models,
    deploy_kserve,
    export_mindir,
    load_dataset,
    rollback_kserve,
    select_best,
    select_samples,
    train_msjob,
)
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.runs.compiled.known_tasks import list_known_tasks
from kfp_mindspore.runs.compiled.sources import compile_pipeline, compile_text
from kfp_mindspore.runs.compiled.spec import convert_arguments


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def check(dataset: dsl.Input[dsl.Dataset], metric: str = "accuracy", threshold: float = 0.5) -> float:
    return threshold


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def load(dataset: dsl.Output[dsl.Dataset], task: str = ""):
    pass


@dsl.pipeline(name="gates")
def gates(metric: str = "accuracy", threshold: float = 0.9, nested: float = 0.1, task: str = ""):
    data = load(task=task).outputs["dataset"]
    first = check(dataset=data, metric=metric, threshold=threshold)
    with dsl.If(first.output > 0.5):
        check(dataset=data, threshold=nested)
    check(dataset=data, threshold=first.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, ""),
        ({"threshold": 95.0}, r"step check: threshold: must be 0 to 1, the range of accuracy, got 95"),
        ({"threshold": "95"}, r"step check: threshold: must be 0 to 1"),
        ({"metric": "perplexity", "threshold": 0.5}, r"at least 1, the range of perplexity"),
        ({"metric": "rmse", "threshold": 95.0}, ""),
        ({"metric": "acc"}, r"step check: metric 'acc': unknown; did you mean 'accuracy'\?"),
        ({"metric": ""}, ""),
        ({"metric": "", "threshold": 95.0}, ""),
        (
            {"metric": "", "threshold": -1.0},
            r"must be 0 to 1, the range of accuracy or .*at least 0, the range of rmse",
        ),
        ({"metric": "", "threshold": 0.5, "task": "language_model"}, r"at least 1, the range of perplexity, got 0\.5"),
        ({"task": "regression"}, r"step check: metric accuracy: is for classification.*, not regression"),
        ({"nested": 2.0}, r"step check-2: threshold: must be 0 to 1, the range of accuracy, got 2"),
    ],
)
def test_threshold_is_checked_before_run(arguments: dict[str, Any], message: str) -> None:
    spec = compile_pipeline(gates)
    if not message:
        convert_arguments(spec, arguments)
        return
    with pytest.raises(ValidationError, match=message):
        convert_arguments(spec, arguments)


def test_default_threshold_is_checked_when_compiled() -> None:
    @dsl.pipeline(name="wrong")
    def wrong(threshold: float = 95.0):
        check(dataset=load().outputs["dataset"], threshold=threshold)

    with pytest.raises(ValidationError, match="pipeline wrong is invalid: step check: threshold: must be 0 to 1"):
        compile_text(wrong)


@dsl.pipeline(name="lifecycle")
def lifecycle(
    service_name: str = "digits",
    namespace: str = "",
    fraction: float = 0.2,
    split: str = "",
    workers: int = 1,
    queue: str = "",
    policy: str = "ExitCode",
    canary: int = 0,
    download: str = "initializer",
    shard: str = "1/1",
    confidence: float = 0.9,
    strategy: str = "margin",
    optional_name: str = "",
):
    data = load_dataset(test_fraction=fraction, split=split).outputs["dataset"]
    data = select_samples(dataset=data, strategy=strategy).outputs["selected"]
    trained = train_msjob(
        dataset=data, command=["python", "train.py"], workers=workers, restart_policy=policy, queue=queue
    )
    bundle = export_mindir(model=trained.outputs["model"], dataset=data).outputs["bundle"]
    batch_predict(bundle=bundle, dataset=data, shard=shard)
    compared = compare_models(candidate=bundle, dataset=data, service_name=optional_name, confidence=confidence)
    with dsl.If(compared.outputs["better"] == True):  # noqa: E712 - compiled
        deploy_kserve(bundle=bundle, service_name=service_name, namespace=namespace, canary=canary, download=download)
    with dsl.If(optional_name != ""):
        rollback_kserve(service_name=optional_name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, ""),
        ({"optional_name": "other"}, ""),
        ({"service_name": "My_Svc"}, "step deploy-kserve: service_name: must be at most .* got 'My_Svc'"),
        ({"service_name": ""}, "step deploy-kserve: service_name: must be the name of a service"),
        ({"namespace": "My_Space"}, "step deploy-kserve: namespace: must be"),
        ({"optional_name": "Not.One"}, "step compare-models: service_name: must be at most"),
        ({"canary": 100}, "step deploy-kserve: canary: must be an integer ≥ 0 and ≤ 99"),
        ({"download": "curl"}, "step deploy-kserve: download: must be one of initializer, server"),
        ({"fraction": 1.5}, r"step load-dataset: test_fraction: must be between 0 and 1, got 1\.5"),
        ({"fraction": 0.9}, "step load-dataset: validation_fraction \\+ test_fraction: must be below 1"),
        ({"split": "by_day"}, "step load-dataset: split: must be one of"),
        ({"workers": "0"}, "step train-msjob: workers: must be an integer ≥ 1, got 0"),
        ({"queue": "Research"}, "step train-msjob: queue: must be at most 63 lower-case letters, .*got 'Research'"),
        ({"policy": "Sometimes"}, "step train-msjob: restart_policy: must be one of .*got 'Sometimes'"),
        ({"shard": "3/2"}, "step batch-predict: shard: must be a number from 1 on"),
        ({"confidence": 1.0}, "step compare-models: confidence: must be between 0 and 1"),
        ({"strategy": "luck"}, "step select-samples: strategy: must be one of"),
    ],
)
def test_argument_that_step_would_refuse_ends_no_run_after_its_training(
    arguments: dict[str, Any], message: str
) -> None:
    spec = compile_pipeline(lifecycle)
    if not message:
        convert_arguments(spec, arguments)
        return
    with pytest.raises(ValidationError, match=f"pipeline lifecycle is invalid: .*{message}"):
        convert_arguments(spec, arguments)


@pytest.mark.parametrize(
    ("metric", "direction", "message"),
    [("accuracy", "up", "direction: must be max or min, got 'up'"), ("acc", "", "metric 'acc': unknown")],
)
def test_direction_is_checked_before_run(metric: str, direction: str, message: str) -> None:
    @dsl.pipeline(name="best")
    def best(direction: str = ""):
        with dsl.ParallelFor([1, 2]) as item:
            trained = train_msjob(command=["python", "train.py"], args=[item])
        select_best(models=dsl.Collected(trained.outputs["model"]), metric=metric, direction=direction)

    with pytest.raises(ValidationError, match=f"step select-best: {message}"):
        convert_arguments(compile_pipeline(best), {"direction": direction})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, ""),
        ({"high": 8}, ""),
        ({"low": 5}, r"step deploy-kserve: min_replicas: must be ≤ max_replicas \(4\), got 5"),
        ({"metric": "rps"}, "step deploy-kserve: scale_metric: must be one of cpu, memory"),
        # The step finds out whether the bundle is a language model.
        ({"metric": "waiting", "prometheus": "http://prometheus:9090"}, ""),
        ({"metric": "in_flight"}, "step deploy-kserve: prometheus: must be http://"),
        ({"tolerations": ["npu"]}, r"step deploy-kserve: tolerations\.0: must be a dict, got 'npu'"),
    ],
)
def test_scaling_is_checked_before_run(arguments: dict[str, Any], message: str) -> None:
    @dsl.pipeline(name="scaled")
    def scaled(
        low: int = 1,
        high: int = 4,
        metric: str = "cpu",
        prometheus: str = "",
        tolerations: list = [],  # noqa: B006
    ):
        bundle = export_mindir(model=train_msjob(command=["python", "train.py"]).outputs["model"]).outputs["bundle"]
        first = deploy_kserve(
            bundle=bundle,
            service_name="first",
            min_replicas=low,
            max_replicas=high,
            scale_metric=metric,
            prometheus=prometheus,
            tolerations=tolerations,
        )
        # The most are not known: whether the fewest are too many is not either.
        deploy_kserve(bundle=bundle, service_name="second", min_replicas=2, max_replicas=first.outputs["version"])

    spec = compile_pipeline(scaled)
    if not message:
        convert_arguments(spec, arguments)
        return
    with pytest.raises(ValidationError, match=f"pipeline scaled is invalid: .*{message}"):
        convert_arguments(spec, arguments)


def test_empty_default_may_stand_for_argument_of_run() -> None:
    @dsl.pipeline(name="named")
    def named(service_name: str = ""):
        rollback_kserve(service_name=service_name)

    compile_text(named)
    convert_arguments(compile_pipeline(named), {"service_name": "digits"})
    with pytest.raises(ValidationError, match="service_name: must be the name of a service"):
        convert_arguments(compile_pipeline(named), {})


def test_values_computed_in_run_and_loop_items_are_left_to_step() -> None:
    @dsl.pipeline(name="computed")
    def computed():
        first = rollback_kserve(service_name="digits")
        rollback_kserve(service_name="digits", version=first.outputs["version"])
        with dsl.ParallelFor(["a", "b"]) as name:
            rollback_kserve(service_name=f"Service_{name}")

    spec = compile_pipeline(computed)
    convert_arguments(spec, {})
    known = {task.name: dict(task.arguments) for task in list_known_tasks(spec, {})}
    assert known["rollback-kserve-2"] == {"service_name": "digits", "namespace": "", "wait_seconds": 120}
    assert "service_name" not in known["rollback-kserve-3"]
