"""Sweeps on Ray: the same template, space and options, run by Ray Tune, with the record of every sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.commands import build_directory_variables, build_training_command
from kfp_mindspore.ray.version import check_ray
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.sweeps import study as studies
from kfp_mindspore.sweeps.options import PBT, SweepOptions
from kfp_mindspore.sweeps.space import Parameter, Space

if TYPE_CHECKING:
    from optuna.study import Study

_TIME = "epoch"
_NAME = "tune"
# Has a file by the ID of each trial that ran longer than its timeout: Ray reports a lost process.
_EXPIRED = "expired"
# Each trial ends by itself.
_MOST_EPOCHS = 1_000_000
_SAMPLERS = ("tpe", "random", "grid")
_PRUNERS = ("asha", "median", "none", PBT)


# Columns of Tune's reports: `fit`'s counts, and Tune's own, which are no metrics.
_COUNTS = (_TIME, "step")
_TUNE = ("time_this_iter_s", "time_total_s", "time_since_restore", "timestamp")


def run_on_ray(folder: Path, template: Mapping[str, Any], space: Space, options: SweepOptions) -> None:
    """Run a sweep's trials by Ray Tune, each one process; a sweep in the same directory is resumed.

    Once Tune has ended, also by Ctrl-C, the trials are in the study, and their metrics and checkpoints in the trials'
    directories. Trials are numbered by their first report. Ray is started on this machine unless it is initialised or
    RAY_ADDRESS is set.

    Args:
        folder: The sweep's directory, which all Ray nodes reach.
        template: `MSJobClient.train` arguments; `network`, `script`, `dataset` and `trainer_parameters` are used.
        space: The parameters.
        options: The options.
    """
    # Without trials while Tune runs.
    studies.open_study(folder, options)
    from ray import tune

    from kfp_mindspore.ray.job import connect
    from kfp_mindspore.ray.tune import to_command_trainable

    connect()
    shared = template.get("trainer_parameters") or {}
    network, arguments, script, dataset = map(template.get, ("network", "network_arguments", "script", "dataset"))

    def build(config: Mapping[str, Any]) -> list[str]:
        chosen = {name: config[name] for name, item in space.parameters.items() if item.is_used(config)}
        # Ray's session keeps the checkpoints.
        return build_training_command(network, arguments, script, dataset, ".", {**shared, **chosen})[1:]

    directories = build_directory_variables(dataset, None, None, in_pods=False)
    trainable = to_command_trainable(build, directories, options.trial_timeout, folder / _EXPIRED)
    if tune.Tuner.can_restore(str(folder / _NAME)):
        tuner = tune.Tuner.restore(str(folder / _NAME), trainable, restart_errored=True)
    else:
        is_grid = options.sampler == "grid"
        domains = {name: _to_domain(item, is_grid=is_grid) for name, item in space.parameters.items()}
        tuner = tune.Tuner(
            trainable,
            param_space=domains,
            tune_config=tune.TuneConfig(
                metric=options.objective,
                mode="max" if options.is_maximized else "min",
                num_samples=1 if is_grid else options.trials,
                max_concurrent_trials=options.parallel,
                scheduler=_build_scheduler(options, domains),
                search_alg=_build_search(options),
            ),
            run_config=tune.RunConfig(name=_NAME, storage_path=str(folder)),
        )
    found = tuner.fit()
    # A resume has gone on with trials that had failed.
    (folder / studies.JOURNAL_FILE).unlink()
    study = studies.open_study(folder, options)
    for number, result in enumerate(sorted(found, key=_order)):
        _record(folder, study, number, result, space, options)


def check_ray_sweep(template: Mapping[str, Any], options: SweepOptions) -> None:
    """Refuse what Ray Tune has no equivalent for.

    Args:
        template: The trials' training.
        options: The options.

    Raises:
        MissingExtraError: Ray is not installed.
        ValidationError: An option has no equivalent in Ray Tune; the message names each one.
    """
    check_ray()
    given = {name for name, value in template.items() if (name, value) != ("num_workers", 1)}
    unknown = sorted(given - {"network", "network_arguments", "script", "dataset", "trainer_parameters"})
    errors = [f"template.{name}: Ray has no such setting of a trial" for name in unknown]
    if options.objectives or options.seeds > 1:
        errors.append("objectives, seeds: Ray Tune has one objective and one training of each trial")
    if options.sampler not in _SAMPLERS:
        errors.append(f"sampler: must be {', '.join(_SAMPLERS)} on Ray, got {options.sampler!r}")
    if options.pruner not in _PRUNERS:
        errors.append(f"pruner: must be {', '.join(_PRUNERS)} on Ray, got {options.pruner!r}")
    if options.pruner == PBT and options.sampler == "tpe":
        errors.append("sampler: population-based training has random ones, add sampler=random")
    if errors:
        raise ValidationError(errors, subject="sweep", hint="Run it by MSJobs: engine='msjob'.")


def _to_domain(parameter: Parameter, *, is_grid: bool) -> Any:
    """Return Ray's domain for a parameter."""
    from ray import tune

    if parameter.choices is not None:
        return tune.grid_search(parameter.choices) if is_grid else tune.choice(parameter.choices)
    low, high, step = parameter.low, parameter.high, parameter.step
    if parameter.is_integer:
        # Ray's integers exclude the upper end.
        if parameter.log:
            return tune.lograndint(low, int(high or 0) + 1)
        return tune.qrandint(low, high, step) if step else tune.randint(low, int(high or 0) + 1)
    if parameter.log:
        return tune.loguniform(low, high)
    return tune.quniform(low, high, step) if step else tune.uniform(low, high)


