"""The command line: accepted values, and refusals with message and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError, UserError, ValidationError
from mindsporeserver.options import DEFAULT_MODEL_DIR, ServerFlags, build_parser, read_options


def read(*flags: str) -> ServerFlags:
    return read_options(build_parser().parse_args(flags))


def test_defaults() -> None:
    options = read()
    assert options.model_dirs == {"model": DEFAULT_MODEL_DIR}
    assert options.model_repository is None
    assert (options.model_key_file, options.token_file, options.management_port) == (None, None, None)
    found = (options.host, options.max_batch, options.max_delay_ms, options.max_queue, options.max_request_bytes)
    assert found == ("0.0.0.0", 64, 2.0, 1024, 32 << 20)
    assert (options.request_timeout, options.reload_interval, options.grace_period) == (60.0, 1.0, 30)
    assert (options.nonfinite, options.model_versions, options.allow_model_code) == ("reject", "latest", False)
    assert options.transform_timeout == 60.0
    assert (options.log_requests, options.log_format, options.tracing) == ("failed", "text", False)


def test_adapters_are_given_by_name() -> None:
    options = read("--lora-modules", "a=x", "b=y/z=1", "--lora_modules=c=w")
    assert options.lora_paths == {"a": "x", "b": "y/z=1", "c": "w"}
    assert (options.adapter_limit, options.max_lora_rank) == (4, 16)
    assert read("--max-loras=2").adapter_limit == 0
    assert read("--max-loras=2", "--allow-runtime-lora-updating=true").adapter_limit == 2


def test_flags_of_vllm() -> None:
    adapters = ["""'{"name": "a", "path": "x"}'""", '{"name": "long/a", "path": "x"}', "b=y"]
    options = read("--model=m", "--served-model-name", "chat", "org/chat", "--port=8000", "--lora-modules", *adapters)
    assert (options.model_dirs, options.http_port) == ({"chat": "m"}, 8000)
    assert options.lora_paths == {"a": "x", "b": "y"}
    assert options.aliases == {"org/chat": "chat", "long/a": "a"}
    options = read("--shutdown-timeout=15", "--ssl-certfile=", "--ssl-keyfile", "k", "--tensor-parallel-size=1")
    assert (options.grace_period, options.ssl_certfile, options.ssl_keyfile, options.aliases) == (15, "", "k", {})


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--tensor-parallel-size=2", "--tensor-parallel-size: is not supported: one process"),
        ("--api-key=secret", "--api-key: is not supported: use --token-file"),
        ("--quantization=awq", "--quantization: is not supported: weights are float32"),
    ],
)
def test_flags_of_vllm_that_are_refused(flag: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        read(flag)
    assert "secret" not in str(caught.value)


def test_unknown_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read("--enforce-eager")
    assert "unrecognized arguments: --enforce-eager" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (['{"name": "a"}'], "--lora-modules: must be NAME=PATH, got"),
        (["{x"], "--lora-modules: must be NAME=PATH, got"),
        (["a"], "--lora-modules: must be NAME=PATH, got 'a'"),
        (["a=x", "a=y"], "--lora-modules: 'a' has two directories: x and y"),
        (["a=x", "b=y", "--max-loras=1"], "--lora-modules: at most 1 adapters, got 2"),
    ],
)
def test_wrong_adapters_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read("--lora-modules", *flags)


KSERVE = """
import json, sys
sys.argv = ["server"]
from kserve.model_server import parser
print(json.dumps([option for action in parser._actions for option in action.option_strings]))
"""


def test_every_flag_of_kserve_is_known() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KSERVE], capture_output=True, check=True)
    known = {option for action in build_parser()._actions for option in action.option_strings}
    assert set(json.loads(done.stdout.splitlines()[-1])) <= known


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--access_log_format=%s", "--access_log_format: is not supported: use --log_requests=all"),
        ("--predictor_host=a", "--predictor_host: is not supported: this server is a predictor"),
        ("--enable_predictor_health_check", "--enable_predictor_health_check: is not supported"),
    ],
)
def test_flags_of_kserve_that_are_refused(flag: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        read(flag)


def test_flags_of_kserve_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    read("--max_threads=2", "--enable_latency_logging=false", "--enable_docs_url=false")
    assert caplog.messages == [
        "--max_threads has no effect: one event loop serves gRPC",
        "--enable_latency_logging has no effect: see --log_requests",
    ]


def test_certificates_of_kserves_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSERVE_TLS_CERT_FILE", "a.crt")
    monkeypatch.setenv("KSERVE_TLS_KEY_FILE", "a.key")
    assert (read().ssl_certfile, read().ssl_keyfile) == ("a.crt", "a.key")


def test_every_flag_has_description() -> None:
    """The reference page of the site is generated from the parser."""
    assert [action.dest for action in build_parser()._actions if not action.help] == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--model_dir=a"], {"digits": "a"}),
        (["--model_dir=/models/a"], {"digits": "/models/a"}),
        (["--model_dir=a=/models/a"], {"a": "/models/a"}),
        (["--model_dir", "a=x", "--model_dir", "b=y"], {"a": "x", "b": "y"}),
        (["--model_dir", "a=x", "--model_dir", "y"], {"a": "x", "digits": "y"}),
        (["--model_dir=a=b=c"], {"a": "b=c"}),
        (["--model_dir=/mnt/models", "--model_dir=s3://bucket/a/"], {"digits": "s3://bucket/a/"}),
        (["--model_dir=/models/a=b"], {"digits": "/models/a=b"}),
        (["--model_dir=./a=b"], {"digits": "./a=b"}),
        (["--model_dir==b"], {"digits": "=b"}),
        (["--model_dir=s3://bucket/a?b=c"], {"digits": "s3://bucket/a?b=c"}),
        (["--model_dir=a=s3://bucket/a?b=c"], {"a": "s3://bucket/a?b=c"}),
        (["--model_repository=models"], {}),
        (["--model_repository=models", "--model_dir=a=x"], {"a": "x"}),
    ],
)
def test_model_directories(flags: list[str], expected: dict[str, str]) -> None:
    options = read("--model_name=digits", *flags)
    assert options.model_dirs == expected
    assert options.model_repository == (Path("models") if "--model_repository=models" in flags else None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model_dir=x", "--model_dir=y"], "--model_dir: 'digits' has two directories: x and y"),
        (["--model_dir=a=x", "--model_dir=a=y"], "--model_dir: 'a' has two directories: x and y"),
        (["--model_dir=x", "--model_dir=digits=y"], "--model_dir: 'digits' has two directories: x and y"),
    ],
)
def test_duplicate_names_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read("--model_name=digits", *flags)
    assert message in caught.value.message
    assert "--model_dir first=DIR" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workers=0", "--workers: must be an integer ≥ 1, got 0"),
        ("--workers=-3", "--workers: must be an integer ≥ 1, got -3"),
        ("--max_batch=0", "--max_batch: must be an integer ≥ 1, got 0"),
        ("--max_queue=0", "--max_queue: must be an integer ≥ 1, got 0"),
        ("--max_request_bytes=0", "--max_request_bytes: must be an integer ≥ 1, got 0"),
        ("--grace_period=-1", "--grace_period: must be an integer ≥ 0, got -1"),
        ("--max_delay_ms=-1", "--max_delay_ms: must be a number ≥ 0 and < inf, got -1.0"),
        ("--max_delay_ms=nan", "--max_delay_ms: must be a number ≥ 0 and < inf, got nan"),
        ("--request_timeout=inf", "--request_timeout: must be a number ≥ 0 and < inf, got inf"),
        ("--reload_interval=-0.5", "--reload_interval: must be a number ≥ 0 and < inf, got -0.5"),
        ("--http_port=0", "--http_port: must be an integer ≥ 1 and ≤ 65535, got 0"),
        ("--http_port=70000", "--http_port: must be an integer ≥ 1 and ≤ 65535, got 70000"),
        ("--grpc_port=-1", "--grpc_port: must be an integer ≥ 1 and ≤ 65535, got -1"),
        ("--management_port=0", "--management_port: must be an integer ≥ 1 and ≤ 65535, got 0"),
        ("--management-port=8080", "--management_port: must differ from --http_port, got 8080 for both"),
        ("--management-port=8081", "--management_port: must differ from --grpc_port, got 8081 for both"),
        ("--grpc_port=8080", "--grpc_port: must differ from --http_port, got 8080 for both"),
    ],
)
def test_values_that_are_refused(flag: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(flag)
    assert caught.value.message == message
    assert caught.value.exit_code == 2


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(KfpMindSporeError) as caught:
        read("--workers=0", "--max_batch=0", "--max_delay_ms=-1", "--http_port=0")
    for flag in ("--workers", "--max_batch", "--max_delay_ms", "--http_port"):
        assert flag in caught.value.message


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--max_batch=many", "argument --max_batch: invalid int value: 'many'"),
        ("--max_delay_ms=soon", "argument --max_delay_ms: invalid float value: 'soon'"),
        ("--nonfinite=maybe", "argument --nonfinite: invalid choice: 'maybe'"),
        ("--model_versions=3", "argument --model_versions: invalid choice: '3'"),
        ("--log_requests=some", "argument --log_requests: invalid choice: 'some'"),
        ("--log_format=xml", "argument --log_format: invalid choice: 'xml'"),
        ("--allow_model_code=maybe", "argument --allow_model_code: must be true or false, got 'maybe'"),
        ("--tracing=", "argument --tracing: must be true or false, got ''"),
        ("--max_batches=3", "unrecognized arguments: --max_batches=3"),
    ],
)
def test_malformed_values_are_refused(flag: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(flag)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("off", False), ("NO", False)]
)
def test_flags_that_are_true_or_false(text: str, value: bool) -> None:
    assert read(f"--allow_model_code={text}", f"--tracing={text}").allow_model_code is value


def test_values_at_limits_are_accepted() -> None:
    options = read("--grace_period=0", "--request_timeout=0", "--reload_interval=0", "--max_delay_ms=0.5")
    found = (options.grace_period, options.request_timeout, options.reload_interval, options.max_delay_ms)
    assert found == (0, 0, 0, 0.5)


def test_without_grpc_its_port_may_be_any() -> None:
    without = read("--enable_grpc=false", "--grpc_port=8080")
    assert without.grpc_port == without.http_port


def test_each_field_is_set() -> None:
    fields: dict[str, Any] = vars(read("--ssl_ca_certs=a", "--grpc_ssl_certfile=b", "--model_key_file=key"))
    assert (fields["ssl_ca_certs"], fields["grpc_ssl_certfile"], fields["model_key_file"]) == ("a", "b", Path("key"))
