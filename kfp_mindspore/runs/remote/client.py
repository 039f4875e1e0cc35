"""Client for a Kubeflow Pipelines server: uploads, runs and schedules by kfp.Client."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.compat.lazy_kfp import import_kfp
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.runs.compiled.package import (
    WORKSPACE_HINT,
    check_package,
    disable_caching,
    get_workspace_error,
    write_package,
)
from kfp_mindspore.runs.compiled.spec import convert_arguments, dump_spec, get_pipeline_name
from kfp_mindspore.runs.remote.records import (
    RecurringRun,
    RemoteRun,
    UploadedPipeline,
    describe_pipeline,
    describe_run,
    describe_schedule,
    describe_version,
    format_cron,
    get_details,
)
from kfp_mindspore.runs.remote.result import build_result, find_cached_execution, get_spec
from kfp_mindspore.runs.remote.retry import check_retryable, replace_image
from kfp_mindspore.runs.remote.server import (
    ServerCredentials,
    check_host,
    check_server,
    explain_errors,
    find_execution_run,
    read_pod_log,
    retry_run,
)
from kfp_mindspore.runs.remote.task_details import (
    FINISHED_STATES,
    are_final,
    count_cached,
    get_step_seconds,
    list_driver_pods,
    list_failed_pods,
    list_node_steps,
    list_step_pods,
    list_task_names,
)
from kfp_mindspore.runs.remote.wait import LOG_LINES, POLL_SECONDS, wait_for_run
from kfp_mindspore.runs.report.result import RunResult
from kfp_mindspore.runs.workflow import FailedStep, RunOnCluster, get_last_lines

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

CONNECT_SECONDS = 10.0
# KFP 2.17 stores a finished run's task details up to two seconds after its state.
_DETAILS_SECONDS = 10.0
_DETAILS_POLL_SECONDS = 0.2
# Enumeration value in KFP's filters.
_EQUALS = 1


class RemoteClient:
    """Uploads, runs and watches pipelines on a Kubeflow Pipelines server.

    Args:
        host: URL of Kubeflow Pipelines, such as `https://kubeflow.example.com/pipeline` or `http://127.0.0.1:8080`.
        namespace: Your namespace on a multi-user server; empty on a single-user server.
        token: Bearer token; empty for none.
        token_file: File with a service account's token, used without a token; empty for none.
        cookie: Session cookie, such as `authservice_session=…`; empty for none.
        ca_file: Certificate authority of the server, PEM; empty for the system's.
        cluster: Client for the runs' cluster, for failure reasons; None to use the server alone.
        connect_seconds: The first request's timeout, in seconds.

    Raises:
        UserError: The host is missing or not a URL.
        KfpMindSporeError: The server is unreachable, refuses the request or is not Kubeflow Pipelines.
        MissingExtraError: kfp is not installed.
    """

    def __init__(
        self,
        host: str,
        *,
        namespace: str = "",
        token: str = "",
        token_file: str = "",
        cookie: str = "",
        ca_file: str = "",
        cluster: Cluster | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.host = check_host(host)
        self.namespace = namespace
        self._credentials = ServerCredentials(token=token, token_file=token_file, cookie=cookie, ca_file=ca_file)
        self._cluster = cluster
        self._versions: dict[str, Any] = {}
        import_kfp()
        from kfp.client import Client
        from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials

        check_server(self.host, self._credentials, connect_seconds)
        with warnings.catch_warnings(), explain_errors(self.host, "connect"):
            # It always warns about servers before 2.0.
            warnings.simplefilter("ignore", FutureWarning)
            # Without a namespace it requests the server's multi-user mode and caches the response in the home
            # directory; `kubeflow` means no namespace.
            self._client = Client(
                host=self.host,
                namespace=namespace or "kubeflow",
                existing_token=token or None,
                credentials=ServiceAccountTokenVolumeCredentials(token_file) if token_file else None,
                cookies=cookie or None,
                ssl_ca_cert=ca_file or None,
            )

    def upload(self, text: str, *, name: str = "", version: str = "", description: str = "") -> UploadedPipeline:
        """Upload a compiled pipeline, as a new version if a pipeline with this name exists.

        Args:
            text: The compiled pipeline.
            name: Name on the server; default the pipeline's.
            version: Version name for an existing pipeline; default derived from the text digest.
            description: Description on the server.

        Raises:
            UserError: The text is not a compiled pipeline, or the steps have no image.
            AlreadyExistsError: The pipeline has a version with this name.
            KfpMindSporeError: The server is unreachable or refuses the request.
        """
        spec = check_package(text)
        name = name or get_pipeline_name(spec)
        version = version or f"{name} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with write_package(text) as package, explain_errors(self.host, "upload", version=version):
            pipeline_id = self._get_pipeline_id(name)
            if pipeline_id is None:
                created = self._client.upload_pipeline(
                    package, pipeline_name=name, description=description or None, namespace=self.namespace or None
                )
                return describe_pipeline(self.host, created)
            added = self._client.upload_pipeline_version(
                package, version, pipeline_id=pipeline_id, description=description or None
            )
            return describe_version(self.host, name, added)

    def run(
        self,
        text: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        experiment: str = "Default",
        cache: bool = True,
        pipeline_root: str = "",
        service_account: str = "",
    ) -> RemoteRun:
        """Start a compiled pipeline run and return immediately.

        Args:
            text: The compiled pipeline.
            arguments: Pipeline arguments; text is parsed as the parameter's type.
            name: Run name; default the pipeline's name with the time.
            experiment: Experiment of the run; created if missing.
            cache: Whether to use the server's cache.
            pipeline_root: URI of the artifacts, such as `s3://bucket/runs`; default the server's.
            service_account: Service account of the steps; default the server's.

        Raises:
            UserError: The text is not a compiled pipeline, the steps have no image, or an argument is invalid.
            KfpMindSporeError: The server is unreachable or refuses the request.
        """
        spec = check_package(text)
        values = convert_arguments(spec, arguments or {})
        if not cache:
            text = disable_caching(text)
        name = name or f"{get_pipeline_name(spec)} {time.strftime('%Y-%m-%d %H-%M-%S')}"
        with write_package(text) as package, explain_errors(self.host, "run", hint=_explain_workspace(text)):
            started = self._client.create_run_from_pipeline_package(
                package,
                arguments=values,
                run_name=name,
                experiment_name=experiment,
                namespace=self.namespace or None,
                pipeline_root=pipeline_root or None,
                service_account=service_account or None,
            )
            return describe_run(self.host, started.run_info)

    def get_run(self, run_id: str) -> RemoteRun:
        """Return a run.

        Raises:
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        return describe_run(self.host, self._get_run(run_id))

    def schedule(
        self,
        text: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str,
        cron: str = "",
        every_seconds: int | None = None,
        experiment: str = "Default",
        cache: bool = True,
        pipeline_root: str = "",
        service_account: str = "",
        max_concurrency: int = 1,
        catch_up: bool = False,
    ) -> RecurringRun:
        """Create a recurring run for a compiled pipeline.

        Args:
            text: The compiled pipeline.
            arguments: Pipeline arguments; text is parsed as the parameter's type.
            name: Schedule name.
            cron: Five fields (minute, hour, day, month, weekday), or six with seconds first; UTC unless the server
                has another time zone.
            every_seconds: Interval in seconds, instead of `cron`.
            experiment: Experiment of the run; created if missing.
            cache: Whether to use the server's cache.
            pipeline_root: URI of the artifacts, such as `s3://bucket/runs`; default the server's.
            service_account: Service account of the steps; default the server's.
            max_concurrency: How many runs may run at once.
            catch_up: Whether to run once for each time that was missed while the schedule was disabled.

        Raises:
            UserError: The pipeline or an argument is invalid, or both times or neither are given.
            KfpMindSporeError: The server is unreachable or refuses the request.
        """
        spec = check_package(text)
        values = convert_arguments(spec, arguments or {})
        if bool(cron) == (every_seconds is not None):
            raise UserError("schedule: exactly one of cron and an interval must be given")
        expression = format_cron(cron) if cron else None
        text = text if cache else disable_caching(text)
        with write_package(text) as package, explain_errors(self.host, "schedule", hint=_explain_workspace(text)):
            group = self._client.create_experiment(experiment, namespace=self.namespace or None)
            created = self._client.create_recurring_run(
                group.experiment_id,
                name,
                cron_expression=expression,
                interval_second=every_seconds,
                max_concurrency=max_concurrency,
                no_catchup=not catch_up,
                params=values,
                pipeline_package_path=package,
                pipeline_root=pipeline_root or None,
                service_account=service_account or None,
            )
            return describe_schedule(self.host, created)

    def terminate(self, run_id: str) -> None:
        """Terminate a run, which then ends FAILED; Argo 4.0 may cut off exit tasks.

        Raises:
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        with explain_errors(self.host, "terminate the run", subject=f"run {run_id}"):
            self._client.terminate_run(run_id)

    def retry(self, run_id: str) -> RemoteRun:
        """Retry a failed or terminated run: failed steps and those after them run again, with the same image.

        Raises:
            UserError: The run has not failed.
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        check_retryable(self.get_run(run_id))
        with explain_errors(self.host, "retry the run", subject=f"run {run_id}"):
            retry_run(self.host, self._credentials, run_id)
        return self.get_run(run_id)

    def run_again(self, run_id: str, image: str, *, keep_steps: Sequence[str] = ()) -> RemoteRun:
        """Start a failed run's pipeline anew with another image and the same arguments, and return immediately.

        Args:
            run_id: Run ID.
            image: Image for the steps and their jobs' pods.
            keep_steps: Succeeded steps that keep the former image, so that the server's cache has their results.

        Raises:
            UserError: The run has not failed, the pipeline version was deleted, or the cache cannot have the result of
                a step in `keep_steps`.
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        found = self._get_run(run_id)
        run = describe_run(self.host, found)
        check_retryable(run)
        if run.note:
            raise UserError(f"run {run_id}: {run.note}", hint="Start it from its source: kfp-mindspore pipeline run …")
        spec = replace_image(dict(get_spec(found.pipeline_spec)), image, keep_steps, run.steps)
        platform = found.pipeline_spec.get("platform_spec")
        with explain_errors(self.host, "get the experiment"):
            experiment = self._client.get_experiment(experiment_id=found.experiment_id).display_name
        config = found.runtime_config
        return self.run(
            dump_spec(spec, *([platform] if platform else ())),
            (config.parameters or {}) if config else {},
            name=f"{run.name} with another image",
            experiment=experiment,
            pipeline_root=(config.pipeline_root or "") if config else "",
            service_account=found.service_account or "",
        )

    def wait(
        self,
        run_id: str,
        *,
        timeout: float | None = None,
        interval: float = POLL_SECONDS,
        on_change: Callable[[RemoteRun], None] | None = None,
        on_obstacle: Callable[[str], None] | None = None,
    ) -> RemoteRun:
        """Wait until a run has succeeded.

        Args:
            run_id: Run ID.
            timeout: Timeout in seconds; None without a limit.
            interval: Longest poll interval in seconds; short runs are polled more often.
            on_change: Called with the run after each state change in it or a step.
            on_obstacle: Called once with each reason why a pod in the run does not start; requires a cluster.

        Raises:
            ProcessFailedError: The run failed, was skipped or cancelled, or the Workflow was deleted; the message has
                the failed step and the reason, `log` the last lines.
            WaitTimeoutError: The timeout expired; the run continues.
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        return wait_for_run(
            lambda: self.get_run(run_id),
            self._open_run(run_id),
            lambda run, on_cluster: self._list_failed_steps(run, on_cluster),
            timeout=timeout,
            interval=interval,
            on_change=on_change,
            on_obstacle=on_obstacle,
        )

    def explain_failure(self, run: RemoteRun) -> list[FailedStep]:
        """Return a run's failed steps with reasons and last log lines, as far as they can be read.

        The cluster has reasons and logs for all pods that still exist; the server's log API may have logs only.
        """
        return self._list_failed_steps(run, self._open_run(run.run_id))

    def list_left_jobs(self, run: RemoteRun) -> list[str]:
        """Return a sentence for each job that runs on after the run has failed; requires a cluster."""
        on_cluster = self._open_run(run.run_id)
        return on_cluster.list_left_jobs() if on_cluster is not None and not run.is_terminated else []

    def list_obstacles(self, run: RemoteRun) -> list[str]:
        """Return a sentence for each pod or job of an unfinished run that waits; requires a cluster."""
        on_cluster = self._open_run(run.run_id)
        return on_cluster.list_obstacles() if on_cluster is not None and not run.is_finished else []

    def read_result(self, run_id: str) -> RunResult:
        """Return a finished run's result: the steps' outputs, gates and durations, from their logs.

        A multi-user server's log API has them, a single-user server's only what Argo archives; the cluster has the logs
        as long as the pods exist.

        Args:
            run_id: Run ID.

        Raises:
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        found = self._get_run(run_id)
        details = get_details(found)
        names = list_task_names(found.pipeline_spec) or list_node_steps(details)
        pods, on_cluster = list_step_pods(details, names), self._open_run(run_id)

        def read_log(step: str) -> Sequence[str]:
            return self._read_first_log(run_id, pods.get(step, ()), on_cluster)

        def read_cached(step: str) -> Sequence[str]:
            driver = self._read_first_log(run_id, list_driver_pods(details, step), on_cluster)
            execution = find_cached_execution(driver)
            producer = find_execution_run(self.host, self._credentials, execution) if execution else ""
            # Runs may be deleted while the cache keeps their outputs.
            with contextlib.suppress(NotFoundError):
                if producer:
                    others = list_step_pods(get_details(self._get_run(producer)), [step])
                    return self._read_first_log(producer, others.get(step, ()), on_cluster)
            return []

        arguments = (found.runtime_config.parameters or {}) if found.runtime_config else {}
        seconds = get_step_seconds(details, names)
        run, spec = describe_run(self.host, found), get_spec(found.pipeline_spec)
        return build_result(run, spec, arguments, seconds, read_log, count_cached(details), read_cached)

    def _read_first_log(self, run_id: str, pods: Sequence[str], on_cluster: RunOnCluster | None) -> Sequence[str]:
        """Return the first log that these pods have."""
        # A single-user server, KFP 2.17, asks for pods without a namespace and finds none.
        for pod in pods:
            log = read_pod_log(self.host, self._credentials, run_id, pod)
            if not log and on_cluster is not None:
                log = on_cluster.read_log(pod)
            if log:
                return log
        return []

    def _get_run(self, run_id: str) -> Any:
        """Return a run with the pipeline; for one that has just finished, with final task details."""
        with explain_errors(self.host, "get the run", subject=f"run {run_id}"):
            deadline = time.monotonic() + _DETAILS_SECONDS
            while True:
                found = self._client.get_run(run_id)
                is_final = found.state not in FINISHED_STATES or are_final(get_details(found))
                if is_final or time.monotonic() > deadline:
                    break
                time.sleep(_DETAILS_POLL_SECONDS)
        # KFP's run of an uploaded pipeline has only a reference.
        reference = found.pipeline_version_reference
        if found.pipeline_spec is None and reference is not None:
            found.pipeline_spec = self._get_version_spec(reference.pipeline_id, reference.pipeline_version_id)
        return found

    def _get_version_spec(self, pipeline_id: str, version_id: str) -> Any:
        """Return a pipeline version's compiled pipeline, which never changes; None if the version was deleted."""
        if version_id not in self._versions:
            self._versions[version_id] = None
            with (
                contextlib.suppress(NotFoundError),
                explain_errors(self.host, "get the pipeline version", subject=f"pipeline version {version_id}"),
            ):
                version = self._client.get_pipeline_version(pipeline_id, version_id)
                self._versions[version_id] = version.pipeline_spec
        return self._versions[version_id]

    def _open_run(self, run_id: str) -> RunOnCluster | None:
        namespaces = (self.namespace,) if self.namespace else ()
        return RunOnCluster(self._cluster, run_id, namespaces) if self._cluster is not None else None

    def _list_failed_steps(self, run: RemoteRun, on_cluster: RunOnCluster | None) -> list[FailedStep]:
        failed = on_cluster.list_failed_steps(lines=LOG_LINES) if on_cluster is not None else []
        if failed:
            return failed
        pods = list_failed_pods(get_details(self._get_run(run.run_id)))
        logs = (get_last_lines(read_pod_log(self.host, self._credentials, run.run_id, pod), LOG_LINES) for pod in pods)
        # Task details do not name a step's pod: with several failed steps, a log cannot be assigned to one.
        log = next(filter(None, logs), ()) if len(run.failed_steps) == 1 else ()
        return [FailedStep(name, log=log) for name in run.failed_steps]

    def _get_pipeline_id(self, name: str) -> str | None:
        # kfp.Client.get_pipeline_id has no namespace argument.
        predicate = {"operation": _EQUALS, "key": "display_name", "stringValue": name}
        found = self._client.list_pipelines(
            filter=json.dumps({"predicates": [predicate]}), namespace=self.namespace or None
        )
        return next((pipeline.pipeline_id for pipeline in found.pipelines or ()), None)


def _explain_workspace(text: str) -> str:
    """Return the hint for a server that refuses a compiled pipeline's workspace; empty without a reason."""
    problem = get_workspace_error(text)
    return f"{problem}. {WORKSPACE_HINT}" if problem else ""
