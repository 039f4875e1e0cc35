"""How fast is the MSJob operator, beside Kubernetes' own Job controller and beside no controller at all?

An API server with etcd and kube-controller-manager runs on this machine, without nodes (`make test-cluster` builds it).
On it, round by round and in turn, the same number of three-pod jobs is made by

- ours: MSJobs of one scheduler and two workers, by `kfp-mindspore operator run` with its defaults;
- job-default, job-raised: Indexed Jobs by kube-controller-manager, at its default client limits and with them raised;
- pods: the operator's pods, created by a plain client with 32 connections; the API server's own limit;
- objects: the same client creates the jobs, Services and pods; the limit of whatever makes the same objects.

The clock runs from the first request to the last pod. Then, for the operator: the time from an event to what follows
(also of the Job controller at its defaults), its requests from the API server's audit log, what requests of each kind
cost the control plane, how soon Services lead to schedulers that get their addresses at once (also with selectors), the
operator's memory and idle CPU with more and more jobs, and its restart with all of them.

    python benchmarks/msjob_operator.py --quick --only rate    # 100 jobs, one round
    python benchmarks/msjob_operator.py --quick                # every question, with few jobs
    python benchmarks/msjob_operator.py                        # what docs/benchmarks.md shows; half an hour

The name is not operator.py, which would hide Python's own module of that name from all scripts beside it.
A table goes to standard error as it is measured, all samples and the targets to standard output as one line of JSON.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api_load import (
    INDEXED_JOBS,
    PODS_A_JOB,
    Client,
    Post,
    make_indexed_job,
    make_msjob,
    make_pods,
    make_service,
    post,
)
from audit import count_own_writes, count_polls, count_requests, is_write, write_policy
from control_plane import (
    DEFAULTS,
    RAISED,
    REST_SECONDS,
    ControlPlane,
    make_operator,
    read_cpu_seconds,
    read_memory,
    settle,
    start_control_plane,
    take_cpu,
)
from delays import INDEXED, OURS, measure_delays, summarise
from harness import Target, build_parser, print_result
from operator_answers import judge
from prices import measure_prices
from reach import measure_reach

from kfp_mindspore.kube import PODS, SERVICES
from kfp_mindspore.operator.resources import JOBS

_SECONDS = 1200.0
# In turn, so that both meet the same machine.
_DELAY_ROUNDS = 4


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: How often the rates are measured.
        jobs: Jobs a round.
        slow_jobs: Jobs a round of the Job controller at its default limits, whose rate does not depend on it.
        delays: Jobs, one after the other, whose delays are measured.
        calls: Jobs whose requests are counted, and requests of each kind whose price is measured.
        gangs: Gangs that get their addresses at once.
        idle_seconds: How long nothing happens where idling is measured.
        sizes: Numbers of jobs at which memory and idle CPU are measured.
    """

    rounds: int
    jobs: int
    slow_jobs: int
    delays: int
    calls: int
    gangs: int
    idle_seconds: float
    sizes: tuple[int, ...]


FULL = Plan(3, 1000, 200, 120, 200, 300, 30.0, (0, 1000, 5000))
QUICK = Plan(1, 100, 60, 20, 30, 40, 10.0, (0, 100, 300))


async def measure_rates(plan: Plan, directory: Path) -> dict[str, Any]:
    """Make jobs in each way, in turn, and return each one's samples."""
    samples: dict[str, list[dict[str, Any]]] = {}
    with start_control_plane() as plane:
        async with Client(plane.server.kubeconfig) as client:
            ways: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
                "pods": lambda: make_plainly(plane, client, plan.jobs, with_rest=False),
                "ours": lambda: make_by_operator(plane, client, plan.jobs, directory),
                "objects": lambda: make_plainly(plane, client, plan.jobs, with_rest=True),
                "job-default": lambda: make_by_controller(plane, client, plan.slow_jobs, DEFAULTS),
                "job-raised": lambda: make_by_controller(plane, client, plan.jobs, RAISED),
            }
            # The first requests of an API server are its slowest.
            await make_plainly(plane, client, 100, with_rest=True)
            for number in range(plan.rounds):
                for way in list(ways) if number % 2 == 0 else reversed(ways):
                    if way != "job-raised":
                        await plane.set_limits(DEFAULTS, client)
                    sample = await ways[way]()
                    samples.setdefault(way, []).append(sample)
                    show(f"round {number + 1}  {way:<12}", sample)
    return samples


async def make_plainly(plane: ControlPlane, client: Client, jobs: int, *, with_rest: bool) -> dict[str, Any]:
    """Create jobs' pods by a plain client, or with the rest also their Services and the jobs, which nobody handles."""
    with plane.make_namespace() as namespace:
        posts: list[Post] = []
        for number in range(jobs):
            name = f"plain-{number:05d}"
            if with_rest:
                posts.append(post(JOBS, namespace, make_msjob(name)))
                posts.append(post(SERVICES, namespace, make_service(name, namespace)))
            posts += [post(PODS, namespace, pod) for pod in make_pods(name, namespace)]
        return await make(plane, client, namespace, posts, jobs, {})


