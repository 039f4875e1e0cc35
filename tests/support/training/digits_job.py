"""A training of LeNet-5 on digits as an MSJob on a node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.data import load_dataset
from kfp_mindspore.msjob import build_msjob
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, OUTPUT_VARIABLE
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.kube.node_jobs import NodeJob

# MindSpore starts in seconds; three processes on two busy cores need longer.
TRAINING_SECONDS = 400.0


class DigitsJob(NodeJob):
    """A job that trains LeNet-5 on digits; what it writes is in `out`."""

    def train(self, packages: PodPackages, command: Sequence[str], workers: int, **policy: Any) -> None:
        """Submit it."""
        load_dataset("digits", self.volume / "data")
        job = build_msjob(
            self.name,
            command=command,
            image=PYTHON,
            workers=workers,
            namespace=self.jobs.namespace,
            restart_policy="ExitCode",
            env={
                DATASET_VARIABLE: f"{self.mount}/data",
                CHECKPOINT_VARIABLE: f"{self.mount}/checkpoints",
                OUTPUT_VARIABLE: f"{self.mount}/out",
            },
            **policy,
        )
        for spec in job.ms_replica_specs.values():
            spec.template["spec"] = packages.add_to(spec.template["spec"])
        self.create(job)

    @property
    def out(self) -> Path:
        """Its output directory, on this machine."""
        return self.volume / "out"

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return a record for each epoch so far."""
        file = self.out / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
