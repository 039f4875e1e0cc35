"""Files that a build context leaves out: the patterns of `.dockerignore`, caches, and likely secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kfp_mindspore.errors import UserError, require_extra

IGNORE_FILE = ".dockerignore"
# Applied without a .dockerignore: caches change the digest without a source change.
DEFAULT_PATTERNS = (
    ".git",
    "**/__pycache__",
    "**/*.pyc",
    "**/.ipynb_checkpoints",
    "**/.mypy_cache",
    "**/.pytest_cache",
    "**/.ruff_cache",
    ".venv",
    "venv",
)
# Always applied, unless a file is included explicitly.
SECRET_PATTERNS = (
    *("**/.env", "**/.env.*", "!**/.env.example", "!**/.env.sample", "!**/.env.template"),
    *("**/*.key", "**/*.pem", "**/*.p12", "**/*.pfx", "**/*.jks", "**/*.keystore"),
    *("**/id_rsa", "**/id_dsa", "**/id_ecdsa", "**/id_ed25519", "**/.ssh", "**/.gnupg"),
    *("**/.aws", "**/.azure", "**/.config/gcloud", "**/.docker", "**/.kube", "**/kubeconfig", "**/*.kubeconfig"),
    *("**/.netrc", "**/.git-credentials", "**/.htpasswd", "**/.npmrc", "**/.pypirc", "**/service-account*.json"),
)


class IgnoreRules:
    """Patterns of `.dockerignore`: the last one that matches a path or one of its parent folders decides.

    Args:
        lines: The lines of a `.dockerignore`.
        name: File name, for errors.

    Raises:
        UserError: A line is not a pattern; the message has its number.
    """

    def __init__(self, lines: Iterable[str], *, name: str = IGNORE_FILE) -> None:
        with require_extra("docker", "images"):
            from docker.utils.build import Pattern
            from docker.utils.fnmatch import translate
        self._patterns: list[tuple[bool, re.Pattern[str]]] = []
        for number, line in enumerate(lines, start=1):
            text = "" if line.startswith("#") else line.strip()
            if not text:
                continue
            pattern = Pattern(text)
            if text == "!":
                raise UserError(f"{name}, line {number}: must have a pattern after !")
            if not pattern.dirs:
                continue
            try:
                # The SDK's own matcher ignores case and loses files below `**`.
                self._patterns.append((pattern.exclusion, re.compile(translate(pattern.cleaned_pattern), re.DOTALL)))
            except re.error as error:
                raise UserError(f"{name}, line {number}: {text!r} is not a pattern ({error})") from None

    def ignores(self, path: str) -> bool:
        """Return whether a file or folder is left out.

        Args:
            path: Relative path with `/`.
        """
        ignored = False
        parts = path.split("/")
        candidates = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        for is_exception, expression in self._patterns:
            if is_exception == ignored and any(expression.match(candidate) for candidate in candidates):
                ignored = not is_exception
        return ignored

    def prunes(self, folder: str) -> bool:
        """Return whether everything below a folder is left out, so that it need not be read."""
        return not any(is_exception for is_exception, _ in self._patterns) and self.ignores(folder)


def read_ignore_rules(root: Path) -> IgnoreRules:
    """Return the rules from a folder's `.dockerignore`, or from `DEFAULT_PATTERNS` without one.

    Raises:
        UserError: It cannot be read, or a line is not a pattern.
    """
    file = root / IGNORE_FILE
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return IgnoreRules(DEFAULT_PATTERNS)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    return IgnoreRules(text.splitlines(), name=str(file))


def make_secret_rules(include: Iterable[str] = ()) -> IgnoreRules:
    """Return the rules from `SECRET_PATTERNS`.

    Args:
        include: File patterns to include nevertheless.
    """
    return IgnoreRules([*SECRET_PATTERNS, *(f"!{pattern}" for pattern in include)], name="include")
