"""Decode steps without a server: python decode.py ours|int8|graphs|transformers MODEL BATCH SLOTS STEPS.

`int8` and `graphs` are the decode operators int8 and none.

Prints a line of JSON: the median step in seconds, and in bytes the process' memory and its caches'.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = 32
LENGTH = 256


def open_ours(model: str, batch: int, slots: int, operator: str = "float32") -> tuple[Callable[[int], None], int]:
    """Return the next step's function, and the caches' bytes."""
    import kfp_mindspore  # noqa: F401
    from kfp_mindspore.lm.serving.runner import load

    runner = load(Path(model), slots=slots, max_length=LENGTH, decode_operator=operator)
    for compile_graph in runner.list_compilations():
        compile_graph()
    for slot in range(batch):
        runner.prefill(slot, make_prompt(slot, runner.vocabulary_size), 0)
    last = np.ones(batch, np.int32)

    def step(number: int) -> None:
        logits = runner.decode(range(batch), last, np.full(batch, PROMPT + number, np.int32))
        last[:] = logits.argmax(-1)

    return step, slots * LENGTH * runner.row_bytes


def open_transformers(model: str, batch: int, slots: int) -> tuple[Callable[[int], None], int]:
    """Return the next step's function; transformers allocates its caches as it needs them."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompts = np.stack([make_prompt(row, network.config.vocab_size) for row in range(batch)])
    with torch.inference_mode():
        found = network(torch.from_numpy(prompts.astype(np.int64)), use_cache=True)
    state = {"cache": found.past_key_values, "last": found.logits[:, -1:].argmax(-1)}

    def step(number: int) -> None:
        with torch.inference_mode():
            found = network(state["last"], past_key_values=state["cache"], use_cache=True)
        state.update(cache=found.past_key_values, last=found.logits[:, -1:].argmax(-1))

    return step, 0


def make_prompt(row: int, vocabulary: int) -> Any:
    """Return a row's token IDs, int32."""
    return np.random.default_rng(row).integers(0, vocabulary, PROMPT).astype(np.int32)


def main(framework: str, model: str, batch: int, slots: int, steps: int) -> None:
    """Measure and print."""
    operators = {"ours": "float32", "int8": "int8", "graphs": "none"}
    if framework == "transformers":
        step, caches = open_transformers(model, batch, slots)
    else:
        step, caches = open_ours(model, batch, slots, operators[framework])
    seconds = []
    for number in range(steps):
        start = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - start)
    memory = int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024
    # The first steps allocate.
    print(json.dumps({"step": statistics.median(seconds[steps // 4 :]), "memory": memory, "caches": caches}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
