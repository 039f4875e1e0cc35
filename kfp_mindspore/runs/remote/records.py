"""Pipelines, runs and schedules on a Kubeflow Pipelines server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.runs.remote.task_details import (
    FINISHED_STATES,
    get_step_states,
    list_node_steps,
    list_pending,
    list_task_names,
)


@dataclass(frozen=True)
class UploadedPipeline:
    """A pipeline on a server.

    Args:
        name: Pipeline name.
        pipeline_id: Pipeline ID.
        version_id: The uploaded version's ID; empty for the first one.
        version: The uploaded version's name; empty for the first one.
        url: Page URL.
    """

    name: str
    pipeline_id: str
    version_id: str
    version: str
    url: str


@dataclass(frozen=True)
class RemoteRun:
    """A run on a server.

    Args:
        run_id: Run ID.
        name: Run name.
        state: `PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED`, `SKIPPED`, `CANCELED`, or another KFP state. A terminated
            run is FAILED.
        url: Page URL.
        created: Creation time, RFC 3339; empty if unknown.
        steps: State by name for each step that has started.
        error: KFP's error message; empty for most failed runs.
        is_terminated: Whether it was terminated; the state is FAILED then.
        pending: Steps whose pod, or driver's pod, has not started; `root` for the run's own driver.
        note: Why the pipeline is unknown: the steps are then those that have started; empty for a known pipeline.
    """

    run_id: str
    name: str
    state: str
    url: str
    created: str = ""
    steps: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    is_terminated: bool = False
    pending: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the run has succeeded, failed, or was skipped or cancelled."""
        return self.state in FINISHED_STATES

    @property
    def failed_steps(self) -> tuple[str, ...]:
        """The failed steps' names."""
        return tuple(name for name, state in self.steps.items() if state == "FAILED")


@dataclass(frozen=True)
class RecurringRun:
    """A recurring run on a server.

    Args:
        schedule_id: The recurring run's ID.
        name: Schedule name.
        when: Cron expression with seconds first, or the interval.
        is_enabled: Whether it starts runs.
        url: Page URL.
    """

    schedule_id: str
    name: str
    when: str
    is_enabled: bool
    url: str


def describe_pipeline(host: str, item: Any) -> UploadedPipeline:
    """Return a kfp_server_api pipeline."""
    url = make_link(host, "pipelines", item.pipeline_id)
    return UploadedPipeline(item.display_name, item.pipeline_id, "", "", url)


def describe_version(host: str, name: str, item: Any) -> UploadedPipeline:
    """Return a kfp_server_api pipeline version."""
    url = f"{make_link(host, 'pipelines', item.pipeline_id)}/version/{item.pipeline_version_id}"
    return UploadedPipeline(name, item.pipeline_id, item.pipeline_version_id, item.display_name, url)


def describe_run(host: str, run: Any) -> RemoteRun:
    """Return a kfp_server_api run; a new run has no state."""
    names = list_task_names(run.pipeline_spec) or list_node_steps(get_details(run))
    steps = get_step_states(get_details(run), names)
    if run.state in FINISHED_STATES and steps:
        # Steps after a failed one have no state, and those under an unmet condition no node.
        states = {name: steps.get(name, "SKIPPED") for name in names or steps}
        steps = {name: "SKIPPED" if state == "PENDING" else state for name, state in states.items()}
    return RemoteRun(
        run_id=run.run_id,
        name=run.display_name or run.run_id,
        state=run.state or "PENDING",
        url=make_link(host, "runs", run.run_id),
        created=_format_time(run.created_at),
        steps=steps,
        error=str(run.error.message or "") if run.error else "",
        pending=() if run.state in FINISHED_STATES else tuple(list_pending(get_details(run), names)),
        is_terminated=_is_terminated([item.state for item in run.state_history or ()]),
        note=_explain_unknown_pipeline(run),
    )


def describe_schedule(host: str, item: Any) -> RecurringRun:
    """Return a kfp_server_api recurring run."""
    trigger = item.trigger
    cron = trigger.cron_schedule.cron if trigger and trigger.cron_schedule else ""
    period = trigger.periodic_schedule.interval_second if trigger and trigger.periodic_schedule else None
    return RecurringRun(
        schedule_id=item.recurring_run_id,
        name=item.display_name or item.recurring_run_id,
        when=cron or (f"every {period} s" if period else ""),
        is_enabled=(item.status or item.mode) in ("ENABLED", "ENABLE"),
        url=make_link(host, "recurringrun", item.recurring_run_id),
    )


def _explain_unknown_pipeline(run: Any) -> str:
    reference = run.pipeline_version_reference
    if run.pipeline_spec is not None or reference is None:
        return ""
    return (
        f"its pipeline version {reference.pipeline_version_id} was deleted: only steps that have started are known, "
        "and no thresholds"
    )


def _is_terminated(history: Sequence[str]) -> bool:
    """Return whether a run was terminated and not retried since, by the states in order."""
    last = {state: index for index, state in enumerate(history)}
    return last.get("CANCELING", -1) > max(last.get("PENDING", -1), last.get("RUNNING", -1))


def get_details(run: Any) -> list[Any]:
    """Return a kfp_server_api run's task details."""
    return (run.run_details.task_details or []) if run.run_details else []


def make_link(host: str, kind: str, identifier: str) -> str:
    """Return a Kubeflow Pipelines page URL."""
    return f"{host}/#/{kind}/details/{identifier}"


def format_cron(expression: str) -> str:
    """Return a cron expression with the seconds field that Kubeflow Pipelines expects first.

    KFP's parser reads five fields as seconds to month: `0 3 * * *` would start a run in each hour's third minute.

    Args:
        expression: Five or six fields, or a descriptor such as `@daily`.

    Raises:
        UserError: The expression has another field count.
    """
    fields = expression.split()
    if len(fields) == 1 and expression.startswith("@"):
        return expression
    if len(fields) not in (5, 6):
        raise UserError(f"cron: must have five fields, or six with seconds first, got {expression!r}")
    return " ".join(fields if len(fields) == 6 else ["0", *fields])


def _format_time(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value or "")
