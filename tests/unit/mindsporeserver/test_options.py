"""The command line: what is taken, and what is refused in which words with exit code 2."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError, UserError, ValidationError
from mindsporeserver.options import DEFAULT_MODEL_DIR, Options, add_arguments, read_options

DOCS = Path(__file__).parents[3] / "docs" / "serving.md"


def make_parser() -> argparse.ArgumentParser:
    """Return a parser of our flags and of those of kserve's that are looked at."""
    parser = argparse.ArgumentParser("server", exit_on_error=True)
    parser.add_argument("--http_port", type=int, default=8080)
    parser.add_argument("--grpc_port", type=int, default=8081)
    parser.add_argument("--enable_grpc", type=lambda text: text.lower() == "true", default=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--model_name", default="model")
    parser.add_argument("--configure_logging", type=bool, default=True)
    for name in ("log_config_file", "ssl_certfile", "ssl_keyfile", "access_log_format"):
        parser.add_argument(f"--{name}")
    add_arguments(parser)
    return parser


def read(*flags: str) -> Options:
    return read_options(make_parser().parse_args(flags))


def test_defaults() -> None:
    options = read()
    assert options.model_dirs == {"model": DEFAULT_MODEL_DIR}
    assert options.model_repository is None
    assert options.model_key_file is None
    found = (options.host, options.max_batch, options.max_delay_ms, options.max_queue, options.max_request_bytes)
    assert found == ("0.0.0.0", 64, 2.0, 1024, 32 << 20)
    assert (options.request_timeout, options.reload_interval, options.grace_period) == (60.0, 1.0, 30)
    assert (options.nonfinite, options.model_versions, options.allow_model_code) == ("reject", "latest", False)
    assert options.transform_timeout == 60.0
    assert (options.log_requests, options.log_format, options.tracing) == ("failed", "text", False)


def test_kserves_format_of_its_access_log_is_refused_in_words() -> None:
    with pytest.raises(ValidationError, match="--access_log_format: is not offered; --log_requests=all"):
        read("--access_log_format=%s")


def test_the_docs_name_each_flag_with_its_default() -> None:
    rows = [line.split("|")[1:3] for line in DOCS.read_text().splitlines() if line.startswith("| `--")]
    documented = {flag.strip(" `"): default.strip() for flags, default in rows for flag in flags.split(",")}
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    shown = {"max_request_bytes": "32 MiB", "allow_model_code": "false", "tracing": "false"}
    for action in parser._actions:
        default = shown.get(action.dest, action.default)
        if action.dest == "model_dir":
            default = DEFAULT_MODEL_DIR
        expected = "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
        assert documented.pop(f"--{action.dest}") == expected, action.dest
    assert documented == {}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--model_dir=a"], {"digits": "a"}),
        (["--model_dir=/models/a"], {"digits": "/models/a"}),
        (["--model_dir=a=/models/a"], {"a": "/models/a"}),
        (["--model_dir", "a=x", "--model_dir", "b=y"], {"a": "x", "b": "y"}),
        (["--model_dir", "a=x", "--model_dir", "y"], {"a": "x", "digits": "y"}),
        (["--model_dir=a=b=c"], {"a": "b=c"}),
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
        (["--model_dir=x", "--model_dir=y"], "--model_dir: 'digits' is given twice: x and y"),
        (["--model_dir=a=x", "--model_dir=a=y"], "--model_dir: 'a' is given twice: x and y"),
        (["--model_dir=x", "--model_dir=digits=y"], "--model_dir: 'digits' is given twice: x and y"),
    ],
)
def test_a_name_that_is_given_twice(flags: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read("--model_name=digits", *flags)
    assert message in caught.value.message
    assert "--model_dir first=DIR" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workers=0", "--workers: must be at least 1, got 0"),
        ("--workers=-3", "--workers: must be at least 1, got -3"),
        ("--max_batch=0", "--max_batch: must be at least 1, got 0"),
        ("--max_queue=0", "--max_queue: must be at least 1, got 0"),
        ("--max_request_bytes=0", "--max_request_bytes: must be at least 1, got 0"),
        ("--grace_period=-1", "--grace_period: must be at least 0, got -1"),
        ("--max_delay_ms=-1", "--max_delay_ms: must be 0 or more, got -1.0"),
        ("--max_delay_ms=nan", "--max_delay_ms: must be 0 or more, got nan"),
        ("--request_timeout=inf", "--request_timeout: must be 0 or more, got inf"),
        ("--reload_interval=-0.5", "--reload_interval: must be 0 or more, got -0.5"),
        ("--http_port=0", "--http_port: must be 1 to 65535, got 0"),
        ("--http_port=70000", "--http_port: must be 1 to 65535, got 70000"),
        ("--grpc_port=-1", "--grpc_port: must be 1 to 65535, got -1"),
        ("--grpc_port=8080", "--grpc_port: must be another than --http_port, got 8080 for both"),
    ],
)
def test_values_that_are_refused(flag: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(flag)
    assert caught.value.message == message
    assert caught.value.exit_code == 2


def test_all_mistakes_are_told_at_once() -> None:
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
def test_what_is_no_value_at_all(flag: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(flag)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("off", False), ("NO", False)]
)
def test_flags_that_are_true_or_false(text: str, value: bool) -> None:
    assert read(f"--allow_model_code={text}", f"--tracing={text}").allow_model_code is value


def test_values_at_the_edge_are_taken() -> None:
    options = read("--grace_period=0", "--request_timeout=0", "--reload_interval=0", "--max_delay_ms=0.5")
    found = (options.grace_period, options.request_timeout, options.reload_interval, options.max_delay_ms)
    assert found == (0, 0, 0, 0.5)


def test_without_grpc_its_port_may_be_any() -> None:
    without = read("--enable_grpc=false", "--grpc_port=8080")
    assert without.grpc_port == without.http_port


def test_each_field_is_set() -> None:
    fields: dict[str, Any] = vars(read("--ssl_ca_certs=a", "--grpc_ssl_certfile=b", "--model_key_file=key"))
    assert (fields["ssl_ca_certs"], fields["grpc_ssl_certfile"], fields["model_key_file"]) == ("a", "b", Path("key"))
