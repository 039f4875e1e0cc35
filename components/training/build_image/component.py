"""Builds an image with the pipeline's training code and names it by digest."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Artifact, Input


@dsl.component(
    base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image",
    install_kfp_package=False,
    task_config_passthroughs=[
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.RESOURCES, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_AFFINITY, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_TOLERATIONS, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
    ],
)
def build_image(
    destination: str = "",
    sources: Input[Artifact] = None,
    files: dict = {},
    base: str = "kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image",
    requirements: list[str] = [],
    containerfile: str = "",
    command: list[str] = [],
    env: dict = {},
    platform: str = "linux/amd64",
    builder: str = "append",
    builder_options: dict = {},
    registry: dict = {},
    task_config: dsl.TaskConfig = None,
) -> NamedTuple("Outputs", [("image", str), ("tag", str), ("built", bool)]):
    """Build an image with training code over a base image, push it and return its name by digest.

    When the registry has an image with the same sources over the same base, nothing is built or sent. Switch caching
    off for this step in a pipeline (`task.set_caching_options(False)`) when the base image's tag may move.

    A local run without a destination builds no image; the outputs are empty. The builder `append` adds one layer by the
    registry's HTTP API, in this step; `cluster` creates a Kubernetes Job with rootless BuildKit; `docker` uses a Docker
    daemon. Options for `cluster`: claim and claim_path, or store and store_endpoint (where the build context is
    stored), image, namespace, build_args, secrets, service_account, start_seconds; for `docker`: host, build_args,
    network. Options for the registry client: insecure, ca_file, mirrors, docker_config, push_secret, pull_secrets,
    timeout_seconds, attempts.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[images,pipelines].

    Args:
        destination: Repository to push to, `host/name`; the tag is derived from the image's content.
        sources: Source folder or file; files in its .dockerignore and likely secrets are left out.
        files: Further sources, text by path, such as {"train.py": "print(1)"}.
        base: Base image; by default the pipeline steps' image.
        requirements: pip requirements; they need the builder `cluster` or `docker`.
        containerfile: Containerfile text that replaces the generated one; it needs `cluster` or `docker`.
        command: The image's command; jobs have their own.
        env: The image's environment variables, by name.
        platform: Image platform; `all` keeps every base image platform (append).
        builder: `append`, `cluster` or `docker`.
        builder_options: Builder options by name.
        registry: Registry client options by name.
        task_config: Filled in by KFP: resources, node selector and tolerations, also for `cluster`'s pod.

    Returns:
        image: The image by digest, `host/name@sha256:…`, for `train_msjob(image=…)`.
        tag: The tag that it has beside its digest.
        built: Whether it was built now; false when the registry had it.
    """
    from kfp_mindspore.steps.launch.build import build_step_image

    result = build_step_image(
        destination,
        sources=sources.path if sources else "",
        files=files,
        base=base,
        requirements=requirements,
        containerfile=containerfile,
        command=command,
        env=env,
        platform=platform,
        builder=builder,
        builder_options=builder_options,
        registry=registry,
        task_config=task_config,
    )
    return (result.reference, result.tag, result.built) if result else ("", "", False)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(build_image, package_path=__file__.replace(".py", ".yaml"))
