"""Component that imports a published vision model."""

from kfp import dsl
from kfp.dsl import Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def import_vision_model(
    model: Output[Model],
    source: str,
):
    """Write a published vision model as a bundle, and verify its graphs.

    CLIP and SigLIP become dual encoders, ViT and DINOv2 image classifiers or embeddings; what is not supported is
    refused by name. The step's image needs kfp-mindspore[lm].

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[lm,pipelines,train].

    Args:
        model: The bundle, which deploy_kserve serves.
        source: Path or URI of a Hugging Face directory.
    """
    from kfp_mindspore.steps.vision import import_vision_model

    import_vision_model(model, source)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(import_vision_model, package_path=__file__.replace(".py", ".yaml"))
