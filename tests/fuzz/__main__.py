"""Fuzz a real server: `python -m tests.fuzz [--seed N]`, or send kept bodies again: `--replay FILE`."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.fuzz.cases import read_cases
from tests.fuzz.driver import generate, run_cases
from tests.fuzz.targets import open_stage
from tests.support.serving.model_servers import make_models

COUNTS = {"v1": 26_000, "v2": 26_000, "binary": 26_000, "grpc": 14_000, "http": 12_000, "files": 8_000, "rows": 12_000}
MEMORY_BOUND = 128 << 20
PEAK_BOUND = 512 << 20


def main() -> int:
    """Run; return 0 without a wrong response, else 1."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="Default: another one each time; it is printed.")
    parser.add_argument("--scale", type=float, default=1.0, help="1 sends 124,000 bodies.")
    parser.add_argument("--only", default="", help=f"Kinds, such as v1,grpc; of {', '.join(COUNTS)}.")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures.jsonl"), help="Where failing bodies are kept.")
    parser.add_argument("--replay", type=Path, help="Send the bodies of such a file again, one after the other.")
    parser.add_argument("--connections", type=int, default=12)
    parser.add_argument("--models", type=Path, help="A directory of make_models.py; default a new one.")
    parser.add_argument("--served", default="digits,pair", help="The models to serve.")
    arguments, flags = parser.parse_known_args()
    os.environ.setdefault("GLOG_v", "4")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        models = arguments.models or make_models(scratch / "models")
        stage = stack.enter_context(open_stage(models, scratch, *flags, served=arguments.served.split(",")))
        if arguments.replay:
            cases = read_cases([arguments.replay])
            report = asyncio.run(run_cases(stage, cases, connections=1, good_every=1))
            for finding in report.findings:
                print(f"{finding.why}\n  {finding.case.to_dict()!r:.600}")
        else:
            seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
            print(f"seed {seed}", flush=True)
            wanted = [kind for kind in arguments.only.split(",") if kind] or list(COUNTS)
            counts = {kind: int(COUNTS[kind] * arguments.scale) for kind in wanted}
            cases_made = generate(seed, counts, stage.targets)
            report = asyncio.run(run_cases(stage, cases_made, connections=arguments.connections))
        log = stage.server.read_log()
    print(report.describe())
    traces = log.count("Traceback (most recent call last)")
    if traces:
        print(f"  the server's log has {traces} stack traces, the last:\n{log[log.rindex('Traceback') :][:3000]}")
    grown = not arguments.replay and report.growth > MEMORY_BOUND
    if grown:
        print(f"  WRONG memory grew by {report.growth >> 20} MiB after the first fifth of the run")
    if report.peak > PEAK_BOUND:
        grown = True
        print(f"  WRONG memory was {report.peak >> 20} MiB more at its peak than at first")
    if report.findings and not arguments.replay:
        report.write(arguments.keep)
        print(f"Kept in {arguments.keep}; again: python -m tests.fuzz --replay {arguments.keep}")
    return 1 if report.findings or grown else 0


if __name__ == "__main__":
    sys.exit(main())