def _build_scheduler(options: SweepOptions, domains: Mapping[str, Any]) -> Any:
    from ray.tune import schedulers

    if options.pruner == "asha":
        return schedulers.ASHAScheduler(time_attr=_TIME, max_t=_MOST_EPOCHS, grace_period=options.interval)
    if options.pruner == "median":
        return schedulers.MedianStoppingRule(time_attr=_TIME, grace_period=options.interval)
    if options.pruner == PBT:
        return schedulers.PopulationBasedTraining(
            time_attr=_TIME, perturbation_interval=options.interval, hyperparam_mutations=dict(domains)
        )
    return schedulers.FIFOScheduler()


def _build_search(options: SweepOptions) -> Any:
    if options.sampler == "tpe":
        from ray.tune.search.optuna import OptunaSearch

        return OptunaSearch(seed=options.seed)
    from ray.tune.search import BasicVariantGenerator

    return BasicVariantGenerator(random_state=options.seed)


def _order(result: Any) -> tuple[float, str]:
    """Return a key that a resumed experiment, whose results have another order, keeps."""
    frame = result.metrics_dataframe
    return (math.inf if frame is None or not len(frame) else float(frame["timestamp"].iloc[0]), result.path)


def _record(folder: Path, study: Study, number: int, result: Any, space: Space, options: SweepOptions) -> None:
    """Write a trial's metrics and checkpoint to its directory, then the trial to the study."""
    from optuna.trial import TrialState

    frame = result.metrics_dataframe
    metrics = result.metrics or {}
    directory = folder / studies.TRIALS_FOLDER / str(number)
    records = [] if frame is None else _list_records(frame.to_dict("records"))
    files.write_text(directory / METRICS_FILE, "".join(f"{json.dumps(record)}\n" for record in records))
    if result.checkpoint is not None:
        result.checkpoint.to_directory(str(directory / "checkpoint"))
    chosen = {name: result.config[name] for name, item in space.parameters.items() if item.is_used(result.config)}
    study.enqueue_trial(chosen)
    trial = study.ask()
    space.suggest(trial)
    values = {record[_TIME]: value for record in records if (value := options.read_value(record)) is not None}
    for epoch, value in values.items():
        trial.report(value, epoch)
    trial.set_user_attr(studies.SECONDS_ATTRIBUTE, metrics.get("time_total_s"))
    best = studies.choose_best(values.values(), options.is_maximized)
    state = TrialState.COMPLETE if metrics.get("finished") and best is not None else TrialState.PRUNED
    if result.error is not None or best is None:
        state = TrialState.FAIL
        ran_too_long = any(file.name in Path(result.path).name for file in (folder / _EXPIRED).glob("*"))
        reason = f"ran longer than {options.trial_timeout} s" if ran_too_long and result.error is not None else ""
        reason = reason or str(result.error or f"no epoch of it has reported {options.objective!r}")
        trial.set_user_attr(studies.REASON_ATTRIBUTE, reason)
    # A trial that a scheduler has stopped has fewer epochs than it was to train.
    study.tell(trial, best if state == TrialState.COMPLETE else None, state=state)


def _list_records(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Tune's reports as metrics.jsonl records, each epoch's last one."""
    records: dict[int, dict[str, Any]] = {}
    for row in rows:
        counts = {name: int(row[name]) for name in _COUNTS if name in row}
        own = {
            name: value
            for name, value in row.items()
            if name not in _TUNE and "/" not in name and isinstance(value, float) and not math.isnan(value)
        }
        loss = {"loss": own.pop("loss")} if "loss" in own else {}
        if _TIME in counts:
            records[counts[_TIME]] = {**counts, **loss, **({"validation": own} if own else {})}
    return list(records.values())
