"""How fast are requests by a table's column names, beside the packed form of the same rows?

A server serves bundles of three tables by V1: 4, 30 and 100 columns, a quarter of them texts. The network is a dense
layer. Both forms are sent in turn, and their responses are equal.

    python benchmarks/rows.py --quick
"""

from __future__ import annotations

import csv
import functools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import build_parser, build_target, compute_ratios, log, print_result, run_in_turn
from load import Request, run_wrk
from servers import SERVERS, Server

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.transform.rows import RowPacker

COLUMNS = (4, 30, 100)
ROWS = (1, 32)
GOAL = 0.8
BODIES = 16
CONNECTIONS = 16
FORMS = ("names", "packed")
Samples = dict[str, list[float]]
_CITIES = ("Bergen", "Oslo", "Stavanger", "Tromsø")


def write_table(file: Path, columns: int) -> None:
    """Write a CSV file of numbers, texts and a target."""
    generator = np.random.default_rng(0)
    texts = columns // 4
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [*(f"measure_{i}" for i in range(columns - texts)), *(f"city_{i}" for i in range(texts)), "price"]
        )
        for row in generator.normal(size=(2000, columns - texts + 1)).round(4):
            writer.writerow([*row[:-1], *generator.choice(_CITIES, texts), row[-1]])


def export(root: Path, columns: int) -> Path:
    """Export a dense layer on the table's features to `root / model`, and return it."""
    import mindspore
    from mindspore import nn

    root.mkdir()
    write_table(root / "table.csv", columns)
    dataset = load_dataset(str(root / "table.csv"), root / "data", target="price")
    width = next(iter(read_samples(dataset, "test", count=1).inputs.values())).shape[1]
    network = nn.Dense(width, 1)
    spec = NetworkSpec("mindspore.nn:Dense", {"in_channels": width, "out_channels": 1})
    with write_checkpoint(
        root / "checkpoint", epoch=1, step=1, seed=1, network=spec, preprocessing=dataset.preprocessing
    ) as directory:
        mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
    return export_mindir(root / "checkpoint", root / "model", dataset_dir=dataset.path).path


def make_requests(bundle: ModelBundle, form: str, rows: int) -> list[Request]:
    """Return V1 requests with different rows of the bundle's samples."""
    layout, raw = bundle.signature.rows, bundle.read_verified().raw
    assert layout is not None
    columns = RowPacker(layout).unpack(raw) if form == "names" else raw
    lists = {name: [_to_json(value) for value in array] for name, array in columns.items()}
    count = len(next(iter(lists.values())))
    requests = []
    for start in range(BODIES):
        places = [(start + index) % count for index in range(rows)]
        instances = [{name: values[place] for name, values in lists.items()} for place in places]
        requests.append(Request("/v1/models/model:predict", json.dumps({"instances": instances}).encode()))
    return requests


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    # The shortest text of a float32, as clients have it from their tables.
    return [float(str(item)) for item in value] if isinstance(value, np.ndarray) else float(str(value))


def compare(server: Server, bundle: ModelBundle, rows: int, rounds: int, seconds: float, scratch: Path) -> Samples:
    """Return the requests/s of both forms, in turn.

    Raises:
        RuntimeError: A request fails, or the forms have different responses.
    """
    requests = {form: make_requests(bundle, form, rows) for form in FORMS}
    answers = {form: server.post(found[0])[1] for form, found in requests.items()}
    if answers["names"] != answers["packed"]:
        raise RuntimeError(f"responses differ: {answers}")

    def measure(form: str, duration: float) -> float:
        load = run_wrk(server.http, requests[form], CONNECTIONS, duration, scratch)
        if load.failures:
            raise RuntimeError(f"{load.failures} requests failed")
        return load.requests / load.seconds

    for form in FORMS:
        measure(form, 1)
    return run_in_turn({form: functools.partial(measure, form, seconds) for form in FORMS}, rounds)


def main() -> None:
    options = build_parser(__doc__ or "").parse_args()
    rounds, seconds = (3, 1.0) if options.quick else (15, 1.0)
    targets, rates = [], {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for columns in COLUMNS:
            bundle = ModelBundle.open(export(root / f"{columns}", columns))
            server = Server(SERVERS["ours"], bundle.path, root / f"server-{columns}")
            try:
                for rows in ROWS:
                    samples = compare(server, bundle, rows, rounds, seconds, root)
                    title = f"{columns} columns, {rows} {'row' if rows == 1 else 'rows'}"
                    ratios = compute_ratios(samples["names"], samples["packed"])
                    targets.append(build_target(f"requests/s by names / packed, {title}", ratios, GOAL, at_least=True))
                    rates[title] = {form: [round(rate) for rate in found] for form, found in samples.items()}
                    log(f"{title}: {statistics.median(ratios):.3f}")
            finally:
                server.processes.stop()
    print_result("rows", targets, {"bars": rates})


if __name__ == "__main__":
    main()
