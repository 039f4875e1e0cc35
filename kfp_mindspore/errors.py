"""Exceptions for all packages.

`exit_code` is the command line's exit code: 2 for a user's mistake, 1 for a failure, 3 for a gate that is not met.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence

from kfp_mindspore.settings import is_in_pod


def join_names(names: Iterable[str], limit: int = 8) -> str:
    """Return names for a message, the first ones of a long list."""
    listed = list(names)
    return ", ".join(listed[:limit]) + (f", … ({len(listed)} in all)" if len(listed) > limit else "")


class KfpMindSporeError(Exception):
    """A failure with a message for the user.

    Args:
        message: Found, expected and the place (field, file or step).
        hint: The next step to take; printed on its own line.
        log: The failed process's last log lines, oldest first.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.log = tuple(log)

    def __str__(self) -> str:
        parts = [self.message]
        if self.log:
            parts.append("\n".join(f"  | {line}" for line in self.log))
        if self.hint:
            parts.append(self.hint)
        return "\n".join(parts)


class UserError(KfpMindSporeError):
    """An invalid request; nothing was changed."""

    exit_code = 2


class ValidationError(UserError, ValueError):
    """One or more invalid fields.

    Args:
        errors: One sentence per field, `path.to.field: must be …, got …`.
        subject: The validated object, such as `MSJob digits` or a file's name.
    """

    def __init__(self, errors: Sequence[str], *, subject: str = "", hint: str = "") -> None:
        self.errors = tuple(errors)
        head = f"{subject} is invalid: " if subject else ""
        super().__init__(head + "; ".join(errors), hint=hint)


class NotFoundError(UserError, RuntimeError):
    """The named job, service, pipeline or file does not exist."""


class AlreadyExistsError(UserError, RuntimeError):
    """The named job or service exists already."""


class MissingExtraError(UserError, ImportError):
    """A library from an extra is not installed; in a pod the hint names its image's build.

    Args:
        library: The import name, such as `mindspore`.
        extra: The extra that installs it, such as `train`.
    """

    def __init__(self, library: str, extra: str) -> None:
        hint = (
            f"Build the image of this pod with the extra {extra}: EXTRAS=…,{extra} of serving/Containerfile, or "
            f"kfp-mindspore image runtime --extra {extra} beside its other extras."
            if is_in_pod()
            else f"Install it with: pip install 'kfp-mindspore[{extra}]'"
        )
        super().__init__(f"{library} is not installed", hint=hint)


@contextlib.contextmanager
def require_extra(library: str, extra: str) -> Iterator[None]:
    """Import inside the block what an extra installs.

    Args:
        library: See `MissingExtraError`.
        extra: See `MissingExtraError`.

    Raises:
        MissingExtraError: An import has failed.
    """
    try:
        yield
    except ImportError:
        raise MissingExtraError(library, extra) from None


class CorruptBundleError(UserError):
    """A file in a bundle, checkpoint or dataset has another size or digest than described."""


class ProcessFailedError(KfpMindSporeError):
    """A job, service or step failed; `log` holds the last lines, `exit_code` is 2 if a server refused its options."""


class WaitTimeoutError(KfpMindSporeError, TimeoutError):
    """A timeout expired."""


class GateNotMetError(KfpMindSporeError):
    """The model did not pass the pipeline's gate."""

    exit_code = 3


def get_closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known name closest to a mistyped one, in any case; empty when none is as similar as `cutoff`."""
    by_case = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=cutoff)
    return by_case[close[0]] if close else ""


def suggest(name: str, known: Collection[str], *, cutoff: float = 0.6, listed: bool = True) -> str:
    """Return `; did you mean 'x'?` for a mistyped name.

    Args:
        name: The unknown name.
        known: The known names.
        cutoff: Least similarity, 0 to 1.
        listed: Without a close name, suggest one that contains `name`, else list all; otherwise return an empty string.
    """
    close = get_closest(name, known, cutoff=cutoff)
    if listed and not close:
        close = next((word for word in known if len(name) > 1 and name.lower() in word.lower()), "")
        if not close:
            return f"; expected {', '.join(known) or 'none'}"
    return f"; did you mean {close!r}?" if close else ""
