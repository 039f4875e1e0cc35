"""How fast is a served model, beside the same model behind other servers and without a server?

Every server runs the same bundle on this machine: mindsporeserver; a kserve.Model with a synchronous predict (stock),
and the same with mindsporeserver's choice of oneDNN kernels (stock-avx2); mosec, Triton's Python backend, MLServer,
BentoML and Ray Serve with dynamic batching; and the graph alone (GraphCell in a loop). Each has a pinned environment of
its own in benchmarks/.environments. The load comes from wrk and ghz. HTTP responses are compared with the network's
outputs before anything is measured. In the single-image JSON scenarios a server without V1 gets its own form of JSON.

The server `preprocessing` is ours with the bundle as it is exported by default: raw pixels in, logits and label out;
`logged` is ours with all requests and responses logged in files.

    python benchmarks/serving.py --quick --only v1      # ours, stock and mosec, one round
    python benchmarks/serving.py --peers stock,triton   # ours beside some of the others
    python benchmarks/serving.py                        # everything, as docs/benchmarks.md shows it
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
from typing import Any

import numpy as np
from environments import ENVIRONMENTS
from harness import Target, build_parser, build_target, compute_ratios, log, print_result, time_command
from load import Load, check_tools, make_request, read_response, run_ghz, run_wrk
from servers import PEERS, SERVERS, Server, measure_graph

from kfp_mindspore.formats.bundle import ModelBundle

TOLERANCE = 1e-4
BATCH = 32
# Different bodies are sent in turn, so that no cache of responses helps.
BODIES = 16
WARM_SECONDS = 1.0
QUICK_PEERS = ("preprocessing", "stock", "mosec")
# Ray's idle processes use CPU: it runs without the other servers.
EXCLUSIVE = "ray"
RATE = "requests_per_second"
# Lower bounds of requests/s of JSON divided by that of a server.
GOALS = {"stock": 10.0, "mlserver": 4.0, "bentoml": 4.0, "ray": 4.0, "mosec": 1.5, "triton": 2.5, "stock-avx2": None}
FIGURES = (RATE, "p50_ms", "p99_ms", "cpu_ms_per_request")


@dataclass(frozen=True)
class Scenario:
    """One kind of load.

    Args:
        title: Title in tables and plots.
        connections: Number of connections or gRPC streams.
        rows: Images per request.
        protocols: Server to the protocol of `load.make_request`, or `grpc`.
    """

    title: str
    connections: int
    rows: int
    protocols: Mapping[str, str]


KSERVE = ("ours", "stock", "stock-avx2")
JSON_PROTOCOLS = {
    **dict.fromkeys((*KSERVE, "preprocessing", "logged"), "v1"),
    **dict.fromkeys(("triton", "mlserver"), "v2"),
    "mosec": "mosec",
    "bentoml": "bento",
    "ray": "ray",
}
V2 = (*KSERVE, "triton", "logged")
SCENARIOS = {
    "v1": Scenario("JSON, 1 image, 32 connections", 32, 1, JSON_PROTOCOLS),
    "v1-one": Scenario("JSON, 1 image, 1 connection", 1, 1, JSON_PROTOCOLS),
    "v2": Scenario("V2 JSON, 1 image, 32 connections", 32, 1, dict.fromkeys((*V2, "mlserver"), "v2")),
    "v2-binary": Scenario("V2 binary, 1 image, 32 connections", 32, 1, dict.fromkeys(V2, "binary")),
    "batch": Scenario("V2 binary, 32 images, 4 connections", 4, BATCH, dict.fromkeys(V2, "binary")),
    "grpc": Scenario("gRPC, 1 image, 32 streams", 32, 1, dict.fromkeys((*V2, "mlserver"), "grpc")),
}


class Samples:
    """Samples by scenario, server and figure, one value per round."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, dict[str, list[float]]]] = {}

    def add(self, scenario: str, server: str, figures: Mapping[str, float]) -> None:
        """Add the figures of one round."""
        kept = self.values.setdefault(scenario, {}).setdefault(server, {})
        for name, value in figures.items():
            kept.setdefault(name, []).append(round(value, 6))
        log(f"  {scenario:<10} {server:<10} {'  '.join(f'{name} {value:,.4g}' for name, value in figures.items())}")

    def get(self, scenario: str, server: str, figure: str) -> list[float]:
        """Return the rounds of a figure; empty when it was not measured."""
        return self.values.get(scenario, {}).get(server, {}).get(figure, [])


def read_images(bundle: ModelBundle) -> tuple[str, Any]:
    """Return the name of the input and images as requests have them: raw with a declared preprocessing."""
    verified = bundle.read_verified()
    return next(iter((verified.raw or verified.inputs).items()))


