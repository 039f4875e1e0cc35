"""The trials of benchmarks/sweeps.py in kfp's ParallelFor, run by kfp.local in this environment."""

import json
import sys
import tempfile

from kfp import dsl, local


@dsl.component
def train(rate: float, epochs: int, dataset: str, output: str, benchmarks: str):  # type: ignore[no-untyped-def]
    import sys

    sys.path.insert(0, benchmarks)
    from sweeps import train_one

    train_one(rate, epochs, dataset, f"{output}/{rate}")


def main() -> None:
    rates, epochs, dataset, output = json.loads(sys.argv[1])

    @dsl.pipeline
    def pipeline() -> None:
        with dsl.ParallelFor(rates, parallelism=2) as rate:
            train(rate=rate, epochs=epochs, dataset=dataset, output=output, benchmarks=sys.path[0] + "/..")

    with tempfile.TemporaryDirectory() as root:
        local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=root)
        pipeline()


if __name__ == "__main__":
    main()
