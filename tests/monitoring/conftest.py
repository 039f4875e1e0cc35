"""An operator, model servers and a language model under load, scraped by a real Prometheus."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kfp_mindspore.formats.bundle import TRANSFORM_FILE, ModelBundle, write_bundle
from kfp_mindspore.lm.bundle.causal import import_model
from tests.cluster.conftest import start
from tests.cluster.infrastructure.api_server import ApiServer
from tests.monitoring.prometheus import Prometheus, make_target, read_rules, shorten_rules
from tests.support.kube.operators import Jobs, OperatorProcess, install_definition
from tests.support.language.language_servers import LanguageServer
from tests.support.language.tiny_language_model import write_source
from tests.support.models.table_models import export_table, make_rows, write_csv
from tests.support.serving.model_servers import ModelServer

SLOW, FAILING = 1e25, 1e31
# Tokens of an answer: the model has 128 positions.
LONG = 100
# httpx.post would read the certificates of authorities for each request.
_client = httpx.Client(timeout=120, limits=httpx.Limits(max_connections=None))
_TRANSFORM = f"""
import time
from kfp_mindspore.transform import Transform

class Faulty(Transform):
    def preprocess(self, inputs):
        largest = inputs["image"].max()
        if largest > {FAILING / 10}:
            raise KeyError("a defect")
        if largest > {SLOW / 10}:
            time.sleep(1.5)
        return inputs

transform = Faulty()
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests: `make test-monitoring` runs them."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.monitoring)


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on the PATH: `make test-monitoring` installs Debian's package prometheus")


def post_image(server: ModelServer, pixel: float = 0.0) -> int:
    """Send an image, and return the status."""
    rows = [[[[pixel] * 8] * 8]]
    return server.post("/v1/models/digits:predict", {"instances": rows})[0]


def post_prompt(server: LanguageServer, tokens: int) -> int:
    """Request an answer of some tokens, and return the status."""
    body = {"model": "chat", "prompt": "dog 3?", "max_tokens": tokens, "ignore_eos": True}
    return _client.post(f"{server.url}/v1/completions", json=body).status_code


def measure_answer(server: LanguageServer) -> float:
    """Return the seconds of the fastest of three answers to a single client; the first one compiles."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        assert post_prompt(server, LONG) == 200
        seconds.append(time.monotonic() - began)
    return min(seconds)


@contextlib.contextmanager
def repeat(send: Callable[[], Any], clients: int = 1, pause: float = 0.05) -> Iterator[None]:
    """Send requests by several clients until the block ends.

    Args:
        send: Sends one.
        clients: How many send at once.
        pause: Seconds between two requests of a client.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause):
            send()

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(run) for _ in range(clients)]
        try:
            yield
        finally:
            ended.set()
        for client in running:
            client.result()


@dataclass(frozen=True)
class System:
    """What Prometheus scrapes.

    Args:
        operator: An operator.
        jobs: Its jobs.
        stable: The model server of the service `digits`, which has the model `mean` of a table, too.
        canary: That of `digits-canary`, with faults for large pixels.
        chat: The server of a language model with one slot.
        prometheus: Scrapes them.
    """

    operator: OperatorProcess
    jobs: Jobs
    stable: ModelServer
    canary: ModelServer
    chat: LanguageServer
    prometheus: Prometheus


@pytest.fixture(scope="session")
def bundles(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the bundles `mean`, `faulty` and `chat`."""
    root = tmp_path_factory.mktemp("bundles")
    write_csv(root / "table.csv", make_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "support" / "models"))
        export_table(root, "mean", {"missing": "mean", "ids": ["id"]})
    bundle = ModelBundle.open(models / "free")
    with write_bundle(root / "faulty") as writer:
        shutil.copy(bundle.mindir, writer.directory)
        (writer.directory / TRANSFORM_FILE).write_text(_TRANSFORM)
        writer.sign(bundle.signature)
    import_model(write_source(root / "source"), root / "chat")
    return root


@pytest.fixture(scope="session")
def system(models: Path, bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    root = tmp_path_factory.mktemp("monitoring")
    chat_flags = ("--max-num-seqs=1", "--max-model-len=128", "--max-queue-tokens=2500")
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(start(ApiServer))
        install_definition(api.kubeconfig)
        namespace = stack.enter_context(api.make_namespace())
        operator = stack.enter_context(OperatorProcess(api.kubeconfig, root / "operator", "--namespace", namespace))
        stable = stack.enter_context(ModelServer(root, {"digits": models / "free", "mean": bundles / "mean"}))
        canary = stack.enter_context(ModelServer(root, {"digits": bundles / "faulty"}, "--allow_model_code=true"))
        chat = stack.enter_context(
            LanguageServer(tmp_path_factory.mktemp("chat"), *chat_flags, bundle=bundles / "chat")
        )
        for server in (stable, canary):
            server.wait_ready()
        pods = [
            make_target(stable.port, "digits"),
            make_target(canary.port, "digits-canary"),
            make_target(httpx.URL(chat.url).port or 0, "chat"),
            # Not the server's container.
            make_target(stable.port, "digits", container="istio-proxy"),
        ]
        # As long as five clients wait for the slot, on a machine of any speed.
        rules = shorten_rules(read_rules(), first_token_seconds=5 * measure_answer(chat))
        prometheus = stack.enter_context(Prometheus(tmp_path_factory.mktemp("prometheus"), rules, operator.port, pods))
        yield System(operator, Jobs(api.kubeconfig, namespace), stable, canary, chat, prometheus)


@pytest.fixture(scope="session")
def load(system: System) -> Iterator[None]:
    """Send requests that every server answers, and change a job that runs."""
    jobs, row = system.jobs, {"age": 41, "income": 3.25, "garden": True, "city": "Atlantis"}
    jobs.create("running", workers=1)
    jobs.launch("running", 1)
    jobs.create("done", workers=1)
    jobs.launch("done", 1)
    jobs.end("done-worker-0", 0)

    def send() -> None:
        assert post_image(system.stable) == post_image(system.canary) == 200
        assert system.stable.post("/v1/models/mean:predict", {"instances": [row]})[0] == 200

    def change_job() -> None:
        count = (jobs.get("running")["metadata"].get("annotations") or {}).get("count", "0")
        jobs.patch("running", {"metadata": {"annotations": {"count": str(int(count) + 1)}}})

    with (
        repeat(send, pause=0.1),
        repeat(lambda: post_prompt(system.chat, 8), pause=0.5),
        repeat(change_job, pause=1.0),
    ):
        yield
