"""What does a sweep's trial cost over the bare job, what does pruning save, and how fast does the engine restart?

LeNet-5 is trained on digits with learning rates from 1e-4 to 0.3. The same trials run in a sweep with and without
pruning, in kfp's ParallelFor (kfp.local) and in plain Optuna over subprocesses, two at a time, in turn.

    python benchmarks/sweeps.py --quick
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from harness import build_parser, build_target, compute_ratios, log, print_result, run_in_turn, time_command

from kfp_mindspore.data import load_dataset
from kfp_mindspore.msjob import LocalBackend, MSJobClient
from kfp_mindspore.settings import DATASET_VARIABLE, OUTPUT_VARIABLE
from kfp_mindspore.sweeps import sweep

NETWORK = "kfp_mindspore.workloads.digits.network:LeNet5"
LOW, HIGH = 1e-4, 0.3
PARALLEL = 2
OVERHEAD, PRUNED, RESTART = 1.1, 0.6, 2.0


class Trials:
    """The same trials in each way; the best accuracies are kept by way.

    Args:
        root: Directory of all outputs.
        count: Trials.
        epochs: Epochs of each.
    """

    def __init__(self, root: Path, count: int, epochs: int) -> None:
        self.root = root
        self.count = count
        self.epochs = epochs
        self.dataset = load_dataset("digits", root / "data").path
        self.best: dict[str, list[float]] = {}
        self.last: Path | None = None
        self._numbers = itertools.count()
        step = math.log(HIGH / LOW) / (count - 1)
        # The best ones are not at an end of the order, as pruning needs others to compare with.
        self.rates = [LOW * math.exp(step * ((5 * index) % count)) for index in range(count)]

    def make_directory(self) -> Path:
        """Create a new output directory."""
        directory = self.root / f"{next(self._numbers)}"
        directory.mkdir()
        return directory

    def sweep(self, pruner: str, count: int | None = None) -> float:
        """Run trials in a sweep and return the seconds."""
        directory = self.make_directory()
        template = {"network": NETWORK, "dataset": str(self.dataset), "trainer_parameters": {"epochs": self.epochs}}
        rates = self.rates[: count or self.count]
        start = perf_counter()
        result = sweep(
            template,
            {"learning_rate": rates},
            "accuracy",
            directory=directory,
            client=MSJobClient(LocalBackend()),
            sampler="grid",
            pruner=pruner,
            trials=len(rates),
            parallel=min(PARALLEL, len(rates)),
        )
        seconds = perf_counter() - start
        if count is None:
            self.best.setdefault(f"sweep, {pruner}", []).append(result.best.value or 0.0)
            self.last = directory
        return seconds

    def run_job(self) -> float:
        """Run the first trial as a bare job and return the seconds."""
        client = MSJobClient(LocalBackend())
        name = f"bare-{next(self._numbers)}"
        parameters = {"epochs": self.epochs, "learning_rate": self.rates[0]}
        start = perf_counter()
        client.train(
            name,
            network=NETWORK,
            dataset=self.dataset,
            output_dir=self.make_directory(),
            trainer_parameters=parameters,
        )
        client.wait_for_job_conditions(name)
        seconds = perf_counter() - start
        client.delete_job(name)
        return seconds

    def run_optuna(self) -> float:
        """Run the trials as subprocesses of plain Optuna and return the seconds."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directory = self.make_directory()

        def train(trial: optuna.trial.Trial) -> float:
            rate = trial.suggest_categorical("learning_rate", self.rates)
            return train_one(rate, self.epochs, str(self.dataset), str(directory / str(trial.number)))

        study = optuna.create_study(direction="maximize")
        for rate in self.rates:
            study.enqueue_trial({"learning_rate": rate})
        start = perf_counter()
        study.optimize(train, n_trials=self.count, n_jobs=PARALLEL)
        seconds = perf_counter() - start
        self.best.setdefault("Optuna", []).append(study.best_value)
        return seconds

    def run_parallel_for(self) -> float:
        """Run the trials as a ParallelFor in a process of its own and return the seconds."""
        directory = self.make_directory()
        arguments = json.dumps([self.rates, self.epochs, str(self.dataset), str(directory)])
        seconds = time_command([sys.executable, str(Path(__file__).parent / "peers" / "parallel_for.py"), arguments])
        found = [read_best(path.parent) for path in directory.glob("*/metrics.jsonl")]
        if len(found) != self.count:
            raise RuntimeError(f"ParallelFor: expected {self.count} trials, found {len(found)}")
        self.best.setdefault("ParallelFor", []).append(max(found))
        return seconds

    def restart(self) -> float:
        """Resume the last sweep, which has ended, in a new process and return the seconds."""
        return time_command([sys.executable, "-m", "kfp_mindspore.cli.main", "sweep", "resume", str(self.last)])


def train_one(rate: float, epochs: int, dataset: str, output: str) -> float:
    """Train in a subprocess and return the best accuracy."""
    command = [sys.executable, "-m", "kfp_mindspore.training", NETWORK, "--epochs", str(epochs)]
    threads = max(1, (os.cpu_count() or 1) // PARALLEL)
    env = {**os.environ, DATASET_VARIABLE: dataset, OUTPUT_VARIABLE: output, "OMP_NUM_THREADS": str(threads)}
    subprocess.run([*command, "--learning-rate", str(rate)], env=env, check=True, capture_output=True)
    return read_best(Path(output))


def read_best(output: Path) -> float:
    """Return the best accuracy in a metrics.jsonl."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return max(float(json.loads(line)["validation"]["accuracy"]) for line in lines)


def main() -> None:
    options = build_parser(__doc__ or "").parse_args()
    rounds, count, epochs = (1, 8, 6) if options.quick else (3, 16, 60)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["KFP_MINDSPORE_HOME"] = f"{directory}/home"
        trials = Trials(Path(directory), count, epochs)
        singles = run_in_turn({"sweep": lambda: trials.sweep("none", 1), "job": trials.run_job}, rounds)
        log(f"one trial: {singles}")
        ways: dict[str, Callable[[], float]] = {
            "sweep, asha": functools.partial(trials.sweep, "asha"),
            "sweep, none": functools.partial(trials.sweep, "none"),
            "Optuna": trials.run_optuna,
            "ParallelFor": trials.run_parallel_for,
        }
        samples = run_in_turn(ways, rounds)
        log(f"{count} trials: {samples}, best {trials.best}")
        restarts = [trials.restart() for _ in range(max(rounds, 3))]
    pruned, whole = samples["sweep, asha"], samples["sweep, none"]
    lost = [b - a for a, b in zip(trials.best["sweep, asha"], trials.best["sweep, none"], strict=True)]
    targets = [
        build_target("one trial / bare job", compute_ratios(singles["sweep"], singles["job"]), OVERHEAD),
        build_target(f"{count} trials with pruning / without", compute_ratios(pruned, whole), PRUNED),
        build_target("best accuracy lost by pruning", lost, 0.0),
        build_target("trials with pruning / Optuna over subprocesses", compute_ratios(pruned, samples["Optuna"])),
        build_target("trials with pruning / kfp's ParallelFor", compute_ratios(pruned, samples["ParallelFor"])),
        build_target("trials without pruning / Optuna over subprocesses", compute_ratios(whole, samples["Optuna"])),
        build_target("engine restart, seconds", restarts, RESTART),
    ]
    raw: dict[str, Any] = {"bars": {f"seconds of {count} trials": samples}, "best": trials.best, "restarts": restarts}
    log(f"median restart {statistics.median(restarts):.2f} s")
    print_result("sweeps", targets, raw)


if __name__ == "__main__":
    main()
