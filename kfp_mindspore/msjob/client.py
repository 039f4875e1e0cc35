"""MSJobClient: kubeflow-training's TrainingClient for MSJobs, over any backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, WaitTimeoutError
from kfp_mindspore.msjob import names
from kfp_mindspore.msjob.backends.base import JobBackend, Pod
from kfp_mindspore.msjob.backends.default_backend import create_backend
from kfp_mindspore.msjob.build import build_msjob, to_env_vars
from kfp_mindspore.msjob.commands import build_directory_variables, build_function_command, build_training_command
from kfp_mindspore.msjob.failure import JobFailedError, explain_failure
from kfp_mindspore.msjob.manifest import serialize
from kfp_mindspore.msjob.pod_filter import build_pod_filter
from kfp_mindspore.msjob.status import JobCondition
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import PLACEHOLDER_IMAGE, get_image


class MSJobClient:
    """A client for MSJobs with the methods of kubeflow-training's TrainingClient.

    Errors are those of this package: `NotFoundError`, `AlreadyExistsError`, `ValidationError`, `WaitTimeoutError` (a
    TimeoutError) and `JobFailedError` (a RuntimeError); on a cluster also those of `kfp_mindspore.kube`. The parameters
    `job_kind` and `timeout` of TrainingClient do not exist here.

    Args:
        backend: Where jobs run; default the one that KFP_MINDSPORE_BACKEND names.
        namespace: Default namespace of calls; default the backend's.
    """

    def __init__(self, backend: JobBackend | None = None, namespace: str | None = None) -> None:
        self.backend = create_backend(namespace) if backend is None else backend
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        """Default namespace of calls."""
        return self._namespace or self.backend.default_namespace

    def train(
        self,
        name: str,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        num_workers: int = 1,
        resources_per_worker: Any = None,
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
    ) -> None:
        """Train a network, or run a training script, on a dataset.

        A network is trained by `kfp_mindspore.training.fit`: it resumes from checkpoints after a restart and trains
        data parallel with more than one worker.

        Args:
            name: Name of the job.
            namespace: Namespace of the job.
            labels: Labels of the job.
            annotations: Annotations of the job.
            num_workers: Number of workers.
            resources_per_worker: ResourceRequirements, or resources by name.
            network: `module:factory` of a function or class that returns a mindspore.nn.Cell.
            network_arguments: The factory's keyword arguments, JSON types.
            script: A Python script to run instead of a network.
            dataset: A dataset directory (kfp_mindspore.formats.dataset); KFP_MINDSPORE_DATASET_DIR in the job;
                required with a network.
            trainer_parameters: Of a network: `epochs`, `batch_size`, `seed`, `loss`, `optimizer` (names in
                mindspore.nn), `learning_rate`, `metrics`; of a script: its command-line options by name.
            output_dir: Directory for metrics.jsonl and the final checkpoint; required with a network.
            checkpoint_dir: Directory for checkpoints; default `checkpoints` in `output_dir`.
            env_vars: Variables by name, or Kubernetes EnvVars.
            queue_name: Kueue queue of the job; ignored on this machine.
            base_image: Image of the workers.

        Raises:
            UserError: Not exactly one of network and script is given, or an argument is wrong.
        """
        command = build_training_command(network, network_arguments, script, dataset, output_dir, trainer_parameters)
        job = build_msjob(
            name,
            command=command,
            image=get_image(base_image or "") or PLACEHOLDER_IMAGE,
            workers=num_workers,
            namespace=namespace or self.namespace,
            env=[
                *to_env_vars(build_directory_variables(dataset, output_dir, checkpoint_dir)),
                *to_env_vars(env_vars or {}),
            ],
            restart_policy="ExitCode",
            resources=resources_per_worker,
        )
        self.create_job(job, labels=labels, annotations=annotations, queue_name=queue_name)

    def create_job(
        self,
        job: MSJob | Mapping[str, Any] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        base_image: str | None = None,
        train_func: Callable[..., Any] | None = None,
        parameters: dict[str, Any] | None = None,
        num_workers: int = 1,
        resources_per_worker: Any = None,
        packages_to_install: Sequence[str] | None = None,
        pip_index_url: str | None = None,
        env_vars: Mapping[str, str] | Sequence[Any] | None = None,
        queue_name: str | None = None,
        volumes: Sequence[Any] | None = None,
        volume_mounts: Sequence[Any] | None = None,
        dry_run: bool = False,
    ) -> None:
        """Submit a job: a manifest, or a Python function that runs in each worker.

        Args:
            job: The manifest; besides it only namespace, labels, annotations and queue_name are allowed.
            name: Name of a function's job.
            namespace: Namespace of the job; default its own, or the client's.
            labels: Labels to add.
            annotations: Annotations to add.
            base_image: Image of a function's workers.
            train_func: The function, of no or one argument; it imports what it needs itself.
            parameters: Its argument.
            num_workers: Number of workers.
            resources_per_worker: ResourceRequirements, or resources by name.
            packages_to_install: Installed by pip before the function runs.
            pip_index_url: Package index of pip.
            env_vars: Variables by name, or Kubernetes EnvVars.
            queue_name: Kueue queue of the job; ignored on this machine.
            volumes: Volumes of each worker.
            volume_mounts: Their mounts.
            dry_run: Only validate it: on a cluster by the API server.

        Raises:
            ValidationError: The job is invalid; the message names the fields.
            AlreadyExistsError: A job of this name exists.
            UserError: Arguments contradict each other.
        """
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
            }
            given = [key for key, value in others.items() if value is not None]
            if given:
                raise UserError(f"create_job: {given[0]} must be absent when job is given")
            document = serialize(job) if isinstance(job, Mapping) else job.to_dict()
            new = MSJob.from_dict(document, validate=isinstance(job, Mapping))
            new.metadata["namespace"] = namespace or new.metadata.get("namespace") or self.namespace
        else:
            if name is None or train_func is None:
                raise UserError("create_job: must have job, or name and train_func")
            new = build_msjob(
                name,
                command=build_function_command(
                    train_func,
                    parameters,
                    packages_to_install=packages_to_install or (),
                    pip_index_url=pip_index_url,
                ),
                image=get_image(base_image or "") or PLACEHOLDER_IMAGE,
                workers=num_workers,
                namespace=namespace or self.namespace,
                env=env_vars,
                resources=resources_per_worker,
            )
            pod = new.ms_replica_specs[names.WORKER].template["spec"]
            if volumes:
                pod["volumes"] = serialize(list(volumes))
            if volume_mounts:
                pod["containers"][0]["volumeMounts"] = serialize(list(volume_mounts))
        queue = {names.QUEUE_LABEL: queue_name} if queue_name else {}
        for key, entries in (("labels", {**(labels or {}), **queue}), ("annotations", annotations or {})):
            if entries:
                new.metadata[key] = {**(new.metadata.get(key) or {}), **entries}
        self.backend.create(new, dry_run=dry_run)

    def get_job(self, name: str, namespace: str | None = None) -> MSJob:
        """Return a job with its status.

        Raises:
            NotFoundError: The job does not exist.
        """
        return self.backend.get(name, namespace or self.namespace)

    def list_jobs(self, namespace: str | None = None) -> list[MSJob]:
        """Return the jobs of a namespace by name."""
        return self.backend.list_jobs(namespace or self.namespace)

    def get_job_conditions(
        self, name: str | None = None, namespace: str | None = None, job: MSJob | None = None
    ) -> list[JobCondition]:
        """Return the conditions of a job, given by name or as an object.

        A job is in a condition when one of that type has the status `True`; their order has no meaning.
        """
        if job is None:
            if name is None:
                raise UserError("get_job_conditions: must have name or job")
            job = self.get_job(name, namespace)
        return list(job.status.conditions) if job.status is not None else []

    def is_job_created(self, name: str | None = None, namespace: str | None = None, job: MSJob | None = None) -> bool:
        """Return whether a job is Created."""
        return self._is_job(names.CREATED, name, namespace, job)

    def is_job_running(self, name: str | None = None, namespace: str | None = None, job: MSJob | None = None) -> bool:
        """Return whether a job is Running."""
        return self._is_job(names.RUNNING, name, namespace, job)

    def is_job_restarting(
        self, name: str | None = None, namespace: str | None = None, job: MSJob | None = None
    ) -> bool:
        """Return whether a job is Restarting."""
        return self._is_job(names.RESTARTING, name, namespace, job)

    def is_job_succeeded(self, name: str | None = None, namespace: str | None = None, job: MSJob | None = None) -> bool:
        """Return whether a job has Succeeded."""
        return self._is_job(names.SUCCEEDED, name, namespace, job)

    def is_job_failed(self, name: str | None = None, namespace: str | None = None, job: MSJob | None = None) -> bool:
        """Return whether a job has Failed."""
        return self._is_job(names.FAILED, name, namespace, job)

    def wait_for_job_conditions(
        self,
        name: str,
        namespace: str | None = None,
        expected_conditions: set[str] | frozenset[str] = frozenset({names.SUCCEEDED}),
        wait_timeout: float = 600,
        polling_interval: float = 0.1,
        callback: Callable[[MSJob], Any] | None = None,
    ) -> MSJob:
        """Wait until a job is in one of the expected conditions.

        Args:
            name: The job.
            namespace: Its namespace.
            expected_conditions: Condition types.
            wait_timeout: Seconds at most.
            polling_interval: Polling interval in seconds; a cluster is watched instead.
            callback: Called with the job after each poll or change.

        Returns:
            The job.

        Raises:
            WaitTimeoutError: The timeout has passed; a TimeoutError.
            JobFailedError: The job failed unexpectedly; a RuntimeError.
            NotFoundError: It does not exist, or was deleted meanwhile.
        """
        if unknown := set(expected_conditions) - set(names.CONDITIONS):
            raise UserError(
                f"expected_conditions: must be of {', '.join(names.CONDITIONS)}, got {', '.join(sorted(unknown))}"
            )
        state = ""
        for job in self.backend.watch(
            name, namespace or self.namespace, timeout=wait_timeout, interval=polling_interval
        ):
            if callback is not None:
                callback(job)
            if any(self._is_job(condition, None, None, job) for condition in expected_conditions):
                return job
            if self.is_job_failed(job=job):
                raise self.explain_failure(job)
            state = job.status.state if job.status is not None else "Pending"
        raise WaitTimeoutError(
            f"job {name} is {state}, not {' or '.join(sorted(expected_conditions))}, after {wait_timeout:g} s"
        )

    def get_job_pods(
        self,
        name: str,
        namespace: str | None = None,
        is_master: bool = False,
        replica_type: str | None = None,
        replica_index: int | None = None,
    ) -> list[Pod]:
        """Return a job's pods: processes, on this machine.

        Args:
            name: The job.
            namespace: Its namespace.
            is_master: Only worker 0.
            replica_type: Only this type, case-insensitive.
            replica_index: Only this index.
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
    ) -> list[str]:
        """Return the names of a job's pods; the arguments are those of `get_job_pods`."""
        return [pod.name for pod in self.get_job_pods(name, namespace, is_master, replica_type, replica_index)]

    def get_job_logs(
        self,
        name: str,
        namespace: str | None = None,
        is_master: bool = True,
        replica_type: str | None = None,
        replica_index: int | None = None,
        follow: bool = False,
        verbose: bool = False,
    ) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Return the logs of a job's pods.

        Args:
            name: The job.
            namespace: Its namespace.
            is_master: Only worker 0; unless a type or index is given.
            replica_type: Only this type, case-insensitive.
            replica_index: Only this index.
            follow: Print each line as `[Pod name]: line` until the job has finished.
            verbose: Also return events.

        Returns:
            Logs by pod name, and events by job or pod name (empty unless verbose).
        """
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
                    logs[pod.name] = self.backend.read_log(name, namespace, pod.name)
        events: dict[str, list[str]] = {}
        if verbose:
            for event in self.backend.list_events(name, namespace):
                events.setdefault(event.object, []).append(f"{event.time} {event.reason}: {event.message}")
        return logs, events

    def update_job(self, job: MSJob | Mapping[str, Any], name: str, namespace: str | None = None) -> None:
        """Apply a merge patch to a job.

        Args:
            job: The patch, such as `{"spec": {"runPolicy": {"suspend": True}}}`, or an MSJob.
            name: The job.
            namespace: Its namespace.

        Raises:
            ValidationError: The result is invalid, or an immutable field changes.
        """
        patch = serialize(dict(job)) if isinstance(job, Mapping) else job.to_dict()
        self.backend.update(name, namespace or self.namespace, patch)

    def delete_job(self, name: str, namespace: str | None = None, delete_options: Any = None) -> None:
        """Delete a job and wait until its processes are gone.

        Args:
            name: The job.
            namespace: Its namespace.
            delete_options: A V1DeleteOptions or its manifest; only the grace period is used.

        Raises:
            NotFoundError: The job does not exist.
        """
        grace = (serialize(delete_options) or {}).get("gracePeriodSeconds")
        self.backend.delete(name, namespace or self.namespace, grace_seconds=grace)

    def explain_failure(self, job: MSJob, lines: int = 20) -> JobFailedError:
        """Return the error of a failed job, with the last lines of the pod that failed first."""
        return explain_failure(self.backend, job, lines)

    def _is_job(self, condition: str, name: str | None, namespace: str | None, job: MSJob | None) -> bool:
        conditions = self.get_job_conditions(name, namespace, job)
        return any(item.type == condition and item.status == "True" for item in conditions)
