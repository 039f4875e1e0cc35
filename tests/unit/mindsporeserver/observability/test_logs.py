"""Lines of the log, and slow or closed readers of the log."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from mindsporeserver.observability.log_format import JsonFormatter, TextFormatter, escape_controls
from mindsporeserver.observability.logs import RequestLog, configure_logging

TEXT = (
    st.text()
    | st.text(st.characters(codec=None), max_size=20)
    | st.sampled_from(['a" status=200 x="', "\\", "\x1b[2K"])
)
_FIELD = re.compile(r' (\w+)=("(?:[^"\\]|\\.)*"|[\w.:/@+-]+)', re.ASCII)


class Sink(logging.Handler):
    """Keeps lines as a formatter makes them."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def requests_log() -> Iterator[Callable[[logging.Formatter], list[str]]]:
    logger = logging.getLogger("mindsporeserver.requests")
    logger.setLevel(logging.INFO)
    added: list[logging.Handler] = []

    def listen(formatter: logging.Formatter) -> list[str]:
        sink = Sink(formatter)
        added.append(sink)
        logger.addHandler(sink)
        return sink.lines

    yield listen
    for handler in added:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def fill(**changed: Any) -> dict[str, Any]:
    return {
        "request_id": "3f2a",
        "protocol": "v1",
        "model": "digits",
        "status": 200,
        "seconds": 0.001235,
        "queue_seconds": 0.0001,
        "compute_seconds": 0.00054,
        "rows": 3,
        "reason": "",
        **changed,
    }


def write(log: RequestLog, **changed: Any) -> None:
    fields = fill(**changed)
    log.write(fields["status"], fields)


def test_json_line_of_request(requests_log: Callable[[logging.Formatter], list[str]]) -> None:
    lines = requests_log(JsonFormatter())
    write(RequestLog("all"), trace_id="0af7")
    write(RequestLog("all"), status=400, reason="input 'image': rank must be 4", rows=0)
    first, second = (json.loads(line) for line in lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "INFO",
        "logger": "mindsporeserver.requests",
        "process": os.getpid(),
        "message": "request answered",
        **fill(trace_id="0af7"),
    }
    assert (second["level"], second["message"]) == ("WARNING", "request failed")
    assert second["reason"] == "input 'image': rank must be 4"


def test_text_line_of_request(requests_log: Callable[[logging.Formatter], list[str]]) -> None:
    lines = requests_log(TextFormatter())
    write(RequestLog("all"), status=503, rows=0, queue_seconds=0, reason='queue full: 1024 rows, "digits"')
    assert re.sub(r"^\S+Z", "…", lines[0]) == (
        f"… WARNING {os.getpid()} mindsporeserver.requests request failed request_id=3f2a protocol=v1 model=digits "
        r'status=503 seconds=0.001235 compute_seconds=0.00054 reason="queue full: 1024 rows, \"digits\""'
    )


@given(request_id=TEXT, model=TEXT, reason=TEXT)
def test_values_of_client_are_escaped(request_id: str, model: str, reason: str) -> None:
    text, json_lines = Sink(TextFormatter()), Sink(JsonFormatter())
    logger = logging.getLogger("mindsporeserver.requests")
    logger.addHandler(text)
    logger.addHandler(json_lines)
    try:
        write(RequestLog("all"), request_id=request_id, model=model, reason=reason, status=400)
    finally:
        logger.removeHandler(text)
        logger.removeHandler(json_lines)
    sent = {"request_id": request_id[:500], "model": model[:500], "reason": reason[:500]}

    (line,) = text.lines
    assert line.isprintable()
    fields = line.split(" request failed", 1)[1]
    assert not _FIELD.sub("", fields)  # nothing stands outside of a field
    names = [name for name, _ in _FIELD.findall(fields)]
    expected = [
        "request_id",
        "protocol",
        "model",
        "status",
        "seconds",
        "queue_seconds",
        "compute_seconds",
        "rows",
        "reason",
    ]
    assert names == [name for name in expected if sent.get(name, "set")]
    assert " status=400 " in fields

    (line,) = json_lines.lines
    assert line.isascii()
    assert "\n" not in line
    value = json.loads(line)
    assert value["status"] == 400
    for name, content in sent.items():
        assert value[name] == content.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain ÄÖ 模型", "plain ÄÖ 模型"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x1b[31mred\x00", "\\x1b[31mred\\x00"),
        ("\u202eright to left\u2028", "\\u202eright to left\\u2028"),
        ("half \ud800", "half \\ud800"),
        ("c1 \x9b", "c1 \\x9b"),
    ],
)
def test_escape_controls(text: str, escaped: str) -> None:
    assert escape_controls(text) == escaped


