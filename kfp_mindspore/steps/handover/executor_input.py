"""KFP's ExecutorInput on a step's command line."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def read_executor_input() -> dict[str, Any]:
    """Return this step's ExecutorInput; empty outside a step."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--executor_input", default="{}")
    arguments, _ = parser.parse_known_args(sys.argv[1:])
    value: dict[str, Any] = json.loads(arguments.executor_input)
    return value
