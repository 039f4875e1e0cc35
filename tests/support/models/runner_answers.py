"""Computes outputs with runners alone: `python runner_answers.py ASKED.npz ANSWERED.npz`, see `ask_runners`."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np

from kfp_mindspore.mindir.graph.runner import GraphRunner


def main(asked: str, answered: str) -> None:
    questions: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    with np.load(asked) as archive:
        for number, key in enumerate(archive["keys"].tolist()):
            path, index, name = key.rsplit(":", 2)
            questions[path][index][name] = archive[str(number)]
    answers: dict[str, Any] = {}
    for path, several in questions.items():
        with GraphRunner(path) as runner:
            for index, inputs in several.items():
                answers |= {f"{path}:{index}:{name}": array for name, array in runner.predict(inputs).items()}
    np.savez(answered, **{str(number): array for number, array in enumerate(answers.values())}, keys=list(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