@pytest.mark.parametrize(
    ("policy", "logged"),
    [("none", []), ("failed", [400, 404, 499, 500, 501, 503]), ("all", [200, 400, 404, 499, 500, 501, 503])],
)
def test_policy_selects_requests(
    requests_log: Callable[[logging.Formatter], list[str]], policy: str, logged: list[int]
) -> None:
    lines = requests_log(JsonFormatter())
    log = RequestLog(policy)
    statuses = [200, 400, 404, 499, 500, 501, 503]
    for status in statuses:
        write(log, status=status)
    assert [json.loads(line)["status"] for line in lines] == logged
    assert [status for status in statuses if log.is_enabled(status)] == logged
    assert {json.loads(line)["level"] for line in lines if json.loads(line)["status"] == 500} <= {"ERROR"}


def test_level_of_logger_applies(requests_log: Callable[[logging.Formatter], list[str]]) -> None:
    lines = requests_log(JsonFormatter())
    logging.getLogger("mindsporeserver.requests").setLevel(logging.ERROR)
    write(RequestLog("all"), status=400)
    write(RequestLog("all"), status=500)
    assert [json.loads(line)["status"] for line in lines] == [500]


def test_failures_are_rate_limited_and_counted(
    requests_log: Callable[[logging.Formatter], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines = requests_log(JsonFormatter())
    log = RequestLog("failed", lines_per_second=10)
    for _ in range(1000):
        write(log, status=503)
    write(log, status=500)
    assert [json.loads(line)["status"] for line in lines] == [503] * 10 + [500]
    assert not log.is_enabled(200)
    assert len(lines) == 11
    now = 1001.0
    assert not log.is_enabled(200)  # reported with the next request of any kind
    assert not log.is_enabled(200)
    assert json.loads(lines[11])["message"] == "990 more requests failed with status 503"
    write(log, status=503)
    assert len(lines) == 13


def test_invalid_policy() -> None:
    with pytest.raises(UserError, match="--log_requests: must be one of none, failed, all, got 'some'"):
        RequestLog("some")


# --- whole processes --------------------------------------------------------------------------------------------------

_SCRIPT = """
import logging, sys, warnings
from mindsporeserver.observability.logs import RequestLog, configure_logging
logging.getLogger("mindsporeserver.model")  # as modules do when they are imported
configure_logging(sys.argv[1], **eval(sys.argv[2]))
logging.getLogger("uvicorn.error").info("from uvicorn")
logging.getLogger("mindsporeserver.model").info("from us %s", "x\\ny")
logging.getLogger("other").warning("from a library")
logging.getLogger("other").info("chatter")
warnings.warn("a warning")
RequestLog("all").write(200, {"request_id": "1", "status": 200})
try:
    raise ValueError("first\\nsecond")
except ValueError:
    logging.getLogger("mindsporeserver").exception("failed")
"""

_FLOOD = """
import logging, sys, time
from mindsporeserver.observability.logs import configure_logging
configure_logging("text")
logger, start = logging.getLogger("mindsporeserver"), time.monotonic()
for number in range(20_000):
    logger.info("%090d", number)
# The pipe holds some hundred of these lines, and the queue 10,000.
print("done", flush=True)
sys.stdin.readline()
logger.info("after the flood")
"""


def run_script(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, **options}
    return subprocess.run([sys.executable, "-c", _SCRIPT, *arguments], text=True, check=False, **options)


def test_all_loggers_have_one_format() -> None:
    done = run_script("json", "{}")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == [
        "uvicorn.error",
        "mindsporeserver.model",
        "other",
        "py.warnings",
        "mindsporeserver.requests",
        "mindsporeserver",
    ]
    assert lines[1]["message"] == "from us x\ny"
    assert lines[-1]["exception"].endswith("ValueError: first\nsecond")

    text = run_script("text", "{}").stderr
    assert len(re.findall(r"^\d{4}-\S+Z [A-Z]+ \d+ [\w.]+ ", text, re.MULTILINE)) == len(lines)
    assert r"mindsporeserver.model from us x\ny" in text
    assert re.search(r"\n    ValueError: first\n    second\n$", text)


def test_configuration_file_for_kserve_gets_our_lines(tmp_path: Path) -> None:
    file = tmp_path / "log.yaml"
    file.write_text(
        """
version: 1
formatters: {mine: {format: "MINE %(name)s %(message)s"}}
handlers: {mine: {class: logging.StreamHandler, formatter: mine}}
loggers:
  kserve: {handlers: [mine], level: INFO, propagate: false}
  uvicorn: {handlers: [mine], level: INFO, propagate: false}
"""
    )
    done = run_script("json", repr({"config_file": str(file)}))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("MINE")] == [
        "MINE uvicorn.error from uvicorn",
        "MINE mindsporeserver.model from us x",
        "MINE mindsporeserver.requests request answered",
        "MINE mindsporeserver failed",
    ]


@pytest.mark.parametrize("name", ["log.json", "log.ini"])
def test_formats_of_configuration_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name == "log.json":
        handler = {"class": "logging.StreamHandler", "formatter": "mine"}
        logger = {"handlers": ["mine"], "level": "INFO", "propagate": False}
        value = {"version": 1, "formatters": {"mine": {"format": "MINE %(message)s"}}, "handlers": {"mine": handler}}
        file.write_text(
            json.dumps({**value, "loggers": {"kserve": logger, "mindsporeserver": {**logger, "level": "ERROR"}}})
        )
    else:
        file.write_text(
            "[loggers]\nkeys=root,kserve,ours\n[handlers]\nkeys=mine\n[formatters]\nkeys=mine\n"
            "[formatter_mine]\nformat=MINE %(message)s\n[handler_mine]\nclass=StreamHandler\nformatter=mine\nargs=()\n"
            "[logger_root]\nhandlers=\n[logger_kserve]\nqualname=kserve\nhandlers=mine\nlevel=INFO\npropagate=0\n"
            "[logger_ours]\nqualname=mindsporeserver\nhandlers=mine\nlevel=ERROR\npropagate=0\n"
        )
    done = run_script("json", repr({"config_file": str(file)}))
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stderr.splitlines() if line.startswith("MINE")]
    assert found == ["MINE failed"]  # ours at the level of the file


