"""A sweep's directory: Optuna's study in a journal, and the trials' outputs.

sweep.json           what was started: training, space, options and engine; a resume needs no other argument
journal.log          Optuna's JournalStorage, which optuna-dashboard opens too
trials/<n>/          a trial's metrics.jsonl, `checkpoint` and `checkpoints`
tune/                Ray Tune's experiment, for a sweep on Ray
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import statistics
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore import files
from kfp_mindspore.errors import NotFoundError, UserError, require_extra
from kfp_mindspore.sweeps.options import SweepOptions

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial

SWEEP_FILE = "sweep.json"
JOURNAL_FILE = "journal.log"
# A journal as it was before its damaged lines were removed.
DAMAGED_FILE = "journal.log.damaged"
TRIALS_FOLDER = "trials"
JOB_ATTRIBUTE, REASON_ATTRIBUTE, SECONDS_ATTRIBUTE = "job", "reason", "seconds"
# All objectives of each seed, and the number of epochs where Optuna has no intermediate values.
SEEDS_ATTRIBUTE, EPOCHS_ATTRIBUTE = "seeds", "epochs"
# Population-based training: the trial whose checkpoint a trial goes on from.
SOURCE_ATTRIBUTE = "source"
RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"
_NAME = "sweep"
# What Optuna imports for a sampler.
_SAMPLER_LIBRARIES = {"gp": "torch", "cmaes": "cmaes"}


@dataclass(frozen=True)
class TrialResult:
    """A trial.

    Args:
        number: From 0.
        state: `running`, `complete`, `pruned` or `failed`.
        parameters: The trial's parameters.
        value: The objective's best value in any epoch; None without one.
        epochs: Epochs that it has reported.
        seconds: Its job's duration; None while it runs.
        reason: Why it failed.
        output: Its output directory or URI; with several seeds, the first one's.
        values: A complete trial's objectives, by name; means over the seeds.
        spread: The objective's standard deviation over the seeds; None for one seed.
        job: Its job's name; with several seeds, the first one's.
    """

    number: int
    state: str
    parameters: Mapping[str, Any]
    value: float | None
    epochs: int
    seconds: float | None
    reason: str
    output: str
    values: Mapping[str, float] = field(default_factory=dict)
    spread: float | None = None
    job: str = ""


@dataclass(frozen=True)
class SweepResult:
    """A sweep.

    Args:
        directory: The sweep's directory.
        objective: The objective's name.
        is_maximized: Whether a greater value is better.
        trials: By number.
        directions: Whether a greater value is better, by objective.
    """

    directory: Path
    objective: str
    is_maximized: bool
    trials: Sequence[TrialResult]
    directions: Mapping[str, bool] = field(default_factory=dict)

    def get_checkpoint(self, trial: TrialResult) -> str | None:
        """Return a trial's final checkpoint; None if it has written none.

        On a cluster it is in the pods' storage, and not checked to exist.
        """
        checkpoint = f"{trial.output}/checkpoint"
        is_here = Path(trial.output).is_relative_to(self.directory.absolute())
        return None if is_here and not Path(checkpoint).exists() else checkpoint

    @property
    def front(self) -> list[TrialResult]:
        """The complete trials that no other one surpasses in one objective without being worse in another."""
        complete = [trial for trial in self.trials if trial.state == COMPLETE]
        points = {
            trial.number: [value if self.directions[name] else -value for name, value in trial.values.items()]
            for trial in complete
        }

        def surpasses(one: list[float], other: list[float]) -> bool:
            return one != other and all(first >= second for first, second in zip(one, other, strict=True))

        return [
            trial for trial in complete if not any(surpasses(point, points[trial.number]) for point in points.values())
        ]

    @property
    def best(self) -> TrialResult:
        """The complete trial with the best value.

        Raises:
            NotFoundError: No trial is complete.
        """
        complete = [trial for trial in self.trials if trial.state == COMPLETE and trial.value is not None]
        if not complete:
            reasons = [f"; trial {trial.number}: {trial.reason}" for trial in self.trials if trial.reason][:1]
            raise NotFoundError(
                f"sweep {self.directory}: no trial is complete, so there is no best one{''.join(reasons)}",
                hint=f"The trials' states: kfp-mindspore sweep show {self.directory}",
            )
        sign = 1 if self.is_maximized else -1
        return max(complete, key=lambda trial: (sign * (trial.value or 0.0), -trial.number))


def import_optuna() -> Any:
    """Return the module optuna.

    Raises:
        MissingExtraError: It is not installed.
    """
    with require_extra("optuna", "sweeps"):
        import optuna
    return optuna


def read_description(directory: Path) -> dict[str, Any]:
    """Return a sweep's sweep.json.

    Raises:
        NotFoundError: The directory has none.
    """
    if not (directory / SWEEP_FILE).is_file():
        raise NotFoundError(f"{directory}: is no sweep, it has no {SWEEP_FILE}", hint="kfp-mindspore sweep run --help")
    found: dict[str, Any] = files.read_json(directory / SWEEP_FILE)
    return found


def open_study(directory: Path, options: SweepOptions) -> Study:
    """Create the study in a directory, or open it, without lines that a full disk or a crash has damaged.

    Raises:
        UserError: It is no sweep's journal, or the sampler needs a library that is not installed.
    """
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = _build_sampler(options, 0)
    _cut_unfinished_line(directory / JOURNAL_FILE)
    if number := _get_damaged_line(directory / JOURNAL_FILE):
        _keep_readable_lines(directory / JOURNAL_FILE, number)
    with _name_damaged_line(directory):
        return optuna.create_study(
            storage=_open_storage(directory),
            study_name=_NAME,
            directions=["maximize" if is_maximized else "minimize" for is_maximized in options.directions.values()],
            sampler=sampler,
            pruner=_build_pruner(options),
            load_if_exists=True,
        )


def begin_trial(study: Study, options: SweepOptions) -> Trial:
    """Return the next trial: a planned one, or one whose parameters the sampler chooses."""
    optuna = import_optuna()
    trials = study.get_trials(deepcopy=False)
    planned = (trial.number for trial in trials if trial.state == optuna.trial.TrialState.WAITING)
    study.sampler = _build_sampler(options, next(planned, len(trials)))
    return study.ask()


def adopt_trial(study: Study, options: SweepOptions, directory: Path, number: int) -> Trial:
    """Return a trial that an earlier engine has begun, to go on with it."""
    optuna = import_optuna()
    # It may have been killed before it had chosen all parameters.
    study.sampler = _build_sampler(options, number)
    storage = _open_storage(directory)
    study_id = storage.get_study_id_from_name(_NAME)
    return optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(study_id, number))


def read_sweep(directory: Path | str) -> SweepResult:
    """Read a sweep that runs or has ended.

    Args:
        directory: The sweep's directory.

    Raises:
        NotFoundError: It is no sweep.
        UserError: Its journal is damaged; the message names the line.
    """
    directory = Path(directory)
    description = read_description(directory)
    optuna = import_optuna()
    options = SweepOptions(**description["options"])
    study = _load_study(directory)
    states = {
        optuna.trial.TrialState.COMPLETE: COMPLETE,
        optuna.trial.TrialState.PRUNED: PRUNED,
        optuna.trial.TrialState.FAIL: FAILED,
    }
    trials = [
        TrialResult(
            number=trial.number,
            state=states.get(trial.state, RUNNING),
            parameters=trial.params,
            value=trial.values[0]
            if trial.state == optuna.trial.TrialState.COMPLETE
            else choose_best(trial.intermediate_values.values(), options.is_maximized),
            epochs=trial.user_attrs.get(EPOCHS_ATTRIBUTE, len(trial.intermediate_values)),
            seconds=trial.user_attrs.get(SECONDS_ATTRIBUTE),
            reason=trial.user_attrs.get(REASON_ATTRIBUTE, ""),
            output=name_output(description, directory, trial.number),
            values=dict(zip(options.directions, trial.values or (), strict=False)),
            spread=_compute_spread(trial.user_attrs.get(SEEDS_ATTRIBUTE, ())),
            job=re.sub(r"-seed\d+$", "", trial.user_attrs.get(JOB_ATTRIBUTE, "")),
        )
        for trial in study.get_trials(deepcopy=False)
    ]
    return SweepResult(directory, options.objective, options.is_maximized, trials, options.directions)


def _compute_spread(seeds: Sequence[Sequence[float]]) -> float | None:
    return statistics.stdev(values[0] for values in seeds) if len(seeds) > 1 else None


def compute_importances(directory: Path) -> dict[str, float]:
    """Return how much of the objective's variance each parameter explains, 0 to 1; {} for too few or equal trials."""
    optuna = import_optuna()
    study = _load_study(directory)
    values = {
        trial.values[0] for trial in study.get_trials(deepcopy=False) if trial.state == optuna.trial.TrialState.COMPLETE
    }
    if len(values) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    if len(study.directions) == 1:
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    # Of several objectives it needs one, whose low values it explains.
    sign = -1 if study.directions[0] == optuna.study.StudyDirection.MAXIMIZE else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return dict(
            optuna.importance.get_param_importances(
                study, evaluator=evaluator, target=lambda trial: sign * trial.values[0]
            )
        )


