"""The smoke test: a served model's predictions for held-out samples are compared with the network's own outputs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.formats.bundle import (
    DETECTOR_KIND,
    PREPROCESSING_FILE,
    TRANSFORM_FILE,
    ModelBundle,
    TensorSpec,
    VerifiedSamples,
)
from kfp_mindspore.formats.rows import RowLayout
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.language_smoke import compare_prompts, read_prompts
from kfp_mindspore.inference.predict import predict_parts, predict_v2, read_layout, to_array, to_json, unpack_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

SAMPLES = 32
TOLERANCE = 1e-5


@dataclass(frozen=True)
class SmokeReport:
    """A smoke test's result.

    Args:
        url: Service address.
        model_name: Model name at that address.
        samples: Samples sent by each protocol.
        max_abs_diffs: Largest absolute difference from the verified outputs, by protocol (`v1`, `v2`; `openai`).
        tolerance: Largest absolute difference allowed.
        prediction: Prediction for one sample by task: the class, the labels, the number, the last id's text, the
            language model's continuation; else the values.
        label: That sample's true value in the same form; empty when unknown.
        index: That sample's index in the bundle, from 0.
        seconds: All requests' duration.
    """

    url: str
    model_name: str
    samples: int
    max_abs_diffs: Mapping[str, float]
    tolerance: float
    prediction: str
    label: str
    index: int
    seconds: float

    @property
    def max_abs_diff(self) -> float:
        """Largest absolute difference over both protocols."""
        return max(self.max_abs_diffs.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types, `max_abs_diff` included."""
        return {**asdict(self), "max_abs_diff": self.max_abs_diff}


def run_smoke_test(
    url: str,
    model_name: str,
    bundle_dir: Path | str,
    *,
    samples: int = SAMPLES,
    tolerance: float = TOLERANCE,
    index: int = 0,
    timeout: float = 60.0,
    openai_path: str = "",
) -> SmokeReport:
    """Send requests by V1 and V2 (JSON over HTTP) and compare the predictions with the bundle's verified outputs.

    A model with a declared preprocessing gets raw samples; one with a transform in code, the example that it was
    exported with. A table's model gets rows by column names by V1 and its inputs by V2. A language model gets its
    verified prompts by the OpenAI protocol, as many as it has.

    Args:
        url: The service's HTTP address.
        model_name: Model name in the service's URLs.
        bundle_dir: The bundle that is served, whose verified.npz has samples and the network's outputs.
        samples: Samples to send by each protocol, in one request; images for a declared preprocessing in as many as the
            server's pixel limit needs.
        tolerance: Largest absolute difference allowed, for outputs up to 1; in proportion for larger ones.
        index: Index of the sample to report, from 0.
        timeout: Timeout for each request in seconds.
        openai_path: Another server's path of the OpenAI protocol, such as `/v1`; of a language model's answers only the
            first token's probability is compared there.

    Returns:
        The result.

    Raises:
        UserError: The bundle is missing, damaged, has fewer samples, or has a transform and no example for it.
        ProcessFailedError: A prediction is missing or differs; the message names protocol, output and sample.
    """
    bundle = ModelBundle.open(bundle_dir)
    if bundle.signature.is_language_model:
        return _test_language_model(url.rstrip("/"), model_name, bundle, samples, tolerance, timeout, openai_path)
    verified = read_example_requests(bundle)
    if _is_transformed(bundle) or bundle.signature.kind == DETECTOR_KIND:
        # An example's row count depends on the transform, a detector's on its canvas.
        samples, index = min(samples, len(verified)), min(index, len(verified) - 1)
    if not 1 <= samples <= len(verified):
        raise UserError(f"samples: must be 1 to {len(verified)}, as many as {bundle.path} has, got {samples}")
    if not 0 <= index < samples:
        raise UserError(f"index: must be 0 to {samples - 1}, got {index}")
    inputs = {name: array[:samples] for name, array in verified.inputs.items()}
    expected = {name: array[:samples] for name, array in verified.outputs.items()}
    outputs = list_specs(expected)
    rows = get_max_rows(bundle)
    tolerance = verified.scale_tolerance(tolerance)
    layout = read_layout(url.rstrip("/"), model_name, timeout=timeout) if bundle.signature.rows is not None else None
    protocols: dict[str, Callable[[Mapping[str, NDArray[Any]]], Arrays]] = {
        "v1": lambda part: _predict_v1(url.rstrip("/"), model_name, part, outputs, timeout, layout),
        "v2": lambda part: predict_v2(url.rstrip("/"), model_name, part, outputs, timeout, layout),
    }
    differences: dict[str, float] = {}
    answers: Arrays = {}
    with events.span("inference.smoke_test"):
        start = time.perf_counter()
        for protocol, predict in protocols.items():
            try:
                answers = predict_parts(predict, inputs, rows)
            except rest.ServiceRequestError as error:
                raise ProcessFailedError(
                    f"smoke test of {model_name} by {protocol}: {error.message}",
                    hint="Read the server's log: kfp-mindspore service logs NAME",
                ) from error
            differences[protocol] = _compare(protocol, answers, expected, tolerance)
        seconds = time.perf_counter() - start
    return SmokeReport(
        url=url,
        model_name=model_name,
        samples=samples,
        max_abs_diffs=differences,
        tolerance=tolerance,
        prediction=_format_prediction(_take_row(answers[outputs[0].name], index), bundle),
        label=_format_label(verified, bundle.signature, index),
        index=index,
        seconds=seconds,
    )


