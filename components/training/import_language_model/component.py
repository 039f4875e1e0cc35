"""Component that imports a published language model."""

from kfp import dsl
from kfp.dsl import Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def import_language_model(
    model: Output[Model],
    source: str = "",
    given: Input[Model] = None,
):
    """Write a published language model as a bundle, and verify its graphs.

    Hugging Face directories and GGUF files are read without torch; what is not supported is refused by name. The step's
    image needs kfp-mindspore[lm].

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[lm,pipelines,train].

    Args:
        model: The bundle, of the kind causal-lm or embedding, which deploy_kserve serves by the OpenAI protocol.
        source: Path or URI of a Hugging Face directory or a GGUF file; `smollm2` or `minilm` by pip; empty for `given`.
        given: An artifact with a Hugging Face directory or a GGUF file; optional.
    """
    from kfp_mindspore.steps.language_model import import_model

    import_model(model, source, given)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(import_language_model, package_path=__file__.replace(".py", ".yaml"))
