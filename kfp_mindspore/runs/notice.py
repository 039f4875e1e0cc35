"""The notice of a run's end, sent by an exit task to a webhook and by e-mail."""

from __future__ import annotations

import contextlib
import json
import os
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kfp_mindspore.errors import KfpMindSporeError, UserError, ValidationError
from kfp_mindspore.options import check_values, option
from kfp_mindspore.runs.log import read_last_step_lines
from kfp_mindspore.runs.workflow import RUN_LABEL, FailedStep, RunOnCluster
from kfp_mindspore.settings import EVENTS_VARIABLE, KUBERNETES, get_backend_name

if TYPE_CHECKING:
    from kfp import dsl

# Credentials, which are never arguments: these would be in the compiled pipeline and in the run's page.
WEBHOOK_VARIABLE = "KFP_MINDSPORE_WEBHOOK_URL"
PASSWORD_VARIABLE = "KFP_MINDSPORE_SMTP_PASSWORD"
_SUCCEEDED, _FAILED = "SUCCEEDED", "FAILED"
# KFP's back end passes the state in ML Metadata, kfp.local the run's own. A step whose pod was killed has reported no
# end: its group is still RUNNING.
_STATES = {"COMPLETE": _SUCCEEDED, "CACHED": _SUCCEEDED, "RUNNING": _FAILED, "CANCELED": "CANCELLED"}
_PODS_NAME_VARIABLE = "KFP_POD_NAME"
_ATTEMPTS = 3
_LONGEST_DELAY = 5.0
_TRANSIENT = (408, 429, 500, 502, 503, 504)
# Slack's limit is 40,000 characters.
_TEXT_LENGTH = 30_000
_DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True)
class NotifyOptions:
    """Options for a run's notice.

    Args:
        webhook: Form of the webhook's body: `slack`, `json`, or empty for no webhook. `slack` is {"text": …}, which
            Mattermost and Rocket.Chat read too; the URL is in the environment variable KFP_MINDSPORE_WEBHOOK_URL.
        recipients: E-mail addresses; empty for no e-mail.
        sender: The e-mail's sender address.
        smtp_server: SMTP server, HOST or HOST:PORT.
        smtp_security: `starttls`, `tls` or `none`. The default ports are 587, 465 and 25.
        smtp_user: User at the SMTP server; empty for no login. The password is in the environment variable
            KFP_MINDSPORE_SMTP_PASSWORD.
        when: `failure`, or `always` for a notice of each run.
        lines: Last log lines of the failed step in the notice.
        ui: URL of Kubeflow Pipelines' pages, for a link to the run; empty for none.
        timeout: Seconds for each of three attempts.
    """

    webhook: str = option("", enum=["", "slack", "json"])
    recipients: Sequence[str] = ()
    sender: str = ""
    smtp_server: str = ""
    smtp_security: str = option("starttls", enum=list(_DEFAULT_PORTS))
    smtp_user: str = ""
    when: str = option("failure", enum=["failure", "always"])
    lines: int = option(20, minimum=0, maximum=200)
    ui: str = ""
    timeout: float = option(10.0, exclusiveMinimum=0)

    def __post_init__(self) -> None:
        check_values(NotifyOptions, vars(self), subject="notify")
        errors = []
        if not (self.webhook or self.recipients):
            errors.append("webhook, recipients: at least one must be given")
        if self.recipients:
            errors += [
                f"{name}: is required for e-mail" for name in ("sender", "smtp_server") if not getattr(self, name)
            ]
        errors += [
            f"{name}: must be an e-mail address, got {address!r}"
            for name, address in (("sender", self.sender), *(("recipients", item) for item in self.recipients))
            if address and (address.count("@") != 1 or any(character.isspace() for character in address))
        ]
        _, _, port = self.smtp_server.partition(":")
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            errors.append(f"smtp_server: must be HOST or HOST:PORT, got {self.smtp_server!r}")
        if errors:
            raise ValidationError(errors, subject="notify")