def count_samples(bundle: ModelBundle) -> int:
    """Return how many samples or prompts a bundle has for the test."""
    return len(read_prompts(bundle) if bundle.signature.is_language_model else read_example_requests(bundle))


def _test_language_model(
    url: str, name: str, bundle: ModelBundle, samples: int, tolerance: float, timeout: float, openai_path: str
) -> SmokeReport:
    if samples < 1:
        raise UserError(f"samples: must be at least 1, got {samples}")
    with events.span("inference.smoke_test"):
        start = time.perf_counter()
        answers = compare_prompts(url, name, bundle, samples, tolerance, timeout, openai_path)
        seconds = time.perf_counter() - start
    return SmokeReport(
        url=url,
        model_name=name,
        samples=len(answers),
        max_abs_diffs={"openai": max(answer.difference for answer in answers)},
        tolerance=tolerance,
        prediction=answers[0].text,
        label="",
        index=0,
        seconds=seconds,
    )


def list_specs(expected: Mapping[str, NDArray[Any]]) -> tuple[TensorSpec, ...]:
    """Return output names, data types and shapes with any row count."""
    return tuple(
        TensorSpec(name, BYTES if array.dtype == object else array.dtype.name, (-1, *array.shape[1:]))
        for name, array in expected.items()
    )


def _is_transformed(bundle: ModelBundle) -> bool:
    """Return whether a transform in code changes the graph's inputs or outputs."""
    return TRANSFORM_FILE in bundle.signature.files or bool(bundle.signature.transform)


def get_max_rows(bundle: ModelBundle) -> int | None:
    """Return the most rows in a request, whatever they hold, for a declared preprocessing; None without a limit."""
    if PREPROCESSING_FILE not in bundle.signature.files:
        return None
    from kfp_mindspore.transform.declaration import build_pipeline

    return build_pipeline(bundle.read_preprocessing()).max_rows


def read_example_requests(bundle: ModelBundle) -> VerifiedSamples:
    """Return what clients send and get.

    The verified samples, with a declared preprocessing before it and after the postprocessing; or the example request
    from a transform in code.
    """
    if PREPROCESSING_FILE in bundle.signature.files:
        from kfp_mindspore.transform.load import load_transform

        verified, transform = bundle.read_verified(), load_transform(bundle)
        assert transform is not None
        outputs = transform.run_postprocess(verified.outputs)
        return dataclasses.replace(verified, inputs=verified.raw or verified.inputs, outputs=outputs)
    if not _is_transformed(bundle):
        return bundle.read_verified()
    example = bundle.read_example()
    if example is None:
        raise UserError(
            f"{bundle.path}: has a transform, but no example of what clients send",
            hint="Override make_example in the transform and export the model again.",
        )
    return VerifiedSamples(example.inputs, example.outputs, None)


