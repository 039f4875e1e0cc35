"""A fake Kubeflow Pipelines API server on 127.0.0.1 with the routes of kfp.Client, by kfp_server_api's own models.

It behaves like KFP 2.17: a new run has no state, `error` and each task's `pod_name` stay empty, tasks are the nodes of
the Argo Workflow, a finished run's tasks are final after its state, a running task ends in the year 1, a terminated run
was CANCELING and is FAILED, and the log API returns errors with status 200. A single-user server has archived logs
only: it asks for pods without a namespace. A run of an uploaded version has no `pipeline_spec` but a
`pipeline_version_reference`, of a deleted version too (KFP 2.17.0, seen on 2026-11-28 and in its toApiRun).
"""

from __future__ import annotations

import contextlib
import datetime
import email
import email.policy
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kfp_server_api import (
    ApiClient,
    PipelineTaskDetailChildTask,
    V2beta1Experiment,
    V2beta1GetHealthzResponse,
    V2beta1ListExperimentsResponse,
    V2beta1ListPipelinesResponse,
    V2beta1ListPipelineVersionsResponse,
    V2beta1ListRecurringRunsResponse,
    V2beta1ListRunsResponse,
    V2beta1Pipeline,
    V2beta1PipelineTaskDetail,
    V2beta1PipelineVersion,
    V2beta1PipelineVersionReference,
    V2beta1RecurringRun,
    V2beta1Run,
    V2beta1RunDetails,
    V2beta1RuntimeStatus,
)

from kfp_mindspore.runs.compiled.spec import parse_documents

# Status and gRPC code of a refusal by the API's gateway.
_CODES = {400: 3, 401: 16, 404: 5, 409: 6, 500: 13}
_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
_NO_TIME = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc)


class PipelinesServer(ThreadingHTTPServer):
    """Stores uploads, runs and schedules; each request of a run returns the next of `states`.

    Attributes:
        token: The accepted bearer token; empty for any.
        cookie: The accepted cookie; empty for any.
        multi_user: Whether requests of runs and experiments need a namespace.
        refusal: Status, content type and text of the response to each request; None to serve.
        stores_versions: Whether a run of a package becomes one of an uploaded version, as from KFP's page.
        states: States of a run, one per request; the last one stays.
        retried: States of a run from its retry on.
        retried_tasks: Task details of a run from its retry on; empty for `tasks`.
        tasks_by_run: Task details of single runs, instead of `tasks`.
        tasks: Task details of runs; the first response with a final state has them, later ones have final states.
        logs: Logs by pod that Argo has archived, or the server can read.
        executions: Run that computed a step's outputs, by the execution's ID in ML Metadata.
        paths: Methods and paths of all requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = ""
        self.cookie = ""
        self.multi_user = False
        self.refusal: tuple[int, str, str] | None = None
        self.pipelines: dict[str, V2beta1Pipeline] = {}
        self.versions: list[V2beta1PipelineVersion] = []
        self.packages: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.experiments: dict[str, V2beta1Experiment] = {}
        self.runs: dict[str, V2beta1Run] = {}
        self.schedules: dict[str, V2beta1RecurringRun] = {}
        self.stores_versions = False
        self.states: list[str | None] = ["SUCCEEDED"]
        self.retried: list[str | None] = ["RUNNING", "SUCCEEDED"]
        self.retried_tasks: list[V2beta1PipelineTaskDetail] = []
        self.tasks: list[V2beta1PipelineTaskDetail] = []
        self.tasks_by_run: dict[str, list[V2beta1PipelineTaskDetail]] = {}
        self.logs: dict[str, str] = {}
        self.executions: dict[str, str] = {}
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def get_spec(self, run_id: str) -> dict[str, Any]:
        """Return a run's compiled pipeline, in the run or in its version."""
        run = self.runs[run_id]
        versions = {version.pipeline_version_id: version.pipeline_spec for version in self.versions}
        reference = run.pipeline_version_reference
        spec: dict[str, Any] = versions[reference.pipeline_version_id] if reference else run.pipeline_spec
        return spec.get("pipeline_spec") or spec

    def now(self) -> datetime.datetime:
        """Return a time, one second later for each stored object."""
        count = len(self.pipelines) + len(self.versions) + len(self.runs) + len(self.schedules)
        return _START + datetime.timedelta(seconds=count)