@dataclass(frozen=True)
class Notice:
    """What a notice says.

    Args:
        run: Run ID, empty if unknown.
        state: `SUCCEEDED`, `FAILED` or `CANCELLED`.
        steps: The failed steps with reason and last lines.
        error: Error message of Kubeflow Pipelines; may be empty.
        url: The run's page; empty for none.
        jobs: Sentences about jobs that the run has left running.
    """

    run: str
    state: str
    steps: Sequence[FailedStep] = ()
    error: str = ""
    url: str = ""
    jobs: Sequence[str] = ()

    @property
    def title(self) -> str:
        """A line with run, state and failed steps."""
        steps = f" in step {', '.join(step.name for step in self.steps)}" if self.steps else ""
        return f"Run {self.run or 'of a pipeline'}: {self.state}{steps}"

    def to_text(self) -> str:
        """Return the notice as plain text."""
        parts = [self.title]
        for step in self.steps:
            parts.append(f"{step.name}: {step.reason or 'failed'}")
            parts += [f"  | {line}" for line in step.log]
        if not self.steps and self.error:
            parts.append(self.error)
        parts += self.jobs
        parts += [self.url] if self.url else []
        text = "\n".join(parts)
        return text if len(text) <= _TEXT_LENGTH else f"{text[:_TEXT_LENGTH]}…"

    def to_dict(self) -> dict[str, Any]:
        """Return the notice as JSON types; `step`, `reason` and `log` are the first failed step's."""
        first = self.steps[0] if self.steps else FailedStep("", self.error)
        return {
            "run": self.run,
            "state": self.state,
            "step": first.name,
            "reason": first.reason,
            "log": list(first.log),
            "failed_steps": [step.name for step in self.steps],
            "url": self.url,
            "text": self.to_text(),
        }


def send_notice(status: dsl.PipelineTaskFinalStatus, options: NotifyOptions) -> bool:
    """Send the notice of a run's end, as the run's exit task.

    Args:
        status: Final state of the tasks under the ExitHandler.
        options: Where the notice is sent, and the content.

    Returns:
        Whether a notice was sent: not for a run that succeeded, unless `when` is `always`.

    Raises:
        UserError: A variable with a credential is missing or invalid.
        KfpMindSporeError: A server cannot be reached or refuses the notice; credentials are never in the message.
    """
    state = _STATES.get(status.state, status.state)
    if state == _SUCCEEDED and options.when == "failure":
        print("The run has succeeded: no notice")
        return False
    run, steps, jobs = _read_failure(options.lines)
    url = f"{options.ui.rstrip('/')}/#/runs/details/{run}" if options.ui and run else ""
    if state == _SUCCEEDED:
        steps, jobs = (), ()
    notice = Notice(run, state, steps, status.error_message or "", url, jobs)
    errors = []
    for is_wanted, send in ((options.webhook, _post), (options.recipients, _mail)):
        if is_wanted:
            try:
                send(notice, options)
            except KfpMindSporeError as error:
                errors.append(error)
    if errors:
        # The second way was tried in spite of the first one's error.
        raise errors[0]
    return True


def _read_failure(lines: int) -> tuple[str, Sequence[FailedStep], Sequence[str]]:
    """Return the run's ID, failed steps and the jobs that it left running."""
    if get_backend_name() == KUBERNETES:
        return _read_workflow(lines)
    events = os.environ.get(EVENTS_VARIABLE)
    if not events:
        return "", (), ()
    directory = Path(events).parent
    states: dict[str, str] = {}
    for line in Path(events).read_text().splitlines():
        # A killed process leaves an incomplete line.
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event["kind"] == "task":
                states[event["name"]] = event["state"]
    failed = []
    for name, state in states.items():
        if state == "failed":
            log = read_last_step_lines(directory / "logs" / f"{name}.log", lines) if lines else []
            failed.append(FailedStep(name, log[-1] if log else "", tuple(log)))
    return directory.name, failed, ()


def _read_workflow(lines: int) -> tuple[str, Sequence[FailedStep], Sequence[str]]:
    from kfp_mindspore.kube.cluster import Cluster
    from kfp_mindspore.kube.resources import PODS

    cluster = Cluster()
    pod = os.environ.get(_PODS_NAME_VARIABLE, "")
    try:
        namespace = cluster.namespace
        labels = cluster.get(PODS, pod, namespace)["metadata"].get("labels") or {}
    except KfpMindSporeError as error:
        print(f"Pod {pod}: cannot be read, the notice names no step: {error.message}", flush=True)
        return "", (), ()
    run = str(labels.get(RUN_LABEL) or "")
    if not run:
        return "", (), ()
    on_cluster = RunOnCluster(cluster, run, (namespace,))
    return run, on_cluster.list_failed_steps(lines=lines), on_cluster.list_left_jobs()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the notice is for the given server alone."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Refuse."""


