"""Sweeps and functions as trials of Ray Tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.sweeps import resume_sweep, sweep
from kfp_mindspore.sweeps.report import render_report
from kfp_mindspore.sweeps.study import read_sweep
from tests.ray import loops

pytestmark = pytest.mark.mindspore

SPACE = {"learning_rate": {"low": 1e-4, "high": 0.1, "log": True}}


def test_sweep_has_record_of_other_engine(ray_session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = sweep(
        {"script": loops.__file__}, SPACE, "loss", directory=tmp_path / "sweep", engine="ray", trials=3, parallel=2
    )
    assert [trial.state in ("complete", "pruned") for trial in found.trials] == [True] * 3
    best = found.best
    assert best.value == min(trial.value for trial in found.trials if trial.state == "complete")
    assert Checkpoint.open(Path(best.output) / "checkpoint").epoch == best.epochs == loops.EPOCHS
    assert 1e-4 <= best.parameters["learning_rate"] <= 0.1
    assert list(read_sweep(tmp_path / "sweep").trials) == list(found.trials)
    assert "<svg" in render_report(found)
    capsys.readouterr()
    assert run(["sweep", "best", str(tmp_path / "sweep"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == f"{best.output}/checkpoint"
    assert run(["sweep", "show", str(tmp_path / "sweep")]) == 0
    assert "learning_rate" in capsys.readouterr().out
    # A resume runs nothing again, and keeps the record.
    assert list(resume_sweep(tmp_path / "sweep").trials) == list(found.trials)
    with pytest.raises(UserError, match="runs by engine ray, got msjob"):
        sweep({"script": loops.__file__}, SPACE, "loss", directory=tmp_path / "sweep", trials=3)


def test_hanging_trial_ends_after_its_timeout(ray_session: Any, tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    found = sweep(
        *({"script": str(script)}, SPACE, "loss"), directory=tmp_path / "s", engine="ray", trials=1, trial_timeout=2
    )
    assert [(trial.state, trial.reason) for trial in found.trials] == [("failed", "ran longer than 2 s")]


def test_population_continues_from_winners_checkpoint(ray_session: Any, tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    from kfp_mindspore.ray import to_trainable

    scheduler = PopulationBasedTraining(
        time_attr="epoch",
        perturbation_interval=1,
        hyperparam_mutations={"learning_rate": [0.001, 0.1]},
        # Trials wait for each other: a loser that has ended cannot continue from a winner.
        synch=True,
    )
    found = tune.Tuner(
        to_trainable(loops.train),
        param_space={"learning_rate": tune.grid_search([1e-6, 0.05])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="population"),
    ).fit()
    assert not found.errors
    assert {result.metrics["epoch"] for result in found} == {loops.EPOCHS}
    # The learning rate of 1e-6 alone ends above this.
    assert max(result.metrics["loss"] for result in found) < 1.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "gp"}, "sampler: must be tpe, random, grid on Ray, got 'gp'"),
        ({"pruner": "hyperband"}, "pruner: must be asha, median, none, pbt on Ray, got 'hyperband'"),
        ({"seeds": 2}, "objectives, seeds: Ray Tune has one objective"),
    ],
)
def test_options_without_equivalent_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=message):
        sweep({"script": "train.py"}, SPACE, "loss", directory=tmp_path, engine="ray", **options)
