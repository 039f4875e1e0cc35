"""Options for the contrastive training of a dual encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.options import check_options, option

ALL, LORA, FROZEN = "all", "lora", "frozen"
INFONCE, SIGMOID = "infonce", "sigmoid"
BEST, LAST = "best", "last"


@dataclass(frozen=True)
class ContrastiveOptions:
    """Contrastive training options, checked when they are built.

    Args:
        epochs: Passes over the training pairs.
        learning_rate: Peak learning rate (AdamW, cosine schedule).
        weight_decay: AdamW's weight decay.
        batch_size: Pairs per step, over all workers; each picture is compared with each text.
        images: The image tower's trained weights: `all`, `lora` for low-rank updates, or `frozen`.
        texts: The text tower's trained weights: `all`, `lora` for low-rank updates, or `frozen`.
        loss: `infonce` (CLIP) or `sigmoid` (SigLIP); default the model's own.
        lora_rank: The updates' rank, for a tower with `lora`.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        lora_attn_modules: Projections with an update: q_proj, k_proj, v_proj, output_proj.
        keep: The weights to keep: the `best` epoch's, by the loss on held-out pairs, or the `last` one's.
        held_out: Fraction of pairs that is not trained on, chosen by the picture's hash.
        length: With an embedding model: most tokens in a text.
        image_size: With an embedding model: the new image tower's height and width in pixels.
        patch: With an embedding model: a patch's side in pixels; divides `image_size`.
        width: With an embedding model: the new image tower's width; a multiple of `heads`.
        layers: With an embedding model: the new image tower's blocks.
        heads: With an embedding model: the new image tower's attention heads.
        seed: Seed for new weights and the order.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    epochs: int = option(20, minimum=1)
    learning_rate: float = option(1e-3, exclusiveMinimum=0)
    weight_decay: float = option(0.01, minimum=0)
    batch_size: int = option(64, minimum=2)
    images: str = option(ALL, enum=[ALL, LORA, FROZEN])
    texts: str = option(FROZEN, enum=[ALL, LORA, FROZEN])
    loss: str = option("", enum=["", INFONCE, SIGMOID])
    lora_rank: int = option(8, minimum=1)
    lora_alpha: float = option(16.0, exclusiveMinimum=0)
    lora_attn_modules: Sequence[str] = ("q_proj", "v_proj")
    keep: str = option(BEST, enum=[BEST, LAST])
    held_out: float = option(0.1, exclusiveMinimum=0, exclusiveMaximum=1)
    length: int = option(64, minimum=2)
    image_size: int = option(32, minimum=1)
    patch: int = option(8, minimum=1)
    width: int = option(64, minimum=1)
    layers: int = option(4, minimum=1)
    heads: int = option(4, minimum=1)
    seed: int = option(0, minimum=0)

    def __post_init__(self) -> None:
        check_options(self, subject="contrastive training")
        errors = [
            f"{name}: must be a multiple of {other} {divisor}, got {value}"
            for name, value, other, divisor in (
                ("image_size", self.image_size, "patch", self.patch),
                ("width", self.width, "heads", self.heads),
            )
            if value % divisor
        ]
        if self.images == self.texts == FROZEN:
            errors.append("images: must be all or lora, as texts is frozen: nothing else is trained")
        if errors:
            raise ValidationError(errors, subject="contrastive training")
