"""What do Ray's ways of running MindSpore cost over their peers?

MindSporeTrainer beside TorchTrainer with the same small network, two workers and one killed worker: start to first
step, recovery and report. Its step beside an MSJob's of two workers. Batches by Ray Data beside arrays in memory, for
the workload `vit`. A bundle on Serve beside a plain deployment around its graph. The name is not ray.py, which would
hide the package.

    python benchmarks/on_ray.py --quick
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import kfp_mindspore  # noqa: F401  MindSpore's protobuf before Ray's

# isort: split
import numpy as np
import ray
from environments import prepare_environment
from harness import Target, build_parser, build_target, compute_ratios, log, print_result, run_in_turn, time_command
from peers.training import ray_training
from ray import serve

from kfp_mindspore import export_mindir, load_dataset, training
from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.data import read_samples
from kfp_mindspore.msjob import LocalBackend, MSJobClient, build_msjob
from kfp_mindspore.ray import bind_model, iter_mindspore_batches

PEERS = Path(__file__).parent / "peers" / "training"
SCRIPT = PEERS / "ray_training.py"
START, STEP, DATA, SERVE = 1.1, 1.05, 0.8, 3.0
BATCH = 64


class Trainings:
    """Trainings with two workers; each call is one, in a directory of its own.

    Args:
        root: Directory of all outputs.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0

    def _make_directory(self) -> Path:
        self._count += 1
        directory = self._root / f"{self._count}"
        directory.mkdir()
        return directory

    def train(self, framework: str, python: Path) -> dict[str, float]:
        """Train on Ray in a process of its own, see peers/training/ray_training.py."""
        directory = self._make_directory()
        done = subprocess.run(
            [str(python), str(SCRIPT), framework, str(directory)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{framework}: {done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        log(f"{framework}: {found}")
        return found

    def train_msjob(self) -> dict[str, float]:
        """Train by an MSJob."""
        directory = self._make_directory()
        (directory / "killed").touch()
        client, name = MSJobClient(LocalBackend()), f"ray-bench-{self._count}"
        client.create_job(build_msjob(name, command=[sys.executable, str(SCRIPT), "msjob", str(directory)], workers=2))
        client.wait_for_job_conditions(name)
        client.delete_job(name)
        return {"step": ray_training.read_step(directory)}


def compare_trainings(root: Path, rounds: int) -> tuple[list[Target], dict[str, Any]]:
    """Measure MindSporeTrainer, TorchTrainer where it can be installed, and an MSJob, in turn."""
    trainings = Trainings(root)
    here = Path(sys.executable)
    candidates: dict[str, Callable[[], dict[str, float]]] = {
        "ours": lambda: trainings.train("mindspore", here),
        "msjob": trainings.train_msjob,
    }
    skipped = ""
    try:
        torch = prepare_environment(PEERS / "ray_torch.txt") / "python"
        candidates["torch"] = lambda: trainings.train("torch", torch)
    except RuntimeError as error:
        skipped = str(error).strip().splitlines()[-1]
        log(f"TorchTrainer: skipped, its packages cannot be installed ({skipped})")
    found: dict[str, Any] = run_in_turn(candidates, rounds)  # type: ignore[arg-type]
    samples = {f"{name} {key}": [one[key] for one in values] for name, values in found.items() for key in values[0]}
    imports = [time_command([sys.executable, "-c", "import mindspore"]) for _ in range(rounds)]
    ratios = compute_ratios(samples["ours step"], samples["msjob step"])
    targets = [build_target("MindSporeTrainer step / MSJob step", ratios, STEP)]
    for key in ("start", "recovery", "report"):
        targets.append(build_target(f"MindSporeTrainer {key}, s", samples[f"ours {key}"]))
        if "torch" in candidates:
            own = samples[f"ours {key}"]
            if key == "start":
                own = [seconds - one for seconds, one in zip(own, imports, strict=True)]
            ratios = compute_ratios(own, samples[f"torch {key}"])
            name = f"MindSporeTrainer {key}{' without import' * (key == 'start')} / TorchTrainer {key}"
            targets.append(build_target(name, ratios, START if key == "start" else None))
    ways = {"ours": "MindSporeTrainer", "msjob": "MSJob", "torch": "TorchTrainer"}
    bars = {
        f"{key}, s": {ways[way]: samples[f"{way} {key}"] for way in ways if f"{way} {key}" in samples}
        for key in ("start", "recovery", "report", "step")
    }
    return targets, {"bars": bars, "import mindspore": imports, "torch skipped": skipped}


def compare_data(steps: int, rounds: int) -> tuple[list[Target], dict[str, Any]]:
    """Measure steps per second of ViT with batches by Ray Data and from memory."""
    from mindspore import Tensor, nn

    from kfp_mindspore.workloads.vit.network import Network

    generator = np.random.default_rng(0)
    images = generator.normal(size=(steps * BATCH, 1, 28, 28)).astype(np.float32)
    labels = generator.integers(0, 10, len(images)).astype(np.int32)
    network = Network(28, 10)
    step = nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.CrossEntropyLoss()), nn.Adam(network.trainable_params(), 1e-3)
    )
    step.set_train()
    columns = {"image": images, "label": labels}
    dataset = ray.data.from_numpy(np.arange(len(images))).map_batches(
        lambda batch, columns=columns: {name: array[batch["data"]] for name, array in columns.items()}
    )

    def run(batches: Iterable[Mapping[str, Any]]) -> float:
        start = time.perf_counter()
        for batch in batches:
            loss = step(batch["image"], batch["label"])
        loss.asnumpy()
        return steps / (time.perf_counter() - start)

    def read_memory() -> Iterable[Mapping[str, Any]]:
        for first in range(0, len(images), BATCH):
            yield {name: Tensor(array[first : first + BATCH]) for name, array in columns.items()}

    run(read_memory())
    samples = run_in_turn(
        {
            "Ray Data": lambda: run(iter_mindspore_batches(dataset, batch_size=BATCH, prefetch_batches=2)),
            "memory": lambda: run(read_memory()),
        },
        rounds,
    )
    ratios = compute_ratios(samples["Ray Data"], samples["memory"])
    return [build_target("Ray Data steps/s / in-memory steps/s", ratios, DATA, at_least=True)], {
        "bars": {"ViT, steps per second": samples}
    }


@serve.deployment
class Naive:
    """The graph as Serve's guide serves a model."""

    def __init__(self, path: str) -> None:
        # Serve has imported protobuf.
        import_mindspore()
        import mindspore

        self._graph = mindspore.nn.GraphCell(mindspore.load(path))

    async def __call__(self, image: Any) -> Any:
        """Return the outputs of images."""
        import mindspore

        return self._graph(mindspore.Tensor(image)).asnumpy()


def compare_serving(root: Path, requests: int, rounds: int) -> tuple[list[Target], dict[str, Any]]:
    """Measure requests per second of one image each, all at once, by handles."""
    from mindspore import nn

    from kfp_mindspore.workloads.digits.network import LeNet5

    dataset = load_dataset("digits", root / "dataset")
    network = LeNet5()
    training.fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.Adam(network.trainable_params(), 3e-3),
        config=training.TrainingConfig(epochs=1, batch_size=32, verbose=False, output_dir=str(root / "trained")),
    )
    bundle = export_mindir(root / "trained" / "checkpoint", root / "bundle", dataset_dir=dataset.path)
    samples = read_samples(dataset, "test", count=1)
    raw, image = samples.raw["image"], samples.inputs["image"]
    ours = serve.run(bind_model(bundle.path, name="ours", http=False), name="ours", route_prefix=None)
    naive = serve.run(Naive.bind(str(bundle.path / "model.mindir")), name="naive", route_prefix=None)

    def measure(send: Callable[[], Any]) -> float:
        async def run() -> float:
            start = time.perf_counter()
            await asyncio.gather(*(send() for _ in range(requests)))
            return requests / (time.perf_counter() - start)

        return asyncio.run(run())

    ways = {
        "bind_model": lambda: measure(lambda: ours.predict.remote({"image": raw})),
        "naive": lambda: measure(lambda: naive.remote(image)),
    }
    for way in ways.values():
        way()
    found = run_in_turn(ways, rounds)
    serve.shutdown()
    ratios = compute_ratios(found["bind_model"], found["naive"])
    return [build_target("bind_model requests/s / naive deployment", ratios, SERVE, at_least=True)], {
        "bars": {"Serve, requests per second": found}
    }


def main() -> None:
    """Run the comparisons."""
    is_quick = build_parser(__doc__ or "").parse_args().quick
    # By default Ray's workers yield to every other process; an MSJob's do not.
    os.environ |= {"RAY_worker_niceness": "0"}
    rounds = 1 if is_quick else 5
    targets: list[Target] = []
    raw: dict[str, Any] = {"bars": {}}
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        root = Path(directory)
        (root / "trainings").mkdir()
        parts: list[Callable[[], tuple[list[Target], dict[str, Any]]]] = [
            lambda: compare_trainings(root / "trainings", rounds),
            lambda: compare_data(10 if is_quick else 50, rounds),
            lambda: compare_serving(root, 100 if is_quick else 200, rounds),
        ]
        for number, part in enumerate(parts):
            if number == 1:
                # Behind the trainings, which start a Ray of their own.
                ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
            found, samples = part()
            for target in found:
                log(f"{target.name}: {target.ratio}")
            targets += found
            raw |= {**samples, "bars": {**raw["bars"], **samples["bars"]}}
        ray.shutdown()
    print_result("on_ray", targets, raw)


if __name__ == "__main__":
    main()
