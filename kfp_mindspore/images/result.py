"""What a build tells while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """One thing that moved.

    Args:
        step: What is being done, such as `Push layer` or the Containerfile's step `RUN pip install …`.
        item: What it is done to: the head of a layer's digest, or an empty text.
        done_bytes: Bytes done so far; 0 when the step has no size.
        total_bytes: Bytes in all; 0 when unknown.
        text: A line of the step's output, or an empty text.
    """

    step: str
    item: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    text: str = ""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class BuildResult:
    """What every builder returns.

    Args:
        reference: The image by digest, `registry/name@sha256:…`: what pipelines and jobs are given.
        tag: The tag that was set beside it: the head of the plan's digest.
        built: False when the registry had the image already and nothing was built or sent.
        size_bytes: Compressed size of all layers and the configuration as the registry holds them.
        layers_sent: How many layers were uploaded.
        layers_reused: How many layers the registry had or mounted from another repository.
        sent_bytes: Bytes of layers that went over the wire.
        seconds: Wall clock of the whole build.
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
        """Return the fields as JSON-ready values, the digest among them."""
        return {**asdict(self), "digest": self.digest}