async def make_by_operator(plane: ControlPlane, client: Client, jobs: int, directory: Path) -> dict[str, Any]:
    """Create MSJobs for a new operator."""
    with plane.make_namespace() as namespace, make_operator(plane, directory) as operator:
        assert operator.process is not None
        posts = [post(JOBS, namespace, make_msjob(f"burst-{number:05d}")) for number in range(jobs)]
        return await make(plane, client, namespace, posts, jobs, {"operator": operator.process.pid})


async def make_by_controller(plane: ControlPlane, client: Client, jobs: int, limits: Sequence[str]) -> dict[str, Any]:
    """Create Indexed Jobs for kube-controller-manager."""
    await plane.set_limits(limits, client)
    with plane.make_namespace() as namespace:
        posts = [post(INDEXED_JOBS, namespace, make_indexed_job(f"burst-{number:05d}")) for number in range(jobs)]
        return await make(plane, client, namespace, posts, jobs, {})


async def make(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    posts: Sequence[Post],
    jobs: int,
    processes: Mapping[str, int],
) -> dict[str, Any]:
    """Create objects and wait for all pods; return rates, and what each process took for it."""
    loop = asyncio.get_running_loop()
    await plane.wait_quiet()
    processes = {**plane.find_processes(), **processes}
    before, start = take_cpu(processes), loop.time()
    posting = asyncio.create_task(client.create_all(posts))
    await client.wait_pods(namespace, jobs * PODS_A_JOB, _SECONDS)
    posted = await posting
    seconds = loop.time() - start
    after = take_cpu(processes)
    await client.clear(namespace)
    return {
        "jobs": jobs,
        "seconds": round(seconds, 3),
        "posting_seconds": round(posted, 3),
        "jobs_per_second": round(jobs / seconds, 2),
        "pods_per_second": round(jobs * PODS_A_JOB / seconds, 2),
        # Who else wanted the cores meanwhile: rates fall with it, where they are not held back by limits of their own.
        "load_average": round(os.getloadavg()[0], 1),
        "cpu_ms_per_job": {name: round(1000 * (after[name] - before[name]) / jobs, 3) for name in after},
    }


