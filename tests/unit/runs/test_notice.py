"""Notices to real HTTP and SMTP servers on this machine."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from kfp import dsl

from kfp_mindspore.errors import KfpMindSporeError, UserError, ValidationError
from kfp_mindspore.runs import run_local
from kfp_mindspore.runs.compiled.sources import compile_text
from kfp_mindspore.runs.notice import PASSWORD_VARIABLE, WEBHOOK_VARIABLE, NotifyOptions, send_notice
from tests.cluster.infrastructure.certificates import Authority
from tests.support.http_server import Handler, Server

pytestmark = pytest.mark.timeout(180)

SECRET = "T000/B000/XXXX-secret"
PIPELINE = """
from kfp import dsl

from kfp_mindspore.components import notify


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def prepare() -> int:
    return 3


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(count: int):
    print("loading")
    if count:
        raise SystemExit("no more paper")


@dsl.pipeline(name="noticed")
def noticed(form: str = "slack"):
    with dsl.ExitHandler(notify(webhook=form)):
        train(count=prepare().output)
"""


def build_status(state: str = "FAILED", message: str | None = None) -> dsl.PipelineTaskFinalStatus:
    return dsl.PipelineTaskFinalStatus(state, "runs/1", "exit-handler-1", None, message)


class Webhook(Server):
    """Stores bodies; answers with the next of `statuses`, then 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        super().__init__(_WebhookHandler)


class _WebhookHandler(Handler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.read_body()))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.respond(status, f"refused {self.path}".encode(), {"Location": "/elsewhere"} if status == 302 else None)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    with Webhook() as server:
        monkeypatch.setenv(WEBHOOK_VARIABLE, f"{server.url}/{SECRET}")
        yield server


class Mailbox:
    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.connections = 0

    async def handle_EHLO(self, server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]) -> Any:
        # Repeated by the client within TLS.
        self.connections += session.ssl is None
        session.host_name = hostname
        return responses

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        self.envelopes.append(envelope)
        return "250 OK"


def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: LoginPassword) -> AuthResult:
    return AuthResult(success=data.password == SECRET.encode(), handled=False)


@pytest.fixture
def mailbox(free_port: int) -> Iterator[tuple[Mailbox, str]]:
    mailbox = Mailbox()
    options = {"authenticator": authenticate, "auth_require_tls": False}
    # aiosmtpd's controller does not start on port 0.
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port, **options)
    controller.start()
    try:
        yield mailbox, f"127.0.0.1:{controller.port}"
    finally:
        controller.stop()


def mail(server: str, **options: Any) -> dict[str, Any]:
    return {
        "recipients": ["me@example.com"], "sender": "kfp@example.com", "smtp_server": server, "smtp_security": "none",
        **options,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["slack", "json"])