def _predict_v1(
    url: str,
    name: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: tuple[TensorSpec, ...],
    timeout: float,
    layout: RowLayout | None,
) -> Arrays:
    if layout is not None:
        inputs = unpack_inputs(inputs, layout)
    columns = {key: to_json(array) for key, array in inputs.items()}
    if len(columns) == 1 and layout is None:
        instances = next(iter(columns.values()))
    else:
        instances = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    predictions = rest.predict_v1(url, name, instances, timeout=timeout)
    if len(outputs) == 1:
        return {outputs[0].name: to_array(predictions, outputs[0])}
    missing = [
        spec.name for spec in outputs if any(not isinstance(row, dict) or spec.name not in row for row in predictions)
    ]
    if missing:
        raise rest.ServiceRequestError(f"predictions: no values of {', '.join(missing)}")
    return {spec.name: to_array([row[spec.name] for row in predictions], spec) for spec in outputs}


def _compare(protocol: str, answers: Arrays, expected: Mapping[str, NDArray[Any]], tolerance: float) -> float:
    """Return the largest absolute difference; raise where it exceeds the tolerance."""
    import numpy as np

    largest = 0.0
    for name, wanted in expected.items():
        found = answers[name]
        where = f"smoke test by {protocol}: output {name}"
        if found.shape != wanted.shape:
            raise ProcessFailedError(f"{where}: must have shape {wanted.shape}, got {found.shape}")
        if wanted.dtype == object:
            if (others := found != wanted).any():
                worst = np.unravel_index(int(np.argmax(others)), others.shape)
                raise ProcessFailedError(
                    f"{where}: sample {int(worst[0])} must be {wanted[worst]!r}, the service answered {found[worst]!r}",
                    hint="The service serves another model than this bundle, or computes it differently.",
                )
            continue
        with np.errstate(invalid="ignore"):
            difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        # The same infinity or NaN on both sides is the same answer; on one side only it differs by infinity.
        same = (found == wanted) | (np.isnan(found.astype(np.float64)) & np.isnan(wanted.astype(np.float64)))
        difference = np.where(same, 0.0, np.nan_to_num(difference, nan=np.inf))
        worst = np.unravel_index(int(np.argmax(difference)), difference.shape)
        if difference[worst] > tolerance:
            raise ProcessFailedError(
                f"{where}: sample {int(worst[0])} differs by {difference[worst]:g}, allowed is {tolerance:g}: the "
                f"network answered {wanted[worst]}, the service {found[worst]}",
                hint="The service serves another model than this bundle, or computes it differently.",
            )
        largest = max(largest, float(difference[worst]))
    return largest


def _take_row(array: NDArray[Any], index: int) -> NDArray[Any]:
    return array[index : index + 1].reshape(array.shape[1:])


def _format_prediction(row: NDArray[Any], bundle: ModelBundle) -> str:
    signature = bundle.signature
    if row.dtype == object:
        return ", ".join(text.decode(errors="replace") for text in row.ravel())
    if signature.task in ("", "none") or _is_transformed(bundle):
        return _format_value(row.tolist())
    from kfp_mindspore.evaluation.predictions import decode_scores

    value = decode_scores(signature.task, row[None], signature.labels)[0]
    return _format_ids(value, signature) or _format_value(value)


def _format_label(verified: VerifiedSamples, signature: Signature, index: int) -> str:
    """Return the true value in the prediction's form."""
    if verified.labels is None:
        return ""
    value, labels = verified.labels[index].tolist(), signature.labels
    if signature.task == "multi_label" and len(labels) == len(value):
        return _format_value([label for label, marked in zip(labels, value, strict=True) if marked])
    if signature.kind == DETECTOR_KIND:
        # As `count`.
        return str(sum(row[0] >= 0 for row in value))
    if isinstance(value, int) and 0 <= value < len(labels):
        return labels[value]
    return _format_ids(value, signature) or _format_value(value)


def _format_ids(ids: Any, signature: Signature) -> str:
    """Return a language model's last id as quoted text; empty where texts are not known."""
    if signature.task != "language_model" or not 0 <= ids[-1] < len(signature.labels):
        return ""
    return repr(signature.labels[ids[-1]])


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
