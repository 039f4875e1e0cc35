"""Conversion of a client's inputs."""

from __future__ import annotations

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.inference import predict


def test_texts_are_sent_as_bytes() -> None:
    specs = (TensorSpec("text", BYTES, (-1, 2)),)
    rows = np.asfortranarray(np.array([["a", "b"], ["c", "\u00e9"]]))
    arrays = predict._convert_inputs({"text": rows}, specs, "reviews")
    assert arrays["text"].tolist() == [[b"a", b"b"], [b"c", "\u00e9".encode()]]
    assert predict._convert_inputs([[b"a\0", "b"]], specs, "reviews")["text"].tolist() == [[b"a\0", b"b"]]
    with pytest.raises(UserError, match="inputs: text: must be texts or bytes, got 3"):
        predict._convert_inputs([["a", 3]], specs, "reviews")
