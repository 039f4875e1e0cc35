"""Learning curves from metrics.jsonl: charts by epoch, and an HTML page with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.chart import STYLES, compute_chart

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).with_name("templates")
LOSSES = ("eval_loss", "loss")
# Charts of validation metrics.
_CHARTS = 3

Records = Sequence[Mapping[str, Any]]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the epochs' records in metrics.jsonl, see `parse_records`."""
    return parse_records(path.read_text(encoding="utf-8", errors="replace"))


def parse_records(text: str) -> list[dict[str, Any]]:
    """Return the epochs' records in a metrics.jsonl's text; lines that are none, as an unfinished one, are left out."""
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("epoch"), int):
            records.append(record)
    return records


def compute_curves(histories: Mapping[str, Records]) -> list[dict[str, Any]]:
    """Return `compute_chart` results: the loss, then the first validation metrics.

    Args:
        histories: Each run's records by its name. One run has its training and validation loss in one chart; of several
            runs there is one line each: the validation loss, or the training loss of a run without validation.
    """
    if len(histories) == 1:
        ((_, records),) = histories.items()
        losses = {
            "training": [(record["epoch"], record.get("loss")) for record in records],
            "validation": [(record["epoch"], _find_number(record, *LOSSES)) for record in records],
        }
    else:
        losses = {
            name: [(record["epoch"], _find_loss(record)) for record in found] for name, found in histories.items()
        }
    charts = [compute_chart("Loss", losses)]
    for metric in list_metrics(histories)[:_CHARTS]:
        series = {
            name if len(histories) > 1 else "validation": [
                (record["epoch"], _find_number(record, metric)) for record in records
            ]
            for name, records in histories.items()
        }
        charts.append(compute_chart(metric, series))
    return [chart for chart in charts if chart]


def list_metrics(histories: Mapping[str, Records]) -> list[str]:
    """Return the names of the validation metrics, without losses, in their order in the records."""
    names = {
        name: None for records in histories.values() for record in records for name in record.get("validation") or {}
    }
    return [name for name in names if name not in LOSSES]


def build_environment(*folders: Path) -> Environment:
    """Return Jinja's environment for a page with charts.

    Args:
        folders: Further template directories, in front of this package's.
    """
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_curves(title: str, histories: Mapping[str, Records]) -> str:
    """Return a self-contained HTML page with the curves and the last epoch's values.

    Args:
        title: The page's title.
        histories: Each run's records by its name, of at most as many runs as there are colours.

    Raises:
        UserError: There are more runs.
    """
    if len(histories) > len(STYLES):
        raise UserError(f"at most {len(STYLES)} runs fit in one plot, got {len(histories)}", hint="Name fewer runs.")
    environment = build_environment()
    metrics = list_metrics(histories)
    return environment.get_template("curves.html.j2").render(
        title=title,
        charts=compute_curves(histories),
        styles=STYLES,
        names=["epoch", "loss", "validation loss", *metrics],
        rows=[
            {"name": name, "values": _describe_last(records, metrics)} for name, records in histories.items() if records
        ],
    )


def _describe_last(records: Records, metrics: Sequence[str]) -> list[str]:
    last = records[-1]
    values = [last.get("loss"), *(_find_number(last, name) for name in ("eval_loss", *metrics))]
    return [str(last["epoch"]), *("-" if value is None else f"{value:.4g}" for value in values)]


def _find_loss(record: Mapping[str, Any]) -> float | None:
    value = _find_number(record, *LOSSES)
    return record.get("loss") if value is None else value


def _find_number(record: Mapping[str, Any], *names: str) -> float | None:
    values = record.get("validation") or {}
    return next((values[name] for name in names if isinstance(values.get(name), (int, float))), None)
