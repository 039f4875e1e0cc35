"""Answers questions with a runner alone: `python runner_answers.py BUNDLE ASKED.npz ANSWERED.npz`, keys INDEX/NAME."""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from kfp_mindspore.mindir.graph import GraphRunner


def main(bundle: str, asked: str, answered: str) -> None:
    questions: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    with np.load(asked) as archive:
        for key in archive.files:
            index, _, name = key.partition("/")
            questions[index][name] = archive[key]
    answers = {}
    with GraphRunner(bundle) as runner:
        for index, inputs in questions.items():
            answers |= {f"{index}/{name}": array for name, array in runner.predict(inputs).items()}
    np.savez(answered, **answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
