import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

from kfp import dsl, local

from ..component import notify

pytest_plugins = ["kfp_mindspore.testing"]


@dsl.component(base_image="python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def fail() -> None:
    """Fail."""
    raise SystemExit("no more paper")


class Webhook(BaseHTTPRequestHandler):
    """Stores the bodies of requests."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        """Answer a notice."""
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_) -> None:
        """Write no log."""


def test_exit_task_sends_notice_of_failed_run(local_home, tmp_path, monkeypatch) -> None:
    """Exit task sends notice of failed run."""
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path), raise_on_error=False)

    @dsl.pipeline(name="failing")
    def pipeline() -> None:
        with dsl.ExitHandler(notify(webhook="slack")):
            fail()

    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        monkeypatch.setenv("KFP_MINDSPORE_WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}/secret")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pipeline()
        server.shutdown()
    (body,) = Webhook.bodies
    assert "FAILED" in body["text"]
