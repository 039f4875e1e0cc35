"""A training that counts instead of computing, so that a fault on a node is over in seconds.

`counting_training.py DIRECTORY [options]`. Worker 0 appends each step to DIRECTORY/metrics.jsonl and keeps a checkpoint
every few steps, from which the next run goes on; on SIGTERM it ends its step, saves and leaves with 143, as
`kfp_mindspore.training.fit` does. Members meet at MS_SCHED_HOST as MindSpore's do: none begins before all are there.
It ends when DIRECTORY/finish is there. It needs Python alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

TOLD_TO_LEAVE = 143


class Training:
    """One member's process.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.directory: Path = options.directory
        self.role = os.environ.get("MS_ROLE", "")
        self.rank = os.environ.get("MS_NODE_ID", "0")
        self.counting = False
        self.told = False
        signal.signal(signal.SIGTERM, self._leave)

    def run(self) -> int:
        """Do what this member does, and return its exit code."""
        print(f"{self.role or 'alone'} {self.rank} begins", flush=True)
        if self.role == "MS_SCHED":
            self._gather()
            return 0
        # Held open until the end: that is how the scheduler learns of it.
        meeting = self._meet() if self.role else None
        code = self._count() if self.role == "" or self.rank == "0" else self._accompany()
        if meeting is not None:
            meeting.close()
        return code

    def _leave(self, number: int, frame: object) -> None:
        self.told = True
        if not self.counting:
            sys.exit(TOLD_TO_LEAVE)

    def _gather(self) -> None:
        address = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])
        with socket.create_server(address) as server:
            members = [server.accept()[0] for _ in range(int(os.environ["MS_WORKER_NUM"]))]
            for member in members:
                member.sendall(b"go")
            for member in members:
                member.recv(1)

    def _meet(self) -> socket.socket:
        address = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])
        while True:
            try:
                meeting = socket.create_connection(address, timeout=5)
            except OSError:
                # The scheduler's pod may come last.
                time.sleep(0.1)
                continue
            meeting.settimeout(None)
            if meeting.recv(2) == b"go":
                return meeting
            sys.exit("the scheduler is gone")

    def _accompany(self) -> int:
        while not (self.directory / "finish").exists():
            time.sleep(0.05)
        return 0

    def _count(self) -> int:
        checkpoint = self.directory / "checkpoint.json"
        step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
        print(f"begins after step {step}", flush=True)
        held: list[bytes] = []
        self.counting = True
        while True:
            ending = (self.directory / "finish").exists()
            if self.told or ending:
                self._save(checkpoint, step)
                print(f"ends after step {step}", flush=True)
                return 0 if ending else TOLD_TO_LEAVE
            time.sleep(self.options.step_seconds)
            step += 1
            with (self.directory / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step}) + "\n")
            print(f"step {step}", flush=True)
            if step % self.options.checkpoint_steps == 0:
                self._save(checkpoint, step)
                if self.options.allocate:
                    held.append(b"x" * (self.options.allocate << 20))

    def _save(self, checkpoint: Path, step: int) -> None:
        partial = checkpoint.with_suffix(".partial")
        partial.write_text(json.dumps({"step": step}))
        partial.replace(checkpoint)
        if os.environ.get("KFP_MINDSPORE_PROGRESS") == "-":
            print(f'KFP_MINDSPORE_PROGRESS {{"step": {step}}}', flush=True)


def main() -> int:
    """Read the command line and count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--checkpoint-steps", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--allocate", type=int, default=0, help="MiB more with each checkpoint")
    return Training(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
