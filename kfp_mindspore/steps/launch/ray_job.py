"""The step that trains a model on Ray: in this process, or by a RayJob on a cluster."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import NotFoundError, ProcessFailedError, ValidationError
from kfp_mindspore.evaluation.curves import render_curves
from kfp_mindspore.files import write_text
from kfp_mindspore.kube.cluster import CancellationToken, Cluster
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.msjob.kinds import export_job, rayjob
from kfp_mindspore.msjob.kinds.common import Manifest, is_python
from kfp_mindspore.options import to_text
from kfp_mindspore.settings import KUBERNETES, get_backend_name, get_namespace
from kfp_mindspore.steps.handover.job_name import make_job_name
from kfp_mindspore.steps.handover.storage import ENTRYPOINT
from kfp_mindspore.steps.handover.task_config import read_task_config
from kfp_mindspore.steps.launch.arguments import parse_numbers
from kfp_mindspore.steps.launch.job import SPEC_ANNOTATION, StepJobs
from kfp_mindspore.steps.launch.options import merge_task_options
from kfp_mindspore.steps.launch.train import (
    TrainingResult,
    describe_model,
    open_files,
    read_result,
    to_arguments,
)

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.msjob import MSJob

SUCCEEDED, FAILED = "Complete", "Failed"
# The submitter's pod, which prints the entry point's log, and how long it is read after the job's end.
_SUBMITTER_LABEL = "batch.kubernetes.io/job-name"
_LAST_SECONDS = 10.0


def train_on_ray(
    model: dsl.Model,
    metrics: dsl.Metrics,
    curves: dsl.HTML,
    command: Sequence[Any],
    options: JobOptions,
    *,
    dataset: dsl.Dataset | None = None,
    args: Sequence[Any] = (),
    hyperparameters: Mapping[str, Any] | None = None,
    checkpoint_dir: str = "",
    job_name: str = "",
    namespace: str = "",
    task_config: dsl.TaskConfig | None = None,
) -> TrainingResult:
    """Run a Python command in Ray's workers, describe the model and log metrics.

    Args:
        model: Output artifact; the path is the job's output directory.
        metrics: Receives each metric's last value in metrics.jsonl.
        curves: Receives the page with the metrics by epoch.
        command: The Python command, which uses `fit`.
        options: The job's options; those that the pipeline has set on the task take precedence.
        dataset: The dataset directory; None for none.
        args: Command arguments.
        hyperparameters: Further arguments by name.
        checkpoint_dir: Ray's storage path for later runs; empty for one that is deleted at the end.
        job_name: RayJob name; empty for one derived from the output root.
        namespace: RayJob namespace; empty for the step's.
        task_config: What the pipeline has set on the task, for the pods.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        ProcessFailedError: The job failed, or the output directory is empty.
    """
    options = merge_task_options(options)
    parts = [to_text(part) for part in (*command, *args)] + to_arguments(hyperparameters or {})
    is_remote = get_backend_name() == KUBERNETES
    errors = [] if parts and is_python(parts[0]) else [f"command: must be a Python command, got {parts[:1]}"]
    if errors:
        raise ValidationError(errors, subject="ray_job")
    root = model.uri.rstrip("/").rpartition("/")[0]
    pod = read_task_config(task_config)
    files = open_files(
        options.storage,
        root=root,
        output_dir=model.path,
        output_uri=model.uri,
        dataset=dataset,
        checkpoint_dir=checkpoint_dir,
        command=parts,
        patch=pod,
        namespace=namespace,
    )
    name = job_name or make_job_name(root)
    namespace = namespace or get_namespace() or "default"
    with files.explain_failures():
        if is_remote:
            merged = options.merge({"env": files.directories})
            run_rayjob(StepJobs(root, namespace), name, parts, merged, pod.merge(files.patch), wrapper=files.wrapper)
        else:
            _run_here(name, parts[1:], options, files.directories)
    described = TrainingResult(name, namespace, options.workers, tuple(parts), parse_numbers(hyperparameters or {}))
    result = read_result(files, described)
    describe_model(model, metrics, result)
    write_text(Path(curves.path), render_curves(f"RayJob {name}", {name: result.history}))
    return result


def _run_here(name: str, words: Sequence[str], options: JobOptions, directories: Mapping[str, str]) -> None:
    """Train on the Ray in RAY_ADDRESS, or on one that is started in this process."""
    from kfp_mindspore.ray.job import run_script

    variables = {**{item: str(value) for item, value in options.env.items()}, **directories}
    os.environ.update(variables)
    run_script(
        words,
        name=name,
        workers=options.workers,
        max_failures=options.backoff_limit or 0,
        variables=variables,
    )


def run_rayjob(
    jobs: StepJobs,
    name: str,
    command: Sequence[str],
    options: JobOptions,
    pod: PodPatch,
    *,
    wrapper: Sequence[str] = (),
) -> None:
    """Create a RayJob or adopt an earlier attempt's, print the log and wait for the end.

    Args:
        jobs: The step's access to jobs.
        name: RayJob name.
        command: The Python command.
        options: The job's options.
        pod: Additions to the pods.
        wrapper: Entrypoint that hands over the artifacts, see `build_manifest`.

    Raises:
        ProcessFailedError: It failed.
    """
    from kfp_mindspore.local.interrupts import Interrupts

    job = jobs.build(name, command, options, pod=pod)
    client = RayJobs(Cluster(), job, wrapper)
    with Interrupts() as interrupts:
        with interrupts.held():
            client.submit()
        try:
            interrupts.raise_pending()
            client.follow()
        except (SystemExit, KeyboardInterrupt, BrokenPipeError):
            # Not when the step's pod is drained: its retry adopts the job.
            if jobs.is_drained():
                jobs.leave()
            else:
                client.cancel()
            raise


def build_manifest(job: MSJob, wrapper: Sequence[str]) -> Manifest:
    """Return the RayJob of a step.

    With a shared volume the wrapper runs the driver, and downloads and uploads for all pods. Without one, each of Ray's
    workers does: the driver gets the wrapper's options.

    Args:
        job: The MSJob that describes it.
        wrapper: The pods' entrypoint, with options and `--`; empty for none.
    """
    (manifest,) = export_job(job, rayjob.KIND.name).manifests
    # A conversion carries no owner; this one is the step's run.
    if owners := job.metadata.get("ownerReferences"):
        manifest["metadata"]["ownerReferences"] = owners
    driver = shlex.split(manifest["spec"]["entrypoint"])
    if "--shared" in wrapper:
        driver = [*wrapper, *driver]
    elif wrapper:
        start = wrapper.index(ENTRYPOINT) + 1
        driver[start:start] = wrapper[start:-1]
    manifest["spec"]["entrypoint"] = shlex.join(driver)
    return manifest


class RayJobs:
    """A step's RayJob on a cluster.

    Args:
        cluster: The cluster.
        job: The MSJob that describes it.
        wrapper: See `build_manifest`.
    """

    def __init__(self, cluster: Cluster, job: MSJob, wrapper: Sequence[str] = ()) -> None:
        self._manifest = build_manifest(job, wrapper)
        self._cluster, self._name, self._namespace = cluster, job.name, job.namespace
        self._resource: Resource = cluster.resolve_resource(rayjob.KIND.api_version, rayjob.KIND.kind)
        self._uid = ""

    def submit(self) -> None:
        """Create the job; one that an earlier attempt of this step has submitted is adopted unless it has failed."""
        with contextlib.suppress(NotFoundError):
            present = self._cluster.get(self._resource, self._name, self._namespace)
            digests = [
                item["metadata"].get("annotations", {}).get(SPEC_ANNOTATION) for item in (present, self._manifest)
            ]
            is_kept = not present["metadata"].get("deletionTimestamp") and _read_state(present) != FAILED
            if digests[0] == digests[1] and is_kept:
                print(f"Adopting RayJob {self._name} of an earlier attempt of this step", flush=True)
                self._uid = present["metadata"]["uid"]
                return
            self._cluster.delete(self._resource, self._name, self._namespace, propagation="Foreground")
            for objects in self._cluster.watch(self._resource, self._namespace, fields=f"metadata.name={self._name}"):
                if not objects:
                    break
        created = self._cluster.create(self._resource, self._manifest, self._namespace)
        self._uid = created["metadata"]["uid"]

    def follow(self) -> None:
        """Print the entry point's log and return when the job has succeeded.

        Raises:
            ProcessFailedError: It failed, or was deleted.
        """
        token = CancellationToken()
        reader = threading.Thread(target=self._print_log, args=(token,), name="log of RayJob", daemon=True)
        reader.start()
        shown = ""
        try:
            for objects in self._cluster.watch(
                self._resource, self._namespace, fields=f"metadata.name={self._name}", token=token
            ):
                found = objects.get(self._name)
                if found is None or found["metadata"]["uid"] != self._uid:
                    raise ProcessFailedError(f"RayJob {self._name}: was deleted before its end")
                state = _read_state(found)
                if state not in ("", shown):
                    print(f"RayJob {self._name}: {state}", flush=True)
                    shown = state
                if state == SUCCEEDED and found["status"].get("jobStatus") == "SUCCEEDED":
                    reader.join(_LAST_SECONDS)
                    return
                if state in (SUCCEEDED, FAILED):
                    reader.join(_LAST_SECONDS)
                    status = found["status"]
                    raise ProcessFailedError(
                        f"RayJob {self._name}: failed ({status.get('reason') or status.get('jobStatus')}): "
                        f"{status.get('message', '')}"
                    )
        finally:
            token.cancel()

    def cancel(self) -> None:
        """Request deletion for the job and cluster."""
        with contextlib.suppress(NotFoundError):
            self._cluster.delete(self._resource, self._name, self._namespace, uid=self._uid)

    def _print_log(self, token: CancellationToken) -> None:
        """Print the submitter's log from the first line."""
        label = f"{_SUBMITTER_LABEL}={self._name}"
        for pods in self._cluster.watch(PODS, self._namespace, labels=label, token=token):
            started = [pod for pod in pods.values() if pod["status"].get("phase") not in (None, "Pending")]
            if started:
                metadata = started[0]["metadata"]
                for line in self._cluster.stream_log(
                    metadata["name"], self._namespace, uid=metadata["uid"], token=token
                ):
                    print(line, flush=True)
                return


def _read_state(document: Mapping[str, Any]) -> str:
    return str((document.get("status") or {}).get("jobDeploymentStatus") or "")
