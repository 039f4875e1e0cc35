"""A model's preprocessing and postprocessing, the same in training and in serving.

A model directory may hold a `transform.py`, or its signature may name a transform that an installed package registers
in the entry point group `kfp_mindspore.transforms`. MindSpore is not imported here, Pillow only by the image steps.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
