"""Images of any size with a digit, light on dark, to the three best classes."""

from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.transform import DecodeImage, Normalize, Pipeline, Resize, Softmax, TopK


def build_transform(signature: Signature) -> Pipeline:
    return Pipeline(
        pre=[DecodeImage("L"), Resize((8, 8)), Normalize(0.0, 1.0)],
        post=[Softmax(), TopK(3, signature.labels)],
    )
