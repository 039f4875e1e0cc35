"""Changes made by a conversion between job kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One change made by a conversion.

    Attributes:
        field: Path in the converted document.
        change: The change.
        reason: The change's reason.
    """

    field: str
    change: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.change}: {self.reason}"
