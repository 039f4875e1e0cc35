"""How fast is a served model, beside the same model behind other servers and behind none?

Every server answers for the same bundle on this machine: mindsporeserver; a kserve.Model with a synchronous predict
(stock), and the same with the kernels that mindsporeserver chooses by itself (stock-avx2); MLServer, BentoML and Ray
Serve with batching; a bare ASGI application that answers a constant (the HTTP limit); and the graph alone (GraphCell in
a loop, without HTTP). Each has an environment of its own, made from a pinned file of benchmarks/peers/serving and kept
in benchmarks/.environments. The load comes from wrk and ghz, in own processes:

    apt-get install wrk
    GOBIN=$PWD/benchmarks/.environments/bin go install github.com/bojand/ghz/cmd/ghz@v0.120.0

Before anything is measured every server has to give the answers of the network itself. Then, round by round and in
turn, each scenario is asked of every server that speaks it. Peers without V1 take part in the single-image JSON
scenarios with their own form of JSON.

    python benchmarks/serving.py --quick --only v1        # ours, stock and bare ASGI, one round: half a minute
    python benchmarks/serving.py --quick                  # the same with every scenario of LeNet
    python benchmarks/serving.py --peers stock,bentoml    # ours beside some of the others
    python benchmarks/serving.py                          # everything; what docs/benchmarks.md shows

A table goes to standard error as it is measured, all samples and the targets to standard output as one line of JSON.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness import Target, build_parser, build_target, pair_ratios, print_result
from load import (
    GET_GHZ,
    GET_WRK,
    Load,
    Request,
    find_ghz,
    find_wrk,
    make_bento,
    make_grpc,
    make_ray,
    make_v1,
    make_v2,
    make_v2_binary,
    read_answer,
    run_ghz,
    run_wrk,
)
from models import MODELS, make_model
from servers import ENVIRONMENTS, FAST_KERNELS, SERVERS, Graph, Server, prepare_environment

from kfp_mindspore.formats.bundle import ModelBundle

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOLERANCE = 1e-4
BATCH = 32
# Bodies sent in turn, so that none is the same as the one before.
BODIES = 16
WARM_SECONDS = 1.0
QUICK_PEERS = ("stock", "asgi")
# Its own processes are busy when it is asked nothing, which would slow the others down: it runs alone.
LONERS = ("ray",)
LIMITS = ("asgi",)


@dataclass(frozen=True)
class Scenario:
    """One way to ask.

    Args:
        name: Its name on the command line and in results.
        title: Its name in tables.
        connections: How many ask at the same time.
        rows: Images a request.
        forms: Server to the form of request that it is asked with.
        models: Which models are asked.
    """

    name: str
    title: str
    connections: int
    rows: int
    forms: Mapping[str, str]
    models: Sequence[str] = MODELS


KSERVE = ("ours", "stock", "stock-avx2")
JSON_FORMS = {
    "ours": "v1",
    "stock": "v1",
    "stock-avx2": "v1",
    "asgi": "v1",
    "mlserver": "v2",
    "bentoml": "bento",
    "ray": "ray",
}
SCENARIOS = (
    Scenario("v1", "JSON, 1 image, 32 connections", 32, 1, JSON_FORMS),
    Scenario("v1-one", "JSON, 1 image, 1 connection", 1, 1, JSON_FORMS, ("lenet",)),
    Scenario("v2", "V2 JSON, 1 image, 32 connections", 32, 1, dict.fromkeys((*KSERVE, "mlserver"), "v2"), ("lenet",)),
    Scenario("v2-binary", "V2 binary, 1 image, 32 connections", 32, 1, dict.fromkeys(KSERVE, "binary"), MODELS),
    Scenario("batch", "V2 binary, 32 images, 4 connections", 4, BATCH, dict.fromkeys(KSERVE, "binary"), MODELS),
    Scenario("grpc", "gRPC, 1 image, 32 streams", 32, 1, dict.fromkeys((*KSERVE, "mlserver"), "grpc"), ("lenet",)),
)

Samples = dict[str, dict[str, dict[str, list[float]]]]


class Board:
    """What was measured: scenario, server, figure, one value a round."""

    def __init__(self) -> None:
        self.samples: Samples = {}

    def add(self, scenario: str, server: str, figures: Mapping[str, float]) -> None:
        """Add one round's figures and show them."""
        kept = self.samples.setdefault(scenario, {}).setdefault(server, {})
        for name, value in figures.items():
            kept.setdefault(name, []).append(round(value, 6))
        shown = "  ".join(f"{name} {value:,.4g}" for name, value in figures.items())
        print(f"  {scenario:<10} {server:<9} {shown}", file=sys.stderr, flush=True)

    def get(self, scenario: str, server: str, figure: str) -> list[float]:
        """Return the rounds of a figure; empty when it was not measured."""
        return self.samples.get(scenario, {}).get(server, {}).get(figure, [])

    def list_servers(self, scenario: str) -> list[str]:
        """Return who took part."""
        return list(self.samples.get(scenario, {}))


