"""What happens to a request before the graph and to its answer after it, the same in training and in serving.

A model directory may hold a `transform.py`, or its signature may name a transform that an installed package registers
in the entry point group `kfp_mindspore.transforms`. MindSpore is not imported here, Pillow only to decode images.
"""

from kfp_mindspore.formats.bundle import TRANSFORM_FILE
from kfp_mindspore.formats.signature import BYTES, Signature, TensorSpec
from kfp_mindspore.transform.base import Arrays, Transform, TransformFailedError, TransformInputError
from kfp_mindspore.transform.bound import BoundTransform, bind_transform
from kfp_mindspore.transform.export import read_transform, try_transform
from kfp_mindspore.transform.images import CenterCrop, DecodeImage, Resize
from kfp_mindspore.transform.load import ENTRY_POINTS, load_transform, load_transform_source
from kfp_mindspore.transform.operation import Operation
from kfp_mindspore.transform.pipeline import Pipeline
from kfp_mindspore.transform.step import Step
from kfp_mindspore.transform.values import Normalize, Softmax, TopK

__all__ = [
    "BYTES",
    "ENTRY_POINTS",
    "TRANSFORM_FILE",
    "Arrays",
    "BoundTransform",
    "CenterCrop",
    "DecodeImage",
    "Normalize",
    "Operation",
    "Pipeline",
    "Resize",
    "Signature",
    "Softmax",
    "Step",
    "TensorSpec",
    "TopK",
    "Transform",
    "TransformFailedError",
    "TransformInputError",
    "bind_transform",
    "load_transform",
    "load_transform_source",
    "read_transform",
    "try_transform",
]
