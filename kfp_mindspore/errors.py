"""Exceptions for all packages.

`exit_code` is the command line's exit code: 2 for a user's mistake, 1 for a failure, 3 for a gate that is not met.
"""

from __future__ import annotations

from collections.abc import Sequence

from kfp_mindspore.settings import is_in_pod


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


class CorruptBundleError(UserError):
    """A file in a bundle, checkpoint or dataset has another size or digest than described."""


class ProcessFailedError(KfpMindSporeError):
    """A job, service or step failed; `log` holds its last lines."""


class WaitTimeoutError(KfpMindSporeError, TimeoutError):
    """A timeout expired."""


class GateNotMetError(KfpMindSporeError):
    """The model did not pass the pipeline's gate."""

    exit_code = 3