def test_configuration_file_with_root_logger_only(tmp_path: Path) -> None:
    file = tmp_path / "log.yml"
    file.write_text(
        """
version: 1
formatters: {mine: {format: "MINE %(name)s %(message)s"}}
handlers: {mine: {class: logging.StreamHandler, formatter: mine}}
root: {handlers: [mine], level: INFO}
"""
    )
    done = run_script("text", repr({"config_file": str(file)}))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("MINE mindsporeserver.requests request answered") == 1
    assert "MINE other from a library" in done.stderr


def test_logging_of_embedding_application_is_unchanged() -> None:
    done = run_script("json", repr({"configure": False}))
    assert done.returncode == 0, done.stderr
    # Python's handler of last resort: the application that embeds the server has configured nothing.
    assert done.stderr.splitlines()[0] == "from a library"
    assert '"logger"' not in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.yaml", None, "cannot be read: No such file"),
        ("bad.yaml", "a: [", "is no logging configuration"),
        ("empty.yaml", "", "is no logging configuration"),
        ("list.json", "[1]", "is no logging configuration"),
        ("bad.json", "{", "is no logging configuration"),
        ("class.json", '{"version": 1, "handlers": {"x": {"class": "no.such"}}}', "is no logging configuration"),
        ("none.ini", None, "cannot be read: "),
        ("bad.ini", "nothing", "is no logging configuration"),
    ],
)
def test_invalid_configuration_file(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError) as caught:
        configure_logging("text", config_file=str(file))
    assert str(caught.value).startswith(f"--log_config_file: {file} {message}")


def test_invalid_format_and_level(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--log_format: must be one of text, json, got 'xml'"):
        configure_logging("xml")
    monkeypatch.setenv("KSERVE_LOGLEVEL", "loud")
    with pytest.raises(UserError, match="KSERVE_LOGLEVEL: must be DEBUG, INFO, WARNING, ERROR or CRITICAL, got 'LOUD'"):
        configure_logging("text")


def test_stderr_without_file_descriptor(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("uvicorn", "mindsporeserver")
    before = {
        name: (logger.handlers[:], logger.level, logger.propagate)
        for name in names
        if (logger := logging.getLogger(name))
    }
    try:
        configure_logging("text")
        configure_logging("text")  # the second replaces the first
        logging.getLogger("mindsporeserver.model").info("hello")
    finally:
        logging.captureWarnings(False)
        for name, (handlers, level, propagate) in before.items():
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
    assert capsys.readouterr().err.count("mindsporeserver.model hello") == 1


def test_closed_stderr() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", _SCRIPT, "text", "{}"], check=False
    )
    assert done.returncode == 0
    reader, writer = os.pipe()
    os.close(reader)
    done_piped = run_script("text", "{}", capture_output=False, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    assert done_piped.returncode == 0


def test_slow_reader_costs_lines_and_no_time() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FLOOD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # stderr is not read yet: a blocking handler would not return.
        assert process.stdout.readline() == "done\n"
        first = process.stderr.readline()
        process.stdin.write("\n")
        process.stdin.close()
        lines = [first, *process.stderr]
        assert process.wait(60) == 0
    # One notice for each time that the queue was full.
    lost = sum(int(line.split()[4]) for line in lines if "log lines were dropped" in line)
    written = [line for line in lines if "log lines" not in line]
    assert len(written) + lost == 20_001
    assert len(written) < 15_000


def test_process_with_unread_log_exits() -> None:
    reader, writer = os.pipe()
    code = _FLOOD.replace("sys.stdin.readline()", "")
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writer, timeout=60
    )
    os.close(writer)
    os.close(reader)
    assert (done.returncode, done.stdout) == (0, b"done\n")