def check_responses(server: Server, protocol: str, rows: int, bundle: ModelBundle) -> None:
    """Compare a server's responses with the outputs that the network had at export.

    Raises:
        RuntimeError: A class differs, or a logit by more than TOLERANCE.
    """
    (name, images), outputs = read_images(bundle), next(iter(bundle.read_verified().outputs.values()))
    for start in range(0, min(len(images), 4 * rows), rows):
        part, expected = images[start : start + rows], outputs[start : start + rows]
        logits = read_response(*server.post(make_request(protocol, part, name)))
        same = logits.shape == expected.shape and (logits.argmax(-1) == expected.argmax(-1)).all()
        if not same or not np.abs(logits - expected).max() <= TOLERANCE:
            text = f"image {start}: expected {expected.tolist()}, got {logits.tolist()}"
            raise RuntimeError(f"{server.peer.title}, {protocol}: {text}")


def measure(server: Server, name: str, scenario: Scenario, bundle: ModelBundle, seconds: float, scratch: Path) -> Any:
    """Warm a server up, load it, and return the figures of one round."""
    input_name, images = read_images(bundle)
    parts = [np.roll(images, -index, axis=0)[: scenario.rows] for index in range(BODIES)]
    protocol = scenario.protocols[name]

    def run(duration: float) -> Load:
        if protocol == "grpc":
            return run_ghz(server.grpc, parts[0], input_name, scenario.connections, duration, scratch)
        requests = [make_request(protocol, part, input_name) for part in parts]
        return run_wrk(server.http, requests, scenario.connections, duration, scratch)

    run(WARM_SECONDS)
    before = server.processes.read_cpu_seconds()
    load = run(seconds)
    used = server.processes.read_cpu_seconds() - before
    if not load.requests:
        raise RuntimeError(f"{server.peer.title}: no response in {scenario.title}:\n{server.processes.read_log()}")
    figures = (load.requests / load.seconds, load.p50_ms, load.p99_ms, 1000 * used / load.requests)
    return {**dict(zip(FIGURES, figures, strict=True)), "failures": load.failures}


def make_models(cache: Path) -> tuple[ModelBundle, ModelBundle]:
    """Return the bundles of LeNet on digits without and with preprocessing; made once, by stages of the lifecycle."""
    if not (cache / "model").is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        for stage in ("load", "train", "export-graph", "export"):
            time_command([sys.executable, str(PEERS.parent / "plain_lifecycle.py"), stage, str(cache)])
    return ModelBundle.open(cache / "graph"), ModelBundle.open(cache / "model")


def run_round(
    samples: Samples, models: tuple[ModelBundle, ModelBundle], servers: Sequence[str], arguments: Any, *, check: bool
) -> None:
    """Start the servers, load them in turn, stop them."""
    graph, raw = models
    bundles = {name: raw if name == "preprocessing" else graph for name in servers}
    seconds, scenarios = arguments.seconds, {key: SCENARIOS[key] for key in arguments.only}
    together = [name for name in servers if name != EXCLUSIVE]
    for group in (together, [name for name in servers if name == EXCLUSIVE]):
        with tempfile.TemporaryDirectory(prefix="serving-") as directory, ExitStack() as stack:
            scratch = Path(directory)
            running = {}
            for name in group:
                running[name] = Server(SERVERS[name], bundles[name].path, scratch / name)
                stack.callback(running[name].processes.stop)
                samples.add("start", name, {"seconds": running[name].start_seconds})
            for key, scenario in scenarios.items():
                for name in [name for name in group if name in scenario.protocols]:
                    if check and scenario.protocols[name] != "grpc":
                        check_responses(running[name], scenario.protocols[name], scenario.rows, bundles[name])
                    figures = measure(running[name], name, scenario, bundles[name], seconds, scratch)
                    samples.add(key, name, figures)
                if group is together and (scenario.connections == 1 or scenario.rows > 1):
                    samples.add(key, "graph", measure_graph(graph.path, scenario.rows, min(seconds, 2.0)))
            for name, server in running.items():
                samples.add("memory", name, {"peak_mb": server.processes.read_peak_memory()})


