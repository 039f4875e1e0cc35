"""How fast are language models computed and served, beside transformers and llama.cpp on the same weights?

A random Llama of 22 million weights, and SmolLM2-135M: decode steps beside transformers and by each operator;
mindsporeserver with 1 and 8 clients beside llama.cpp's server in float32 and 4 bits; what HTTP, events and sampling
cost; first tokens beside other streams and after a cached prefix; memory and start.

    python benchmarks/language_models.py --quick     # the small network alone, one round
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from environments import prepare_environment
from harness import Target, build_parser, build_target, compute_ratios, log, print_result, run_in_turn
from servers import Peer, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS = Path(__file__).parent / "peers"
DECODE = PEERS / "language" / "decode.py"
STEP, CLIENTS, LLAMA, SERVER, FIRST, GAP, PREFIX, MEMORY, READY = 1.0, 3.5, 0.9, 1.1, 3.0, 1.0, 0.3, 1.1, 40.0
# Of the operator in int8 at batch 1.
INT8 = 1.6
# Of caches: what decode.py measures too.
CACHE = 256
SLOTS, LENGTH, TOKENS, CHUNK, PREFIX_TOKENS = 8, 1024, 64, 64, 256
OURS = Peer(
    "mindsporeserver",
    "",
    (
        *("python", "-m", "mindsporeserver", "--model_name=model", "--model_dir={model}", "--http_port={http}"),
        *("--enable_grpc=false", f"--max-num-seqs={SLOTS}", f"--max-model-len={LENGTH}"),
    ),
    "/health",
)
LLAMA_SERVER = Peer(
    "llama.cpp",
    "llama",
    ("python", str(PEERS / "serving" / "llama_server.py"), "{http}", "{model}", str(SLOTS), str(LENGTH), "2"),
    "/health",
)


@dataclasses.dataclass(frozen=True)
class Model:
    """One network's files.

    Attributes:
        name: Its name in figures.
        bundle: The bundle.
        huggingface: For transformers.
        ggufs: By the kind of weights, for llama.cpp.
        vocabulary: Count of token IDs.
        weights: Bytes in float32.
    """

    name: str
    bundle: Path
    huggingface: Path
    ggufs: Mapping[str, Path]
    vocabulary: int
    weights: int


def make_models(root: Path, *, small_only: bool) -> list[Model]:
    """Fetch SmolLM2, and write it and a smaller random Llama with its tokenizer in all formats."""
    from kfp_mindspore.lm.bundle.causal import import_model, read_model, write_model
    from kfp_mindspore.lm.bundle.export_gguf import write_gguf
    from kfp_mindspore.lm.bundle.export_huggingface import export_huggingface
    from kfp_mindspore.lm.network.decoder import list_weights
    from kfp_mindspore.lm.text.demo_weights import fetch_demo_weights

    source = fetch_demo_weights("smollm2", root)
    import_model(source, root / "135M")
    found = read_model(root / "135M")
    config = dataclasses.replace(found.config, width=256, layers=12, heads=4, kv_heads=2, head_size=64, hidden=704)
    generator = np.random.default_rng(0)
    weights = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else generator.normal(0, 0.05, shape).astype(np.float32)
        for name, shape in list_weights(config).items()
    }
    write_model(dataclasses.replace(found, config=config, weights=weights), root / "22M", subject="22M")
    models = []
    for name in ("22M",) if small_only else ("22M", "135M"):
        read = read_model(root / name)
        export_huggingface(root / name, root / f"{name}-hf")
        write_gguf(read, root / f"{name}.gguf", dtype="float32", subject=name)
        ggufs = {"float32": root / f"{name}.gguf"} | ({"4 bits": source} if name == "135M" else {})
        size = sum(array.nbytes for array in read.weights.values())
        models.append(Model(name, root / name, root / f"{name}-hf", ggufs, read.config.vocabulary_size, size))
    return models


def run_decode(framework: str, python: Path, model: Path, batch: int, slots: int, steps: int) -> dict[str, float]:
    """Run peers/language/decode.py."""
    words = [str(python), str(DECODE), framework, str(model), *map(str, (batch, slots, steps))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{framework}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_step(framework: str, python: Path, model: Path, batch: int, steps: int) -> float:
    """Return the seconds of a decode step."""
    return run_decode(framework, python, model, batch, batch, steps)["step"]


def compare_steps(model: Model, rounds: int, steps: int) -> tuple[list[Target], dict[str, list[float]]]:
    """Measure decode steps beside transformers and by each operator, and five batch sizes' memory beside one's."""
    here = Path(sys.executable)
    skipped = ""
    try:
        theirs = prepare_environment(PEERS / "language" / "transformers.txt") / "python"
    except RuntimeError as error:
        skipped = str(error).strip().splitlines()[-1]
        log(f"transformers: skipped, its packages cannot be installed ({skipped})")
    targets, samples = [], {}
    for batch in (1, SLOTS):
        ways = {way: partial(measure_step, way, here, model.bundle, batch, steps) for way in ("ours", "int8", "graphs")}
        if not skipped:
            ways["transformers"] = partial(measure_step, "transformers", theirs, model.huggingface, batch, steps)
        found = run_in_turn(ways, rounds)
        samples |= {f"{way}, batch {batch}": values for way, values in found.items()}
        if not skipped:
            ratios = compute_ratios(found["transformers"], found["ours"])
            name = f"{model.name}, batch {batch}: decode steps/s / transformers"
            targets.append(build_target(name, ratios, STEP, at_least=True))
        for name, slower, faster, goal in (
            ("operator / MindSpore's", "graphs", "ours", None),
            ("int8 / float32", "ours", "int8", INT8 if batch == 1 else None),
        ):
            ratios = compute_ratios(found[slower], found[faster])
            name = f"{model.name}, batch {batch}: decode steps/s, {name}"
            targets.append(build_target(name, ratios, goal, at_least=True))
    one, five = (run_decode("ours", here, model.bundle, 1, slots, 4) for slots in (1, 16))
    extra = (five["memory"] - five["caches"]) - (one["memory"] - one["caches"])
    targets.append(
        build_target(f"{model.name}: weights' memory, five graphs / one", [1 + extra / model.weights], MEMORY)
    )
    return targets, samples


class Streams:
    """Completions by events.

    Args:
        server: The server.
        vocabulary: Count of token IDs.
    """

    def __init__(self, server: Server, vocabulary: int) -> None:
        self._url, self._vocabulary = f"http://127.0.0.1:{server.http}/v1/completions", vocabulary
        self._generator = np.random.default_rng(1)

    def make_prompt(self, length: int) -> list[int]:
        """Return random token IDs."""
        ids: list[int] = self._generator.integers(100, self._vocabulary, length).tolist()
        return ids

    async def send(self, client: httpx.AsyncClient, prompt: Sequence[int], tokens: int) -> list[float]:
        """Return the request's time, and each event's that has a token."""
        body = {
            "model": "model",
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0.8,
            "seed": 1,
            "ignore_eos": True,
            "stream": True,
        }
        times = [time.perf_counter()]
        async with client.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{self._url}: {response.status_code} {(await response.aread())[:500]!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    times.append(time.perf_counter())
        return times

    def measure_rate(self, clients: int, tokens: int) -> float:
        """Return tokens per second of so many clients, each with one answer."""
        times = self._send_together(clients, tokens)
        return clients * tokens / (max(sent[-1] for sent in times) - min(sent[0] for sent in times))

    def measure_token(self, clients: int, tokens: int) -> float:
        """Return the seconds per token of the answer that begins last: all prompts are computed by then."""
        _, first, *_, last = max(self._send_together(clients, tokens), key=lambda sent: sent[1])
        return (last - first) / (tokens - 1)

    def _send_together(self, clients: int, tokens: int) -> list[list[float]]:
        prompts = [self.make_prompt(32) for _ in range(clients)]

        async def run() -> list[list[float]]:
            async with make_client() as client:
                return await asyncio.gather(*(self.send(client, prompt, tokens) for prompt in prompts))

        return asyncio.run(run())

    def measure_first(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return the seconds to the first token of one prompt after the other."""

        async def run() -> list[float]:
            async with make_client() as client:
                sent = [await self.send(client, prompt, 1) for prompt in prompts]
                return [times[1] - times[0] for times in sent]

        return asyncio.run(run())

    def measure_beside(self, streams: int, probes: int) -> tuple[list[float], list[float]]:
        """Return the seconds to first tokens beside other streams, and those between these streams' tokens."""

        async def run() -> tuple[list[float], list[float]]:
            async with make_client() as client:
                busy = [
                    asyncio.create_task(self.send(client, self.make_prompt(32), LENGTH - 64)) for _ in range(streams)
                ]
                await self.send(client, self.make_prompt(CHUNK), 1)
                begun, first = time.perf_counter(), []
                for _ in range(probes):
                    times = await self.send(client, self.make_prompt(CHUNK), 1)
                    first.append(times[1] - times[0])
                ended = time.perf_counter()
                gaps: list[float] = []
                for times in await asyncio.gather(*busy):
                    inside = np.array([moment for moment in times[1:] if begun <= moment <= ended])
                    gaps += np.diff(inside).tolist()
                return first, gaps

        return asyncio.run(run())


