"""Small pipelines in pure Python. kfp executes the source of their steps."""

import sys
from typing import NamedTuple

from kfp import dsl

lightweight = dsl.component(base_image="python:3.11", install_kfp_package=False)


@lightweight
def load(count: int, dataset: dsl.Output[dsl.Dataset]):
    import json
    import pathlib

    from kfp_mindspore import events

    with events.span("load"):
        path = pathlib.Path(dataset.path)
        path.mkdir(parents=True)
        (path / "values.json").write_text(json.dumps(list(range(count))))
    print(f"wrote {count} values")


@lightweight
def train(dataset: dsl.Input[dsl.Dataset], model: dsl.Output[dsl.Model]) -> NamedTuple("Outputs", [("digest", str)]):
    import json
    import os
    import pathlib
    import time

    import helper
    import numpy as np

    from kfp_mindspore import events

    path = pathlib.Path(model.path)
    path.mkdir(parents=True)
    with events.span("outer"), events.span("inner"), (path / "metrics.jsonl").open("w") as file:
        for epoch in range(1, 6):
            time.sleep(0.02)
            events.emit("progress", "training.fit", epoch=epoch, epochs=5, step=10 * epoch, steps=50, loss=1 / epoch)
            validation = {"eval_loss": 1.5 / epoch**2, "accuracy": 1 - 0.4 / epoch}
            file.write(json.dumps({"epoch": epoch, "loss": 2 / epoch**3, "validation": validation}) + "\n")
    image = np.zeros((1, 8, 8), np.float32)
    image[0, 1:7, 3:5] = 1
    np.savez(path / "verified.npz", **{"input.image": image[None], "output.scores": np.zeros((1, 3))})
    model.metadata["helper"] = helper.VERSION
    return (os.environ["KFP_MINDSPORE_CODE_DIGEST"],)


@lightweight
def evaluate(
    model: dsl.Input[dsl.Model], confusion: dsl.Output[dsl.ClassificationMetrics], accuracy: float, threshold: float
) -> NamedTuple("Outputs", [("metric", str), ("value", float), ("passed", bool), ("samples", int)]):
    confusion.log_confusion_matrix(["0", "1", "2"], [[30, 0, 1], [0, 28, 0], [2, 0, 29]])
    return "accuracy", accuracy, accuracy >= threshold, 90


@lightweight
def serve(model: dsl.Input[dsl.Model]) -> NamedTuple("Outputs", [("url", str), ("pid", int)]):
    import os

    return "http://127.0.0.1:8080", os.getpid()


@lightweight
def smoke(url: str, tolerance: float = 1e-5) -> NamedTuple(
    "Outputs", [("prediction", str), ("label", str), ("max_abs_diff", float)]
):
    assert isinstance(tolerance, float), "YAML takes 1e-05 for text"
    return "1", "1", 2.5e-7


@dsl.pipeline(name="toy-lifecycle")
def toy_lifecycle(count: int = 10, accuracy: float = 0.97, threshold: float = 0.95):
    data = load(count=count)
    trained = train(dataset=data.outputs["dataset"])
    evaluation = evaluate(model=trained.outputs["model"], accuracy=accuracy, threshold=threshold)
    with dsl.If(evaluation.outputs["value"] >= threshold):
        service = serve(model=trained.outputs["model"]).set_caching_options(False)
        smoke(url=service.outputs["url"]).set_caching_options(False)


@lightweight
def fail(message: str):
    import sys

    print("about to fail")
    sys.exit(message)


@dsl.pipeline(name="failing")
def failing(message: str = "no more paper"):
    data = load(count=1)
    broken = fail(message=message).after(data)
    load(count=2).after(broken)


@lightweight
def hang(seconds: float, marker: str):
    import os
    import pathlib
    import signal
    import subprocess
    import sys
    import time

    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])

    def leave(number, frame):
        pathlib.Path(marker + ".terminated").touch()
        sys.exit(1)

    signal.signal(signal.SIGTERM, leave)
    temporary = pathlib.Path(marker + ".tmp")
    temporary.write_text(f"{os.getpid()} {child.pid}")
    temporary.rename(marker)
    time.sleep(seconds)


@dsl.pipeline(name="hanging")
def hanging(marker: str, seconds: float = 60.0):
    hang(seconds=seconds, marker=marker)
    load(count=3)


@lightweight
def add(first: int, second: int) -> int:
    return first + second


@dsl.pipeline(name="looping")
def looping() -> int:
    with dsl.ParallelFor([1, 2, 3]) as item:
        add(first=item, second=1)
    return add(first=1, second=2).output


if __name__ == "__main__":
    sys.exit("a file of samples")
