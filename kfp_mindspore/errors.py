"""The exceptions that every room raises.

`exit_code` is what the command line leaves with: 2 for a user's mistake, 1 for a failure, 3 for a gate that is not met.
"""

from __future__ import annotations

from collections.abc import Sequence


class KfpMindSporeError(Exception):
    """A failure with a message for a person.

    Args:
        message: What was found, what was expected and where (field, file or step).
        hint: The next step to take; shown on a line of its own.
        log: The last lines of the log of whatever failed, oldest first.
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
    """A mistake in what was asked for; nothing was changed."""

    exit_code = 2


class ValidationError(UserError):
    """One or more fields are wrong.

    Args:
        errors: One sentence a field, `path.to.field: must be …, got …`.
        subject: What was validated, such as `MSJob digits` or a file's name.
    """

    def __init__(self, errors: Sequence[str], *, subject: str = "", hint: str = "") -> None:
        self.errors = tuple(errors)
        head = f"{subject} is invalid: " if subject else ""
        super().__init__(head + "; ".join(errors), hint=hint)


class NotFoundError(UserError):
    """The named job, service, pipeline or file does not exist."""


class AlreadyExistsError(UserError):
    """The named job or service exists already."""


class MissingExtraError(UserError):
    """A library that only an extra installs is not there.

    Args:
        library: The import name, such as `mindspore`.
        extra: The extra that brings it, such as `train`.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed", hint=f"Install it with: pip install 'kfp-mindspore[{extra}]'")


class CorruptBundleError(UserError):
    """A model bundle's files do not have the digests of its signature."""


class ProcessFailedError(KfpMindSporeError):
    """A job, service or step ended badly; `log` holds its last lines."""


class WaitTimeoutError(KfpMindSporeError, TimeoutError):
    """What was waited for did not happen in time."""


class GateNotMetError(KfpMindSporeError):
    """The evaluation refused the model: the pipeline ended at its gate."""

    exit_code = 3
