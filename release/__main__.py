"""Write a release of the checkout's commit: `python -m release VERSION [--output DIRECTORY]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError
from release.files import write_release

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Write a release of the checkout's commit.")
    parser.add_argument("version", help="the version; must be the package's")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="directory of the release, by default dist")
    parser.add_argument("--key", type=Path, help="private key that signs SHA256SUMS: a PEM file, curve P-256")
    options = parser.parse_args()
    try:
        for name in write_release(ROOT, options.version, options.output, options.key):
            print(options.output / name)
    except KfpMindSporeError as error:
        lines = [f"Error: {error.message}", *error.log]
        print("\n".join([*lines, error.hint] if error.hint else lines), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
