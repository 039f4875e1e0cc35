"""The short run of the fuzzer; `make fuzz` is the long one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import strategies
from tests.fuzz.cases import KINDS, Case, read_cases
from tests.fuzz.driver import generate, run_cases, send
from tests.fuzz.oracle import judge
from tests.fuzz.targets import Stage, Target
from tests.support.serving.serving_client import Answer, Connection, GrpcConnection

pytestmark = pytest.mark.mindspore

SEED = int(os.environ.get("FUZZ_SEED", "20"))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.jsonl"))


def test_earlier_failures(stage: Stage) -> None:
    report = asyncio.run(run_cases(stage, read_cases(CORPUS), connections=2, good_every=1))
    assert not report.findings, report.describe()
    assert report.peak < 64 << 20


def test_generated_bodies(stage: Stage) -> None:
    counts = {"v1": 500, "v2": 500, "binary": 500, "grpc": 300, "http": 250, "files": 250, "rows": 300}
    report = asyncio.run(run_cases(stage, generate(SEED, counts, stage.targets)))
    assert sum(report.sent.values()) == sum(counts.values())
    assert not report.findings, f"python -m tests.fuzz --seed {SEED} --scale 0.02\n{report.describe()}"
    assert report.good > 100
    assert report.growth < 64 << 20, report.memory
    # A picture of some million pixels is allowed.
    assert report.peak < 384 << 20
    assert "Traceback" not in stage.server.read_log()


STRATEGIES: dict[str, Callable[[Sequence[Target]], st.SearchStrategy[Case]]] = {
    "v1": strategies.v1_cases,
    "v2": strategies.v2_cases,
    "binary": strategies.binary_cases,
    "grpc": strategies.grpc_cases,
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_shrunk_bodies(stage: Stage, kind: str) -> None:
    with _Runner() as runner:
        http, grpc = runner.run(_connect(stage))

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=EXAMPLES <= 100,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(STRATEGIES[kind](stage.targets))
        def check(case: Case) -> None:
            answer: Answer = runner.run(send(case, http, grpc))
            assert stage.server.is_alive()
            assert judge(case, answer, stage.find_target(case)) == "", case.to_dict()

        try:
            check()
        finally:
            runner.run(http.close())
            runner.run(grpc.close())


async def _connect(stage: Stage) -> tuple[Connection, GrpcConnection]:
    return Connection(stage.server.port), GrpcConnection(stage.server.grpc_port)


class _Runner:
    """asyncio.Runner, which Python 3.10 lacks."""

    def __enter__(self) -> _Runner:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        return self

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def __exit__(self, *error: object) -> None:
        asyncio.set_event_loop(None)
        self._loop.close()


def test_case_is_kept_whole(stage: Stage) -> None:
    cases = list(generate(1, dict.fromkeys(KINDS, 50), stage.targets))
    assert cases == list(generate(1, dict.fromkeys(KINDS, 50), stage.targets))
    assert [Case.from_dict(case.to_dict()) for case in cases] == cases