def _lacks_access_modes(spec: dict[str, Any]) -> bool:
    """Return whether a run has a workspace without access modes, which KFP 2.17 refuses."""
    platforms = spec.get("platform_spec", {}).get("platforms", {})
    workspace = platforms.get("kubernetes", {}).get("pipelineConfig", {}).get("workspace")
    return bool(workspace) and not workspace.get("kubernetes", {}).get("pvcSpecPatch", {}).get("accessModes")


class _Handler(BaseHTTPRequestHandler):
    server: PipelinesServer

    def do_GET(self) -> None:
        path, query = self._open()
        server = self.server
        match path:
            case None:
                return
            case ["v2beta1", "healthz"]:
                self._respond(V2beta1GetHealthzResponse(multi_user=server.multi_user))
            case ["v2beta1", "pipelines"]:
                self._list("pipelines", V2beta1ListPipelinesResponse, list(server.pipelines.values()), query)
            case ["v2beta1", "pipelines", identifier, "versions"]:
                versions = [version for version in server.versions if version.pipeline_id == identifier]
                self._list("pipeline_versions", V2beta1ListPipelineVersionsResponse, versions, query)
            case ["v2beta1", "pipelines", _, "versions", identifier]:
                found = [version for version in server.versions if version.pipeline_version_id == identifier]
                self._respond(found[0]) if found else self._refuse_version(identifier)
            case ["v2beta1", "experiments" | "runs" | "recurringruns"] if server.multi_user and not query.get(
                "namespace"
            ):
                self._refuse(400, "Invalid input error: A namespace cannot be empty in multi-user mode")
            case ["v2beta1", "experiments"]:
                self._list("experiments", V2beta1ListExperimentsResponse, list(server.experiments.values()), query)
            case ["v2beta1", "experiments", identifier]:
                found = [item for item in server.experiments.values() if item.experiment_id == identifier]
                self._respond(found[0]) if found else self._refuse(404, f"Experiment {identifier} not found")
            case ["v2beta1", "runs"]:
                self._list("runs", V2beta1ListRunsResponse, list(server.runs.values()), query)
            case ["v2beta1", "recurringruns"]:
                schedules = list(server.schedules.values())
                self._list("recurring_runs", V2beta1ListRecurringRunsResponse, schedules, query)
            case ["v2beta1", "runs", identifier] if identifier in server.runs:
                run = server.runs[identifier]
                was_finished = run.state in ("SUCCEEDED", "FAILED")
                run.state = server.states.pop(0) if len(server.states) > 1 else server.states[0]
                tasks = server.tasks_by_run.get(identifier, server.tasks)
                if was_finished:
                    finish_tasks(tasks, run.state)
                run.run_details = V2beta1RunDetails(task_details=tasks) if run.state else None
                self._respond(run)
            case ["v2beta1", "runs", identifier]:
                self._refuse_run(identifier)
            case ["v1alpha1", "tasks"]:
                (predicate,) = json.loads(query["filter"])["predicates"]
                run_id = server.executions.get(predicate["string_value"])
                found = {"tasks": [{"runId": run_id, "mlmdExecutionID": predicate["string_value"]}]} if run_id else {}
                self._send(200, "application/json", json.dumps(found).encode())
            case ["v1alpha1", "runs", identifier, "nodes", pod, "log"]:
                text = server.logs.get(pod) if identifier in server.runs else None
                error = {"error_message": f"Failed to read logs for run {identifier}", "error_details": f"pod {pod}"}
                self._send(200, "text/plain", (json.dumps(error) if text is None else text).encode())
            case _:
                self._refuse(404, "not found: " + "/".join(path[1:]))

    def do_POST(self) -> None:
        path, query = self._open()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        match path:
            case None:
                return
            case ["v2beta1", "pipelines", "upload"]:
                name = query["name"]
                if name in server.pipelines:
                    self._refuse_upload(409, "Failed to create a pipeline and a pipeline version")
                    return
                pipeline = V2beta1Pipeline(
                    pipeline_id=f"p{len(server.pipelines)}",
                    display_name=name,
                    description=query.get("description"),
                    namespace=query.get("namespace"),
                    created_at=server.now(),
                )
                self._store_version(pipeline.pipeline_id, name, body)
                server.pipelines[name] = pipeline
                server.queries.append(query)
                self._respond(pipeline)
            case ["v2beta1", "pipelines", "upload_version"]:
                if any(version.display_name == query["name"] for version in server.versions):
                    self._refuse_upload(409, "Failed to create a pipeline version")
                    return
                self._respond(self._store_version(query["pipelineid"], query["name"], body))
            case ["v2beta1", "experiments"]:
                experiment = self._parse(body, "V2beta1Experiment")
                if server.multi_user and not experiment.namespace:
                    self._refuse(400, "Invalid input error: A namespace cannot be empty in multi-user mode")
                    return
                experiment.experiment_id = f"e{len(server.experiments)}"
                server.experiments[experiment.display_name] = experiment
                self._respond(experiment)
            case ["v2beta1", "runs"]:
                run = self._parse(body, "V2beta1Run")
                if run.experiment_id not in [item.experiment_id for item in server.experiments.values()]:
                    self._refuse(404, f"Experiment {run.experiment_id} not found")
                    return
                if _lacks_access_modes(run.pipeline_spec or {}):
                    self._refuse(500, "Failed to create a new run: InternalServerError: a workspace has no accessModes")
                    return
                reference = run.pipeline_version_reference
                if reference and not self._has_version(reference.pipeline_version_id):
                    self._refuse_version(reference.pipeline_version_id)
                    return
                if server.stores_versions and not reference:
                    version = self._add_version("p9", f"version {len(server.versions)}", run.pipeline_spec)
                    run.pipeline_version_reference = V2beta1PipelineVersionReference(
                        pipeline_id=version.pipeline_id, pipeline_version_id=version.pipeline_version_id
                    )
                if run.pipeline_version_reference:
                    run.pipeline_spec = None
                run.run_id, run.created_at = f"r{len(server.runs)}", server.now()
                server.runs[run.run_id] = run
                self._respond(run)
            case ["v2beta1", "recurringruns"]:
                schedule = self._parse(body, "V2beta1RecurringRun")
                cron = schedule.trigger.cron_schedule.cron if schedule.trigger.cron_schedule else "@daily"
                if not 1 <= int(schedule.max_concurrency) <= 10:
                    self._refuse(400, "Invalid input error: Max concurrency of the recurring run is out of range")
                elif not cron.startswith("@") and len(cron.split()) not in (5, 6):
                    self._refuse(400, f"Invalid input error: Schedule cron is not a supported format: {cron}")
                else:
                    schedule.recurring_run_id = f"s{len(server.schedules)}"
                    schedule.status, schedule.created_at = "ENABLED", server.now()
                    server.schedules[schedule.recurring_run_id] = schedule
                    self._respond(schedule)
            case ["v2beta1", "runs", action]:
                identifier, _, verb = action.partition(":")
                if verb not in ("terminate", "retry") or identifier not in server.runs:
                    self._refuse_run(identifier)
                    return
                if verb == "retry":
                    self._retry(identifier)
                    return
                server.states[:] = ["FAILED"]
                history = [V2beta1RuntimeStatus(state=state) for state in ("RUNNING", "CANCELING", "FAILED")]
                server.runs[identifier].state_history = history
                self._send(200, "application/json", b"{}")
            case _:
                self._refuse(404, "not found: " + "/".join(path[1:]))

    def _retry(self, identifier: str) -> None:
        """Begin a run again that has failed: `retried` are its states from then on."""
        server = self.server
        run = server.runs[identifier]
        if (server.states[0] or "PENDING") != "FAILED":
            self._refuse(400, f"Failed to retry run {identifier}: Workflow must be Failed/Error to retry")
            return
        server.states[:] = server.retried
        server.tasks = server.retried_tasks or server.tasks
        run.state_history = [*(run.state_history or []), V2beta1RuntimeStatus(state="RUNNING")]
        self._send(200, "application/json", b"{}")

    def do_DELETE(self) -> None:
        path, _ = self._open()
        collections: dict[str, dict[str, Any]] = {"runs": self.server.runs, "recurringruns": self.server.schedules}
        match path:
            case None:
                return
            case ["v2beta1", kind, identifier] if identifier in collections.get(kind, {}):
                del collections[kind][identifier]
                self._send(200, "application/json", b"{}")
            case _:
                self._refuse(404, "not found: " + "/".join(path[1:]))

    def _open(self) -> tuple[list[str] | None, dict[str, str]]:
        parts = urlsplit(self.path)
        self.server.paths.append(f"{self.command} {parts.path}")
        if self.server.refusal is not None:
            status, kind, text = self.server.refusal
            self._send(status, kind, text.encode())
            return None, {}
        wanted = (("Authorization", f"Bearer {self.server.token}"), ("Cookie", self.server.cookie))
        for header, value in wanted:
            if value not in ("", "Bearer ") and self.headers.get(header) != value:
                self._refuse(401, f"Unauthenticated: no valid {header}")
                return None, {}
        path = [unquote(part) for part in parts.path.removeprefix("/apis/").split("/")]
        return path, {name: values[0] for name, values in parse_qs(parts.query).items()}

    def _list(self, kind: str, response: type, items: list[Any], query: dict[str, str]) -> None:
        predicates = json.loads(query.get("filter", "{}")).get("predicates", [])
        names = [predicate["stringValue"] for predicate in predicates]
        found = [item for item in items if not names or item.display_name in names]
        if query.get("sort_by") == "created_at desc":
            found.sort(key=lambda item: item.created_at, reverse=True)
        start, size = int(query.get("page_token") or 0), int(query.get("page_size") or 20)
        token = str(start + size) if start + size < len(found) else None
        page = found[start : start + size] or None
        self._respond(response(**{kind: page}, next_page_token=token))

    def _store_version(self, pipeline_id: str, name: str, body: bytes) -> V2beta1PipelineVersion:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
        (part,) = message.iter_parts()
        content = part.get_content()
        text = content if isinstance(content, str) else content.decode()
        self.server.packages.append(text)
        spec, *platforms = parse_documents(text)
        return self._add_version(
            pipeline_id, name, {"pipeline_spec": spec, "platform_spec": platforms[0]} if platforms else spec
        )

    def _add_version(self, pipeline_id: str, name: str, spec: dict[str, Any]) -> V2beta1PipelineVersion:
        version = V2beta1PipelineVersion(
            pipeline_id=pipeline_id,
            pipeline_version_id=f"v{len(self.server.versions)}",
            display_name=name,
            pipeline_spec=spec,
            created_at=self.server.now(),
        )
        self.server.versions.append(version)
        return version

    def _has_version(self, identifier: str) -> bool:
        return any(version.pipeline_version_id == identifier for version in self.server.versions)

    def _parse(self, body: bytes, model: str) -> Any:
        return ApiClient().deserialize(SimpleNamespace(data=body), model)

    def _respond(self, model: Any) -> None:
        self._send(200, "application/json", json.dumps(ApiClient().sanitize_for_serialization(model)).encode())

    def _refuse(self, status: int, message: str) -> None:
        body = {"code": _CODES[status], "message": message, "details": []}
        self._send(status, "application/json", json.dumps(body).encode())

    def _refuse_run(self, identifier: str) -> None:
        error = f"ResourceNotFoundError: Run {identifier} not found"
        self._refuse(404, f"Failed to get a run: Failed to fetch run {identifier}: {error}")

    def _refuse_version(self, identifier: str) -> None:
        error = f"ResourceNotFoundError: PipelineVersion {identifier} not found"
        self._refuse(404, f"Failed to get a pipeline version with id {identifier}: {error}")

    def _refuse_upload(self, status: int, message: str) -> None:
        body = {"error_message": message, "error_details": message}
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Suppress the access log."""


def make_tasks(
    steps: Mapping[str, str], workflow: str = "counting-tpc82", *, attempt: str = "(0)"
) -> list[V2beta1PipelineTaskDetail]:
    """Return the task details of a run as KFP 2.17 does: one per node of its Workflow, without names of pods.

    Args:
        steps: State by step, CACHED for one from the cache; the run's state is FAILED if one has failed, else RUNNING.
        workflow: Name of the Workflow.
        attempt: Suffix of the attempts that the default retry strategy of the Workflow gives each node; empty for none.
    """
    state = "FAILED" if "FAILED" in steps.values() else "RUNNING"
    root = f"{workflow}{attempt}.root{attempt}"
    paths = {workflow: state, f"{workflow}{attempt}.root-driver": "SUCCEEDED", f"{workflow}{attempt}.root": state}
    for step, result in steps.items():
        state = "SUCCEEDED" if result == "CACHED" else result
        paths |= {f"{root}.{step}-driver": "SUCCEEDED", f"{root}.{step}": state}
        if result != "CACHED":
            paths[f"{root}.{step}{attempt}.executor"] = state
    nodes = {
        name: result for path, result in paths.items() for name, result in ((path, result), (path + attempt, result))
    }
    # Without an attempt.
    nodes |= {f"{root}.{step}{attempt}.executor": "SKIPPED" for step, result in steps.items() if result == "CACHED"}
    tasks = [V2beta1PipelineTaskDetail(run_id="r0", task_id="t")]
    for index, (path, result) in enumerate(nodes.items()):
        children = [child for child in nodes if child == f"{path}(0)" or child.rpartition(".")[0] == path]
        tasks.append(
            V2beta1PipelineTaskDetail(
                run_id="r0",
                task_id=f"t{index}",
                display_name=path.rpartition(".")[2],
                state=result,
                start_time=_START + datetime.timedelta(seconds=index),
                end_time=_NO_TIME if result == "RUNNING" else _START + datetime.timedelta(seconds=index + 7),
                child_tasks=[PipelineTaskDetailChildTask(pod_name=make_node_id(child, workflow)) for child in children],
            )
        )
    return tasks


def finish_tasks(tasks: Iterable[V2beta1PipelineTaskDetail], state: str) -> None:
    """Give running tasks the state of their run's end."""
    for task in tasks:
        if task.state == "RUNNING":
            task.state, task.end_time = state, task.start_time + datetime.timedelta(seconds=7)


