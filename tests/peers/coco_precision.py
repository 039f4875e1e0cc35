"""Print pycocotools' precision of tables as JSON: python coco_precision.py FILE."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def evaluate(table: dict[str, Any]) -> dict[str, Any]:
    """Return AP50:95, AP50 and the average precision by overlap and class, None for a class without boxes."""
    truth, found = COCO(), COCO()
    for data, rows in ((truth, table["truth"]), (found, table["detections"])):
        data.dataset = {
            "images": [{"id": index} for index in range(table["pictures"])],
            "categories": [{"id": index} for index in range(table["classes"])],
            "annotations": [
                {**row, "id": number, "area": row["bbox"][2] * row["bbox"][3], "iscrowd": 0}
                for number, row in enumerate(rows, 1)
            ],
        }
        data.createIndex()
    evaluation = COCOeval(truth, found, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    # Overlap, recall, class, area, most detections.
    precision = evaluation.eval["precision"][:, :, :, 0, 2]
    means = np.where(precision[:, 0] < 0, np.nan, precision.mean(axis=1))
    return {"map": evaluation.stats[0], "map50": evaluation.stats[1], "by_class": means.tolist()}


def main(file: Path) -> None:
    """Evaluate the tables in a file."""
    with contextlib.redirect_stdout(sys.stderr):
        found = [evaluate(table) for table in json.loads(file.read_text())]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
