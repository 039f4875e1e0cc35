"""Write a release of the checkout's commit, or push its images.

`python -m release VERSION [--output DIRECTORY] [--key KEY] [--base BASE]`, `python -m release push REGISTRY/TEAM`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.images.registry.configuration import RegistryConfig
from release.files import write_release
from release.push import push_images
from release.signatures import read_public_key

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        for line in _push(words[1:]) if words[:1] == ["push"] else _write(words):
            print(line)
    except KfpMindSporeError as error:
        lines = [f"Error: {error.message}", *error.log]
        print("\n".join([*lines, error.hint] if error.hint else lines), file=sys.stderr)
        return error.exit_code
    return 0


def _write(words: Sequence[str]) -> Iterator[str]:
    parser = argparse.ArgumentParser(prog="python -m release", description="Write a release of the checkout's commit.")
    parser.add_argument("version", help="the version; must be the package's")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="directory of the release, by default dist")
    parser.add_argument("--key", type=Path, help="private key that signs it: a PEM file, curve P-256")
    parser.add_argument(
        "--base", help="also write images, over REGISTRY/NAME@sha256:…, an OCI image layout or its archive"
    )
    _add_insecure(parser)
    options = parser.parse_args(words)
    registry = RegistryConfig(insecure=tuple(options.insecure))
    for name in write_release(ROOT, options.version, options.output, options.key, options.base, registry):
        yield str(options.output / name)


def _push(words: Sequence[str]) -> Iterator[str]:
    parser = argparse.ArgumentParser(prog="python -m release push", description="Push a release's images.")
    parser.add_argument("destination", help="REGISTRY/TEAM: the images' repositories are below it")
    parser.add_argument("--images", type=Path, default=ROOT / "dist" / "images", help="by default dist/images")
    parser.add_argument("--key", type=Path, help="public key that must have signed them: a PEM file")
    _add_insecure(parser)
    options = parser.parse_args(words)
    key = read_public_key(options.key) if options.key else None
    return push_images(options.images, options.destination, RegistryConfig(insecure=tuple(options.insecure)), key)


def _add_insecure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--insecure", action="append", default=[], metavar="HOST", help="registry with plain HTTP; may be repeated"
    )


if __name__ == "__main__":
    sys.exit(main())
