"""KFP's ExecutorInput on the command line of a step."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def read_executor_input() -> dict[str, Any]:
    """Return the ExecutorInput of this step; empty outside a step."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--executor_input", default="{}")
    arguments, _ = parser.parse_known_args(sys.argv[1:])
    value: dict[str, Any] = json.loads(arguments.executor_input)
    return value