def make_client() -> httpx.AsyncClient:
    """Return a client without limits."""
    return httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


@contextmanager
def start(peer: Peer, model: Path, scratch: Path) -> Iterator[Server]:
    """Run a server for a block."""
    server = Server(peer, model, scratch)
    try:
        yield server
    finally:
        server.processes.stop()


def compare_servers(
    model: Model, scratch: Path, rounds: int, step: float
) -> tuple[list[Target], dict[str, dict[str, list[float]]]]:
    """Measure mindsporeserver beside llama.cpp's server.

    Args:
        model: The network.
        scratch: Directory for the servers' files.
        rounds: Number of rounds.
        step: Seconds of a decode step with 8 rows, without a server.
    """
    name, rates = model.name, {}
    with start(OURS, model.bundle, scratch / f"{name}-ours") as ours:
        log(f"{name}: ready after {ours.start_seconds:.1f} s")
        mine = Streams(ours, model.vocabulary)
        mine.measure_rate(SLOTS, 8)
        for kind, gguf in model.ggufs.items():
            with start(LLAMA_SERVER, gguf, scratch / f"{name}-{kind}".replace(" ", "-")) as llama:
                theirs = Streams(llama, model.vocabulary)
                theirs.measure_rate(SLOTS, 8)
                ways = {
                    f"{way}, {count} client{'s' * (count > 1)}": lambda streams=streams, count=count: (
                        streams.measure_rate(count, TOKENS)
                    )
                    for way, streams in (("mindsporeserver", mine), (f"llama.cpp {kind}", theirs))
                    for count in (1, SLOTS)
                }
                rates[kind] = run_in_turn(ways, rounds)
        served = [mine.measure_token(SLOTS, CACHE - 40) / step for _ in range(rounds)]
        alone = mine.measure_first([mine.make_prompt(CHUNK) for _ in range(10)])
        first, gaps = mine.measure_beside(SLOTS - 1, 20)
        prompts = [mine.make_prompt(PREFIX_TOKENS + 1) for _ in range(2 * rounds)]
        cold = mine.measure_first(prompts)
        warm = mine.measure_first(prompts)
    eight, one = (rates["float32"][f"mindsporeserver, {clients}"] for clients in (f"{SLOTS} clients", "1 client"))
    most = float(np.median(alone)) + 2 * step
    targets = [
        build_target(f"{name}: tokens/s, 8 clients / 1", compute_ratios(eight, one), CLIENTS, at_least=True),
        build_target(f"{name}: time between tokens / decode step without a server, 8 streams", served, SERVER),
        build_target(f"{name}: first token beside 7 streams, p99 / p50", [measure_tail(first)], FIRST),
        build_target(f"{name}: between tokens, p99 / (chunk + 2 steps)", [float(np.quantile(gaps, 0.99)) / most], GAP),
        build_target(f"{name}: first token, second / first request", compute_ratios(warm, cold), PREFIX),
        build_target(f"{name}: ready from a bundle, s", [ours.start_seconds], READY),
    ]
    for kind, found in rates.items():
        ratios = compute_ratios(found[f"mindsporeserver, {SLOTS} clients"], found[f"llama.cpp {kind}, {SLOTS} clients"])
        goal = LLAMA if kind == "float32" else None
        targets.append(build_target(f"{name}: tokens/s, 8 clients / llama.cpp {kind}", ratios, goal, at_least=True))
    return targets, {f"{name}, tokens per second, {kind}": found for kind, found in rates.items()}


def measure_tail(seconds: Sequence[float]) -> float:
    """Return the 99th percentile as a multiple of the median."""
    return float(np.quantile(seconds, 0.99) / np.median(seconds))


def main() -> None:
    """Run the comparisons."""
    parser = build_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, help="rounds [default: 5, 1 with --quick]")
    arguments = parser.parse_args()
    is_quick = arguments.quick
    rounds = arguments.rounds or (1 if is_quick else 5)
    targets: list[Target] = []
    raw: dict[str, Any] = {"bars": {}}
    with tempfile.TemporaryDirectory(prefix="language-") as directory:
        root = Path(directory)
        for model in make_models(root, small_only=is_quick):
            found, samples = compare_steps(model, rounds, 40)
            targets += found
            raw["bars"][f"{model.name}, seconds of a decode step"] = samples
            step = float(np.median(samples[f"ours, batch {SLOTS}"]))
            found, bars = compare_servers(model, root, rounds, step)
            targets += found
            raw["bars"] |= bars
    print_result("language_models", targets, raw)


if __name__ == "__main__":
    main()
