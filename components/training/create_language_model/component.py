"""Component that creates an untrained language model."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def create_language_model(
    model: Output[Model],
    data: str = "",
    dataset: Input[Dataset] = None,
    vocabulary: int = 1000,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    max_length: int = 256,
    held_out: float = 0.1,
    seed: int = 0,
):
    """Create an untrained decoder (Llama) with a tokenizer trained on examples, for finetune_language_model.

    The tokenizer, a byte-level BPE, is trained on the examples that are not held out. The step's image needs
    kfp-mindspore[lm].

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[lm,pipelines,train].

    Args:
        model: The bundle, of the kind causal-lm.
        data: Path or URI to JSON lines or to a text per line (*.txt), or `new_testament`; empty for `dataset`.
        dataset: An artifact with the examples, a file or a directory with one *.jsonl; optional.
        vocabulary: Most tokens in the tokenizer, the 256 bytes and two special ones included.
        width: Hidden size; an even multiple of `heads`.
        layers: Blocks.
        heads: Attention heads.
        max_length: Most positions, prompt and answer together.
        held_out: Fraction of examples that the tokenizer is not trained on; the same as the fine-tuning's.
        seed: Seed for the weights.
    """
    from kfp_mindspore.lm.options import NetworkOptions
    from kfp_mindspore.steps.language_model import create_model

    options = NetworkOptions(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        max_length=max_length,
        held_out=held_out,
        seed=seed,
    )
    create_model(model, options, data=data, dataset=dataset)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(create_language_model, package_path=__file__.replace(".py", ".yaml"))
