"""Bundle verification: digests and, on request, the graph's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.bundle import PREPROCESSING_FILE, ModelBundle, VerifiedSamples
from kfp_mindspore.mindir.devices import use_device
from kfp_mindspore.mindir.options import TOLERANCE, resolve_tolerance
from kfp_mindspore.settings import AUTO, CPU

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Verification:
    """A successful verification's result.

    Args:
        path: The bundle's directory.
        files: File names with matching digests.
        samples: How many samples' outputs were compared; 0 when they were not.
        max_abs_diff: Largest difference between the graph's outputs and the network's, or None.
        tolerance: Largest difference allowed.
    """

    path: Path
    files: tuple[str, ...]
    samples: int = 0
    max_abs_diff: float | None = None
    tolerance: float = TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "path": str(self.path),
            "files": list(self.files),
            "samples": self.samples,
            "max_abs_diff": self.max_abs_diff,
            "tolerance": self.tolerance,
        }


def verify_bundle(
    path: Path | str,
    *,
    outputs: bool = False,
    tolerance: float | None = None,
    key: bytes | None = None,
    device: str = AUTO,
    device_id: int | None = None,
) -> Verification:
    """Verify a bundle's digests and, on request, the graph on the samples in the bundle.

    With a declared preprocessing, raw samples are computed as the server computes them.

    Args:
        path: The bundle's directory.
        outputs: Load the graph and compare the outputs too; takes some seconds and needs MindSpore.
        tolerance: Largest absolute difference allowed, for outputs up to 1; in proportion for larger ones. Default
            1e-5; on a GPU or NPU 1e-3 for float32 outputs and 1e-2 for float16.
        key: An encrypted model's key.
        device: For `outputs`, see `kfp_mindspore.mindir.devices.DeviceOptions`.
        device_id: Likewise.

    Raises:
        UserError: It is no bundle, or `outputs` is set and an encrypted model's key is missing or wrong.
        CorruptBundleError: A file was changed.
        KfpMindSporeError: The outputs differ by more than the tolerance; the message has the difference.
    """
    bundle = ModelBundle.open(path)
    names = tuple(sorted(bundle.signature.files))
    if not outputs:
        return Verification(bundle.path, names, tolerance=TOLERANCE if tolerance is None else tolerance)
    from kfp_mindspore.mindir.graph.encryption import require_key

    use_device(device, device_id)
    samples = bundle.read_verified()
    exporter = str(bundle.signature.verified.get("device", CPU))
    dtypes = [array.dtype.name for array in samples.outputs.values()]
    tolerance = samples.scale_tolerance(resolve_tolerance(tolerance, dtypes, exporter))
    compare = compare_raw if PREPROCESSING_FILE in bundle.signature.files else run_and_compare
    difference = compare(bundle, samples, require_key(bundle, key))
    if not difference <= tolerance:
        raise KfpMindSporeError(
            f"{bundle.path}: the graph's outputs must be within {tolerance:.2g} of the network's, differ by "
            f"{difference:.2g}"
        )
    return Verification(bundle.path, names, len(samples), difference, tolerance)


def run_and_compare(bundle: ModelBundle, samples: VerifiedSamples, key: bytes | None) -> float:
    """Run a bundle's graph on samples and return the largest difference from their outputs."""
    from kfp_mindspore.mindir.graph.runner import GraphRunner

    with GraphRunner(bundle, warm=(), key=key) as runner:
        return measure_difference(samples.outputs, runner.predict(dict(samples.inputs)))


def compare_raw(bundle: ModelBundle, samples: VerifiedSamples, key: bytes | None) -> float:
    """Run raw samples through preprocessing, graph and postprocessing and return the largest difference."""
    from kfp_mindspore.mindir.graph.runner import ModelRunner

    with ModelRunner(bundle, key=key) as runner:
        assert runner.transform is not None
        return measure_difference(
            runner.transform.run_postprocess(samples.outputs), runner.predict(samples.raw or samples.inputs)
        )


def measure_difference(expected: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]]) -> float:
    """Return the largest absolute difference over all outputs; infinite for other shapes, texts or NaN."""
    import numpy as np

    worst = 0.0
    for name, array in expected.items():
        other = found[name]
        if array.shape != other.shape or array.dtype.kind != other.dtype.kind:
            return float("inf")
        # Equal infinities differ by NaN, and NaN is unequal to itself: both count as equal here.
        same = (array == other) | ((array != array) & (other != other))
        if not same.all():
            if array.dtype == object:
                return float("inf")
            gaps = np.abs(array.astype(np.float64) - other.astype(np.float64))[~same]
            worst = max(worst, float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max()))
    return worst
