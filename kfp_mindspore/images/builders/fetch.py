"""Runs in a build's pod before the build: brings the context from an object store.

`python -m kfp_mindspore.images.builders.fetch s3://bucket/key FILE [--endpoint-url URL] [--region NAME]`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.images.builders.store import ObjectStore


def main(arguments: Sequence[str] | None = None) -> int:
    """Download the object to a file and return the exit code."""
    parser = argparse.ArgumentParser(description="Bring a build's context from an object store.")
    parser.add_argument("url", help="s3://bucket/key")
    parser.add_argument("file", type=Path, help="Where it is written.")
    parser.add_argument("--endpoint-url", default="", help="Address of the service; AWS by default.")
    parser.add_argument("--region", default="", help="Region.")
    given = parser.parse_args(arguments)
    try:
        with given.file.open("wb") as file:
            ObjectStore(given.endpoint_url, given.region).get(given.url, file)
    except KfpMindSporeError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
