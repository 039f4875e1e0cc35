"""A run on a cluster: the Argo Workflow's nodes, step pods and logs, and reasons why pods do not start."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube.resources import EVENTS, PODS, Resource
from kfp_mindspore.msjob.api.names import API_VERSION, FAILED, GROUP, KIND, LEASE_ANNOTATION, PLURAL, RUNNING, SUCCEEDED
from kfp_mindspore.msjob.api.waiting import QUEUE_IGNORED, QUEUED
from kfp_mindspore.runs.log import drop_executor_lines, reduce_trace

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

Document = dict[str, Any]

_WORKFLOWS = Resource("argoproj.io", "v1alpha1", "workflows", "Workflow")
_MSJOBS = Resource(GROUP, API_VERSION.rpartition("/")[2], PLURAL, KIND)
# KFP's, on the Workflow, its pods and its steps' jobs; Argo's, on pods.
RUN_LABEL = "pipeline/runid"
_NODE_ANNOTATION = "workflows.argoproj.io/node-id"
_FAILED = ("Failed", "Error")
# Argo's controller starts a Workflow within a second.
_START_SECONDS = 20.0
# Argo messages about pods that start as they should, for this many seconds: a volume or image may take a while.
_STARTING = ("", "ContainerCreating", "PodInitializing")
SLOW_START_SECONDS = 60.0
# Namespace for KFP's installations.
_DEFAULT_NAMESPACE = "kubeflow"
# Each node may be retried, `STEP(0).executor(0)`; loop iterations are `(0:0)`.
_ATTEMPT = re.compile(r"\(\d+\)(?=\.|$)")
_EXECUTOR = "executor"
_DRIVER = "-driver"
# Precedes the same error in the second and later kubelet attempts.
_BACK_OFF = re.compile(r'^ImagePullBackOff: Back-off pulling image "[^"]*": ')
_READ_LINES = 400
# Lines from KFP's launcher in Go's log format, from Argo's executor, and blank lines.
_LAUNCHER_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.|time=\S+ level=|Error: exit status \d+$|\s*$")
# KFP's driver's and launcher's last line; with an exit status, the step's own output has the reason. Argo's message for
# any step that ended with an error, and a Python traceback's last line.
_STEP_END = re.compile(r"(F\d{4} \S+ +\d+ \S+\] .*|Error: )exit status \d+$")
_EXIT_CODE = re.compile(r"(main: )?Error \(exit code \d+\)$")
_ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception): ")
_FATAL = re.compile(r"F\d{4} \S+ +\d+ \S+\] (.*?)(exit status \d+)?$")


@dataclass(frozen=True)
class FailedStep:
    """A failed step in a run.

    Args:
        name: Step name.
        reason: The failure's reason, such as `OOMKilled (exit code 137)`; may be empty.
        log: Last log lines without KFP's launcher's; may be empty.
    """

    name: str
    reason: str = ""
    log: tuple[str, ...] = ()


class RunOnCluster:
    """Reads a run's Workflow, pods and events; all methods return nothing if they may not be read.

    Args:
        cluster: Cluster client.
        run_id: Run ID.
        namespaces: Namespaces to search for the Workflow; empty for the context's and KFP's.
    """

    def __init__(self, cluster: Cluster, run_id: str, namespaces: Sequence[str] = ()) -> None:
        self._cluster = cluster
        self._run_id = run_id
        self._labels = f"{RUN_LABEL}={run_id}"
        self._namespaces = tuple(namespaces)
        self._namespace = ""
        self._is_readable = True

    @property
    def is_readable(self) -> bool:
        """Whether the run's Workflow was found and could be read last."""
        return self._is_readable and bool(self._namespace)

    def is_deleted(self) -> bool:
        """Return whether the Workflow existed before and does not exist any more: KFP's run stays RUNNING then."""
        was_found = bool(self._namespace)
        return self._read_workflow() is None and was_found and self._is_readable

    def list_obstacles(self) -> list[str]:
        """Return a sentence for each pod that does not start or is refused: step pods and job pods."""
        workflow = self._read_workflow()
        if workflow is None:
            return []
        if (
            not (workflow.get("status") or {}).get("phase")
            and _get_seconds_since(workflow["metadata"]["creationTimestamp"]) > _START_SECONDS
        ):
            return [f"Workflow {workflow['metadata']['name']}: not started, is Argo's workflow controller running?"]
        pending = [node for node in _list_last_attempts(workflow) if node.get("phase") == "Pending"]
        found = []
        for node in pending:
            message = _BACK_OFF.sub("", str(node.get("message") or ""))
            if message not in _STARTING:
                found.append(f"{_get_step(node)}: {message}")
            elif _get_seconds_since(node.get("startedAt")) > SLOW_START_SECONDS:
                found.append(self._explain_slow_start(node, message))
        return [*found, *self._list_job_warnings()]

    def list_failed_steps(self, *, lines: int) -> list[FailedStep]:
        """Return the failed steps, in failure order, each with the last attempt.

        Args:
            lines: Log lines per step.
        """
        workflow = self._read_workflow()
        if workflow is None:
            return []
        failed = [node for node in _list_last_attempts(workflow) if node.get("phase") in _FAILED]
        # KFP terminates a run by deadline 0, which Argo's messages name as the reason.
        is_terminated = (workflow.get("spec") or {}).get("activeDeadlineSeconds") == 0
        steps = []
        for node in failed:
            log = self._read_log(node["id"], lines)
            reason = "" if is_terminated else _get_reason(str(node.get("message") or ""), log)
            steps.append(FailedStep(_get_step(node), reason, log))
        message = str((workflow.get("status") or {}).get("message") or "")
        return steps or ([FailedStep("root", message)] if message else [])

    def list_left_jobs(self) -> list[str]:
        """Return a sentence for each unfinished MSJob in a run that has ended, such as one of a drained launcher."""
        if self._read_workflow() is None:
            return []
        sentences = []
        for job in self._list(_MSJOBS, self._namespace, labels=self._labels):
            conditions = (job.get("status") or {}).get("conditions") or []
            if not any(item["type"] in (SUCCEEDED, FAILED) and item["status"] == "True" for item in conditions):
                lease = (job["metadata"].get("annotations") or {}).get(LEASE_ANNOTATION)
                until = f" until {lease}" if lease else ""
                sentences.append(
                    f"job {job['metadata']['name']}: runs on{until}, its step's retry continues with it: "
                    f"kfp-mindspore pipeline retry {self._run_id}"
                )
        return sentences

    def read_log(self, pod: str) -> list[str]:
        """Return a step pod's log, as lines."""
        if self._namespace or self._read_workflow() is not None:
            with contextlib.suppress(KfpMindSporeError):
                return self._cluster.read_log(pod, self._namespace, container="main").splitlines()
        return []

    def _read_workflow(self) -> Document | None:
        for namespace in [self._namespace] if self._namespace else self._namespaces or self._get_default_namespaces():
            found = self._list(_WORKFLOWS, namespace, labels=self._labels)
            if found:
                self._namespace = namespace
                return found[0]
        return None

    def _get_default_namespaces(self) -> list[str]:
        try:
            return list(dict.fromkeys((self._cluster.namespace, _DEFAULT_NAMESPACE)))
        except KfpMindSporeError:
            return []

    def _list(self, resource: Resource, namespace: str, *, labels: str = "", fields: str = "") -> list[Document]:
        try:
            found = self._cluster.list(resource, namespace, labels=labels, fields=fields)
        except KfpMindSporeError:
            # No right to read it, or another cluster: the run is watched by its server alone.
            self._is_readable = False
            return []
        self._is_readable = True
        return found

    def _read_log(self, node: str, lines: int) -> tuple[str, ...]:
        if pod := self._get_pod(node):
            with contextlib.suppress(KfpMindSporeError):
                text = self._cluster.read_log(pod, self._namespace, container="main", last=_READ_LINES)
                return get_last_lines(text.splitlines(), lines)
        return ()

    def _explain_slow_start(self, node: Document, message: str) -> str:
        """Return a sentence with the last warning on a node's pod, such as a driver's whose volume is missing."""
        name = self._get_pod(node["id"])
        head = f"{_get_step(node)}: {'its driver' if _is_driver(node) else 'its pod'} has not started"
        if not name:
            return f"{head}, Argo has created no pod for it"
        events = self._list(EVENTS, self._namespace, fields=f"involvedObject.name={name},type=Warning")
        events.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        reason = str(events[-1].get("message") or "") if events else message
        return f"{head}: {reason or 'no reason is known'} (pod {name})"

    def _get_pod(self, node: str) -> str:
        for pod in self._list(PODS, self._namespace, labels=self._labels):
            if (pod["metadata"].get("annotations") or {}).get(_NODE_ANNOTATION) == node:
                return str(pod["metadata"]["name"])
        return ""

    def _list_job_warnings(self) -> list[str]:
        """Return why each MSJob that has not started waits: its queue, or the last warning.

        The operator's events name refused pods.
        """
        found = [job for job in self._list(_MSJOBS, self._namespace, labels=self._labels) if not _has_started(job)]
        if not found:
            return []
        jobs = {job["metadata"]["uid"]: job["metadata"]["name"] for job in found}
        events = self._list(EVENTS, self._namespace, fields=f"involvedObject.kind={KIND},type=Warning")
        events.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        last = {event["involvedObject"].get("uid"): event.get("message", "") for event in events}
        for job in found:
            if (status := job.get("status") or {}).get("waitingReason") in (QUEUED, QUEUE_IGNORED):
                last[job["metadata"]["uid"]] = status["waiting"]
        return [f"job {name}: {last[uid]}" for uid, name in jobs.items() if uid in last]


