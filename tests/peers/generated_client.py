"""Sends image.json by the generated package `client`: python generated_client.py URL; prints both protocols' scores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))


def main(url: str) -> None:
    """Predict by V1 and V2."""
    import client  # type: ignore[import-not-found,unused-ignore]
    from client import models  # type: ignore[import-not-found,unused-ignore]
    from client.api.default import (  # type: ignore[import-not-found,unused-ignore]
        post_v1_models_digitspredict,
        post_v2_models_digits_infer,
    )

    images: Any = json.loads(Path("image.json").read_text())
    connection = client.Client(base_url=url)
    rows = models.PostV1ModelsDigitspredictBody(instances=images)
    first = post_v1_models_digitspredict.sync(client=connection, body=rows)
    tensor = models.PostV2ModelsDigitsInferBodyInputsItem.from_dict(
        {"name": "image", "datatype": "FP32", "shape": [1, *_measure(images[0])], "data": images}
    )
    request = models.PostV2ModelsDigitsInferBody(inputs=[tensor])
    second = post_v2_models_digits_infer.sync(client=connection, body=request)
    print(json.dumps([first.predictions[0], second.outputs[0].data]))


def _measure(value: Any) -> list[int]:
    return [len(value), *_measure(value[0])] if isinstance(value, list) else []


if __name__ == "__main__":
    main(sys.argv[1])
