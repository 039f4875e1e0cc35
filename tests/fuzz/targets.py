"""Fuzzed models: a served model, samples with outputs, and a reference of its function."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from kfp_mindspore.formats.bundle import ModelBundle, Signature
from tests.fuzz.cases import Case
from tests.support.serving.model_servers import ModelServer, ask_runners
from tests.support.serving.serving_client import DATATYPES, messages

Arrays = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Target:
    """A model of a server.

    Args:
        name: Its name in the URL.
        signature: Its inputs and outputs; the batch is free.
        questions: Inputs of one to a few rows.
        answers: Outputs of the runner alone for each of the questions.
        compute: The same function in NumPy, float64, for any inputs.
    """

    name: str
    signature: Signature
    questions: tuple[Arrays, ...]
    answers: tuple[Arrays, ...]
    compute: Callable[[Arrays], Arrays]

    @property
    def datatypes(self) -> dict[str, str]:
        return {spec.name: DATATYPES[spec.dtype] for spec in self.signature.inputs}


def make_targets(bundles: Mapping[str, Path], scratch: Path) -> tuple[Target, ...]:
    """Make the targets `digits` and `pair` with the outputs of their runners."""
    asked = {path: _ASKERS[name](path) for name, path in bundles.items()}
    answered = ask_runners(asked, scratch)
    return tuple(_MAKERS[name](path, asked[path], answered[path]) for name, path in bundles.items())


def _ask_digits(bundle: Path) -> list[Arrays]:
    samples = np.asarray(ModelBundle.open(bundle).read_verified().inputs["image"])
    random = np.random.default_rng(3)
    questions = []
    for rows in (1, 1, 1, 1, 1, 1, 2, 3, 5, 8):
        chosen = samples[random.integers(0, len(samples), rows)]
        questions.append({"image": chosen * np.float32(random.uniform(0.5, 1.5))})
    probes = np.concatenate([np.zeros((1, 64), np.float32), np.eye(64, dtype=np.float32)])
    return [*questions, {"image": probes.reshape(65, 1, 8, 8)}]


def _make_digits(bundle: Path, questions: list[Arrays], answers: list[Arrays]) -> Target:
    # The model is one linear layer: its outputs for zeros and unit vectors are its weights.
    probed = answers[-1]["output"].astype(np.float64)
    bias, weights = probed[0], probed[1:] - probed[0]

    def compute(inputs: Arrays) -> Arrays:
        return {"output": inputs["image"].astype(np.float64).reshape(-1, 64) @ weights + bias}

    signature = ModelBundle.open(bundle).signature
    return Target("digits", signature, tuple(questions[:-1]), tuple(answers[:-1]), compute)


def _ask_pair(_: Path) -> list[Arrays]:
    random = np.random.default_rng(4)
    return [
        {
            "values": random.random((rows, 3), np.float32),
            "index": random.integers(-(2**20), 2**20, rows, np.int32),
        }
        for rows in (1, 1, 1, 2, 4)
    ]


def _make_pair(bundle: Path, questions: list[Arrays], answers: list[Arrays]) -> Target:
    def compute(inputs: Arrays) -> Arrays:
        # int32's own sum, which wraps.
        index = inputs["index"].astype(np.int32)
        return {"output_0": inputs["values"].astype(np.float64) * 2, "output_1": index + np.int32(1)}

    for question, answer in zip(questions, answers, strict=True):
        for name, array in compute(question).items():
            np.testing.assert_allclose(answer[name], array, atol=1e-5)
    return Target("pair", ModelBundle.open(bundle).signature, tuple(questions), tuple(answers), compute)


_ASKERS = {"digits": _ask_digits, "pair": _ask_pair}
_MAKERS = {"digits": _make_digits, "pair": _make_pair}
_BUNDLES = {"digits": "free", "pair": "pair"}


@dataclass(frozen=True)
class Stage:
    """A running server and the models that it serves."""

    server: ModelServer
    targets: tuple[Target, ...]

    def find_target(self, case: Case) -> Target | None:
        """Return the model that a request is for."""
        name = ""
        if case.is_grpc:
            with contextlib.suppress(DecodeError):
                name = messages.ModelInferRequest.FromString(case.body).model_name
        elif found := re.match(r"/v[12]/models/([^/:?#]+)", case.path):
            name = found[1]
        return next((target for target in self.targets if target.name == name), None)


@contextlib.contextmanager
def open_stage(models: Path, scratch: Path, *flags: str, served: Sequence[str] = ("digits", "pair")) -> Iterator[Stage]:
    """Serve the digits' classifier, a model with two inputs, one that takes pictures and a table's from one process."""
    bundles = {name: models / _BUNDLES[name] for name in served}
    if (models / "transformed").is_dir():
        bundles["transformed"] = models / "transformed"
        flags = ("--allow_model_code=true", *flags)
    if (models / "visits").is_dir():
        bundles["visits"] = models / "visits"
    with ModelServer(scratch, bundles, *flags) as server:
        # The runner computes while the server starts.
        targets = make_targets({name: bundles[name] for name in served}, scratch)
        server.wait_ready()
        yield Stage(server, targets)


def read_json(content: bytes) -> Any:
    """Read JSON as the standard library does, but refuse NaN and Infinity.

    Raises:
        ValueError: It is no JSON.
    """

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is no JSON")

    return json.loads(content, parse_constant=refuse)