def get_last_lines(lines: Iterable[str], count: int) -> tuple[str, ...]:
    """Return a step's own last output lines; if KFP's driver or launcher failed itself, that error."""
    lines = list(lines)
    fatal = [found[1] for line in lines if (found := _FATAL.match(line)) and not found[2]]
    # The step's process has ended: a stack of KFP's launcher or of Argo's executor follows.
    ends = [index for index, line in enumerate(lines) if _STEP_END.match(line)]
    own = [line for line in drop_executor_lines(lines[: ends[0]] if ends else lines) if not _LAUNCHER_LINE.match(line)]
    return tuple((fatal or reduce_trace(own))[-count:])


def _get_reason(message: str, log: Sequence[str]) -> str:
    """Return Argo's message, or instead of an exit code the error in the step's log."""
    errors = [line for line in log if _ERROR_LINE.match(line)]
    return errors[-1] if errors and _EXIT_CODE.match(message) else message


def _has_started(job: Document) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(item["type"] in (RUNNING, SUCCEEDED, FAILED) and item["status"] == "True" for item in conditions)


def _get_seconds_since(time: Any) -> float:
    """Return the seconds since an RFC 3339 time, by this machine's clock; 0 without one."""
    if not time:
        return 0.0
    return (datetime.now(timezone.utc) - datetime.fromisoformat(str(time).replace("Z", "+00:00"))).total_seconds()


def _list_last_attempts(workflow: Document) -> list[Document]:
    """Return the last pod node for each step and iteration, by start."""
    nodes: dict[str, Document] = (workflow.get("status") or {}).get("nodes") or {}
    pods = [node for node in nodes.values() if node.get("type") == "Pod"]
    pods.sort(key=lambda node: str(node.get("startedAt") or ""))
    return list({_ATTEMPT.sub("", str(node["name"])): node for node in pods}.values())


def _is_driver(node: Document) -> bool:
    return _ATTEMPT.sub("", str(node["name"])).endswith(_DRIVER)


def _get_step(node: Document) -> str:
    """Return a pod node's step: node names are paths such as `WORKFLOW.root(0).train-msjob.executor(0)`."""
    parts = _ATTEMPT.sub("", str(node["name"])).split(".")
    name = parts[-2] if parts[-1] == _EXECUTOR and len(parts) > 1 else parts[-1]
    return name.removesuffix(_DRIVER)
