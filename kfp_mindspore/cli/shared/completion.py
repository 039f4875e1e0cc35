"""Name completion in the shell: services, jobs and runs on this machine, and packaged pipelines.

Names are read from the local state directories: a request to a cluster would delay each key press.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from kfp_mindspore.files import get_home
from kfp_mindspore.settings import LOCAL, get_backend_name

_DEFAULT_NAMESPACE = "default"


def complete_services(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the local services in the command line's namespace."""
    return _make_items(_list_state("services", ctx), incomplete)


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the local jobs in the command line's namespace."""
    return _make_items(_list_state("jobs", ctx), incomplete)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the local runs that the command line does not name yet."""
    given = ctx.params.get(str(param.name)) or ()
    runs = (file.parent.name for file in (get_home() / "runs").glob("*/request.json"))
    return _make_items((run for run in runs if run not in given), incomplete)


def complete_pipelines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pipelines in this package, or have the shell complete a file."""
    from kfp_mindspore.runs.compiled.sources import list_pipelines

    return _make_items(list_pipelines(), incomplete) or [CompletionItem(incomplete, type="file")]


def _list_state(kind: str, ctx: click.Context) -> list[str]:
    """Return a kind's names in the home directory; none when the command line selects a cluster."""
    given = ctx.params
    if (given.get("backend") or get_backend_name()) != LOCAL or given.get("context") or given.get("kubeconfig"):
        return []
    root: Path = get_home() / kind / (given.get("namespace") or _DEFAULT_NAMESPACE)
    # Hidden entries are locks and canaries.
    return [path.name for path in root.glob("[!.]*")]


def _make_items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
