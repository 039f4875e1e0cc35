"""A service's log: its options, and what writes it on a cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference import Service, build_inference_service
from kfp_mindspore.inference.logger import LoggerOptions, read_logger, resolve_path
from kfp_mindspore.inference.manifest import build_canary
from mindsporeserver.options import build_parser, read_options

S3 = "s3://bucket/log"
HTTP = "http://broker.team/events"
LANGUAGE = {"model_format": "mindspore-lm"}
FOREIGN = {"model_format": "huggingface", "runtime": "vllm"}


@pytest.mark.parametrize(
    ("logger", "expected"),
    [
        ("s3://bucket", "logger: must be an object such as"),
        ({"mode": "all"}, "logger.url: must be one of http://, https://, s3://, gs://, or a path, got ''"),
        ({"url": "ftp://host/log"}, "logger.url: must be one of http://"),
        ({"url": "s3:bucket"}, "logger.url: must be one of http://"),
        ({"url": "http:///events"}, "logger.url: must be one of http://"),
        ({"url": S3, "mode": "some"}, "logger.mode: must be one of all, request, response, got 'some'"),
        ({"url": S3, "sample": 0}, "logger.sample: must be a number > 0 and ≤ 1, got 0"),
        ({"url": S3, "sample": 1.5}, "logger.sample: must be a number > 0 and ≤ 1, got 1.5"),
        ({"url": S3, "omit": "age"}, "logger.omit: must be a list, got 'age'"),
        ({"url": S3, "omit": ["age"], "hash": ["age"]}, "logger.hash: 'age' is in omit, too"),
        ({"url": S3, "level": 1}, "logger.level: unknown field, expected url, mode"),
        ({"url": S3, "attributes": {"id": "1"}}, "logger.attributes: must be names of at most 20 letters"),
        ({"url": S3, "attributes": {"Team": "1"}}, "logger.attributes: must be names of at most 20 letters"),
        ({"url": S3, "writer": "kserve", "sample": 0.5}, "logger.sample: KServe's agent does not have it"),
        ({"url": "/log", "writer": "kserve"}, "logger.url: KServe's agent does not have it"),
    ],
)
def test_wrong_option_is_named(logger: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(expected)) as caught:
        Service("digits", "model", logger=logger).validate()
    assert caught.value.exit_code == 2
    if isinstance(logger, dict) and "writer" not in logger:
        with pytest.raises(ValidationError, match=re.escape(expected)):
            read_options(build_parser().parse_args([f"--logger={json.dumps(logger)}"]))


def test_another_servers_log_has_kserves_options_only() -> None:
    expected = "logger.omit: another server's log, KServe's agent, does not have it"
    with pytest.raises(ValidationError, match=re.escape(expected)):
        Service("m", "hf://a/b", logger={"url": S3, "omit": ["a"], "texts": True}, **FOREIGN).validate()
    with pytest.raises(ValidationError, match=r"logger\.texts: must be true"):
        Service("m", "hf://a/b", logger={"url": S3}, **FOREIGN).validate()
    Service("m", "hf://a/b", logger={"url": S3, "texts": True}, **FOREIGN).validate()


def test_flag_that_is_no_json_is_refused() -> None:
    with pytest.raises(ValidationError, match="logger: not valid JSON"):
        read_options(build_parser().parse_args(["--logger={"]))


STORAGE = {"path": "log", "parameters": {"format": "json"}, "key": ""}


@pytest.mark.parametrize(
    ("logger", "options", "expected"),
    [
        ({"url": HTTP}, {}, {"mode": "all", "url": HTTP}),
        (
            {"url": S3, "mode": "request"},
            {"service_account": "store"},
            {"mode": "request", "url": S3, "storage": {**STORAGE, "serviceAccountName": "store"}},
        ),
        ({"url": S3, "writer": "kserve"}, {}, {"mode": "all", "url": S3, "storage": STORAGE}),
        ({"url": S3, "texts": True}, FOREIGN, {"mode": "all", "url": S3, "storage": STORAGE}),
        ({"url": HTTP, "texts": True}, LANGUAGE, {"mode": "all", "url": HTTP}),
        # The agent has no credentials.
        ({"url": S3}, {"download": "server", "storage_secret": "store"}, None),
        ({"url": HTTP}, LANGUAGE, None),
        ({"url": HTTP, "writer": "server"}, {}, None),
        ({"url": HTTP, "sample": 0.5}, {}, None),
        ({"url": HTTP, "omit": ["age"]}, {}, None),
        ({"url": HTTP, "hash": ["age"]}, {}, None),
        ({"url": HTTP, "attributes": {"team": "a"}}, {}, None),
        ({"url": "/var/log/requests"}, {"volumes": {"/var/log": {"emptyDir": {}}}}, None),
    ],
)
def test_writer_on_a_cluster(logger: Any, options: Any, expected: Any) -> None:
    service = Service("digits", "s3://b/m", namespace="team", logger=logger, **options)
    predictor = build_inference_service(service)["spec"]["predictor"]
    assert predictor.get("logger") == expected
    flags = [flag for flag in predictor["model"].get("args", []) if flag.startswith("--logger=")]
    if expected is not None:
        assert flags == []
        return
    # The server reads what it is given.
    found = read_options(build_parser().parse_args(flags)).log_options
    attributes = {"inferenceservicename": "digits", "namespace": "team", "component": "predictor"}
    given = {key: value for key, value in logger.items() if key != "writer"}
    own = {**attributes, "endpoint": "default", **logger.get("attributes", {})}
    assert found == LoggerOptions(**{**given, "attributes": own})


def test_canarys_events_are_the_services() -> None:
    service = Service("digits", "s3://b/m", namespace="team", logger={"url": HTTP, "sample": 0.5})
    flags = build_canary(service, 10, 2)["spec"]["predictor"]["model"]["args"]
    options = read_options(build_parser().parse_args(flags)).log_options
    assert options is not None
    assert (options.attributes["inferenceservicename"], options.attributes["endpoint"]) == ("digits", "canary")


def test_path_on_a_cluster_is_absolute() -> None:
    with pytest.raises(ValidationError, match=r"logger\.url: must be an absolute path on a cluster"):
        build_inference_service(Service("digits", "s3://b/m", logger={"url": "log"}))


def test_numbers_of_pipelines() -> None:
    service = Service("digits", "model", logger={"url": S3, "sample": 1.0, "omit": ("a",)})
    service.validate()
    assert service.logger == {"url": S3, "sample": 1, "omit": ["a"]}
    assert read_logger(service.logger) == LoggerOptions(S3, omit=["a"])


def test_only_paths_are_resolved(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path({}) == {}
    assert resolve_path({"url": S3}) == {"url": S3}
    assert resolve_path({"url": "a/b.jsonl"}) == {"url": str(tmp_path / "a" / "b.jsonl")}
