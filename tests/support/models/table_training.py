"""Trains, exports and evaluates the network of a project on tables; runs in the project's directory.

Usage: python table_training.py TEMPLATE DIRECTORY [SEED], prints one line of JSON for each table.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn import datasets

if TYPE_CHECKING:
    from kfp_mindspore.evaluation.predictions import Predictions

Table = Callable[[int], "pd.DataFrame"]


def make_linear(rows: int, seed: int) -> pd.DataFrame:
    """Return a linear target with noise: ridge regression has the least possible error."""
    features, target = datasets.make_regression(rows, 10, n_informative=6, noise=6.0, random_state=seed)
    return pd.DataFrame(features).add_prefix("x").assign(target=target)


def make_friedman(rows: int, seed: int) -> pd.DataFrame:
    """Return a non-linear target with noise."""
    features, target = datasets.make_friedman1(rows, 10, noise=1.0, random_state=seed)
    return pd.DataFrame(features).add_prefix("x").assign(target=target)


def make_sales(rows: int, seed: int) -> pd.DataFrame:
    """Return a non-linear target with texts and empty cells beside the numbers."""
    random = np.random.default_rng(seed)
    table = make_friedman(rows, seed)
    effects = {"Oslo": 0.0, "Rome": 3.0, "Lima": -2.0, "Cairo": 5.0}
    table.insert(3, "city", random.choice(list(effects), rows))
    table["target"] += table["city"].map(effects)
    for name in ("x0", "x7"):
        table.loc[random.random(rows) < 0.05, name] = np.nan
    return table


def make_classes(rows: int, seed: int) -> pd.DataFrame:
    """Return three classes by name."""
    features, target = datasets.make_classification(rows, 20, n_informative=6, n_classes=3, random_state=seed)
    return pd.DataFrame(features).add_prefix("x").assign(target=np.array(["low", "middle", "high"])[target])


# None: a dataset that load_dataset knows by name.
TABLES: Mapping[str, Mapping[str, Table | None]] = {
    "regression": {
        "diabetes": None,
        "linear": lambda seed: make_linear(440, seed),
        "small": lambda seed: make_friedman(200, seed),
        "friedman": lambda seed: make_friedman(1000, seed),
        "sales": lambda seed: make_sales(2000, seed),
    },
    "classification": {
        "breast_cancer": None,
        "wine": None,
        "iris": None,
        "digits": None,
        "classes": lambda seed: make_classes(1000, seed),
    },
}


def measure(predictions: Predictions) -> dict[str, list[float]]:
    """Return each sample's loss, and for classes each sample's error, 0 or 1."""
    measured = {"losses": predictions.losses, "errors": None if predictions.hits is None else 1 - predictions.hits}
    return {name: array.tolist() for name, array in measured.items() if array is not None}


def main(template: str, directory: Path, seed: int = 0) -> None:
    """Train and evaluate on each table."""
    # The project's own modules.
    sys.path.insert(0, str(Path.cwd()))
    import train

    from kfp_mindspore.data import load_dataset, read_samples
    from kfp_mindspore.formats.dataset import Dataset
    from kfp_mindspore.mindir import evaluate_bundle, export_mindir
    from kfp_mindspore.mindir.baselines import compute_baselines

    for name, make in TABLES[template].items():
        source, data, output = name, directory / name, directory / f"{name}-output"
        arguments: dict[str, Any] = {}
        if make is not None:
            source = str(directory / f"{name}.csv")
            table = make(seed)
            table.to_csv(source, index=False)
            arguments = {"missing": "mean"} if table.isna().any(axis=None) else {}
        load_dataset(source, data, seed=seed, task=template, **arguments)
        os.environ |= {"KFP_MINDSPORE_DATASET_DIR": str(data), "KFP_MINDSPORE_OUTPUT_DIR": str(output)}
        start = time.perf_counter()
        train.main([])
        seconds = time.perf_counter() - start
        export_mindir(output / "checkpoint", output / "model", dataset_dir=data)
        evaluation = evaluate_bundle(output / "model", data)
        start = time.perf_counter()
        dataset = Dataset.open(data)
        splits = (read_samples(dataset, split) for split in ("train", "test"))
        (*_, baseline) = compute_baselines(template, *splits, labels=dataset.labels).values()
        result = {
            "table": name,
            "network": measure(evaluation.predictions),
            "baseline": measure(baseline),
            "training_seconds": round(seconds, 2),
            "baseline_seconds": round(time.perf_counter() - start, 2),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
