"""Sends cases over many connections, with valid requests in between, and records wrong responses."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.binary_cases import make_binary_case
from tests.fuzz.cases import Case
from tests.fuzz.file_cases import make_file_case
from tests.fuzz.grpc_cases import make_grpc_case
from tests.fuzz.http_cases import make_http_case
from tests.fuzz.json_cases import make_v1, make_v2
from tests.fuzz.oracle import compare, judge
from tests.fuzz.row_cases import make_row_case
from tests.fuzz.targets import Stage, Target
from tests.support.serving.serving_client import PROTOCOLS, Answer, Client, Connection, GrpcConnection

GENERATORS = {
    "v1": make_v1,
    "v2": make_v2,
    "binary": make_binary_case,
    "grpc": make_grpc_case,
    "http": make_http_case,
    "files": make_file_case,
    "rows": make_row_case,
}
# A few bodies per reason are recorded.
_KEPT_PER_REASON = 5
# No body of these sizes is worth that much of the event loop.
_SLOW_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """A wrong response.

    Args:
        why: The fault of the response.
        case: The request.
    """

    why: str
    case: Case

    def to_dict(self) -> dict[str, Any]:
        return {"why": self.why, "case": self.case.to_dict()}


@dataclass
class Report:
    """The result of a run.

    Args:
        sent: Number of cases by kind.
        answers: Number of responses by kind and status.
        good: Number of valid requests in between with the right response.
        findings: Wrong responses, a few of each reason.
        reasons: Number of findings by reason.
        memory: Resident bytes of the server, sampled: seconds since the start and bytes.
        peak: How much more than at first the server had at most, in bytes.
        slowest: Seconds of the slowest response.
        seconds: Duration of the run.
    """

    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    good: int = 0
    findings: list[Finding] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    peak: int = 0
    slowest: float = 0.0
    seconds: float = 0.0

    def add(self, why: str, case: Case) -> None:
        reason = f"{case.kind}: {_generalize(why)}"
        self.reasons[reason] += 1
        if self.reasons[reason] <= _KEPT_PER_REASON:
            self.findings.append(Finding(why, case))

    @property
    def growth(self) -> int:
        """Bytes that the server grew by after the first fifth of the run."""
        if len(self.memory) < 5:
            return 0
        settled = self.memory[len(self.memory) // 5][1]
        return self.memory[-1][1] - settled

    def describe(self) -> str:
        lines = [f"{sum(self.sent.values())} bodies in {self.seconds:.1f} s, {self.good} good requests in between"]
        for kind, count in sorted(self.sent.items()):
            found = ", ".join(
                f"{name.partition(' ')[2]} x {times}"
                for name, times in self.answers.most_common()
                if name.startswith(f"{kind} ")
            )
            lines.append(f"  {kind:7}{count:7}: {found}")
        if self.memory:
            low, high = self.memory[0][1] >> 20, self.memory[-1][1] >> 20
            lines.append(
                f"  memory of the server: {low} MiB at first, {high} MiB at last, {self.peak >> 20} MiB more at most"
            )
            lines.append(f"  slowest answer: {self.slowest:.2f} s")
        lines += [f"  WRONG {times} x {reason}" for reason, times in self.reasons.most_common()]
        return "\n".join(lines)

    def write(self, file: Path) -> None:
        file.write_text("".join(json.dumps(finding.to_dict()) + "\n" for finding in self.findings))


def generate(seed: int, counts: Mapping[str, int], targets: Sequence[Target]) -> Iterator[Case]:
    """Yield cases, the kinds mixed; each depends only on the seed, its kind and its number."""
    total = max(counts.values(), default=0)
    for index in range(total):
        for kind, count in counts.items():
            # Kinds with fewer cases are spread over the whole run.
            if index * count // total != (index + 1) * count // total:
                number = index * count // total
                random = Random(f"{seed} {kind} {number}")
                case = GENERATORS[kind](random, targets)
                yield Case(case.kind, case.path, case.body, case.method, case.headers, f"seed {seed}, {kind} {number}")


async def run_cases(
    stage: Stage, cases: Iterable[Case], *, connections: int = 12, good_every: int = 12, timeout: float = 20
) -> Report:
    """Send cases and check the responses; stops when the server's process ends.

    Args:
        stage: The server and its models.
        cases: The requests.
        connections: Number of concurrent connections.
        good_every: A good request is sent after so many cases of a connection.
        timeout: Seconds to wait for a response.
    """
    report, start, queue = Report(), time.monotonic(), iter(cases)
    before = stage.server.read_memory()
    watch = asyncio.create_task(_watch_memory(stage, report, start))
    in_flight: dict[int, Case] = {}
    try:
        await asyncio.gather(
            *(_work(stage, queue, report, in_flight, worker, good_every, timeout) for worker in range(connections))
        )
    finally:
        watch.cancel()
    if not stage.server.is_alive():
        for case in in_flight.values():
            report.add(f"the server ended with exit code {stage.server.process.returncode}", case)
    else:
        report.memory.append((time.monotonic() - start, stage.server.read_memory()))
        report.peak = stage.server.read_peak_memory() - before
    report.seconds = time.monotonic() - start
    return report


async def send(case: Case, http: Connection, grpc: GrpcConnection) -> Answer:
    """Send one case."""
    if case.is_grpc:
        return await grpc.call(case.path, case.body)
    if not case.path:
        async with Connection(http.port, timeout=http.timeout) as fresh:
            return await fresh.send(case.body, last=True)
    return await http.request(case.method, case.path, case.body, case.headers)


async def _work(
    stage: Stage,
    queue: Iterator[Case],
    report: Report,
    in_flight: dict[int, Case],
    worker: int,
    good_every: int,
    timeout: float,
) -> None:
    server, random, count = stage.server, Random(worker), 0
    http, grpc = Connection(server.port, timeout=timeout), GrpcConnection(server.grpc_port, timeout=timeout)
    clients = [
        Client(server.port, server.grpc_port, target.name, [spec.name for spec in target.signature.outputs], timeout)
        for target in stage.targets
    ]
    try:
        for case in queue:
            if not server.is_alive():
                return
            in_flight[worker] = case
            sent = time.monotonic()
            try:
                answer = await send(case, http, grpc)
            except (TimeoutError, asyncio.TimeoutError):
                answer, why = Answer(0), f"no answer in {timeout:g} s"
            except (OSError, ValueError, asyncio.LimitOverrunError) as error:
                answer, why = Answer(0), f"no readable answer: {error!r}"
            else:
                why = judge(case, answer, stage.find_target(case))
            seconds = time.monotonic() - sent
            report.slowest = max(report.slowest, seconds)
            if seconds > _SLOW_SECONDS and not why:
                why = f"answered after {seconds:.1f} s"
            report.sent[case.kind] += 1
            report.answers[f"{case.kind} {answer.code or answer.status}"] += 1
            if why:
                report.add(why, case)
            count += 1
            if count % good_every == 0 and server.is_alive():
                index = random.randrange(len(clients))
                why = await _ask_well(clients[index], stage.targets[index], random)
                if why:
                    report.add(why, case)
                else:
                    report.good += 1
        in_flight.pop(worker, None)
    finally:
        for closing in (http, grpc, *clients):
            await closing.close()


async def _ask_well(client: Client, target: Target, random: Random) -> str:
    index, protocol = random.randrange(len(target.questions)), random.choice(PROTOCOLS)
    try:
        answer, found = await client.ask(protocol, target.questions[index])
    except (OSError, TimeoutError, asyncio.TimeoutError) as error:
        return f"a good {protocol} request after it: {error!r}"
    if found is None:
        status = answer.code or answer.status
        return f"a good {protocol} request after it: {status} {answer.details}{answer.body[:200]!r}"
    why = compare(found, target.answers[index], target.questions[index])
    return f"a good {protocol} request after it: {why}" if why else ""


async def _watch_memory(stage: Stage, report: Report, start: float) -> None:
    while stage.server.is_alive():
        report.memory.append((time.monotonic() - start, stage.server.read_memory()))
        await asyncio.sleep(0.5)


def _generalize(why: str) -> str:
    """Leave out what differs from case to case."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", "…", why)[:160]
