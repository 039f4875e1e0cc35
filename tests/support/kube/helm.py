"""Helm with this repository's chart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "charts" / "kfp-mindspore"
Document = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """Helm's command line.

    Args:
        program: The executable.
        home: Directory of its cache and of the values.
        kubeconfig: Kubeconfig of the cluster; without one it only renders.
    """

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def __call__(self, *words: str, **sections: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run it, with sections of values."""
        command = [str(self.program), *words]
        if sections:
            values = self.home / "values.yaml"
            values.write_text(yaml.safe_dump(sections))
            command += ["--values", str(values)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig or "")}
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)

    def run(self, *words: str, **sections: Mapping[str, Any]) -> str:
        """Run it, expect success and return its output."""
        done = self(*words, **sections)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def render(self, **sections: Mapping[str, Any]) -> list[Document]:
        """Return the chart's objects."""
        text = self.run("template", "kfp", str(CHART), **sections)
        return [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]
