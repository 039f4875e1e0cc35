"""gRPC messages: typed and raw contents that do not fit, texts that are no texts, and bytes that are no message."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.mutation import NUMBERS, TEXTS, mutate_bytes
from tests.fuzz.targets import Target
from tests.support.serving.serving_client import INFER, make_message, messages

_DIMENSIONS = [0, 1, -1, 2, 3, 8, 64, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)]
_DATATYPES = ["FP32", "FP64", "FP16", "INT32", "INT64", "UINT8", "BOOL", "BYTES", "BF16", "", "fp32", "x" * 1000]
_CONTENTS = {
    "bool_contents": [True, False], "int_contents": [0, -1, 2**31 - 1], "int64_contents": [2**63 - 1, 0],
    "uint_contents": [2**32 - 1, 1], "uint64_contents": [2**64 - 1], "fp32_contents": [1.0, float("nan"), 3e38],
    "fp64_contents": [1e300, float("inf"), 0.5], "bytes_contents": [b"", b"\xff", b"abc" * 100],
}  # fmt: skip
# Loading is safe at any time; unloading the model would be no fault of the server.
_METHODS = [
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "RepositoryModelLoad",
    "Nothing",
]
_TEXTS = [text for text in TEXTS if not any("\ud800" <= letter <= "\uf8ff" for letter in text)]


def make_grpc_case(random: Random, targets: Sequence[Target]) -> Case:
    """Make a call of the inference service."""
    target = random.choice(targets)
    if random.random() < 0.08:
        return _make_other_case(random, target)
    raw = random.random() < 0.5
    message = make_message(target.name, random.choice(target.questions), raw=raw)
    message.id = random.choice(_TEXTS) if random.random() < 0.3 else ""
    choice = random.random()
    if choice < 0.75:
        for _ in range(random.choice([1, 1, 1, 2, 3])):
            spoil(random, message, target.signature.outputs[0].name)
    content: bytes = message.SerializeToString()
    if 0.7 < choice < 0.9:
        content = mutate_bytes(random, content)
    elif choice > 0.96:
        content = random.randbytes(random.choice([0, 1, 2, 10, 100, 5000]))
    elif choice > 0.93:
        # A name that is no UTF-8: no client's library would send it.
        name = random.choice([b"image", b"FP32", b"digits", b"output", b"values"])
        content = content.replace(
            name, random.choice([b"\xff\xfe\xfd\xfc\xfb\xfa", b"\xed\xa0\x80"])[:2].ljust(len(name), b"\xff")
        )
    return Case("grpc", INFER, content)


def _make_other_case(random: Random, target: Target) -> Case:
    method = random.choice(_METHODS)
    if method.startswith("Model"):
        message = getattr(messages, f"{method}Request")(
            name=random.choice([target.name, *_TEXTS]), version=random.choice(["", "1", *_TEXTS])
        )
        content = message.SerializeToString()
    elif method == "RepositoryModelLoad":
        content = messages.RepositoryModelLoadRequest(model_name=random.choice(_TEXTS[1:6])).SerializeToString()
    else:
        content = b""
    if random.random() < 0.3:
        content = mutate_bytes(random, content)
        method = "ModelMetadata" if method == "RepositoryModelLoad" else method
    return Case("grpc", method, content)


def spoil(random: Random, message: Any, output: str) -> None:
    """Change a message of a model with such an output."""
    tensor: Any = random.choice(message.inputs) if message.inputs else message.inputs.add(name="image")
    choice = random.randrange(18)
    if choice == 0:
        tensor.name = random.choice(_TEXTS)
    elif choice == 1:
        tensor.datatype = random.choice(_DATATYPES)
    elif choice == 2:
        del tensor.shape[:]
        tensor.shape.extend(random.choice(_DIMENSIONS) for _ in range(random.choice([0, 1, 2, 3, 4, 4, 4, 5, 40])))
    elif choice == 3 and tensor.shape:
        tensor.shape[random.randrange(len(tensor.shape))] = random.choice(_DIMENSIONS)
    elif choice == 4:
        message.inputs.add().CopyFrom(tensor)
    elif choice == 5:
        message.inputs.remove(tensor)
    elif choice == 6:
        message.outputs.add(name=random.choice(["output", "output_0", "output_1", *_TEXTS]))
    elif choice == 7:
        message.model_name = random.choice(["digits", "pair", *_TEXTS])
    elif choice == 8:
        message.model_version = random.choice(["", "1", "v1", "-1", "99999999999999999999", *_TEXTS])
    elif choice == 9:
        message.raw_input_contents.append(random.choice([b"", b"\x00", b"\x00" * 256, random.randbytes(256)]))
    elif choice == 10 and message.raw_input_contents:
        index = random.randrange(len(message.raw_input_contents))
        content = message.raw_input_contents[index]
        message.raw_input_contents[index] = random.choice(
            [content[:-1], content * 2, b"", mutate_bytes(random, content)]
        )
    elif choice == 11 and message.raw_input_contents:
        del message.raw_input_contents[-1]
    elif choice == 12:
        name, values = random.choice(list(_CONTENTS.items()))
        if random.random() < 0.5:
            tensor.ClearField("contents")
        getattr(tensor.contents, name).extend(random.choices(values, k=random.choice([1, 3, 63, 64, 65])))
    elif choice == 13:
        tensor.ClearField("contents")
    elif choice == 14:
        tensor.contents.fp32_contents.extend([0.5] * random.choice([1, 64, 100_000]))
    elif choice == 15:
        parameters = random.choice([message.parameters, tensor.parameters])
        _add_parameter(random, parameters[random.choice(["binary_data_size", "binary_data_output", "id", *_TEXTS])])
    elif choice == 16 and tensor.contents.fp32_contents:
        number = random.choice([value for value in NUMBERS if isinstance(value, int | float) and abs(value) < 3e38])
        tensor.contents.fp32_contents[random.randrange(len(tensor.contents.fp32_contents))] = float(number)
    else:
        message.outputs.add(name=output)
        _add_parameter(random, message.outputs[0].parameters["binary_data"])


def _add_parameter(random: Random, parameter: Any) -> None:
    field, value = random.choice(
        [("bool_param", True), ("int64_param", -1), ("int64_param", 2**62), ("string_param", "x"), ("string_param", "")]
    )
    setattr(parameter, field, value)
