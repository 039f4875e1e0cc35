"""Build what a cluster of our own needs: `python -m tests.cluster build`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.cluster.infrastructure.binaries import build_binaries
from tests.cluster.infrastructure.prerequisites import UnavailableError

REQUIRE_VARIABLE = "KFP_MINDSPORE_REQUIRE_CLUSTER"


def main() -> int:
    """Do what the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build binaries into the cache; nothing is done when they are there")
    parser.parse_args()
    try:
        print(build_binaries())
    except UnavailableError as error:
        print(f"no cluster here: {error}", file=sys.stderr)
        return 1 if os.environ.get(REQUIRE_VARIABLE) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
