"""The benchmark of the operator: what it creates, what it reads from audit logs and processes, how it judges."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.msjob.types import MSJob

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MODULES = (
    "api_load",
    "audit",
    "control_plane",
    "delays",
    "harness",
    "msjob_operator",
    "operator_answers",
    "pictures",
    "prices",
    "reach",
)
OPERATOR = "kfp-mindspore-operator/0.1.0"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    """Return a function that imports a module of benchmarks/; their names are taken back afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module
    finally:
        sys.path[:] = path
        for name in {*MODULES} - modules:
            sys.modules.pop(name, None)


def test_no_script_hides_a_module_of_python() -> None:
    names = {file.stem for file in BENCHMARKS.glob("*.py")}
    assert not names & set(sys.stdlib_module_names)


def note(verb: str, resource: str = "", *, agent: str = OPERATOR, stage: str = "ResponseComplete") -> str:
    resource, _, subresource = resource.partition("/")
    reference = {"objectRef": {"resource": resource, "subresource": subresource}} if resource else {}
    uri = f"/api/v1/{resource}" if resource else "/readyz?verbose"
    return json.dumps({"verb": verb, "stage": stage, "userAgent": agent, "requestURI": uri, **reference}) + "\n"


def test_requests_are_counted_by_verb_and_resource(benchmark: Any) -> None:
    audit = benchmark("audit")
    lines = [
        *[note("create", "pods")] * 3,
        note("create", "services"),
        note("create", "events"),
        *[note("update", "msjobs/status")] * 2,
        note("create", "pods", agent="kube-controller-manager/v1.34.4"),
        note("list", "pods"),
        note("watch", "pods", stage="ResponseStarted"),
        note("watch", "pods"),
        note("get"),
        note("create", "pods")[:40],
    ]
    found = audit.count_requests(lines, "kfp-mindspore-operator/")
    assert found == {
        "create pods": 3,
        "create services": 1,
        "create events": 1,
        "update msjobs/status": 2,
        "list pods": 1,
        "watch pods": 1,
        "get /readyz": 1,
    }
    assert audit.count_own_writes(found) == 2
    assert audit.count_polls(found) == sum(found.values()) - 1
    assert audit.count_requests(lines)["create pods"] == 4


def test_plain_creation_makes_what_the_operator_makes(benchmark: Any) -> None:
    load = benchmark("api_load")
    job = MSJob.from_dict(load.make_msjob("one"))
    pods = load.make_pods("one", "space")
    assert [pod["metadata"]["name"] for pod in pods] == ["one-scheduler-0", "one-worker-0", "one-worker-1"]
    assert sum(spec.replicas or 0 for spec in job.ms_replica_specs.values()) == len(pods) == load.PODS_A_JOB
    service = load.make_service("one", "space")
    for document in (*pods, service):
        assert "ownerReferences" not in document["metadata"]
        assert document["metadata"]["namespace"] == "space"
    assert load.post(load.INDEXED_JOBS, "space", {"a": 1}) == ("/apis/batch/v1/namespaces/space/jobs", b'{"a":1}')


def test_what_a_process_takes_is_read(benchmark: Any) -> None:
    plane = benchmark("control_plane")
    memory = plane.read_memory(os.getpid())
    assert 1 < memory["resident_mb"] <= memory["peak_mb"]
    before = plane.take_cpu({"self": os.getpid()})
    while plane.take_cpu({})["client"] - before["client"] < 0.1:
        pass
    # The kernel counts by the hundredth of a second.
    assert plane.take_cpu({"self": os.getpid()})["self"] - before["self"] == pytest.approx(0.1, abs=0.05)


def make_rate(pods: float, **cpu: float) -> dict[str, Any]:
    parts = {"kube-apiserver": 9.0, "etcd": 2.0, "kube-controller-manager": 1.0, "client": 1.0, **cpu}
    rates = {"pods_per_second": pods, "jobs_per_second": pods / 3}
    return {"jobs": 9, **rates, "load_average": 1.5, "cpu_ms_per_job": parts}


def make_price(request: str, milliseconds: float) -> dict[str, Any]:
    cost = {"kube-apiserver": milliseconds, "etcd": 0.5, "kube-controller-manager": 0.25}
    return {"request": request, "cpu_ms": cost}


def make_raw() -> dict[str, Any]:
    def size(jobs: int, memory: float, idle: float = 0.5) -> dict[str, Any]:
        return {"jobs": jobs, "resident_mb": memory, "peak_mb": memory + 9, "idle_cpu_percent": idle}

    rest = {"ready_seconds": 4.0, "steady_seconds": 5.0, "writes": 0}
    return {
        "rate": {
            "ours": [make_rate(60, operator=6.0), make_rate(90, operator=6.0)],
            "pods": [make_rate(120), make_rate(300)],
            "objects": [make_rate(60), make_rate(100)],
            "job-default": [make_rate(15), make_rate(15)],
            "job-raised": [make_rate(60), make_rate(60)],
        },
        "delay": {"ours": {"created": [10.0, 20.0, 30.0], "running": [5.0] * 3}, "job-default": {"created": [9.0] * 3}},
        "price": {"rows": [make_price("create pods", 3.0), make_price("create pods", 5.0), make_price("x", 1.0)]},
        "calls": {
            "own_writes_per_job": 2.0,
            "writes_per_job": 8.0,
            "idle_seconds": 30.0,
            "idle_polls": 0,
            "per_job": {"create pods": 3.0, "update msjobs/status": 2.0},
        },
        "size": {
            "sizes": [size(0, 100.0), size(1000, 110.0), size(5000, 150.0, 2.5)],
            "restart": {**size(5000, 140.0), **rest},
        },
    }


def test_answers_follow_from_the_samples(benchmark: Any) -> None:
    targets = {target.name: target for target in benchmark("operator_answers").judge(make_raw())}
    limits = targets["pods/s / Job controller's, default limits"]
    assert (limits.ratio, limits.met, limits.spread) == (5.0, True, (4.0, 6.0))
    assert (targets["pods/s / plain creation of pods"].ratio, targets["pods/s / plain creation of pods"].met) == (
        0.4,
        True,
    )
    assert targets["memory, KB a job, of 5,000"].ratio == pytest.approx(10.24)
    assert targets["memory with 5,000 jobs, MB"].met
    assert targets["idle CPU, % of a core, at every size"].met is False
    assert targets["writes a job beside pods, Service and events"].met
    assert targets["a job to its last pod, p50, ms"].ratio == 20.0
    assert targets["requests in 30 s without events"].met


def test_only_what_was_measured_is_judged(benchmark: Any) -> None:
    answers = benchmark("operator_answers")
    assert answers.judge({}) == []
    assert len(answers.judge({"calls": make_raw()["calls"]})) == 3


def test_the_page_has_every_way_and_every_size(benchmark: Any, tmp_path: Path) -> None:
    answers = benchmark("operator_answers")
    text = "\n".join(answers.tabulate_operator(make_raw()))
    for title in answers.WAYS.values():
        assert f"| {title} |" in text
    assert "| MSJobs, the operator | 9 | 75 | 1.5 | 9 | 2 | 1 | 6 | 1 |" in text
    assert "| 5,000, restarted | 140 | 149 | 0.5 |" in text
    assert "| create pods | 4 | 0.5 | 0.25 |" in text
    assert "| update msjobs/status | 2 |" in text
    (picture,) = answers.draw_operator("msjob_operator", make_raw(), tmp_path)
    before = picture.read_bytes()
    answers.draw_operator("msjob_operator", make_raw(), tmp_path)
    assert picture.read_bytes() == before