def _post(notice: Notice, options: NotifyOptions) -> None:
    url = os.environ.get(WEBHOOK_VARIABLE, "").strip()
    _check_url(url)
    host = urlsplit(url).hostname
    body = {"text": notice.to_text()} if options.webhook == "slack" else notice.to_dict()
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(_NoRedirects())

    def send() -> None:
        with opener.open(request, timeout=options.timeout) as response:
            response.read()

    try:
        _retry(send)
    except urllib.error.HTTPError as error:
        # Its page may repeat the URL.
        raise KfpMindSporeError(f"webhook at {host}: HTTP {error.code} {error.reason}") from None
    except OSError as error:
        raise KfpMindSporeError(f"webhook at {host}: no response ({getattr(error, 'reason', error)})") from None
    print(f"Notice sent to the webhook at {host}", flush=True)


def _check_url(url: str) -> None:
    hint = (
        f"Set it from a Secret: kfp.kubernetes.use_secret_as_env(task, NAME, {{KEY: '{WEBHOOK_VARIABLE}'}}); for a "
        "local run, in the environment."
    )
    if not url:
        raise UserError(f"{WEBHOOK_VARIABLE}: is not set, expected the webhook's URL", hint=hint)
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isascii() and " " not in url
    except ValueError:
        is_valid = False
    if not is_valid:
        # The value is a secret.
        raise UserError(f"{WEBHOOK_VARIABLE}: must be an http:// or https:// URL", hint=hint)


def _mail(notice: Notice, options: NotifyOptions) -> None:
    message = EmailMessage()
    message["Subject"] = notice.title
    message["From"], message["To"] = options.sender, ", ".join(options.recipients)
    message.set_content(notice.to_text())
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if options.smtp_user and not password:
        raise UserError(
            f"{PASSWORD_VARIABLE}: is not set, expected the password of {options.smtp_user}",
            hint=f"Set it from a Secret: kfp.kubernetes.use_secret_as_env(task, NAME, {{KEY: '{PASSWORD_VARIABLE}'}}).",
        )
    host, _, port = options.smtp_server.partition(":")
    number = int(port) if port else _DEFAULT_PORTS[options.smtp_security]

    def send() -> None:
        context = ssl.create_default_context()
        with (
            smtplib.SMTP_SSL(host, number, timeout=options.timeout, context=context)
            if options.smtp_security == "tls"
            else smtplib.SMTP(host, number, timeout=options.timeout)
        ) as server:
            if options.smtp_security == "starttls":
                server.starttls(context=context)
            if options.smtp_user:
                server.login(options.smtp_user, password)
            server.send_message(message)

    try:
        _retry(send)
    except smtplib.SMTPAuthenticationError as error:
        raise UserError(
            f"SMTP server {host}:{number}: refuses the login of {options.smtp_user} ({error.smtp_code})"
        ) from None
    except (smtplib.SMTPException, OSError) as error:
        raise KfpMindSporeError(f"SMTP server {host}:{number}: {type(error).__name__}: {error}") from None
    print(f"Notice sent to {len(options.recipients)} addresses by {host}:{number}", flush=True)


def _retry(send: Any) -> None:
    """Call a function again after a connection error or a server's transient error."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    from kfp_mindspore.retries import wait_with_jitter

    retrying = Retrying(
        retry=retry_if_exception(_is_transient),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_with_jitter(0.5, _LONGEST_DELAY),
        reraise=True,
    )
    retrying(send)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in _TRANSIENT
    if isinstance(error, smtplib.SMTPResponseException):
        return 400 <= error.smtp_code < 500
    # urllib's error has the TLS error as its reason.
    return isinstance(error, OSError) and not isinstance(
        error.reason if isinstance(error, urllib.error.URLError) else error, ssl.SSLError
    )