def make_node_id(path: str, workflow: str) -> str:
    """Return the ID of a node: Argo's hash of its name, FNV-1a of 32 bits."""
    return f"{workflow}-{reduce(lambda value, byte: (value ^ byte) * 16777619 % 2**32, path.encode(), 2166136261)}"


def make_driver_name(step: str, workflow: str = "counting-tpc82") -> str:
    """Return the name of a step's driver's pod."""
    number = make_node_id(f"{workflow}(0).root(0).{step}-driver(0)", workflow).rpartition("-")[2]
    return f"{workflow}-system-container-driver-{number}"


def make_driver_log(step: str, cached_execution: str = "") -> str:
    """Return what KFP 2.17's driver writes about a step, which may be cached."""
    properties = {"cache_fingerprint": "c263", "cached_execution_id": cached_execution, "task_name": step}
    fields = [
        f'custom_properties:{{key:"{key}"  value:{{string_value:"{text}"}}}}'
        for key, text in properties.items()
        if text
    ]
    text = "  ".join(['Created execution: id:25  type_id:13  type:"system.ContainerExecution"', *fields])
    return f"I1128 12:43:32.793855      16 container.go:204] {text}\n"


def make_pod_name(step: str, workflow: str = "counting-tpc82", *, attempt: str = "(0)", template: str = "") -> str:
    """Return the name of a step's pod; `template` is `retry-` for a step with a retry policy."""
    path = f"{workflow}{attempt}.root{attempt}.{step}{attempt}.executor{attempt}"
    number = make_node_id(path, workflow).rpartition("-")[2]
    return f"{workflow}-{template}system-container-impl-{number}"


def make_log(outputs: Mapping[str, Any], artifacts: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the log of a step that succeeded, as KFP 2.17's launcher and Argo's executor write it.

    Args:
        outputs: Output parameters.
        artifacts: Metadata of the output artifacts.
    """
    entries = {
        name: {"artifacts": [{"name": "projects/x", "uri": f"s3://bucket/{name}", "metadata": dict(metadata)}]}
        for name, metadata in (artifacts or {}).items()
    }
    document = json.dumps({"parameterValues": dict(outputs), "artifacts": entries}, indent=2)
    return (
        '[KFP Executor 2026-11-23 02:41:05,112 INFO]: Got executor_input: {\n    "inputs": {}\n}\n'
        f"the step's own line\nI1123 02:41:07.101204      21 launcher_v2.go:1230] ExecutorOutput: {document}\n"
        "I1123 02:41:07.120000      21 launcher_v2.go:206] publish success.\n"
        'time=2026-11-23T02:41:08.495Z level=INFO msg="sub-process exited" argo=true error="<nil>"\n'
    )


@contextlib.contextmanager
def serve() -> Iterator[PipelinesServer]:
    """Run a server in the block."""
    with PipelinesServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
