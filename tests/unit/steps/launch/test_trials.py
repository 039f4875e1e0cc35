"""A step's trials: the jobs' options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.steps.launch.job import StepJobs
from kfp_mindspore.steps.launch.train import LocalTrainingFiles
from kfp_mindspore.steps.launch.trials import StepTrials
from kfp_mindspore.sweeps.jobs import TrialJob


class StubJobs:
    """Jobs that keep the options of the first one in place of its submission."""

    has_lease = True
    options: JobOptions

    def build(self, name: str, command: Any, options: JobOptions, *, pod: PodPatch) -> Any:
        self.options = options
        raise InterruptedError


@dataclass
class StubFiles:
    directories: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    patch: PodPatch = field(default_factory=PodPatch)


@pytest.mark.parametrize(
    ("own", "timeout", "expected"), [(None, 60, 60), (30, 60, 30), (90, 60, 60), (30, None, 30), (None, None, None)]
)
def test_job_has_shorter_of_its_deadline_and_trials_timeout(
    own: int | None, timeout: int | None, expected: int | None
) -> None:
    jobs = StubJobs()
    trials = StepTrials(
        cast(StepJobs, jobs),
        JobOptions(active_deadline_seconds=own),
        lambda job: ["python", "train.py"],
        lambda output: cast(LocalTrainingFiles, StubFiles()),
        pod=PodPatch(),
        study=None,
    )
    with pytest.raises(InterruptedError):
        trials.start(TrialJob(0, "trial-0", {}, "output", timeout=timeout))
    assert jobs.options.active_deadline_seconds == expected
