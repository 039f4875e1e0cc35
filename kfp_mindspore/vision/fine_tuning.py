"""A published detector as the start of a training on other pictures and classes."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore
import numpy as np

from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
from kfp_mindspore.mindir.graph.encryption import read_model_key
from kfp_mindspore.mindir.parameters.files import load_matching, read_parameters
from kfp_mindspore.training.checkpoints.initial import fetch_initial
from kfp_mindspore.vision.network import BlockConfig, DetectorConfig, DetectorNetwork
from kfp_mindspore.vision.sources.keys import DETECTOR_CONFIG
from kfp_mindspore.vision.sources.models import resize_positions


@dataclass(frozen=True)
class DetectorStart:
    """An imported detector's dimensions and weights.

    Args:
        config: Its network's.
        parameters: Tensors by name.
        location: Where it was read, for messages.
    """

    config: DetectorConfig
    parameters: dict[str, Any]
    location: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The dimensions as arguments of `kfp_mindspore.workloads.detection.network.build_network`."""
        config = self.config
        blocks = dataclasses.asdict(config.blocks)
        return {
            "queries": config.queries,
            "patch": config.patch,
            "blocks": blocks,
            "mid_positions": config.mid_positions,
            "stem": config.stem,
        }

    def load_into(self, network: DetectorNetwork, size: Sequence[int]) -> None:
        """Set a network's parameters; positions are resized, and a head for another number of classes is kept.

        Args:
            network: Built with `arguments`.
            size: Its images' height and width.
        """
        target = dataclasses.replace(self.config, size=(size[0], size[1]))
        found = dict(self.parameters)
        for name in ("positions", "mid_positions") if self.config.mid_positions else ("positions",):
            resized = resize_positions(found[name].asnumpy(), self.config, target)
            found[name] = mindspore.Tensor(np.ascontiguousarray(resized))
        mismatch = load_matching(network, found, self.location, optional=("classes.*",))
        print(f"starting from {self.location}: {mismatch.matched} parameters", flush=True)


def read_start(location: str) -> DetectorStart | None:
    """Read an imported detector; None for other bundles and checkpoints, whose dimensions are not known.

    Args:
        location: Path or URI.

    Raises:
        NotFoundError: There is no such file or object.
        UserError: There are no parameters, or a file is damaged.
        KfpMindSporeError: The object store cannot be reached or denies the request.
    """
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-initial-") as scratch:
        path = fetch_initial(location, Path(scratch))
        if not (path / SIGNATURE_FILE).is_file():
            return None
        described = ModelBundle.open(path).signature.metadata.get(DETECTOR_CONFIG)
        if described is None:
            return None
        fields = json.loads(described)
        fields |= {"blocks": BlockConfig(**fields["blocks"]), "size": tuple(fields["size"])}
        return DetectorStart(
            DetectorConfig(**fields), read_parameters(path, read_model_key(None, os.environ)), location
        )
