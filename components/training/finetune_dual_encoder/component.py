"""Component that trains a dual encoder on pictures with captions."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def finetune_dual_encoder(
    model: Input[Model],
    tuned: Output[Model],
    metrics: Output[Metrics],
    curves: Output[HTML],
    data: str = "",
    dataset: Input[Dataset] = None,
    epochs: int = 20,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.01,
    batch_size: int = 64,
    images: str = "all",
    texts: str = "frozen",
    loss: str = "",
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    lora_attn_modules: list[str] = ["q_proj", "v_proj"],
    keep: str = "best",
    held_out: float = 0.1,
    length: int = 64,
    image_size: int = 32,
    patch: int = 8,
    width: int = 64,
    layers: int = 4,
    heads: int = 4,
    seed: int = 0,
) -> NamedTuple("Outputs", [("accuracy", float), ("recall_at_5", float), ("examples", int)]):
    """Train an image and a text tower on pictures with captions, such as a new image tower for a frozen text tower.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[lm,pipelines,train].

    Args:
        model: A bundle of kind `dual-encoder`, or an embedding model's, which gets a new image tower.
        tuned: The trained bundle of kind `dual-encoder`.
        metrics: Held-out loss, accuracy and recall at 5, counts and seconds.
        curves: A page with the losses by epoch.
        data: Path or URI of a table of paths and captions or of a folder, or `drawings`; empty for `dataset`.
        dataset: An artifact with a folder of pictures and a table metadata or train, or with a folder for each class.
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

    Returns:
        accuracy: Fraction of held-out pictures whose caption is the most similar of all held-out captions.
        recall_at_5: Fraction of held-out captions with an own picture among the five most similar held-out ones.
        examples: How many pairs were trained on.
    """
    from kfp_mindspore.steps.dual_encoder import finetune_towers
    from kfp_mindspore.vision.options import ContrastiveOptions

    options = ContrastiveOptions(
        epochs=epochs,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        batch_size=batch_size,
        images=images,
        texts=texts,
        loss=loss,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_attn_modules=lora_attn_modules,
        keep=keep,
        held_out=held_out,
        length=length,
        image_size=image_size,
        patch=patch,
        width=width,
        layers=layers,
        heads=heads,
        seed=seed,
    )
    return finetune_towers(model, tuned, metrics, curves, options, data=data, dataset=dataset)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(finetune_dual_encoder, package_path=__file__.replace(".py", ".yaml"))
