"""The image that components carry until a run sets the real one."""

from __future__ import annotations

import os

# No registry can hold it (`.invalid` is reserved), so a forgotten image fails at once and by name. kfp.local wants
# `python` in the name of an image that it runs without a container.
PLACEHOLDER_IMAGE = "kfp-mindspore.invalid/python:placeholder"
IMAGE_VARIABLE = "KFP_MINDSPORE_IMAGE"


def choose_job_image(image: str = "") -> str:
    """Return the image of a job's pods: the argument, else `$KFP_MINDSPORE_IMAGE`, else the placeholder."""
    return image or os.environ.get(IMAGE_VARIABLE) or PLACEHOLDER_IMAGE
