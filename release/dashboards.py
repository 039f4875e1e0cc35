"""Grafana's dashboards: panels as declared here, as JSON by `make golden`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_BY = "namespace, inferenceservice, model_name"
_LEGEND = "{{namespace}}/{{inferenceservice}} {{model_name}}"


@dataclass(frozen=True)
class Panel:
    """A graph over time.

    Args:
        title: Its title.
        unit: Grafana's name of the unit; empty for a count.
        queries: PromQL by legend.
    """

    title: str
    unit: str
    queries: dict[str, str]


@dataclass(frozen=True)
class Dashboard:
    """A page of panels.

    Args:
        title: Its title.
        panels: In reading order.
        models: A metric whose values of `model_name` can be chosen as `$model`; empty for no choice.
    """

    title: str
    panels: tuple[Panel, ...]
    models: str = ""


def _rate(metric: str, labels: str = 'model_name=~"$model"') -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def _total(metric: str, *more: str) -> str:
    return f"sum by ({', '.join((_BY, *more))}) ({_rate(metric)})"


def _gauge(metric: str) -> str:
    return f'sum by ({_BY}) ({metric}{{model_name=~"$model"}})'


def _quantile(quantile: str, metric: str) -> str:
    return f"histogram_quantile({quantile}, {_total(f'{metric}_bucket', 'le')})"


def _quantiles(metric: str, *quantiles: str) -> dict[str, str]:
    return {f"p{quantile[2:]} {_LEGEND}": _quantile(quantile, metric) for quantile in quantiles}


def _mean(metric: str) -> dict[str, str]:
    return {_LEGEND: f"{_total(f'{metric}_sum')} / {_total(f'{metric}_count')}"}


def _operator_quantile(metric: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) (rate({metric}_bucket[$__rate_interval])))"


_SERVER_FAILURES = _rate(
    "mindsporeserver_request_failures_total",
    'model_name=~"$model", reason=~"overload|deadline|not_ready|error"',
)
_OPERATOR = Dashboard(
    "kfp-mindspore: MSJobs and operator",
    (
        Panel("Jobs", "", {"{{state}}": "sum by (state) (msjob_jobs)"}),
        Panel("Finished in an hour", "", {"{{state}}": "sum by (state) (increase(msjob_finished_total[1h]))"}),
        Panel(
            "Gang restarts in an hour",
            "",
            {
                "{{reason}}": "sum by (reason) (increase(msjob_restarts_total[1h]))",
                "a worker hung": "sum(increase(msjob_hangs_total[1h]))",
            },
        ),
        Panel("Leaders", "", {"leaders": "sum(msjob_leading)"}),
        Panel("Queued jobs", "", {"queued": "sum(msjob_queue_depth)", "with a timer": "sum(msjob_timers)"}),
        Panel(
            "Reconciliation (p99)",
            "s",
            {
                "reconcile": _operator_quantile("msjob_reconcile_seconds"),
                "in the queue": _operator_quantile("msjob_queue_seconds"),
            },
        ),
        Panel(
            "Failures",
            "ops",
            {
                "reconciliations": "sum(rate(msjob_reconcile_errors_total[$__rate_interval]))",
                "events not written": "sum(rate(msjob_lost_events_total[$__rate_interval]))",
            },
        ),
        Panel(
            "Requests to the API server",
            "reqps",
            {"{{verb}} {{code}}": "sum by (verb, code) (rate(msjob_api_requests_total[$__rate_interval]))"},
        ),
        Panel("Memory", "bytes", {"{{instance}}": "process_resident_memory_bytes and on (instance) msjob_leading"}),
    ),
)
_MODEL_SERVER = Dashboard(
    "kfp-mindspore: model server",
    (
        Panel(
            "Requests", "reqps", {f"{_LEGEND} {{{{protocol}}}}": _total("mindsporeserver_requests_total", "protocol")}
        ),
        Panel(
            "Requests without outputs",
            "reqps",
            {f"{_LEGEND} {{{{reason}}}}": _total("mindsporeserver_request_failures_total", "reason")},
        ),
        Panel(
            "The server's share of failures",
            "percentunit",
            {_LEGEND: f"sum by ({_BY}) ({_SERVER_FAILURES}) / {_total('mindsporeserver_requests_total')}"},
        ),
        Panel("Latency", "s", _quantiles("mindsporeserver_request_seconds", "0.50", "0.99")),
        Panel("Time in the queue", "s", _quantiles("mindsporeserver_queue_seconds", "0.99")),
        Panel("Time in the graph", "s", _quantiles("mindsporeserver_inference_seconds", "0.99")),
        Panel("Requests in flight", "", {_LEGEND: _gauge("mindsporeserver_in_flight")}),
        Panel("Utilisation of executors", "percentunit", {_LEGEND: _total("mindsporeserver_inference_seconds_sum")}),
        Panel("Rows in a batch (mean)", "", _mean("mindsporeserver_batch_rows")),
        Panel("Compiled shapes", "", {_LEGEND: _gauge("mindsporeserver_warm_shapes")}),
        Panel(
            "Loads in an hour",
            "",
            {
                f"{_LEGEND} {{{{result}}}}": f"sum by ({_BY}, result) "
                '(increase(mindsporeserver_loads_total{model_name=~"$model"}[1h]))'
            },
        ),
        Panel("Bundle", "bytes", {_LEGEND: f'max by ({_BY}) (mindsporeserver_model_bytes{{model_name=~"$model"}})'}),
        Panel(
            "Unknown categories",
            "ops",
            {f"{_LEGEND} {{{{input}}}}": _total("mindsporeserver_unknown_categories_total", "input")},
        ),
        Panel("Processes by device", "", {"{{device}}": "count by (device) (mindsporeserver_device_info)"}),
    ),
    models="mindsporeserver_requests_total",
)
_LANGUAGE_MODELS = Dashboard(
    "kfp-mindspore: language models",
    (
        Panel(
            "Answers",
            "",
            {
                f"running {_LEGEND}": _gauge("vllm:num_requests_running"),
                f"waiting {_LEGEND}": _gauge("vllm:num_requests_waiting"),
            },
        ),
        Panel(
            "Tokens",
            "ops",
            {
                f"prompts {_LEGEND}": _total("vllm:prompt_tokens_total"),
                f"answers {_LEGEND}": _total("vllm:generation_tokens_total"),
            },
        ),
        Panel(
            "Finished answers",
            "reqps",
            {f"{_LEGEND} {{{{finished_reason}}}}": _total("vllm:request_success_total", "finished_reason")},
        ),
        Panel("Time to the first token", "s", _quantiles("vllm:time_to_first_token_seconds", "0.50", "0.99")),
        Panel("Time between tokens", "s", _quantiles("vllm:inter_token_latency_seconds", "0.50", "0.99")),
        Panel("Time in the queue", "s", _quantiles("vllm:request_queue_time_seconds", "0.99")),
        Panel(
            "Cache of keys and values",
            "percentunit",
            {_LEGEND: f'avg by ({_BY}) (vllm:kv_cache_usage_perc{{model_name=~"$model"}})'},
        ),
        Panel(
            "Hits of the prefix cache",
            "percentunit",
            {_LEGEND: f"{_total('vllm:prefix_cache_hits_total')} / {_total('vllm:prefix_cache_queries_total')}"},
        ),
        Panel(
            "Requests without an answer",
            "reqps",
            {f"{_LEGEND} {{{{reason}}}}": _total("mindsporeserver_request_failures_total", "reason")},
        ),
    ),
    models="vllm:num_requests_running",
)
DASHBOARDS = {"operator": _OPERATOR, "model-server": _MODEL_SERVER, "language-models": _LANGUAGE_MODELS}


def render_dashboard(name: str) -> str:
    """Return a dashboard as JSON.

    Args:
        name: A key of `DASHBOARDS`.
    """
    dashboard = DASHBOARDS[name]
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    if dashboard.models:
        query = f"label_values({dashboard.models}, model_name)"
        choice = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
        variables.append(
            {"name": "model", "type": "query", "datasource": source, "query": query, "refresh": 2, "sort": 1, **choice}
        )
    document = {
        "uid": f"kfp-mindspore-{name}",
        "title": dashboard.title,
        "tags": ["kfp-mindspore"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_build_panel(index, panel, source) for index, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(document, indent=2) + "\n"


def _build_panel(index: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit or "short", "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }
