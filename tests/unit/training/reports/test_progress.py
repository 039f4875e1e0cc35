"""Progress reports against a real HTTPS server of the test, as Kubeflow Trainer receives them."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kfp_mindspore.training.reports import progress
from kfp_mindspore.training.reports.progress import ProgressReporter
from tests.support.http_server import Handler, Server

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits/status"


class TrainerServer(Server):
    """A status server of Kubeflow Trainer with a certificate of its own."""

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "ca.crt"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainer")])
        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        keyfile = directory / "tls.key"
        keyfile.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, keyfile)
        super().__init__(TrainerHandler, tls=context)
        self.received: list[tuple[str, str, Any]] = []
        self.changed = threading.Condition()
        self.status = 200
        self.released = threading.Event()
        self.released.set()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= count, 60)


class TrainerHandler(Handler):
    server: TrainerServer

    def do_POST(self) -> None:
        body = json.loads(self.read_body())
        self.server.released.wait(60)
        with self.server.changed:
            self.server.received.append((self.path, self.headers["Authorization"], body))
            self.server.changed.notify_all()
        self.respond(self.server.status)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerServer]:
    monkeypatch.setattr(progress, "POST_SECONDS", 0.05)
    with TrainerServer(tmp_path) as server:
        yield server
        server.released.set()


@pytest.fixture
def environment(trainer: TrainerServer, tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text("first\n")
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{trainer.server_port}{PATH}",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(trainer.ca),
    }


def update(reporter: ProgressReporter, step: int) -> None:
    reporter.update(epoch=1, step=step, loss=0.3125, metrics={"loss": 0.5, "accuracy": 1.0})


def test_trainer_receives_progress_and_metrics(
    trainer: TrainerServer, environment: dict[str, str], tmp_path: Path
) -> None:
    reporter = ProgressReporter(2, 10, environment)
    update(reporter, 1)
    trainer.wait(1)
    # The kubelet rotates the token.
    (tmp_path / "token").write_text("second")
    update(reporter, 9)
    trainer.wait(2)
    reporter.finish()
    assert [token for _, token, _ in trainer.received] == ["Bearer first", "Bearer second", "Bearer second"]
    assert {path for path, _, _ in trainer.received} == {PATH}
    first, second, last = [body["trainerStatus"] for _, _, body in trainer.received]
    assert first["progressPercentage"] == 5
    assert "estimatedRemainingSeconds" not in first
    assert first["metrics"] == [{"name": "loss", "value": "0.3125"}, {"name": "accuracy", "value": "1"}]
    assert datetime.datetime.fromisoformat(first["lastUpdatedTime"].replace("Z", "+00:00")).tzinfo is not None
    assert second["progressPercentage"] == 45
    assert second["estimatedRemainingSeconds"] >= 0
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the reporter's own: other tests' threads log too."""
    return [record.message for record in caplog.records if record.name == progress.__name__]


def test_failing_trainer_is_reported_once(
    trainer: TrainerServer, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    trainer.status = 403
    reporter = ProgressReporter(2, 10, environment)
    for count in (1, 2):
        update(reporter, count)
        trainer.wait(count)
    reporter.finish()
    assert len(trainer.received) == 3
    assert [text.rpartition("sent: ")[2] for text in list_warnings(caplog)] == ["HTTP Error 403: Forbidden"]


@pytest.mark.parametrize("name", ["KUBEFLOW_TRAINER_SERVER_TOKEN", "KUBEFLOW_TRAINER_SERVER_CA_CERT"])
def test_missing_files_do_not_fail_training(
    environment: dict[str, str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = ProgressReporter(2, 10, environment | {name: "/missing"})
    update(reporter, 1)
    reporter.finish()
    assert len(list_warnings(caplog)) == 1
    assert "the progress cannot be sent" in caplog.text


def test_trainer_without_response_does_not_delay_steps(
    trainer: TrainerServer, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_CLOSE_SECONDS", 0.01)
    trainer.released.clear()
    reporter = ProgressReporter(2, 10, environment)
    for step in range(1, 20):
        update(reporter, step)
    reporter.finish()
    assert trainer.received == []


def test_backend_reads_file_or_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in (str(tmp_path / "progress.json"), "-"):
        reporter = ProgressReporter(2, 10, {"KFP_MINDSPORE_PROGRESS": target}, device="CPU")
        update(reporter, 1)
        # Too early for a second report.
        update(reporter, 2)
    line = capsys.readouterr().err
    assert line.startswith("KFP_MINDSPORE_PROGRESS {")
    report = json.loads(line.removeprefix("KFP_MINDSPORE_PROGRESS "))
    assert json.loads((tmp_path / "progress.json").read_text()) == report
    assert report["device"] == "CPU"
    assert (report["percentage"], report["epoch"], report["epochs"], report["step"], report["steps"]) == (
        5,
        1,
        2,
        1,
        20,
    )


def test_unwritable_file_does_not_fail_training(caplog: pytest.LogCaptureFixture) -> None:
    reporter = ProgressReporter(2, 10, {"KFP_MINDSPORE_PROGRESS": "/missing/progress.json"})
    update(reporter, 1)
    reporter.finish()
    assert len(list_warnings(caplog)) == 1


def test_nothing_starts_without_receivers() -> None:
    before = threading.active_count()
    reporter = ProgressReporter(2, 10, {})
    update(reporter, 1)
    reporter.finish()
    assert threading.active_count() == before