def name_output(description: Mapping[str, Any], directory: Path, number: int, seed: int = 0) -> str:
    """Return a trial's output directory, or URI for jobs on a cluster; each further seed has its own."""
    root = description.get("output") or str(directory.absolute() / TRIALS_FOLDER)
    return f"{root}/{number}-seed{seed}" if seed else f"{root}/{number}"


def choose_best(values: Any, is_maximized: bool) -> float | None:
    """Return the best finite value, or None."""
    finite = [value for value in values if math.isfinite(value)]
    return (max if is_maximized else min)(finite) if finite else None


def _open_storage(directory: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(directory / JOURNAL_FILE)))


def _load_study(directory: Path) -> Study:
    with _name_damaged_line(directory):
        return import_optuna().load_study(study_name=_NAME, storage=_open_storage(directory))


@contextlib.contextmanager
def _name_damaged_line(directory: Path) -> Iterator[None]:
    """Raise UserError with the journal's damaged line in place of Optuna's errors."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        journal = directory / JOURNAL_FILE
        number = _get_damaged_line(journal)
        place = f"{journal}: line {number} is no entry of Optuna's journal" if number else f"{journal}: cannot be read"
        raise UserError(
            f"{place} ({error})",
            hint=f"kfp-mindspore sweep resume {directory} goes on with what can be read."
            if number
            else "Start the sweep in another directory.",
        ) from error


def _get_damaged_line(journal: Path) -> int:
    """Return the first line that is no entry, from 1; 0 without one."""
    if not journal.is_file():
        return 0
    lines = journal.read_bytes().splitlines()
    return next((number for number, line in enumerate(lines, 1) if not _is_entry(line)), 0)


def _is_entry(line: bytes) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and "op_code" in found


def _keep_readable_lines(journal: Path, damaged: int) -> None:
    """Replace a journal by its readable lines, or, if these are no whole record, by those in front of the damage.

    Without the line that creates a trial, Optuna ignores later trials' entries.
    """
    files.write_bytes(journal.with_name(DAMAGED_FILE), journal.read_bytes())
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _is_entry(line)]
    if not _is_whole_record(kept):
        kept = lines[: damaged - 1]
    files.write_bytes(journal, b"".join(kept))
    warnings.warn(
        f"{journal}: line {damaged} was damaged: kept {len(kept)} of {len(lines)} lines, the former file is "
        f"{journal.with_name(DAMAGED_FILE)}",
        stacklevel=2,
    )


def _is_whole_record(lines: Sequence[bytes]) -> bool:
    """Return whether all trials in a journal have been given their jobs, but one, whose entry may be the damaged."""
    from optuna.trial import TrialState

    with tempfile.TemporaryDirectory() as scratch:
        files.write_bytes(Path(scratch, JOURNAL_FILE), b"".join(lines))
        try:
            trials = _load_study(Path(scratch)).get_trials(deepcopy=False)
        except UserError:
            return False
    begun = [trial for trial in trials if trial.state != TrialState.WAITING]
    return sum(JOB_ATTRIBUTE not in trial.user_attrs for trial in begun) <= 1


def _cut_unfinished_line(journal: Path) -> None:
    """Remove an incomplete last line: Optuna ignores it, but would write the next entry behind it."""
    if not journal.is_file():
        return
    with journal.open("r+b") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            file.truncate(end)


def _build_sampler(options: SweepOptions, number: int) -> BaseSampler:
    """Return the sampler for a trial, whose seed follows from the sweep's and the trial's number.

    A sampler's random state is not in the journal: with one seed for all trials, a resumed sweep would draw the first
    trials' parameters again.

    Raises:
        UserError: The sampler needs a library that is not installed.
    """
    from optuna import samplers

    if (library := _SAMPLER_LIBRARIES.get(options.sampler)) and find_spec(library) is None:
        raise UserError(
            f"sampler: {options.sampler} needs the library {library}, which is not installed",
            hint=f"pip install {library}, or another sampler.",
        )
    seed = int(np.random.SeedSequence([options.seed, number]).generate_state(1)[0])
    return {
        "tpe": samplers.TPESampler,
        "random": samplers.RandomSampler,
        # Its values are enqueued: Optuna's GridSampler ends only a study's own loop.
        "grid": samplers.RandomSampler,
        "gp": samplers.GPSampler,
        "cmaes": samplers.CmaEsSampler,
    }[options.sampler](seed=seed)


def _build_pruner(options: SweepOptions) -> BasePruner:
    from optuna import pruners

    return {
        "asha": pruners.SuccessiveHalvingPruner,
        "hyperband": pruners.HyperbandPruner,
        "median": pruners.MedianPruner,
    }.get(options.pruner, pruners.NopPruner)()