def test_failed_local_run_sends_step_reason_and_last_lines(
    webhook: Webhook, home: Path, tmp_path: Path, form: str
) -> None:
    source = tmp_path / "pipeline.py"
    source.write_text(PIPELINE)
    for count in (1, 2):
        result = run_local(str(source), {"form": form}, raise_on_error=False, report=False)
        assert (result.state, result.steps["notify"].state) == ("failed", "succeeded")
        assert result.error is not None
        assert result.error.message.startswith("step train failed")
        assert len(webhook.bodies) == count
    body = webhook.bodies[-1]
    text = f"Run {result.id}: FAILED in step train\ntrain: no more paper\n  | loading\n  | no more paper"
    if form == "slack":
        assert body == {"text": text}
    else:
        assert body == {
            "run": result.id, "state": "FAILED", "step": "train", "reason": "no more paper", "url": "",
            "log": ["loading", "no more paper"], "failed_steps": ["train"], "text": text,
        }  # fmt: skip
    assert SECRET not in compile_text(str(source), "registry.example.com/mine:1")
    leaks = [file for file in home.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert leaks == []


def test_mail_has_title_and_lines(mailbox: tuple[Mailbox, str], monkeypatch: pytest.MonkeyPatch) -> None:
    box, server = mailbox
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    assert send_notice(
        build_status(message="Task exit-handler-1 failed."), NotifyOptions(**mail(server, smtp_user="kfp"))
    )
    (envelope,) = box.envelopes
    assert (envelope.mail_from, envelope.rcpt_tos) == ("kfp@example.com", ["me@example.com"])
    assert isinstance(envelope.content, bytes)
    assert b"Subject: Run of a pipeline: FAILED" in envelope.content
    assert b"Task exit-handler-1 failed." in envelope.content


@pytest.mark.parametrize(
    ("options", "password", "kind", "message"),
    [
        ({"smtp_user": "kfp"}, "wrong", UserError, "refuses the login of kfp (535)"),
        ({"smtp_user": "kfp"}, "", UserError, f"{PASSWORD_VARIABLE}: is not set, expected the password of kfp"),
        ({"smtp_security": "starttls"}, "", KfpMindSporeError, "SMTPNotSupportedError"),
    ],
)
def test_refused_mail_is_error_without_password(
    mailbox: tuple[Mailbox, str],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    password: str,
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, password)
    with pytest.raises(kind) as caught:
        send_notice(build_status(), NotifyOptions(**mail(mailbox[1], **options)))
    assert message in str(caught.value)
    assert "wrong" not in str(caught.value)
    assert not mailbox[0].envelopes


@pytest.mark.parametrize("is_trusted", [True, False])
def test_password_is_sent_after_starttls_alone(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("smtp", "smtp", hosts=["127.0.0.1"]))
    box = Mailbox()
    options = {"authenticator": authenticate, "require_starttls": True, "tls_context": context}
    controller = Controller(box, hostname="127.0.0.1", port=free_port, **options)
    controller.start()
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    secure = mail(f"127.0.0.1:{free_port}", smtp_security="starttls", smtp_user="kfp")
    try:
        if is_trusted:
            assert send_notice(build_status(), NotifyOptions(**secure))
        else:
            with pytest.raises(KfpMindSporeError, match="SSLCertVerificationError"):
                send_notice(build_status(), NotifyOptions(**secure))
    finally:
        controller.stop()
    assert len(box.envelopes) == is_trusted
    # A refused certificate is not tried again.
    assert box.connections == 1


# kfp.local passes its own state, KFP 2.17's back end the one in ML Metadata.
@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE", "CACHED"])
def test_success_is_sent_on_request_only(webhook: Webhook, capsys: pytest.CaptureFixture[str], state: str) -> None:
    assert not send_notice(build_status(state), NotifyOptions(webhook="json"))
    assert webhook.bodies == []
    assert send_notice(build_status(state), NotifyOptions(webhook="json", when="always"))
    assert [body["state"] for body in webhook.bodies] == ["SUCCEEDED"]
    assert SECRET not in capsys.readouterr().out


def test_run_whose_step_was_killed_is_a_failure(webhook: Webhook) -> None:
    assert send_notice(build_status("RUNNING"), NotifyOptions(webhook="json"))
    assert [body["state"] for body in webhook.bodies] == ["FAILED"]


@pytest.mark.parametrize(
    ("statuses", "requests", "message"),
    [([503, 429], 3, ""), ([404], 1, "HTTP 404"), ([302], 1, "HTTP 302"), ([500, 500, 500], 3, "HTTP 500")],
)
def test_transient_refusals_are_retried(webhook: Webhook, statuses: list[int], requests: int, message: str) -> None:
    webhook.statuses = list(statuses)
    if message:
        with pytest.raises(KfpMindSporeError) as caught:
            send_notice(build_status(), NotifyOptions(webhook="slack"))
        assert f"webhook at 127.0.0.1: {message}" in str(caught.value)
        assert SECRET not in str(caught.value)
    else:
        send_notice(build_status(), NotifyOptions(webhook="slack"))
    assert len(webhook.bodies) == requests


@pytest.mark.parametrize("url", ["", "hooks.slack.com/T0", "ftp://hooks/T0", "https://", "https://a b/", "http://[x"])
def test_invalid_url_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, url)
    with pytest.raises(UserError, match=f"^{WEBHOOK_VARIABLE}: (is not set|must be an http)") as caught:
        send_notice(build_status(), NotifyOptions(webhook="slack"))
    assert not url or url not in caught.value.message.replace("http:// or https:// URL", "")


def test_unreachable_servers_are_named(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, f"http://127.0.0.1:{free_port}/{SECRET}")
    with pytest.raises(KfpMindSporeError, match=r"^webhook at 127\.0\.0\.1: no response .*refused") as caught:
        send_notice(build_status(), NotifyOptions(webhook="slack"))
    assert SECRET not in str(caught.value)
    with pytest.raises(KfpMindSporeError, match=rf"^SMTP server 127\.0\.0\.1:{free_port}: ConnectionRefusedError"):
        send_notice(build_status(), NotifyOptions(**mail(f"127.0.0.1:{free_port}")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "webhook, recipients: at least one must be given"),
        ({"webhook": "teams"}, "webhook: must be "),
        ({"recipients": ["me@example.com"]}, "sender: is required for e-mail; smtp_server: is required for e-mail"),
        (mail("host:x"), "smtp_server: must be HOST or HOST:PORT, got 'host:x'"),
        (mail("host", sender="me"), "sender: must be an e-mail address, got 'me'"),
        ({"webhook": "slack", "lines": 1000}, "lines: must be "),
    ],
)
def test_invalid_options_are_refused_before_the_run(
    tmp_path: Path, home: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        NotifyOptions(**options)
    assert message in str(caught.value)
    source = tmp_path / "pipeline.py"
    arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
    source.write_text(PIPELINE.replace("webhook=form", arguments))
    with pytest.raises(UserError, match="step notify: ") as refused:
        run_local(str(source))
    assert all(part in str(refused.value) for part in message.split("; "))
    assert not list(home.glob("runs/*"))
