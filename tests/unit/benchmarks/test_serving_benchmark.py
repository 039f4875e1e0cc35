"""The benchmark of serving: what it sends and reads, how it starts, counts and ends servers, how it judges."""

import dataclasses
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MODULES = ("harness", "load", "models", "pictures", "servers", "serving", "profile_serving")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    """Return a function that imports a module of benchmarks/; their names are taken back afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in {*MODULES} - before:
            sys.modules.pop(name, None)


def make_images(rows: int = 2) -> Any:
    return np.random.default_rng(0).integers(0, 16, (rows, 1, 8, 8)).astype(np.float32) / 16


def test_binary_bodies_carry_the_bytes_behind_their_json(benchmark: Any) -> None:
    import json

    images = make_images()
    request = benchmark("load").make_v2_binary(images, "image")
    header = json.loads(request.body[: request.json_length])
    assert request.body[request.json_length :] == images.tobytes()
    assert header["inputs"][0]["parameters"] == {"binary_data_size": images.nbytes}
    assert request.headers["Inference-Header-Content-Length"] == str(request.json_length)


LOGITS = [[0.5, -1.25]]
JSON_ANSWERS = (
    b'{"predictions": [[0.5, -1.25]]}',
    b'{"prediction": [0.5, -1.25]}',
    b"[[0.5, -1.25]]",
    b'{"outputs": [{"name": "output", "shape": [1, 2], "datatype": "FP32", "data": [0.5, -1.25]}]}',
)


@pytest.mark.parametrize("content", JSON_ANSWERS)
def test_answers_of_every_server_are_read(benchmark: Any, content: bytes) -> None:
    assert benchmark("load").read_answer({}, content).tolist() == LOGITS


def test_binary_answers_are_read(benchmark: Any) -> None:
    header = b'{"outputs": [{"name": "output", "shape": [1, 2], "datatype": "FP32"}]}'
    content = header + np.array(LOGITS, np.float32).tobytes()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    assert benchmark("load").read_answer(headers, content).tolist() == LOGITS


@pytest.mark.parametrize("file", sorted((BENCHMARKS / "peers" / "serving").glob("*.txt")), ids=lambda file: file.stem)
def test_requirements_are_bare_pins(file: Path) -> None:
    lines = file.read_text().splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[a-z0-9.!+]+", line) for line in lines)
    assert len(set(names)) == len(names)


def test_every_peer_has_its_requirements(benchmark: Any) -> None:
    servers = benchmark("servers")
    wanted = {peer.requirements for peer in servers.SERVERS.values()} - {""}
    assert all((servers.PEERS / f"{name}.txt").is_file() for name in {*wanted, "graph", "profile"})


def test_every_form_is_spoken_by_a_server(benchmark: Any) -> None:
    servers, serving = benchmark("servers"), benchmark("serving")
    for scenario in serving.SCENARIOS:
        assert set(scenario.forms) <= set(servers.SERVERS)
        assert "ours" in scenario.forms


def test_stock_and_ours_are_asked_alike(benchmark: Any) -> None:
    for scenario in benchmark("serving").SCENARIOS:
        assert scenario.forms["ours"] == scenario.forms["stock"]


def run(arguments: list[str], **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "serving.py"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_missing_generator_says_how_to_get_it(tmp_path: Path) -> None:
    done = run(["--quick", "--only", "v1"], PATH=str(tmp_path))
    assert done.returncode == 2
    assert "apt-get install wrk" in done.stderr


def test_an_unknown_peer_is_named() -> None:
    done = run(["--peers", "stock,triton"])
    assert done.returncode == 2
    assert "--peers: no triton; there are stock" in done.stderr


def fill(board: Any, scenario: str, rates: dict[str, list[float]], p99: dict[str, float]) -> None:
    for server, values in rates.items():
        for value in values:
            board.add(scenario, server, {"requests_per_second": value, "p99_ms": p99[server]})


def test_targets_compare_round_by_round(benchmark: Any) -> None:
    serving = benchmark("serving")
    board = serving.Board()
    rates = {
        "ours": [1000.0, 2000.0, 1500.0],
        "stock": [100.0, 100.0, 100.0],
        "asgi": [4000.0, 4000.0, 4000.0],
        "mlserver": [300.0, 200.0, 100.0],
        "bentoml": [200.0, 400.0, 100.0],
    }
    fill(board, "v1", rates, {"ours": 10.0, "stock": 100.0, "asgi": 1.0, "mlserver": 30.0, "bentoml": 20.0})
    targets = {target.name: target for target in serving.judge(board, "lenet")}
    assert targets["lenet, V1: requests/s / stock"].ratio == 15
    assert targets["lenet, V1: requests/s / stock"].spread == (10, 20)
    best = targets["lenet, V1: requests/s / best other server"]
    assert (best.ratio, best.met) == (5, True)
    assert targets["lenet, V1: requests/s / bare ASGI"].met is False
    assert targets["lenet, V1: p99 / lowest p99 of a server"].ratio == 0.5


def test_what_was_not_measured_is_no_target(benchmark: Any) -> None:
    serving = benchmark("serving")
    board = serving.Board()
    fill(board, "v1", {"ours": [1.0]}, {"ours": 1.0})
    assert serving.judge(board, "lenet") == []


@pytest.fixture
def server(benchmark: Any, tmp_path: Path) -> Iterator[Any]:
    """Return the application that answers a constant, run in this environment."""
    servers = benchmark("servers")
    peer = dataclasses.replace(servers.SERVERS["asgi"], requirements="")
    started = servers.Server(peer, servers.prepare_environment(""), tmp_path, tmp_path / "server")
    yield started
    started.stop()


def test_a_server_is_started_asked_counted_and_ended(benchmark: Any, server: Any) -> None:
    headers, content = server.post(benchmark("load").make_v1(make_images(1)))
    assert headers["content-type"] == "application/json"
    assert benchmark("load").read_answer(headers, content).shape == (1, 10)
    assert server.processes.list_pids() == [server.processes.process.pid]
    assert 5 < server.processes.read_peak_memory() < 500
    assert server.processes.read_cpu_seconds() > 0
    server.stop()
    assert server.processes.list_pids() == []


def test_processes_that_left_their_parent_are_found_and_ended(benchmark: Any, tmp_path: Path) -> None:
    servers = benchmark("servers")
    script = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    processes = servers.Processes([sys.executable, "-c", script], {}, tmp_path)
    processes.process.wait()
    assert len(processes.list_pids()) == 1
    processes.stop()
    assert processes.list_pids() == []


def test_a_server_that_ends_shows_its_log(benchmark: Any, tmp_path: Path) -> None:
    servers = benchmark("servers")
    peer = servers.Peer("x", "X", "", lambda *_: [sys.executable, "-c", "raise SystemExit('no such model')"], "/")
    with pytest.raises(RuntimeError, match=r"(?s)X ended with 1.*no such model"):
        servers.Server(peer, Path(sys.executable).parent, tmp_path, tmp_path / "x")


def test_wrk_loads_a_server(benchmark: Any, server: Any, tmp_path: Path) -> None:
    load = benchmark("load")
    if not load.find_wrk():
        pytest.skip("wrk is not installed")
    seen = load.run_wrk(server.http, [load.make_v1(make_images(1)), load.make_v1(make_images(2))], 4, 1.0, tmp_path)
    assert seen.requests > 100
    assert seen.failures == 0
    assert 0 < seen.p50_ms <= seen.p99_ms


def locate(module: str, text: str) -> tuple[str, int]:
    file = Path(importlib.util.find_spec(module).origin)  # type: ignore[union-attr, arg-type]
    number = next(index for index, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return str(file), number


STAGES = (
    ("json", "mindsporeserver.protocols.v1", "orjson.loads(body)", "parse_json"),
    ("encode", "mindsporeserver.protocols.v1", "return orjson.dumps", "encode"),
    ("array", "mindsporeserver.protocols.tensors", "def read_nested", "InputReader.read_nested"),
    ("graph", "kfp_mindspore.compat.graph_executor", "self._execute(tensors", "CompiledGraph.run"),
    ("batch", "kfp_mindspore.mindir.graph", "np.concatenate", "Graph._run_parts"),
    ("queue", "mindsporeserver.models.batcher", "self._queue.append", "Batcher.submit"),
    ("asgi", "mindsporeserver.protocols.asgi", "count_request(", "HotRoutes._answer"),
    ("write", "mindsporeserver.protocols.asgi", "async def _send", "_send"),
)


@pytest.mark.parametrize(("stage", "module", "text", "function"), STAGES, ids=[stage[0] for stage in STAGES])
def test_samples_are_put_down_to_their_stage(benchmark: Any, stage: str, module: str, text: str, function: str) -> None:
    file, line = locate(module, text)
    frames = ["MainThread", "run (/lib/python3/asyncio/runners.py:118)", f"{function} ({file}:{line})"]
    assert benchmark("profile_serving").classify(frames) == stage


def test_pictures_are_the_same_for_the_same_figures(benchmark: Any, tmp_path: Path) -> None:
    pictures = benchmark("pictures")
    samples = {"v1": {"ours": {"requests_per_second": [3.0, 5.0], "p99_ms": [1.0, 2.0]}}}
    raw = {"models": {"lenet": samples}, "scenarios": [["v1", "JSON"]], "servers": [["ours", "mindsporeserver"]]}
    stages = {"one": {"http": 3.0, "graph": 9.0}}
    drawn = []
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        files = [*pictures.draw_servers("serving", raw, directory), *pictures.draw_stages("stages", stages, directory)]
        drawn.append([(file.name, file.read_bytes()) for file in files])
    assert drawn[0] == drawn[1]
    assert [name for name, _ in drawn[0]] == ["serving-lenet.svg", "stages.svg"]
