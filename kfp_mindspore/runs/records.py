"""Pipelines, runs and schedules of a Kubeflow Pipelines server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.runs.task_details import FINISHED_STATES, get_step_states, list_task_names


@dataclass(frozen=True)
class UploadedPipeline:
    """A pipeline on a server.

    Args:
        name: Name of the pipeline.
        pipeline_id: ID of the pipeline.
        version_id: ID of the uploaded version; empty for the first one.
        version: Name of the uploaded version; empty for the first one.
        url: URL of its page.
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
        run_id: ID of the run.
        name: Name of the run.
        state: `PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED`, `SKIPPED`, `CANCELED`, or another of KFP's. A terminated run
            is FAILED.
        url: URL of its page.
        created: Time of its creation, RFC 3339; empty if unknown.
        steps: State of each step that has started, by name.
        error: KFP's error message; empty for most failed runs.
        is_terminated: Whether it was terminated; its state is FAILED then.
    """

    run_id: str
    name: str
    state: str
    url: str
    created: str = ""
    steps: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    is_terminated: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the run has succeeded, failed, or was skipped or cancelled."""
        return self.state in FINISHED_STATES

    @property
    def failed_steps(self) -> tuple[str, ...]:
        """Names of the failed steps."""
        return tuple(name for name, state in self.steps.items() if state == "FAILED")


@dataclass(frozen=True)
class Schedule:
    """A recurring run on a server.

    Args:
        schedule_id: ID of the recurring run.
        name: Its name.
        when: Cron expression with seconds first, or the interval.
        is_enabled: Whether it starts runs.
        url: URL of its page.
    """

    schedule_id: str
    name: str
    when: str
    is_enabled: bool
    url: str


def describe_pipeline(host: str, item: Any) -> UploadedPipeline:
    """Return a pipeline of kfp_server_api."""
    url = make_link(host, "pipelines", item.pipeline_id)
    return UploadedPipeline(item.display_name, item.pipeline_id, "", "", url)


def describe_version(host: str, name: str, item: Any) -> UploadedPipeline:
    """Return a version of a pipeline of kfp_server_api."""
    url = f"{make_link(host, 'pipelines', item.pipeline_id)}/version/{item.pipeline_version_id}"
    return UploadedPipeline(name, item.pipeline_id, item.pipeline_version_id, item.display_name, url)


def describe_run(host: str, run: Any) -> RemoteRun:
    """Return a run of kfp_server_api; a new run has no state."""
    steps = get_step_states(get_details(run), list_task_names(run.pipeline_spec))
    if run.state in FINISHED_STATES:
        # Steps after a failed one have no state.
        steps = {name: "SKIPPED" if state == "PENDING" else state for name, state in steps.items()}
    return RemoteRun(
        run_id=run.run_id,
        name=run.display_name or run.run_id,
        state=run.state or "PENDING",
        url=make_link(host, "runs", run.run_id),
        created=_format_time(run.created_at),
        steps=steps,
        error=str(run.error.message or "") if run.error else "",
        is_terminated=any(item.state == "CANCELING" for item in run.state_history or ()),
    )


def describe_schedule(host: str, item: Any) -> Schedule:
    """Return a recurring run of kfp_server_api."""
    trigger = item.trigger
    cron = trigger.cron_schedule.cron if trigger and trigger.cron_schedule else ""
    period = trigger.periodic_schedule.interval_second if trigger and trigger.periodic_schedule else None
    return Schedule(
        schedule_id=item.recurring_run_id,
        name=item.display_name or item.recurring_run_id,
        when=cron or (f"every {period} s" if period else ""),
        is_enabled=(item.status or item.mode) in ("ENABLED", "ENABLE"),
        url=make_link(host, "recurringrun", item.recurring_run_id),
    )


def get_details(run: Any) -> list[Any]:
    """Return the task details of a run of kfp_server_api."""
    return (run.run_details.task_details or []) if run.run_details else []


def make_link(host: str, kind: str, identifier: str) -> str:
    """Return the URL of a page of Kubeflow Pipelines."""
    return f"{host}/#/{kind}/details/{identifier}"


def format_cron(expression: str) -> str:
    """Return a cron expression with the seconds field that Kubeflow Pipelines expects first.

    KFP's parser reads five fields as seconds to month: `0 3 * * *` would start a run in the third minute of each hour.

    Args:
        expression: Five or six fields, or a descriptor such as `@daily`.

    Raises:
        UserError: The expression has another number of fields.
    """
    fields = expression.split()
    if len(fields) == 1 and expression.startswith("@"):
        return expression
    if len(fields) not in (5, 6):
        raise UserError(f"cron: must have five fields, or six with seconds first, got {expression!r}")
    return " ".join(fields if len(fields) == 6 else ["0", *fields])


def _format_time(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value or "")
