"""A table's columns in code: some of them, by their own names and types."""

import numpy as np

from kfp_mindspore.transform import BYTES, Arrays, TensorSpec, Transform

CITIES = (b"Bergen", b"Oslo", "Tromsø".encode())


class Columns(Transform):
    inputs = (
        TensorSpec("city", BYTES, (-1,)),
        TensorSpec("age", "int64", (-1,)),
        TensorSpec("income", "float32", (-1,)),
    )

    def preprocess(self, inputs: Arrays) -> Arrays:
        cities = [[city == one for one in CITIES] for city in inputs["city"]]
        numbers = [inputs["age"] / 10, inputs["income"], np.zeros(len(cities))]
        return {"values": np.concatenate([np.stack(numbers, 1), cities], 1).astype(np.float32)}


transform = Columns()
