"""Text towers: a dual encoder's own, and an embedding model's encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from kfp_mindspore.lm.network.encoder import Encoder, EncoderConfig, list_encoder_weights
from kfp_mindspore.vision.network import (
    BlockConfig,
    TextConfig,
    TextNetwork,
    Weights,
    list_text_weights,
    normalise,
)


@dataclass(frozen=True)
class EncoderTextConfig:
    """An embedding model as a text tower.

    Args:
        encoder: The embedding model's.
        length: Tokens in a text with its padding.
        pad_id: The token that is masked.
    """

    encoder: EncoderConfig
    length: int
    pad_id: int

    @property
    def vocabulary_size(self) -> int:
        """Token IDs."""
        return self.encoder.vocabulary_size

    @property
    def outputs(self) -> int:
        """The embedding's width."""
        return self.encoder.width


class EncoderTextNetwork(nn.Cell):  # type: ignore[misc]
    """An embedding model's encoder over texts with one padded length.

    Args:
        config: Dimensions and padding.
        weights: Arrays by `list_encoder_weights`' names.
    """

    def __init__(self, config: EncoderTextConfig, weights: Weights) -> None:
        super().__init__()
        self.encoder, self.pad_id = Encoder(config.encoder), config.pad_id
        self.names = tuple(list_encoder_weights(config.encoder))
        self.base = ParameterTuple([Parameter(Tensor(weights[name]), name=name) for name in self.names])
        # Low-rank updates by the weight's place among `base`.
        self.updates = nn.CellList([])
        self.places: tuple[int, ...] = (-1,) * len(self.names)

    def construct(self, ids: Any) -> Any:
        """Return embeddings (N, width) with length 1 for token IDs, int32 (N, length)."""
        weights: Any = ()
        for index in range(len(self.places)):
            weight = self.base[index]
            if self.places[index] >= 0:
                weight = weight + self.updates[self.places[index]]()
            weights = (*weights, weight)
        mask = (ids != self.pad_id).astype(weights[0].dtype)
        return normalise(self.encoder(ids, ops.zeros_like(ids), mask, *weights))


def list_tower_weights(config: TextConfig | EncoderTextConfig) -> dict[str, tuple[int, ...]]:
    """Return a text tower's weights by name, with their shapes."""
    if isinstance(config, EncoderTextConfig):
        return list_encoder_weights(config.encoder)
    return list_text_weights(config)


def build_text_network(config: TextConfig | EncoderTextConfig, weights: Weights) -> nn.Cell:
    """Return a text tower's network.

    Args:
        config: The tower's.
        weights: Arrays by `list_tower_weights`' names.
    """
    if isinstance(config, EncoderTextConfig):
        return EncoderTextNetwork(config, weights)
    return TextNetwork(config, weights)


def parse_text_config(value: Mapping[str, Any]) -> TextConfig | EncoderTextConfig:
    """Return the configuration in network.json's `texts`."""
    if "encoder" in value:
        return EncoderTextConfig(**{**value, "encoder": EncoderConfig(**value["encoder"])})
    return TextConfig(**{**value, "blocks": BlockConfig(**value["blocks"])})
