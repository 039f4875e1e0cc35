"""Predictions of a served model for many samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfp_mindspore.inference import rest

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 64


def predict_scores(
    url: str, name: str, features: NDArray[Any], *, rows: int = ROWS, timeout: float = 60.0
) -> NDArray[Any]:
    """Return a service's first output for each sample, by the V2 protocol.

    Args:
        url: Address of the service over HTTP.
        name: Name of the model in its URLs.
        features: Samples for the model's only input, float32 of shape (N, …).
        rows: Number of samples per request.
        timeout: Timeout of each request in seconds.

    Returns:
        float64 of shape (N, …).

    Raises:
        RequestError: A request failed, or the model does not accept the samples.
    """
    import numpy as np

    model = rest.request_json("GET", f"{url.rstrip('/')}/v2/models/{name}", timeout=timeout)
    inputs, outputs = model.get("inputs", ()), model.get("outputs", ())
    if len(inputs) != 1 or not outputs:
        raise rest.RequestError(f"{url}: model {name} must have one input and an output, has {len(inputs)} inputs")
    parts = []
    for start in range(0, len(features), rows):
        part = features[start : start + rows]
        data = {"shape": list(part.shape), "datatype": "FP32", "data": part.ravel().tolist()}
        answered = rest.infer_v2(url.rstrip("/"), name, [{"name": inputs[0]["name"], **data}], timeout=timeout)
        output = answered[outputs[0]["name"]]
        parts.append(np.asarray(output["data"], np.float64).reshape(output["shape"]))
    return np.concatenate(parts)