def build_targets(samples: Samples) -> list[Target]:
    """Return the ratios of ours to the other servers."""
    targets = []

    def add(title: str, scenario: str, figure: str, peer: str, goal: float | None, *, at_least: bool = True) -> None:
        ours, theirs = samples.get(scenario, "ours", figure), samples.get(scenario, peer, figure)
        if ours and theirs:
            title = f"{title} / {SERVERS[peer].title}"
            targets.append(build_target(title, compute_ratios(ours, theirs), goal, at_least=at_least))

    for peer, goal in GOALS.items():
        add("JSON: requests/s", "v1", RATE, peer, goal)
    for scenario, title, goal in (("v2", "V2 JSON", 6.0), ("v2-binary", "V2 binary", 6.0), ("grpc", "gRPC", 3.0)):
        add(f"{title}: requests/s", scenario, RATE, "stock", goal)
    for scenario, title in (("v1", "JSON"), ("v2-binary", "V2 binary"), ("grpc", "gRPC")):
        rates = [samples.get(scenario, server, RATE) for server in ("logged", "ours")]
        if all(rates):
            ratios = compute_ratios(*rates)
            targets.append(build_target(f"{title}: requests/s with log / without", ratios, 0.7, at_least=True))
            used = [samples.get(scenario, server, "cpu_ms_per_request") for server in ("logged", "ours")]
            targets.append(build_target(f"{title}: CPU per request with log / without", compute_ratios(*used), None))
    add("JSON: CPU per request", "v1", "cpu_ms_per_request", "stock", None, at_least=False)
    add("one connection: p50", "v1-one", "p50_ms", "stock", 0.6, at_least=False)
    for scenario, title in (("v1-one", "one connection"), ("v1", "32 connections")):
        p50 = [samples.get(scenario, server, "p50_ms") for server in ("preprocessing", "ours")]
        if all(p50):
            targets.append(build_target(f"{title}: p50 with preprocessing / without", compute_ratios(*p50), 1.1))
    add("peak memory", "memory", "peak_mb", "stock", 1.2, at_least=False)
    images = [BATCH * value for value in samples.get("batch", "ours", RATE)]
    if images and (limit := samples.get("batch", "graph", "images_per_second")):
        ratios = compute_ratios(images, limit)
        targets.append(build_target("batch 32: images/s / graph alone", ratios, 0.7, at_least=True))
    stock, warm = samples.get("start", "stock", "seconds"), samples.get("batch", "graph", "warm_up_seconds")
    if stock and warm:
        ratios = compute_ratios(
            samples.get("start", "ours", "seconds"), [a + b for a, b in zip(stock, warm, strict=True)]
        )
        targets.append(build_target("start to ready / (stock + warm-up)", ratios, 1.0))
    return targets


def build_table(samples: Samples) -> list[list[Any]]:
    """Return the medians of every server in every scenario, header first."""
    rows: list[list[Any]] = [["", "", "requests/s", "p50, ms", "p99, ms", "CPU per request, ms", "peak memory, MB"]]
    for key, scenario in SCENARIOS.items():
        for server in [name for name in (*SERVERS, "graph") if name in samples.values.get(key, {})]:
            rounds = [samples.get(key, server, figure) for figure in FIGURES]
            rounds.append(samples.get("memory", server, "peak_mb"))
            title = SERVERS[server].title if server in SERVERS else "graph alone"
            rows.append([scenario.title, title, *(statistics.median(values) if values else "" for values in rounds)])
    return rows


def build_bars(samples: Samples) -> dict[str, dict[str, list[float]]]:
    """Return requests/s by server for each scenario, ours first."""
    bars = {}
    for key, scenario in SCENARIOS.items():
        rates = {SERVERS[server].title: samples.get(key, server, RATE) for server in SERVERS}
        if group := {title: rounds for title, rounds in rates.items() if rounds}:
            bars[f"{scenario.title}: requests/s"] = group
    return bars


def parse() -> Any:
    parser = build_parser(__doc__ or "")
    peers = [name for name in SERVERS if name != "ours"]
    parser.add_argument("--peers", help=f"servers beside ours: {','.join(peers)} [default: all]")
    parser.add_argument("--only", help=f"scenarios: {','.join(SCENARIOS)} [default: all]")
    parser.add_argument("--rounds", type=int, help="rounds [default: 3, 1 with --quick]")
    parser.add_argument("--seconds", type=float, help="seconds under load [default: 5, 3 with --quick]")
    arguments = parser.parse_args()
    quick = arguments.quick
    for option, known, default in (("peers", peers, QUICK_PEERS if quick else peers), ("only", SCENARIOS, SCENARIOS)):
        given = getattr(arguments, option)
        values = list(default) if given is None else given.split(",")
        if unknown := [value for value in values if value not in known]:
            parser.error(f"--{option}: unknown {', '.join(unknown)}; expected {', '.join(known)}")
        setattr(arguments, option, values)
    arguments.rounds = arguments.rounds or (1 if quick else 3)
    arguments.seconds = arguments.seconds or (3.0 if quick else 5.0)
    return arguments


def main() -> None:
    arguments = parse()
    if missing := check_tools():
        sys.exit(missing)
    models = make_models(ENVIRONMENTS / "lenet")
    samples = Samples()
    for number in range(arguments.rounds):
        log(f"round {number + 1} of {arguments.rounds}")
        order = ["ours", *arguments.peers]
        run_round(samples, models, order if number % 2 == 0 else order[::-1], arguments, check=number == 0)
    raw = {"samples": samples.values, "table": build_table(samples), "bars": build_bars(samples)}
    print_result("serving", build_targets(samples), raw)


if __name__ == "__main__":
    # SIGTERM unwinds the stack, which stops the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
