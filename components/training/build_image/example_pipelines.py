"""Example pipeline for build_image."""

from kfp import dsl


@dsl.pipeline(name="build-image-example")
def example_pipeline(destination: str = ""):
    """Build an image with a script and train with it.

    Args:
        destination: Repository to push the image to, `host/name`.
    """
    from kfp_mindspore.components import build_image, train_msjob

    built = build_image(files={"train.py": "print('training')"}, destination=destination)
    train_msjob(command=["python", "train.py"], image=built.outputs["image"])
