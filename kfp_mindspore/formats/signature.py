"""A model bundle's signature: inputs, outputs, files and metadata."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.manifest import parse_entries
from kfp_mindspore.formats.model_options import Dimension, parse_dimensions, parse_ranges, parse_serving
from kfp_mindspore.formats.rows import RowLayout, parse_layout
from kfp_mindspore.formats.tensors import TensorSpec

FORMAT_VERSION = 1
CAUSAL_KIND, EMBEDDING_KIND, SEQ2SEQ_KIND = "causal-lm", "embedding", "seq2seq"
# Images and texts in one space (kfp_mindspore.vision.bundle).
DUAL_KIND = "dual-encoder"
# Boxes in pictures; it is served as a graph (kfp_mindspore.vision.bundle).
DETECTOR_KIND = "detector"
# A causal language model cut at a layer (kfp_mindspore.lm.bundle.stages); the second stage serves the first's server.
FIRST_STAGE_KIND, SECOND_STAGE_KIND = "causal-lm-first", "causal-lm-second"
# Kinds that are served by the OpenAI protocol.
_LANGUAGE_KINDS = (CAUSAL_KIND, EMBEDDING_KIND, SEQ2SEQ_KIND, DUAL_KIND, FIRST_STAGE_KIND, SECOND_STAGE_KIND)


@dataclass(frozen=True)
class Signature:
    """A bundle's inputs, outputs, files and metadata.

    Args:
        inputs: In the network's parameter order.
        outputs: In the network's result order.
        mindspore_version: The version that exported the model.
        files: Name to {"sha256": …, "size": bytes}.
        verified: The export verification's result: `samples`, `max_abs_diff`, `tolerance` and their origin.
        metadata: Texts. Reserved: `labels`, a JSON list of class names; `dimensions`, `ranges`, `serving` and
            `rows`, JSON objects read by the `parse_*` functions; `encryption`, the method; `transform`, a registered
            name; `kind`.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    mindspore_version: str
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """`graph`, or another kind such as `causal-lm`, a language model."""
        return self.metadata.get("kind", "graph")

    @property
    def is_language_model(self) -> bool:
        """Whether the bundle is served by the OpenAI protocol."""
        return self.kind in _LANGUAGE_KINDS

    @property
    def batch_size(self) -> int:
        """Every input's and output's first dimension: -1 for a free batch, N for a fixed one, 0 for no batch."""
        leading = {spec.shape[0] if spec.shape else 0 for spec in (*self.inputs, *self.outputs)}
        return leading.pop() if len(leading) == 1 else 0

    def free_batch(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return specs with any row count, as requests have; unchanged when the model has no batch."""
        if not self.batch_size:
            return tuple(specs)
        return tuple(dataclasses.replace(spec, shape=(-1, *spec.shape[1:])) for spec in specs)

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by index; empty when the model is no classifier or they are not known."""
        return tuple(str(label) for label in json.loads(self.metadata.get("labels", "[]")))

    @property
    def task(self) -> str:
        """Task of the dataset that the model was exported with; `classification` with class names; else empty."""
        return self.metadata.get("task") or ("classification" if self.labels else "")

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The free dimensions that are padded; parsed at each call, validated when a bundle is opened.

        Raises:
            ValidationError: The metadata's `dimensions` do not fit the inputs and outputs.
        """
        return parse_dimensions(self._load("dimensions"), self.inputs, self.outputs)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Least and greatest value by input, for inputs with a range.

        Version 0.1 bundles hold ranges in the metadata's `ranges`; the input's own range has precedence.

        Raises:
            ValidationError: The metadata's `ranges` do not fit the inputs.
        """
        own = {spec.name: spec.range for spec in self.inputs if spec.range is not None}
        return {**parse_ranges(self._load("ranges"), self.inputs), **own}

    @property
    def serving(self) -> dict[str, float]:
        """Options that override the server's flags for this model: `max_batch`, `max_queue` (rows), `max_delay_ms`.

        Raises:
            ValidationError: The metadata's `serving` is invalid.
        """
        return parse_serving(self._load("serving"))

    @property
    def rows(self) -> RowLayout | None:
        """The columns by which rows are accepted; None where requests have the inputs only.

        Raises:
            ValidationError: The metadata's `rows` are invalid.
        """
        return parse_layout(self._load("rows"))

    @property
    def encryption(self) -> str:
        """model.mindir's encryption method, `AES-GCM`; empty for a plain file."""
        return self.metadata.get("encryption", "")

    @property
    def transform(self) -> str:
        """The registered transform with which the model is served; empty without one."""
        return self.metadata.get("transform", "")

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as JSON types."""
        return {
            "version": FORMAT_VERSION,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "mindspore_version": self.mindspore_version,
            "files": {name: dict(entry) for name, entry in self.files.items()},
            "verified": dict(self.verified),
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Signature:
        """Rebuild a signature from `to_dict`'s result.

        Raises:
            KeyError: A field is missing.
            TypeError, ValueError, AttributeError: A field has another type.
        """
        return cls(
            inputs=tuple(TensorSpec.from_dict(spec) for spec in value["inputs"]),
            outputs=tuple(TensorSpec.from_dict(spec) for spec in value["outputs"]),
            mindspore_version=str(value["mindspore_version"]),
            files=parse_entries(value["files"]),
            verified=dict(value["verified"]),
            metadata={str(name): str(text) for name, text in value["metadata"].items()},
        )

    def _load(self, name: str) -> Any:
        try:
            return json.loads(self.metadata.get(name) or "{}")
        except ValueError as error:
            raise ValidationError([f"{name}: not valid JSON ({error})"]) from None
