"""Which Ray a process uses: the one that is initialised, the one in RAY_ADDRESS, else its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from kfp_mindspore.ray import load_dataset, predict_rows
from kfp_mindspore.ray.job import connect
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.space import Space
from kfp_mindspore.sweeps.tune import run_on_ray

pytestmark = pytest.mark.mindspore


class ConnectedError(Exception):
    """Ends a call where it would have started Ray."""


def predict(models: Path, path: Path) -> None:
    next(predict_rows(models / "raw", models / "dataset", "test", np.arange(4)))


def load(models: Path, path: Path) -> None:
    (path / "data.csv").write_text("a,target\n1,2\n")
    load_dataset(str(path / "data.csv"), path / "out")


def sweep(models: Path, path: Path) -> None:
    run_on_ray(path, {}, Space({"learning_rate": [0.1, 0.2]}), SweepOptions(objective="loss"))


@pytest.mark.parametrize("call", [predict, load, sweep])
@pytest.mark.parametrize(("variable", "address"), [("", "local"), ("127.0.0.1:6379", None)])
def test_address_is_local_unless_given(
    monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path, call: Any, variable: str, address: str | None
) -> None:
    def init(**options: Any) -> None:
        assert options.get("address") == address
        raise ConnectedError

    monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectedError):
        call(models, tmp_path)


def test_initialised_ray_is_used(ray_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert connect() is False


@pytest.mark.timeout(300)
def test_running_ray_of_another_user_is_not_joined(models: Path) -> None:
    code = (
        "import numpy as np, ray; from kfp_mindspore.ray import predict_rows; "
        f"print(len(list(predict_rows({str(models / 'raw')!r}, {str(models / 'dataset')!r}, 'test', np.arange(4)))))"
    )
    # A short path: Ray's sockets are in it.
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        # `ray start` leaves its address here; `ray.init()` would connect to it.
        (Path(directory) / "ray").mkdir()
        (Path(directory) / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "RAY_TMPDIR": directory},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split()[-1] == "4"
