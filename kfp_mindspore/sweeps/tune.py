"""Sweeps on Ray: the same template, space and options, run by Ray Tune."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.commands import build_directory_variables, build_training_command
from kfp_mindspore.ray.version import check_ray
from kfp_mindspore.sweeps.options import PBT, SweepOptions
from kfp_mindspore.sweeps.space import Parameter, Space
from kfp_mindspore.sweeps.study import COMPLETE, FAILED, PRUNED, SweepResult, TrialResult

_TIME = "epoch"
_NAME = "tune"
# Each trial ends by itself.
_MOST_EPOCHS = 1_000_000
_SAMPLERS = ("tpe", "random", "grid")
_PRUNERS = ("asha", "median", "none", PBT)


def run_on_ray(folder: Path, template: Mapping[str, Any], space: Space, options: SweepOptions) -> SweepResult:
    """Run a sweep's trials by Ray Tune, each one process; a sweep in the same directory is resumed.

    Args:
        folder: The sweep's directory, which all of Ray's nodes reach.
        template: `MSJobClient.train` arguments; `network`, `script`, `dataset` and `trainer_parameters` are used.
        space: The parameters.
        options: The options.

    Raises:
        MissingExtraError: Ray is not installed.
        ValidationError: An option has no equivalent in Ray Tune; the message names each one.
    """
    check_ray()
    _check(template, options)
    from ray import tune

    from kfp_mindspore.ray.tune import to_command_trainable

    shared = template.get("trainer_parameters") or {}
    network, arguments, script, dataset = map(template.get, ("network", "network_arguments", "script", "dataset"))

    def build(config: Mapping[str, Any]) -> list[str]:
        chosen = {name: config[name] for name, item in space.parameters.items() if item.is_used(config)}
        # Ray's session keeps the checkpoints.
        return build_training_command(network, arguments, script, dataset, ".", {**shared, **chosen})[1:]

    directories = build_directory_variables(dataset, None, None, in_pods=False)
    trainable = to_command_trainable(build, directories)
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
    trials = [_read_trial(number, result, space, options) for number, result in enumerate(found)]
    return SweepResult(folder, options.objective, options.is_maximized, trials, options.directions)


def _check(template: Mapping[str, Any], options: SweepOptions) -> None:
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


def _read_trial(number: int, result: Any, space: Space, options: SweepOptions) -> TrialResult:
    """Return a trial's result; a trial that a scheduler has stopped has fewer epochs than it was to train."""
    frame = result.metrics_dataframe
    values = [] if frame is None or options.objective not in frame else list(frame[options.objective])
    best = (max if options.is_maximized else min)(values) if values else None
    chosen = {name: result.config[name] for name, item in space.parameters.items() if item.is_used(result.config)}
    is_done = bool(result.metrics and result.metrics.get("finished"))
    return TrialResult(
        number=number,
        state=FAILED if result.error else COMPLETE if is_done else PRUNED,
        parameters=chosen,
        value=best,
        epochs=int((result.metrics or {}).get(_TIME, 0)),
        seconds=(result.metrics or {}).get("time_total_s"),
        reason=str(result.error or ""),
        output=result.checkpoint.path if result.checkpoint else "",
        values={options.objective: best} if is_done and best is not None else {},
    )
