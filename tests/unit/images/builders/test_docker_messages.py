import pytest

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError
from kfp_mindspore.images.builders.docker_messages import read_build, read_push

IMAGE = "sha256:" + "a" * 64
DIGEST = "sha256:" + "d" * 64


def _collect():
    seen = []
    return seen, seen.append


def test_build_reports_steps_and_lines_and_returns_image() -> None:
    seen, on_progress = _collect()
    messages = [
        {"status": "Pulling fs layer", "id": "8583de6eb1a3", "progressDetail": {}},
        {"status": "Downloading", "id": "8583de6eb1a3", "progressDetail": {"current": 5, "total": 10}},
        {"stream": "Step 1/2 : FROM base"},
        {"stream": "\n"},
        {"stream": "Step 2/2 : RUN echo one\n"},
        {"stream": "one\n"},
        {"aux": {"ID": IMAGE}},
        {"stream": "Successfully built aaaa\n"},
    ]
    assert read_build(messages, on_progress) == IMAGE
    assert [entry.step for entry in seen if not entry.text and not entry.item] == [
        "Step 1/2 (FROM base)",
        "Step 2/2 (RUN echo one)",
    ]
    assert any(entry.done_bytes == 5 and entry.total_bytes == 10 for entry in seen)
    assert any(entry.text == "one" and entry.step.startswith("Step 2/2") for entry in seen)


def test_first_error_of_build_is_raised_with_its_step_and_last_lines() -> None:
    _, on_progress = _collect()
    messages = [
        {"stream": "Step 1/2 : FROM base\n"},
        {"stream": "Step 2/2 : RUN pip install nosuch\n"},
        {"stream": "\x1b[91mERROR: no matching distribution\n\x1b[0m"},
        {"errorDetail": {"code": 1, "message": "returned a non-zero code: 1"}, "error": "returned a non-zero code: 1"},
        {"errorDetail": {"message": "a later one"}},
    ]
    with pytest.raises(ProcessFailedError) as caught:
        read_build(messages, on_progress)
    assert caught.value.message == "Step 2/2 (RUN pip install nosuch): returned a non-zero code: 1"
    assert caught.value.log == ("ERROR: no matching distribution",)


def test_build_without_image_names_its_step() -> None:
    with pytest.raises(KfpMindSporeError, match=r"Step 1/1 \(FROM base\): .* without an image"):
        read_build([{"stream": "Step 1/1 : FROM base\n"}], lambda _: None)


def test_push_counts_sent_and_reused_layers() -> None:
    seen, on_progress = _collect()
    messages = [
        {"status": "The push refers to repository [local/x]"},
        {"status": "Preparing", "progressDetail": {}, "id": "aaa"},
        {"status": "Pushing", "progressDetail": {"current": 512, "total": 1024}, "id": "aaa"},
        {"status": "Pushing", "progressDetail": {"current": 1024, "total": 1024}, "id": "aaa"},
        {"status": "Layer already exists", "progressDetail": {}, "id": "bbb"},
        {"status": "Mounted from team/base", "progressDetail": {}, "id": "ccc"},
        {"status": "Pushed", "progressDetail": {}, "id": "aaa"},
        {"progressDetail": {}, "aux": {"Tag": "t", "Digest": DIGEST, "Size": 528}},
    ]
    pushed = read_push(messages, "local/x:t", on_progress)
    assert pushed.sent == {"aaa": 1024}
    assert pushed.reused == {"bbb", "ccc"}
    assert pushed.digest == DIGEST
    assert {entry.item for entry in seen} == {"aaa", "bbb", "ccc"}


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("unauthorized: authentication required", UserError, "docker login"),
        ("no basic auth credentials", UserError, "docker login"),
        ("denied: requested access to the resource is denied", UserError, "no permission"),
        ("http: server gave HTTP response to HTTPS client", UserError, "insecure-registries"),
        ("x509: certificate signed by unknown authority", UserError, "certs.d"),
        ("received unexpected HTTP status: 503 Service Unavailable", KfpMindSporeError, ""),
    ],
)
def test_push_error_has_next_step(said, kind, hint) -> None:
    with pytest.raises(kind) as caught:
        read_push([{"errorDetail": {"message": said}, "error": said}], "local/x:t", lambda _: None)
    assert said in caught.value.message
    assert "local/x:t" in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == (2 if kind is UserError else 1)


def test_push_without_digest_fails() -> None:
    with pytest.raises(KfpMindSporeError, match="without a digest"):
        read_push([{"status": "Pushed", "id": "aaa"}], "local/x:t", lambda _: None)
