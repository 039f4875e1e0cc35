"""Build result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BuildResult:
    """Every builder's result.

    Args:
        reference: The image by digest, `registry/name@sha256:…`, for pipelines and jobs.
        tag: The image's tag, the plan digest's first digits.
        built: False when the registry had the image and nothing was built or sent.
        size_bytes: Total size of the layers and the configuration in the registry.
        layers_sent: Uploaded layer count.
        layers_reused: Layers that the registry had or mounted from another repository.
        sent_bytes: Uploaded layer bytes.
        seconds: Wall-clock build seconds.
    """

    reference: str
    tag: str
    built: bool
    size_bytes: int
    layers_sent: int
    layers_reused: int
    sent_bytes: int
    seconds: float

    @property
    def digest(self) -> str:
        """The manifest's digest, `sha256:…`."""
        return self.reference.rpartition("@")[2]

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the digest as JSON-ready values."""
        return {**asdict(self), "digest": self.digest}