def make_request(form: str, images: NDArray[np.float32], name: str) -> Request:
    """Return a request of some form for some images."""
    if form == "v1":
        return make_v1(images)
    if form == "v2":
        return make_v2(images, name)
    if form == "binary":
        return make_v2_binary(images, name)
    return make_bento(images) if form == "bento" else make_ray(images)


def call_grpc(server: Server, images: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """Ask by gRPC once."""
    import grpc
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(make_grpc(images, name), timeout=60, wait_for_ready=True)
    output = answer.outputs[0]
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(output.shape)
    return np.array(output.contents.fp32_contents, np.float32).reshape(output.shape)


def check_answers(server: Server, scenarios: Sequence[Scenario], bundle: ModelBundle) -> None:
    """Compare what a server answers with what the network gave when it was exported.

    Raises:
        RuntimeError: A class or a number differs.
    """
    verified = bundle.read_verified()
    (name, images), outputs = next(iter(verified.inputs.items())), next(iter(verified.outputs.values()))
    name_of_server = server.peer.name
    if name_of_server in LIMITS:
        return
    asked = {
        (scenario.forms[name_of_server], scenario.rows) for scenario in scenarios if name_of_server in scenario.forms
    }
    for form, rows in sorted(asked):
        for start in range(0, min(len(images), 4 * rows), rows):
            part, expected = images[start : start + rows], outputs[start : start + rows]
            if form == "grpc":
                found = call_grpc(server, part, name)
            else:
                request = make_request(form, part, name)
                found = read_answer(*server.post(request))
            same = found.shape == expected.shape and (found.argmax(-1) == expected.argmax(-1)).all()
            difference = float(np.abs(found - expected).max()) if found.shape == expected.shape else float("nan")
            if not same or not difference <= TOLERANCE:
                raise RuntimeError(
                    f"{server.peer.title}, {form}: image {start} must give {expected.tolist()}, gave {found.tolist()}"
                )


def measure(server: Server, scenario: Scenario, bundle: ModelBundle, seconds: float, scratch: Path) -> dict[str, float]:
    """Warm a server up and load it; return the figures of one round."""
    name, images = next(iter(bundle.read_verified().inputs.items()))
    form = scenario.forms[server.peer.name]
    parts = [np.roll(images, -index, axis=0)[: scenario.rows] for index in range(BODIES)]

    def run(duration: float) -> Load:
        if form == "grpc":
            return run_ghz(server.grpc, parts[0], name, scenario.connections, duration, scratch)
        requests = [make_request(form, part, name) for part in parts]
        return run_wrk(server.http, requests, scenario.connections, duration, scratch)

    run(WARM_SECONDS)
    before = server.processes.read_cpu_seconds()
    load = run(seconds)
    used = server.processes.read_cpu_seconds() - before
    if not load.requests:
        raise RuntimeError(f"{server.peer.title} answered none of {scenario.title}:\n{server.processes.read_log()}")
    return {
        "requests_per_second": load.requests / load.seconds,
        "p50_ms": load.p50_ms,
        "p99_ms": load.p99_ms,
        "cpu_ms_per_request": 1000 * used / load.requests,
        "failures": load.failures,
    }


def run_round(
    board: Board,
    bundle: ModelBundle,
    servers: Sequence[str],
    scenarios: Sequence[Scenario],
    seconds: float,
    first: bool,
    environment: Mapping[str, str],
) -> None:
    """Start the servers, ask them in turn, end them."""
    together = [name for name in servers if name not in LONERS]
    for group in (together, *([name] for name in servers if name in LONERS)):
        with tempfile.TemporaryDirectory(prefix="serving-") as scratch, ExitStack() as stack:
            running = {}
            for name in group:
                peer = SERVERS[name]
                home = Path(scratch) / name
                running[name] = Server(peer, prepare_environment(peer.requirements), bundle.path, home, environment)
                stack.callback(running[name].stop)
                board.add("start", name, {"seconds": running[name].start_seconds})
                if first:
                    check_answers(running[name], scenarios, bundle)
            graph = None
            if group is together:
                graph = Graph(prepare_environment("graph"), bundle.path, Path(scratch) / "graph")
                stack.callback(graph.stop)
                board.add("start", "graph", {"warm_up_seconds": graph.warm_up_seconds})
            for scenario in scenarios:
                for name in group:
                    if name in scenario.forms:
                        figures = measure(running[name], scenario, bundle, seconds, Path(scratch))
                        board.add(scenario.name, name, figures)
                if graph and (scenario.connections == 1 or scenario.rows > 1):
                    board.add(scenario.name, "graph", graph.measure(scenario.rows, min(seconds, 2.0)))
            for name, server in running.items():
                board.add("memory", name, {"peak_mb": server.processes.read_peak_memory()})


def compare(
    board: Board, title: str, scenario: str, figure: str, peer: str, goal: float | None, at_least: bool
) -> list[Target]:
    """Return the ratio of ours to a peer's as a target, or nothing when one of them was not measured."""
    ours, theirs = board.get(scenario, "ours", figure), board.get(scenario, peer, figure)
    return [build_target(title, pair_ratios(ours, theirs), goal, at_least=at_least)] if ours and theirs else []


def judge(board: Board, model: str) -> list[Target]:
    """Return the targets of one model; LeNet's rates have goals, the larger one's are the graph's business."""
    strict = model == MODELS[0]

    def goal(value: float) -> float | None:
        return value if strict else None

    rate = "requests_per_second"
    targets = compare(board, f"{model}, V1: requests/s / stock", "v1", rate, "stock", goal(10), True)
    others = [name for name in board.list_servers("v1") if name not in (*KSERVE, "graph", *LIMITS)]
    if others:
        rounds = zip(*(board.get("v1", name, rate) for name in others), strict=True)
        ratios = pair_ratios(board.get("v1", "ours", rate), [max(values) for values in rounds])
        targets.append(build_target(f"{model}, V1: requests/s / best other server", ratios, goal(4), at_least=True))
    targets += compare(board, f"{model}, V1: requests/s / bare ASGI", "v1", rate, "asgi", goal(0.4), True)
    rivals = [name for name in board.list_servers("v1") if name not in ("ours", "graph", *LIMITS)]
    if rivals:
        rounds = zip(*(board.get("v1", name, "p99_ms") for name in rivals), strict=True)
        ratios = pair_ratios(board.get("v1", "ours", "p99_ms"), [min(values) for values in rounds])
        targets.append(build_target(f"{model}, V1: p99 / lowest p99 of a server", ratios, goal(1)))
    plain = f"{model}, V1: requests/s / stock with the faster kernels"
    targets += compare(board, plain, "v1", rate, "stock-avx2", None, True)
    targets += compare(
        board, f"{model}, V1: CPU seconds a request / stock", "v1", "cpu_ms_per_request", "stock", None, False
    )
    targets += compare(board, f"{model}, one connection: p50 / stock", "v1-one", "p50_ms", "stock", goal(0.6), False)
    images = [BATCH * value for value in board.get("batch", "ours", rate)]
    if limit := board.get("batch", "graph", "images_per_second"):
        ratios = pair_ratios(images, limit)
        targets.append(build_target(f"{model}, batch 32: images/s / graph alone", ratios, 0.7, at_least=True))
    targets += compare(board, f"{model}, V2 JSON: requests/s / stock", "v2", rate, "stock", goal(6), True)
    targets += compare(board, f"{model}, V2 binary: requests/s / stock", "v2-binary", rate, "stock", goal(6), True)
    targets += compare(board, f"{model}, gRPC: requests/s / stock", "grpc", rate, "stock", goal(3), True)
    targets += compare(board, f"{model}: peak memory / stock", "memory", "peak_mb", "stock", 1.2, False)
    warm = board.get("start", "graph", "warm_up_seconds")
    if (started := board.get("start", "stock", "seconds")) and warm:
        allowed = [a + b for a, b in zip(started, warm, strict=True)]
        ratios = pair_ratios(board.get("start", "ours", "seconds"), allowed)
        targets.append(build_target(f"{model}: start to ready / (stock's + warm-up)", ratios, 1))
    return targets


def show(boards: Mapping[str, Board], targets: Sequence[Target]) -> None:
    """Print the medians as a table, then the targets."""
    for model, board in boards.items():
        for scenario in SCENARIOS:
            for server, figures in board.samples.get(scenario.name, {}).items():
                medians = {name: statistics.median(values) for name, values in figures.items()}
                shown = "  ".join(f"{name} {value:,.4g}" for name, value in medians.items())
                print(f"{model:<9} {scenario.name:<10} {server:<9} {shown}", file=sys.stderr)
    for target in targets:
        met = {None: "", True: "met", False: "NOT MET"}[target.met]
        low, high = target.spread
        goal = "" if target.goal is None else f"goal {target.goal:g}"
        print(f"{target.name:<55} {target.ratio:8.3f}  ({low:.3f} to {high:.3f})  {goal:<9} {met}", file=sys.stderr)


def parse(argv: Sequence[str] | None = None) -> Any:
    parser = build_parser((__doc__ or "").partition("\n")[0])
    names = [name for name in SERVERS if name != "ours"]
    parser.add_argument("--peers", help=f"which to run beside ours: {','.join(names)} [default: all]")
    parser.add_argument("--only", help=f"which scenarios: {','.join(scenario.name for scenario in SCENARIOS)}")
    parser.add_argument("--models", help=f"which models: {','.join(MODELS)}")
    parser.add_argument("--rounds", type=int, help="how often each is measured [default: 3, 1 with --quick]")
    parser.add_argument("--seconds", type=float, help="how long each is loaded [default: 5, 3 with --quick]")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    chosen = {
        "peers": (arguments.peers, names, QUICK_PEERS if quick else names),
        "only": (arguments.only, [scenario.name for scenario in SCENARIOS], None),
        "models": (arguments.models, MODELS, MODELS[:1] if quick else MODELS),
    }
    for option, (given, known, default) in chosen.items():
        values = [value for value in given.split(",") if value] if given is not None else list(default or known)
        if unknown := [value for value in values if value not in known]:
            parser.error(f"--{option}: no {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(arguments, option, values)
    arguments.rounds = arguments.rounds or (1 if quick else 3)
    arguments.seconds = arguments.seconds or (3.0 if quick else 5.0)
    return arguments


def main() -> int:
    arguments = parse()
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in arguments.only]
    missing = [] if find_wrk() else [f"wrk is missing: {GET_WRK}"]
    if any(scenario.name == "grpc" for scenario in scenarios) and not find_ghz():
        missing.append(f"ghz is missing: {GET_GHZ}")
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 2
    servers = ["ours", *arguments.peers]
    # Whoever goes first has the advantage or the disadvantage of it, so the order turns round.
    boards: dict[str, Board] = {}
    targets: list[Target] = []
    for model in arguments.models:
        bundle = make_model(model, ENVIRONMENTS / "models")
        board = boards[model] = Board()
        asked = [scenario for scenario in scenarios if model in scenario.models]
        large = model != MODELS[0]
        environment = FAST_KERNELS if large else {}
        taking_part = [name for name in servers if not (large and name == "stock-avx2")]
        for number in range(arguments.rounds):
            print(f"{model}, round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
            order = taking_part if number % 2 == 0 else taking_part[::-1]
            run_round(board, bundle, order, asked, arguments.seconds, number == 0, environment)
        targets += judge(board, model)
    show(boards, targets)
    print_result(
        "serving",
        targets,
        {
            "models": {model: board.samples for model, board in boards.items()},
            # Lists, as their order means something.
            "scenarios": [[scenario.name, scenario.title] for scenario in SCENARIOS],
            "servers": [*([name, peer.title] for name, peer in SERVERS.items()), ["graph", "graph alone"]],
        },
    )
    return 0


if __name__ == "__main__":
    # Servers are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
