"""MSJobClient: kubeflow-training's TrainingClient for MSJobs, over any backend."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import ValidationError, WaitTimeoutError
from kfp_mindspore.msjob.api import names
from kfp_mindspore.msjob.api.manifest import serialize
from kfp_mindspore.msjob.api.status import JobCondition
from kfp_mindspore.msjob.arguments import (
    build_function_job,
    build_pod_filter,
    check_job_kind,
    check_processes,
    check_types,
    read_job,
)
from kfp_mindspore.msjob.backends.base import JobBackend, Pod
from kfp_mindspore.msjob.backends.default_backend import create_job_backend
from kfp_mindspore.msjob.backends.foreign import create_as_kind
from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend
from kfp_mindspore.msjob.build import JobOptions, TrainingChanges, build_msjob, to_env_vars
from kfp_mindspore.msjob.commands import build_directory_variables, build_training_command
from kfp_mindspore.msjob.decisions.elastic import explain_missing_checkpoints
from kfp_mindspore.msjob.failure import JobFailedError, explain_failure
from kfp_mindspore.msjob.kinds import KINDS
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import get_image

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MSJobClient:
    """A client for MSJobs with the methods in kubeflow-training's TrainingClient.

    Errors are this package's and derive from TrainingClient's: `ValidationError` from ValueError, `WaitTimeoutError`
    from TimeoutError, `NotFoundError`, `AlreadyExistsError`, `JobFailedError` and `kfp_mindspore.kube` errors from
    RuntimeError. `job_kind` may be `MSJob` only. `timeout` as passed by TrainingClient's callers has no effect:
    requests have the backend's own timeouts.

    Args:
        backend: Where jobs run; default the cluster in `config_file` or `context`, if given, or the backend that
            KFP_MINDSPORE_BACKEND names.
        namespace: Default namespace for calls; default the backend's.
        config_file: A kubeconfig file, for jobs on a cluster.
        context: A kubeconfig context, for jobs on a cluster.
        client_configuration: Refused: use a kubeconfig.
        job_kind: `MSJob`, for TrainingClient's callers.

    Raises:
        ValidationError: Another job_kind, a client_configuration, or a backend besides config_file or context.
    """

    def __init__(
        self,
        backend: JobBackend | None = None,
        namespace: str | None = None,
        *,
        config_file: str | None = None,
        context: str | None = None,
        client_configuration: Any = None,
        job_kind: str | None = None,
    ) -> None:
        check_job_kind(job_kind)
        if client_configuration is not None:
            raise ValidationError(["client_configuration: must be absent; write a kubeconfig, named by config_file"])
        if backend is not None and not isinstance(backend, JobBackend):
            raise ValidationError([f"backend: must be a LocalBackend or KubernetesBackend, got {backend!r}"])
        if backend is not None and (config_file or context):
            raise ValidationError(["config_file, context: must be absent when backend is given"])
        if config_file or context:
            backend = KubernetesBackend(namespace, context, config_file)
        self.backend: JobBackend = create_job_backend(namespace) if backend is None else backend
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        """Default namespace for calls."""
        return self._namespace or self.backend.default_namespace

    @property
    def _in_pods(self) -> bool:
        return isinstance(self.backend, KubernetesBackend)

    def train(
        self,
        name: str,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        num_workers: int = 1,
        num_procs_per_worker: int | str | None = None,
        resources_per_worker: Any = None,
        *,
        network: str | None = None,
        network_arguments: Mapping[str, Any] | None = None,
        script: str | Path | None = None,
        dataset: str | Path | None = None,
        trainer_parameters: Mapping[str, Any] | None = None,
        output_dir: str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        env_vars: Mapping[str, str] | Sequence[Any] | None = None,
        queue_name: str | None = None,
        base_image: str | None = None,
        **options: Unpack[TrainingChanges],
    ) -> None:
        """Train a network, or run a training script, on a dataset.

        A network is trained by `kfp_mindspore.training.fit`: it resumes from checkpoints after a restart and trains
        data parallel with more than one worker.

        Args:
            name: Job name.
            namespace: Job namespace.
            labels: Job labels.
            annotations: Job annotations.
            num_workers: Worker count.
            num_procs_per_worker: 1; a worker is one process.
            resources_per_worker: Each worker's Kubernetes resource requirements, or resources by name.
            network: `module:factory` for a function or class that returns a mindspore.nn.Cell.
            network_arguments: The factory's keyword arguments, JSON types.
            script: A Python script to run instead of a network.
            dataset: A dataset directory (kfp_mindspore.formats.dataset); KFP_MINDSPORE_DATASET_DIR in the job;
                required with a network. On a cluster, paths are the pods' own and kept as given.
            trainer_parameters: For a network: `loss` and `optimizer` (names in mindspore.nn), `learning_rate`,
                `metrics`, and the TrainingConfig options that have a JSON form, such as `epochs` and `schedule`
                (`python -m kfp_mindspore.training --help`); for a script: its command-line options by name.
            output_dir: Directory for metrics.jsonl and the final checkpoint; required with a network.
            checkpoint_dir: Directory or URI (s3://, gs://) for checkpoints; default `checkpoints` in `output_dir`.
            env_vars: The workers' environment variables by name, or Kubernetes EnvVars.
            queue_name: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
            base_image: The workers' image.
            **options: Further fields of `JobOptions`, such as `backoff_limit` and `empty_dirs`.

        Raises:
            UserError: Network and script are both given or both missing, or an argument is wrong.
        """
        check_processes(num_procs_per_worker)
        command = build_training_command(network, network_arguments, script, dataset, output_dir, trainer_parameters)
        job = build_msjob(
            name,
            command=command,
            namespace=namespace or self.namespace,
            image=get_image(base_image or ""),
            workers=num_workers,
            env=[
                *to_env_vars(build_directory_variables(dataset, output_dir, checkpoint_dir, in_pods=self._in_pods)),
                *to_env_vars(env_vars or {}),
            ],
            resources=resources_per_worker,
            queue=queue_name,
            **options,
        )
        self.create_job(job, labels=labels, annotations=annotations)

    def create_job(
        self,
        job: MSJob | Mapping[str, Any] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        job_kind: str | None = None,
        base_image: str | None = None,
        train_func: Callable[..., Any] | None = None,
        parameters: dict[str, Any] | None = None,
        num_workers: int = 1,
        num_procs_per_worker: int | str | None = None,
        resources_per_worker: Any = None,
        *,
        packages_to_install: Sequence[str] | None = None,
        pip_index_url: str | None = None,
        env_vars: Mapping[str, str] | Sequence[Any] | None = None,
        queue_name: str | None = None,
        queue_priority: str | None = None,
        volumes: Sequence[Any] | None = None,
        volume_mounts: Sequence[Any] | None = None,
        pod_labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
        device: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Submit a job: a manifest, a Python function that runs in each worker, or an image with its own entry point.

        Args:
            job: The manifest; besides it only namespace, labels, annotations, queue_name and queue_priority are
                allowed.
            name: Job name for a function or image.
            namespace: Job namespace; default its own, or the client's.
            labels: Job labels, besides the manifest's.
            annotations: Job annotations, besides the manifest's.
            job_kind: `MSJob`, or another kind that the cluster runs: `MPIJob`, `TrainJob`, `AscendJob`, `volcano`,
                `legacy` or `first-generation`, with a warning for each field that it lacks; the other methods are for
                MSJobs.
            base_image: The workers' image.
            train_func: The function, with no or one argument; it imports what it needs itself. None runs the image. The
                job is restarted when it is killed or preempted, and fails when the function raises.
            parameters: The function's argument: a dict of numbers, texts, lists and dicts.
            num_workers: Worker count.
            num_procs_per_worker: 1; a worker is one process.
            resources_per_worker: Each worker's Kubernetes resource requirements, or resources by name.
            packages_to_install: Installed by pip before the function runs.
            pip_index_url: Package index for pip.
            env_vars: The workers' environment variables by name, or Kubernetes EnvVars.
            queue_name: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
            queue_priority: Priority in the queue, a WorkloadPriorityClass.
            volumes: Volumes for each worker.
            volume_mounts: Their mounts.
            pod_labels: Pod labels. Such as {"fault-scheduling": "force"}.
            pod_annotations: Pod annotations. Such as {"huawei.com/vnpu-mode": "hami-core"}.
            device: Each worker's device: `auto`, CPU, GPU or Ascend. `auto` is that of the requested resources, else
                what MindSpore finds. Without such a resource GPU requests `nvidia.com/gpu: 1`, Ascend
                `huawei.com/Ascend910: 1`.
            dry_run: Only validate it: on a cluster by the API server.

        Raises:
            ValidationError: The job is invalid, or arguments contradict each other; the message names the fields.
            AlreadyExistsError: A job with this name exists.
        """
        check_job_kind(job_kind, KINDS)
        check_processes(num_procs_per_worker)
        check_types(
            name=name,
            namespace=namespace,
            labels=labels,
            annotations=annotations,
            base_image=base_image,
            parameters=parameters,
            num_workers=num_workers,
            packages_to_install=packages_to_install,
            pip_index_url=pip_index_url,
            env_vars=env_vars,
            queue_name=queue_name,
            queue_priority=queue_priority,
            volumes=volumes,
            volume_mounts=volume_mounts,
            pod_labels=pod_labels,
            pod_annotations=pod_annotations,
            device=device,
        )
        if job is not None:
            others = {
                "name": name,
                "base_image": base_image,
                "train_func": train_func,
                "parameters": parameters,
                "resources_per_worker": resources_per_worker,
                "packages_to_install": packages_to_install,
                "env_vars": env_vars,
                "volumes": volumes,
                "volume_mounts": volume_mounts,
                "pod_labels": pod_labels,
                "pod_annotations": pod_annotations,
                "device": device,
            }
            given = [key for key, value in others.items() if value is not None]
            if given:
                raise ValidationError([f"create_job: {given[0]} must be absent when job is given"])
            new = read_job(job)
            new.metadata["namespace"] = namespace or new.metadata.get("namespace") or self.namespace
        else:
            if name is None or (train_func is None and not base_image):
                raise ValidationError(["create_job: must have job, or name and train_func or base_image"])
            new = build_function_job(
                name,
                namespace or self.namespace,
                base_image,
                train_func,
                parameters,
                workers=num_workers,
                resources=resources_per_worker,
                packages_to_install=packages_to_install,
                pip_index_url=pip_index_url,
                env=env_vars,
                volumes=volumes or (),
                volume_mounts=volume_mounts or (),
                pod_labels=pod_labels,
                pod_annotations=pod_annotations,
                device=device,
            )
        queue = JobOptions(queue=queue_name or "", queue_priority=queue_priority or "")
        for key, entries in (("labels", {**(labels or {}), **queue.queue_labels}), ("annotations", annotations or {})):
            if entries:
                new.metadata[key] = {**(new.metadata.get(key) or {}), **entries}
        if (missing := explain_missing_checkpoints(new, {} if self._in_pods else os.environ)) and not dry_run:
            warnings.warn(missing, stacklevel=2)
        if job_kind in (None, names.KIND):
            self.backend.create(new, dry_run=dry_run)
        else:
            for change in create_as_kind(self.backend, new, job_kind, dry_run=dry_run).changes:
                warnings.warn(f"{job_kind}: {change}", stacklevel=2)
        if not dry_run and (blocked := self.backend.explain_queue(new, job_kind or names.KIND)):
            warnings.warn(blocked, stacklevel=2)

    def get_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None, timeout: float | None = None
    ) -> MSJob:
        """Return a job with its status.

        Raises:
            NotFoundError: The job does not exist.
        """
        check_job_kind(job_kind)
        return self.backend.get(name, namespace or self.namespace)

    def list_jobs(
        self, namespace: str | None = None, job_kind: str | None = None, timeout: float | None = None
    ) -> list[MSJob]:
        """Return the jobs in a namespace by name."""
        check_job_kind(job_kind)
        return self.backend.list_jobs(namespace or self.namespace)

    def get_job_conditions(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> list[JobCondition]:
        """Return a job's conditions, given by name or as an object.

        A job is in a condition when that condition type has the status `True`; their order has no meaning.
        """
        check_job_kind(job_kind)
        if job is None:
            if name is None:
                raise ValidationError(["get_job_conditions: must have name or job"])
            job = self.get_job(name, namespace)
        elif not isinstance(job, MSJob):
            raise ValidationError([f"job: must be an MSJob, got {type(job).__name__}"])
        return list(job.status.conditions) if job.status is not None else []

    def is_job_created(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job is Created."""
        return self._is_job(names.CREATED, name, namespace, job_kind, job)

    def is_job_running(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job is Running."""
        return self._is_job(names.RUNNING, name, namespace, job_kind, job)

    def is_job_restarting(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job is Restarting."""
        return self._is_job(names.RESTARTING, name, namespace, job_kind, job)

    def is_job_succeeded(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job has Succeeded."""
        return self._is_job(names.SUCCEEDED, name, namespace, job_kind, job)

    def is_job_failed(
        self,
        name: str | None = None,
        namespace: str | None = None,
        job_kind: str | None = None,
        job: MSJob | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Return whether a job has Failed."""
        return self._is_job(names.FAILED, name, namespace, job_kind, job)

    def wait_for_job_conditions(
        self,
        name: str,
        namespace: str | None = None,
        job_kind: str | None = None,
        expected_conditions: set[str] | frozenset[str] = frozenset({names.SUCCEEDED}),
        wait_timeout: float = 600,
        polling_interval: float = 0.1,
        callback: Callable[[MSJob], Any] | None = None,
        timeout: float | None = None,
    ) -> MSJob:
        """Wait until a job is in any expected condition.

        Args:
            name: The job.
            namespace: Job namespace.
            job_kind: `MSJob`.
            expected_conditions: Condition types.
            wait_timeout: Seconds at most.
            polling_interval: Polling interval in seconds; a cluster is watched instead.
            callback: Called with the job after each poll or change.
            timeout: Without effect.

        Returns:
            The job.

        Raises:
            WaitTimeoutError: The timeout has passed; a TimeoutError.
            JobFailedError: The job failed unexpectedly; a RuntimeError.
            NotFoundError: It does not exist, or was deleted meanwhile.
        """
        check_job_kind(job_kind)
        if unknown := set(expected_conditions) - set(names.CONDITIONS):
            raise ValidationError(
                [f"expected_conditions: must be of {', '.join(names.CONDITIONS)}, got {', '.join(sorted(unknown))}"]
            )
        state, waiting = "", ""
        for job in self.backend.watch(
            name, namespace or self.namespace, timeout=wait_timeout, interval=polling_interval
        ):
            if callback is not None:
                callback(job)
            if any(self._is_job(condition, None, None, None, job) for condition in expected_conditions):
                return job
            if self.is_job_failed(job=job):
                raise self.explain_failure(job)
            state = job.status.state if job.status is not None else "Pending"
            waiting = getattr(job.status, "waiting", None) or ""
        raise WaitTimeoutError(
            f"job {name} is {state}, not {' or '.join(sorted(expected_conditions))}, after {wait_timeout:g} s"
            + (f"; it waits: {waiting}" if waiting else "")
        )

    def explain_failure(self, job: MSJob, lines: int = 20) -> JobFailedError:
        """Return a failed job's error, with the last lines from the pod that failed first."""
        return explain_failure(self.backend, job, lines)

    def get_job_pods(
        self,
        name: str,
        namespace: str | None = None,
        is_master: bool = False,
        replica_type: str | None = None,
        replica_index: int | None = None,
        timeout: float | None = None,
    ) -> list[Pod]:
        """Return a job's pods: processes, on this machine.

        Args:
            name: The job.
            namespace: Job namespace.
            is_master: Only worker 0.
            replica_type: Only this type, case-insensitive.
            replica_index: Only this index.
            timeout: Without effect.

        Raises:
            NotFoundError: The job does not exist.
        """
        pod_filter = build_pod_filter(is_master, replica_type, replica_index)
        return [pod for pod in self.backend.list_pods(name, namespace or self.namespace) if pod_filter(pod)]

    def get_job_pod_names(
        self,
        name: str,
        namespace: str | None = None,
        is_master: bool = False,
        replica_type: str | None = None,
        replica_index: int | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Return a job's pod names; the arguments are `get_job_pods`'s.

        Raises:
            NotFoundError: The job does not exist.
        """
        return [pod.name for pod in self.get_job_pods(name, namespace, is_master, replica_type, replica_index)]

    def get_job_logs(
        self,
        name: str,
        namespace: str | None = None,
        job_kind: str | None = None,
        is_master: bool = True,
        replica_type: str | None = None,
        replica_index: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
        verbose: bool = False,
    ) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Return a job's pod logs.

        Args:
            name: The job.
            namespace: Job namespace.
            job_kind: `MSJob`.
            is_master: Only worker 0; unless a type or index is given.
            replica_type: Only this type, case-insensitive.
            replica_index: Only this index.
            follow: Print each line as `[Pod name]: line` until the job has finished.
            timeout: Without effect.
            verbose: Also return events.

        Returns:
            Logs by pod name, without pods that have not started; and events by job or pod name (empty unless verbose).
        """
        check_job_kind(job_kind)
        namespace = namespace or self.namespace
        is_master = is_master and replica_type is None and replica_index is None
        pod_filter = build_pod_filter(is_master, replica_type, replica_index)
        logs: dict[str, str] = {}
        if follow:
            for pod_name, line in self.backend.follow_logs(name, namespace, pod_filter):
                print(f"[Pod {pod_name}]: {line}", flush=True)
                logs[pod_name] = logs.get(pod_name, "") + line + "\n"
        else:
            for pod in self.backend.list_pods(name, namespace):
                if pod_filter(pod):
                    text = self.backend.read_log(name, namespace, pod.name)
                    if text or pod.phase != "Pending":
                        logs[pod.name] = text
        events: dict[str, list[str]] = {}
        if verbose:
            for event in self.backend.list_events(name, namespace):
                events.setdefault(event.object, []).append(f"{event.time} {event.reason}: {event.message}")
        return logs, events

    def update_job(
        self, job: MSJob | Mapping[str, Any], name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> None:
        """Apply a merge patch to a job.

        Args:
            job: The patch, such as `{"spec": {"runPolicy": {"suspend": True}}}`, or an MSJob.
            name: The job.
            namespace: Job namespace.
            job_kind: `MSJob`.

        Raises:
            ValidationError: The result is invalid, or an immutable field changes.
        """
        check_job_kind(job_kind)
        if not isinstance(job, (MSJob, Mapping)):
            raise ValidationError([f"job: must be an MSJob or a patch, got {type(job).__name__}"])
        patch = serialize(dict(job)) if isinstance(job, Mapping) else job.to_dict()
        self.backend.update(name, namespace or self.namespace, patch)

    def delete_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None, delete_options: Any = None
    ) -> None:
        """Delete a job and wait until its processes are gone.

        Args:
            name: The job.
            namespace: Job namespace.
            job_kind: `MSJob`.
            delete_options: A V1DeleteOptions or its manifest; only the grace period is used.

        Raises:
            NotFoundError: The job does not exist.
        """
        check_job_kind(job_kind)
        grace = (serialize(delete_options) or {}).get("gracePeriodSeconds")
        self.backend.delete(name, namespace or self.namespace, grace_seconds=grace)

    def _is_job(
        self, condition: str, name: str | None, namespace: str | None, job_kind: str | None, job: MSJob | None
    ) -> bool:
        conditions = self.get_job_conditions(name, namespace, job_kind, job)
        return any(item.type == condition and item.status == "True" for item in conditions)
