"""What MSJobClient submits: a copy of a job, a function as a job, a network or a script as a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.msjob.build import build_msjob, to_env_vars
from kfp_mindspore.msjob.function import build_function_command
from kfp_mindspore.msjob.manifest import serialize
from kfp_mindspore.msjob.names import WORKER
from kfp_mindspore.msjob.trainer import build_network_command, build_script_command
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import PLACEHOLDER_IMAGE, get_image

_NO_NETWORK = "train: must have network ('module:factory') or script, got neither"

Env = Mapping[str, str] | Sequence[Any] | None


def copy_job(job: MSJob | Mapping[str, Any]) -> MSJob:
    """Return an independent copy of a job.

    Raises:
        ValidationError: A document is invalid.
    """
    if isinstance(job, Mapping):
        return MSJob.from_dict(serialize(job))
    return MSJob.from_dict(job.to_dict(), validate=False)


def build_function_job(
    name: str,
    function: Callable[..., Any],
    parameters: dict[str, Any] | None,
    *,
    namespace: str,
    workers: int,
    resources: Any,
    packages_to_install: Sequence[str] | None,
    pip_index_url: str | None,
    env: Env,
    image: str | None,
    volumes: Sequence[Any] | None,
    volume_mounts: Sequence[Any] | None,
) -> MSJob:
    """Return the job that runs a function in each worker; the arguments are those of `MSJobClient.create_job`."""
    job = build_msjob(
        name,
        command=build_function_command(
            function, parameters, packages_to_install=packages_to_install or (), pip_index_url=pip_index_url
        ),
        image=_choose_image(image),
        workers=workers,
        namespace=namespace,
        env=env,
        resources=resources,
    )
    pod = job.ms_replica_specs[WORKER].template["spec"]
    if volumes:
        pod["volumes"] = serialize(list(volumes))
    if volume_mounts:
        pod["containers"][0]["volumeMounts"] = serialize(list(volume_mounts))
    return job


def build_training_job(
    name: str,
    *,
    namespace: str,
    workers: int,
    resources: Any,
    network: str | None,
    network_arguments: Mapping[str, Any] | None,
    script: str | Path | None,
    dataset: str | Path | None,
    trainer_parameters: Mapping[str, Any] | None,
    output_dir: str | Path | None,
    checkpoint_dir: str | Path | None,
    env: Env,
    image: str | None,
) -> MSJob:
    """Return the job that trains a network or runs a script; the arguments are those of `MSJobClient.train`.

    Raises:
        UserError: Not exactly one of network and script is given, or an argument is wrong.
    """
    from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, OUTPUT_VARIABLE

    if (network is None) == (script is None):
        raise UserError("train: must have either network or script, got both" if network else _NO_NETWORK)
    if network is not None:
        command = build_network_command(network, network_arguments or {}, trainer_parameters or {})
        if dataset is None or output_dir is None:
            raise UserError(f"train: {'dataset' if dataset is None else 'output_dir'} is required with a network")
    else:
        command = build_script_command(str(script), trainer_parameters or {})
    if output_dir is not None and checkpoint_dir is None:
        checkpoint_dir = Path(output_dir) / "checkpoints"
    directories = {DATASET_VARIABLE: dataset, OUTPUT_VARIABLE: output_dir, CHECKPOINT_VARIABLE: checkpoint_dir}
    contract = {key: str(Path(path).absolute()) for key, path in directories.items() if path is not None}
    return build_msjob(
        name,
        command=command,
        image=_choose_image(image),
        workers=workers,
        namespace=namespace,
        env=[*to_env_vars(contract), *to_env_vars(env or {})],
        restart_policy="ExitCode",
        resources=resources,
    )


def _choose_image(image: str | None) -> str:
    return get_image(image or "") or PLACEHOLDER_IMAGE