async def measure_all_delays(plan: Plan, directory: Path) -> dict[str, Any]:
    """Return the delays of jobs that come one after the other, at a rate that nobody has to queue at."""
    with start_control_plane() as plane:
        async with Client(plane.server.kubeconfig) as client:
            found: dict[str, dict[str, list[float]]] = {"ours": {}, "job-default": {}}
            await measure_delays(client, INDEXED, 4, plane)
            with make_operator(plane, directory) as operator:
                await settle(operator)
                for _ in range(_DELAY_ROUNDS):
                    for who, kind in (("ours", OURS), ("job-default", INDEXED)):
                        await plane.wait_quiet()
                        delays = await measure_delays(client, kind, plan.delays // _DELAY_ROUNDS, plane)
                        for name, values in delays.items():
                            found[who].setdefault(name, []).extend(values)
    for who, delays in found.items():
        show(who, {name: summarise(values) for name, values in delays.items()})
    return {
        who: {name: [round(value, 2) for value in values] for name, values in delays.items()}
        for who, delays in found.items()
    }


async def count_calls(plan: Plan, directory: Path) -> dict[str, Any]:
    """Count the operator's requests: until jobs run, and while nothing happens afterwards."""
    flags, log = write_policy(directory)

    def read(agent: str = "kfp-mindspore-operator/") -> Counter[str]:
        with log.open() as lines:
            return count_requests(lines, agent)

    with start_control_plane(*flags) as plane:
        async with Client(plane.server.kubeconfig) as client:
            with plane.make_namespace() as namespace, make_operator(plane, directory) as operator:
                await settle(operator)
                started = read()
                await client.create_all(
                    [post(JOBS, namespace, make_msjob(f"calls-{number:05d}")) for number in range(plan.calls)]
                )
                await client.wait_pods(namespace, plan.calls * PODS_A_JOB, _SECONDS)
                await client.set_running(namespace)
                await settle(operator, running=plan.calls)
                running = read()
                await asyncio.sleep(plan.idle_seconds)
                idle = read() - running
                during = running - started
                await client.clear(namespace)
    sample = {
        "jobs": plan.calls,
        "start": dict(started),
        "per_job": {request: count / plan.calls for request, count in sorted(during.items())},
        "writes_per_job": sum(count for request, count in during.items() if is_write(request)) / plan.calls,
        "own_writes_per_job": count_own_writes(during) / plan.calls,
        "idle_seconds": plan.idle_seconds,
        "idle": dict(idle),
        "idle_polls": count_polls(idle),
    }
    show("calls", sample)
    return sample


async def price_requests(plan: Plan, directory: Path) -> dict[str, Any]:
    """Measure what the requests that jobs consist of cost the control plane."""
    with start_control_plane() as plane:
        async with Client(plane.server.kubeconfig) as client:
            rows = await measure_prices(plane, client, plan.calls, plan.rounds)
    for row in rows:
        show(f"price of {row['request']}", row["cpu_ms"])
    return {"requests": plan.calls, "rows": rows}


async def measure_reaches(plan: Plan, directory: Path) -> dict[str, Any]:
    """Return how soon Services lead to their schedulers, round by round."""
    with start_control_plane() as plane:
        async with Client(plane.server.kubeconfig) as client:
            rounds = [await measure_reach(plane, client, plan.gangs, directory) for _ in range(plan.rounds)]
    for sample in rounds:
        show("reach", sample)
    return {"gangs": plan.gangs, "rounds": rounds}


async def measure_sizes(plan: Plan, directory: Path) -> dict[str, Any]:
    """Measure an operator with more and more running jobs, and another that is started with all of them."""
    sizes: list[dict[str, Any]] = []
    with start_control_plane() as plane:
        async with Client(plane.server.kubeconfig) as client:
            with plane.make_namespace() as namespace, make_operator(plane, directory) as operator:
                there = 0
                for jobs in plan.sizes:
                    names = [f"size-{number:05d}" for number in range(there, jobs)]
                    await client.create_all([post(JOBS, namespace, make_msjob(name)) for name in names])
                    await client.wait_pods(namespace, jobs * PODS_A_JOB, _SECONDS)
                    await client.set_running(namespace)
                    await settle(operator, running=jobs)
                    there = jobs
                    sizes.append(await measure_rest(operator.process, plan.idle_seconds, jobs))
                    show("size", sizes[-1])
                operator.stop()
                await plane.wait_quiet()
                loop = asyncio.get_running_loop()
                start = loop.time()
                operator.start()
                ready = loop.time() - start
                await settle(operator, running=there)
                steady = loop.time() - start - REST_SECONDS
                restart = {
                    "jobs": there,
                    "ready_seconds": round(ready, 2),
                    "steady_seconds": round(steady, 2),
                    "cpu_seconds": round(read_cpu_seconds(_pid(operator.process)), 2),
                    "writes": sum(
                        operator.read_metric("msjob_api_requests_total", verb=verb)
                        for verb in ("create", "update", "patch", "delete")
                    ),
                    **await measure_rest(operator.process, plan.idle_seconds, there),
                }
                show("restart", restart)
                operator.stop()
                await client.clear(namespace)
    return {"sizes": sizes, "restart": restart}


async def measure_rest(process: Any, seconds: float, jobs: int) -> dict[str, Any]:
    """Return a process's memory, and the CPU that it takes while nothing happens, in percent of a core."""
    pid = _pid(process)
    before, start = read_cpu_seconds(pid), asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    share = (read_cpu_seconds(pid) - before) / (asyncio.get_running_loop().time() - start)
    return {"jobs": jobs, "idle_cpu_percent": round(100 * share, 3), **read_memory(pid)}


def _pid(process: Any) -> int:
    assert process is not None
    return int(process.pid)


def show(title: str, figures: Mapping[str, Any]) -> None:
    """Print what was measured."""
    text = "  ".join(
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )
    print(f"{title}  {text}", file=sys.stderr, flush=True)


def show_targets(targets: Sequence[Target]) -> None:
    """Print the answers."""
    for target in targets:
        met = {None: "", True: "met", False: "NOT MET"}[target.met]
        low, high = target.spread
        goal = "" if target.goal is None else f"goal {target.goal:g}"
        print(f"{target.name:<66} {target.ratio:8.3f}  ({low:.3f} to {high:.3f})  {goal:<9} {met}", file=sys.stderr)


def main() -> int:
    parser = build_parser((__doc__ or "").partition("\n")[0])
    measures = {
        "rate": measure_rates,
        "price": price_requests,
        "delay": measure_all_delays,
        "calls": count_calls,
        "reach": measure_reaches,
        "size": measure_sizes,
    }
    parser.add_argument("--only", default=",".join(measures), help="which questions: %(default)s")
    parser.add_argument(
        "--rounds", type=int, help="how often rates and prices are measured [default: 3, 1 with --quick]"
    )
    parser.add_argument("--sizes", help="numbers of jobs for `size` [default: 0,1000,5000, fewer with --quick]")
    arguments = parser.parse_args()
    asked = [name for name in arguments.only.split(",") if name]
    if unknown := sorted(set(asked) - set(measures)):
        parser.error(f"--only: no {', '.join(unknown)}; there are {', '.join(measures)}")
    # So that the control plane is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = QUICK if arguments.quick else FULL
    sizes = tuple(map(int, arguments.sizes.split(","))) if arguments.sizes else plan.sizes
    plan = replace(plan, rounds=arguments.rounds or plan.rounds, sizes=sizes)
    from tests.cluster.infrastructure.prerequisites import UnavailableError

    raw: dict[str, Any] = {}
    for name in asked:
        with tempfile.TemporaryDirectory() as directory:
            try:
                raw[name] = asyncio.run(measures[name](plan, Path(directory)))
            except UnavailableError as error:
                print(error, file=sys.stderr)
                return 2
    targets = judge(raw)
    show_targets(targets)
    print_result("msjob_operator", targets, raw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
