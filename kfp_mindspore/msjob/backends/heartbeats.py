"""Heartbeats from a local job's workers: files that `kfp_mindspore.training.workers.watchdog` writes each second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.settings import DEFAULT_HANG_SECONDS, FIRST_STEP_FACTOR, HANG_SECONDS_VARIABLE


@dataclass(frozen=True)
class Heartbeat:
    """A worker's newest heartbeat.

    Attributes:
        step: Steps done by this process's training; None before its first step.
        in_step: Whether it computes a step or waits in one for the others.
        ended: `done` once its training has ended, `terminated` if by a SIGTERM to a worker, else empty.
    """

    step: int | None
    in_step: bool
    ended: str = ""


class Heartbeats:
    """One attempt's heartbeats.

    Ages are measured by the caller's clock from when a file's version is first seen: a machine clock step has no
    effect.

    Args:
        directory: File directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, tuple[int, float]] = {}

    def get_file(self, name: str) -> Path:
        """Return a worker's file."""
        return self._directory / f"{name}.json"

    def clear(self) -> None:
        """Remove the last attempt's files."""
        self._seen.clear()
        self._directory.mkdir(exist_ok=True)
        for file in self._directory.iterdir():
            file.unlink(missing_ok=True)

    def read(self, name: str) -> Heartbeat | None:
        """Return a worker's newest heartbeat; None before the first, and for a script without `fit`."""
        try:
            document = json.loads(self.get_file(name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return Heartbeat(document["step"], document["in_step"], document["ended"])

    def list_stale(self, limits: Mapping[str, float], now: float) -> list[str]:
        """Return the workers without a heartbeat for their time limit, which is three times as long before a step.

        Workers whose training has ended are not included: they may export or evaluate for longer.

        Args:
            limits: Seconds by worker; 0 for none.
            now: time.monotonic().
        """
        stale = []
        for name, limit in limits.items():
            try:
                version = self.get_file(name).stat().st_mtime_ns
            except FileNotFoundError:
                continue
            seen, since = self._seen.setdefault(name, (version, now))
            if seen != version:
                self._seen[name] = (version, now)
            elif 0 < limit <= now - since:
                beat = self.read(name)
                if (
                    beat is not None
                    and not beat.ended
                    and (beat.step is not None or now - since >= limit * FIRST_STEP_FACTOR)
                ):
                    stale.append(name)
        return stale

    def describe(self, names: Iterable[str]) -> str:
        """Return which workers delay the others, with their last steps; empty without heartbeats.

        Args:
            names: All workers.
        """
        found = {name: self.read(name) for name in names}
        beats = {name: beat for name, beat in found.items() if beat is not None}
        if not beats:
            return ""
        if len(beats) < len(found):
            return ", ".join(f"{name} has not started to train" for name, beat in found.items() if beat is None)
        late = [name for name, beat in beats.items() if not beat.in_step]
        least = min(beat.step or 0 for beat in beats.values())
        late = late or [name for name, beat in beats.items() if (beat.step or 0) == least]
        if len(late) == len(beats):
            return f"all after step {least}"
        return ", ".join(f"{name} is outside of a step after step {beats[name].step or 0}" for name in late)


def get_hang_seconds(environment: Mapping[str, str]) -> float:
    """Return the time limit for a process without progress in seconds; the process itself refuses a wrong value."""
    try:
        return float(environment.get(HANG_SECONDS_VARIABLE) or DEFAULT_HANG_SECONDS)
    except ValueError:
        return DEFAULT_HANG_SECONDS
