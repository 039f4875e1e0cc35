"""Loads the compiled components and pipelines by the kfp installed here, and prints how many it refuses as JSON.

kfp parses them into the protocol buffers of its specification, as the back end of the same version does: unknown fields
and values are errors. Runs in an environment without this project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from google.protobuf.json_format import ParseError
from kfp.components import load_component_from_file


def count_refused(paths: list[Path]) -> str:
    """Return `passed`, or how many files are refused, whose errors are printed."""
    refused = 0
    for path in paths:
        try:
            load_component_from_file(str(path))
        except (ValueError, TypeError, KeyError, ParseError) as error:
            refused += 1
            print(f"{path}: {error!r}", file=sys.stderr)
    return f"{refused} of {len(paths)} refused" if refused else "passed"


root = Path(sys.argv[1])
files = {kind: sorted(root.glob(f"{kind}/*/*/{kind[:-1]}.yaml")) for kind in ("components", "pipelines")}
print(json.dumps({kind: count_refused(paths) for kind, paths in files.items()}))
