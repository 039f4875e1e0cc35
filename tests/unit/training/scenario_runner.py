"""Runs the scenarios of a script in one process: `python SCRIPT ROOT [NAME…]` writes ROOT/results.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def run_scenarios(scenarios: Mapping[str, Callable[[Path], Any]]) -> None:
    root, *names = sys.argv[1:]
    results = {}
    for name, function in scenarios.items():
        if names and name not in names:
            continue
        directory = Path(root, name)
        directory.mkdir()
        results[name] = function(directory)
        print("done", name, flush=True)
    Path(root, "results.json").write_text(json.dumps(results, default=str))
