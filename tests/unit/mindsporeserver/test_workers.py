"""The parent of `--workers`, with real processes in the place of model servers."""

from __future__ import annotations

import logging
import sys

import pytest

from mindsporeserver.workers import run_workers

# Ends the server, and closes its connection before it has read that it may listen.
SCRIPT = """
import os, select, signal, socket
connection = socket.socket(fileno=int(os.environ["MINDSPORESERVER_WORKER"].partition(":")[0]))
connection.send(b"r")
select.select([connection], [], [])
connection.close()
os.kill(os.getppid(), signal.SIGTERM)
"""


def test_parent_survives_connection_closed_with_unread_data(caplog: pytest.LogCaptureFixture) -> None:
    command = (sys.executable, "-S", "-c", SCRIPT)
    with caplog.at_level(logging.INFO):
        code = run_workers(
            [], workers=1, host="127.0.0.1", http_port=0, grpc_port=None, grace_period=60, command=command
        )
    assert code == 0
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
