"""Component that deploys a model bundle as a service."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def deploy_kserve(
    bundle: Input[Model],
    service_name: str,
    namespace: str = "",
    replicas: int = 1,
    resources: dict = {},
    server_args: list = [],
    grpc: bool = False,
    model_uri: str = "",
    service_account: str = "",
    download: str = "initializer",
    storage_secret: str = "",
    pod_labels: dict = {},
    pod_annotations: dict = {},
    min_replicas: int = 1,
    max_replicas: int = 0,
    scale_metric: str = "cpu",
    scale_target: int = 0,
    prometheus: str = "",
    env: dict = {},
    env_from: list = [],
    node_selector: dict = {},
    tolerations: list = [],
    volumes: dict = {},
    image_pull_secrets: list = [],
    annotations: dict = {},
    priority_class: str = "",
    spread: str = "",
    runtime: str = "",
    model_format: str = "mindspore",
    model_name_flag: str = "",
    openai_path: str = "/openai/v1",
    logger: dict = {},
    canary: int = 0,
    max_worsening: float = 0.0,
    run: str = "",
    wait_seconds: int = 120,
    gate: bool = True,
    smoke_samples: int = 0,
    registry: str = "",
) -> NamedTuple(
    "Outputs",
    [
        ("url", str),
        ("grpc_url", str),
        ("name", str),
        ("version", int),
        ("deployed", bool),
        ("verdict", str),
        ("prediction", str),
        ("label", str),
    ],
):
    """Deploy a model bundle as a service, or as its new version, and wait until it is ready.

    A model that did not pass its `gate` is not deployed: the step succeeds, and its output `verdict` has the reason.
    Gate, smoke test and registration are parameters here because each further step costs two pods.

    With `smoke_samples` held-out samples are sent to the service by KServe's V1 and V2 protocols, and the predictions
    compared with the bundle's; a language model gets its verified prompts by the OpenAI protocol, and on a cluster the
    model format `mindspore-lm`. If the test fails, the step fails after a rollback: the previous version's model is
    deployed again, or the first version deleted.

    With `canary` the bundle first runs beside the serving version. Its predictions are compared with the bundle's, and
    its task's default metric with the serving version's, on the bundle's held-out samples. Then it is promoted, or
    rolled back and the step fails. When a new version does not start, the previous version keeps serving.

    Disable caching for this step in a pipeline (`task.set_caching_options(False)`): cached outputs may name a deleted
    service.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[kubernetes,pipelines].

    Args:
        bundle: The model bundle to serve.
        service_name: Name for the service and for the model in its URLs, a DNS label.
        namespace: Service namespace; default the step's.
        replicas: Replica count.
        resources: Each replica's Kubernetes resource requirements: {"requests": {…}, "limits": {…}}.
        server_args: The model server's further flags, each `--flag=value`.
        grpc: Whether the service on a cluster has a gRPC port; a service on this machine always has one.
        model_uri: Bundle URI for a cluster (s3://, gs://, pvc://claim/path, …); default the artifact's.
        service_account: The pods' service account, with the model store's credentials.
        download: What downloads the bundle on a cluster: `initializer` (KServe's) or the `server`, for restricted pods.
        storage_secret: With download `server`: Secret whose keys become its environment, such as AWS_ACCESS_KEY_ID.
        pod_labels: Pod labels on a cluster, such as {"sidecar.istio.io/inject": "false"}.
        pod_annotations: Pod annotations on a cluster, such as {"huawei.com/vnpu-mode": "hami-core"}.
        min_replicas: Fewest replicas with max_replicas; 0 for none while there are no requests, in Knative mode.
        max_replicas: Most replicas on a cluster; 0 for a fixed count, `replicas`.
        scale_metric: What the count follows: `cpu`, `memory`; with KEDA `in_flight`, or `waiting` (language models).
        scale_target: Value per replica, a percentage for cpu and memory; 0 for 80 %, 32 in flight or 4 waiting.
        prometheus: Prometheus' address, for `in_flight` and `waiting`.
        env: The servers' environment variables by name.
        env_from: Environment on a cluster from `secret/NAME` or `configmap/NAME`.
        node_selector: Node labels for the pods.
        tolerations: The pods' tolerations, such as {"key": "npu", "operator": "Exists"}.
        volumes: Volume sources by mount path, such as {"/mnt/adapters": {"persistentVolumeClaim": {"claimName": "a"}}}.
        image_pull_secrets: Registry secret names for the pods.
        annotations: InferenceService annotations.
        priority_class: The pods' PriorityClass.
        spread: Node label over whose values replicas are spread, such as `topology.kubernetes.io/zone`.
        runtime: Serving runtime on a cluster; empty for the one that KServe selects.
        model_format: Model format on a cluster: `mindspore`, `mindspore-lm` for language models, or one of `runtime`.
        model_name_flag: Flag with which another server names its model, such as `--served-model-name`; a canary has it.
        openai_path: Path of another server's OpenAI protocol, such as `/v1` (vLLM, llama.cpp).
        logger: Log of requests and responses, such as {"url": "s3://bucket/log", "sample": 0.1}.
        canary: Percentage of requests that a canary gets during its test, 1 to 99; 0 deploys without a canary.
        max_worsening: Largest metric worsening with which a canary is promoted, in metric units.
        run: Recorded with the service, such as `dsl.PIPELINE_JOB_NAME_PLACEHOLDER`; default the step's pod.
        wait_seconds: Seconds to wait until the service is ready.
        gate: Whether the model passed: evaluate_mindir's `passed`, compare_models' `better`; False deploys nothing.
        smoke_samples: Samples that the smoke test sends by each protocol; 0 for no test. A canary is always tested.
        registry: Kubeflow's Model Registry address, at which a deployed bundle is registered; default none.

    Returns:
        url: HTTP URL of the service; V1 predictions are at `{url}/v1/models/{name}:predict`. Else empty.
        grpc_url: gRPC address (V2) of the service, host and port; empty on a cluster without `grpc`.
        name: Name of the service and of the model in its URLs.
        version: Number of the version that serves, which `rollback_kserve` takes; -1 without a deployment.
        deployed: Whether the bundle was deployed.
        verdict: One sentence: the gate that is not met, or the version that serves and the results of its test.
        prediction: Prediction of one sample of the smoke test: class, number or ids; empty without one.
        label: The true value of that sample; empty if unknown.
    """
    from kfp_mindspore.inference.service import DeploymentOptions, Service
    from kfp_mindspore.steps.deployment.deploy import deploy_model

    service = Service(
        service_name,
        bundle.path,
        replicas=replicas,
        resources=resources,
        namespace=namespace,
        server_args=tuple(server_args),
        grpc=grpc,
        service_account=service_account,
        download=download,
        storage_secret=storage_secret,
        pod_labels=pod_labels,
        pod_annotations=pod_annotations,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        scale_metric=scale_metric,
        scale_target=scale_target,
        prometheus=prometheus,
        env=env,
        env_from=tuple(env_from),
        node_selector=node_selector,
        tolerations=tuple(tolerations),
        volumes=volumes,
        image_pull_secrets=tuple(image_pull_secrets),
        annotations=annotations,
        priority_class=priority_class,
        spread=spread,
        runtime=runtime,
        model_format=model_format,
        model_name_flag=model_name_flag,
        openai_path=openai_path,
        logger=logger,
        run=run,
    )
    options = DeploymentOptions(
        model_uri=model_uri,
        canary=canary,
        max_worsening=max_worsening,
        wait_seconds=wait_seconds,
        gate=gate,
        smoke_samples=smoke_samples,
        registry=registry,
    )
    return deploy_model(bundle, service, options)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(deploy_kserve, package_path=__file__.replace(".py", ".yaml"))
