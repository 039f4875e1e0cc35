"""`kfp-mindspore serve`: run a service in the foreground."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click

from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import add_json_option, print_json
from kfp_mindspore.errors import AlreadyExistsError, NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.files import get_home
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service
from kfp_mindspore.inference.service import LOOPBACK, ServiceState, ServiceStatus, suggest_name
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.settings import AUTO, DEVICES

_LAST_LINES = 20


@click.command(
    cls=StrictCommand,
    epilog="Example: kfp-mindspore serve out/model --name digits, then from another terminal: "
    "curl http://127.0.0.1:8080/v2/models/digits",
)
@click.argument("model_dir", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the model in its URLs. [default: the directory's name]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="HTTP port; 0 for a free one."
)
@click.option(
    "--grpc-port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="gRPC port; 0 for a free one."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=120,
    show_default=True,
    help="Seconds to wait for readiness.",
)
@click.option(
    "--host", default=LOOPBACK, show_default=True, help="Address to listen on; 0.0.0.0 for all, see --token-file."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes that share the ports. [default: 1]")
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    help="Most rows computed together, of one request or several. [default: 64]",
)
@click.option("--max-model-len", type=click.IntRange(min=16), help="Language models: most tokens of prompt and answer.")
@click.option("--max-num-seqs", type=click.IntRange(1, 16), help="Language models: answers at once. [default: 8]")
@click.option(
    "--lora-modules",
    multiple=True,
    metavar="NAME=PATH",
    help="Language models: an adapter in peft's format that requests choose by `model`. Repeat for several.",
)
@click.option("--max-loras", type=click.IntRange(min=1), help="Language models: adapters at once. [default: 4]")
@click.option("--max-lora-rank", type=click.IntRange(min=1), help="Language models: adapters' rank. [default: 16]")
@click.option(
    "--allow-runtime-lora-updating", is_flag=True, help="Language models: answer requests to load and unload adapters."
)
@click.option(
    "--reasoning-parser",
    type=click.Choice(["none", "qwen3", "deepseek_r1"]),
    help="Language models: send text between <think> and </think> as `reasoning_content`. [default: none]",
)
@click.option(
    "--decode-operator",
    type=click.Choice(["float32", "int8", "none"]),
    help="Language models: computes single tokens; int8 rounds weights, none for MindSpore's. [default: float32]",
)
@click.option(
    "--nonfinite",
    type=click.Choice(["reject", "allow"]),
    help="Handling of NaN and infinite inputs. [default: reject]",
)
@click.option("--allow-model-code", is_flag=True, help="Execute the bundle's transform.py, code of the model's author.")
@click.option(
    "--key-file",
    # The server has another working directory.
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="File with the key of an encrypted model. [default: $MINDSPORE_MODEL_KEY]",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="File with bearer tokens, one a line, of which requests must have one. [default: no authentication]",
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=AUTO,
    show_default=True,
    help="Device to compute on; one that is not there is an error.",
)
@click.option("--device-id", type=click.IntRange(min=0), help="Number of the device. [default: 0]")
@dataclass_options(Service, only=["logger"], into="further", is_complete=False)
@add_json_option
def serve(
    model_dir: Path,
    name: str | None,
    port: int,
    grpc_port: int,
    wait: float,
    host: str,
    workers: int | None,
    max_batch: int | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    lora_modules: tuple[str, ...],
    max_loras: int | None,
    max_lora_rank: int | None,
    allow_runtime_lora_updating: bool,
    reasoning_parser: str | None,
    decode_operator: str | None,
    nonfinite: str | None,
    allow_model_code: bool,
    key_file: Path | None,
    token_file: Path | None,
    device: str,
    device_id: int | None,
    as_json: bool,
    further: Mapping[str, Any],
) -> None:
    """Serve the model bundle MODEL_DIR by KServe's protocols V1, V2 and gRPC until Ctrl-C.

    A language model is served by OpenAI's protocol. The server listens on the loopback interface unless --host is set.
    Its log is written to standard error.
    """
    bundle = ModelBundle.open(model_dir)
    name = name or suggest_name(model_dir)
    language = {
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_loras": max_loras,
        "max_lora_rank": max_lora_rank,
        "allow_runtime_lora_updating": "true" if allow_runtime_lora_updating else None,
        "reasoning_parser": reasoning_parser,
        "decode_operator": decode_operator,
    }
    given = {
        "workers": workers,
        "max_batch": max_batch,
        **language,
        "nonfinite": nonfinite,
        "allow_model_code": "true" if allow_model_code else None,
        "model_key_file": key_file,
        "token_file": token_file,
        "device": None if device == AUTO else device,
        "device_id": device_id,
    }
    flags = tuple(f"--{flag}={value}" for flag, value in given.items() if value is not None)
    flags += tuple(f"--lora_modules={_resolve_adapter(value)}" for value in lora_modules)
    if not bundle.signature.is_language_model:
        _refuse_language({**language, "lora_modules": lora_modules or None}, model_dir)
    service = Service(name, model_dir, port=port, grpc_port=grpc_port, host=host, server_args=flags, **further)
    service.validate()
    backend = LocalServingBackend()
    client = InferenceClient(backend)
    _check_absent(client, name)
    with _terminate_as_interrupt() as signals, Lease.hold(get_home() / "leases" / f"serve-{os.getpid()}") as lease:
        status = client.deploy(service, wait_seconds=wait, lease=lease)
        printed = 0
        try:
            _announce(status, bundle, as_json)
            while True:
                for line in itertools.islice(client.logs(name, follow=True), printed, None):
                    click.echo(line, err=True)
                    printed += 1
                backend.wait_deployment(name, status.namespace)
                if _explain_end(client, status):
                    break
        except KeyboardInterrupt:
            with contextlib.suppress(NotFoundError):
                for line in itertools.islice(client.logs(name), printed, None):
                    click.echo(line, err=True)
            click.echo(f"Stopping {name}.", err=True)
        finally:
            # A newer version belongs to another process.
            with contextlib.suppress(NotFoundError):
                backend.delete(name, status.namespace, version=status.version)
    if signals:
        raise click.exceptions.Exit(128 + signals[0])


def _refuse_language(flags: Mapping[str, object], model_dir: Path) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise UserError(f"--{flag.replace('_', '-')}: is for language models, {model_dir} is none")


def _resolve_adapter(value: str) -> str:
    """Return NAME=PATH with an absolute path: the server has another working directory."""
    adapter, separator, path = value.partition("=")
    if not adapter or not path:
        raise UserError(f"--lora-modules: must be NAME=PATH, got {value!r}")
    if not Path(path).is_dir():
        raise UserError(f"--lora-modules: {adapter}: {path}: no such directory, expected an adapter in peft's format")
    return f"{adapter}{separator}{Path(path).resolve()}"


def _check_absent(client: InferenceClient, name: str) -> None:
    with contextlib.suppress(NotFoundError):
        status = client.get(name)
        if not status.is_finished:
            raise AlreadyExistsError(
                f"service {name}: already running at {status.url}",
                hint=f"Choose another --name, or stop it: kfp-mindspore service stop {name}",
            )


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt in the block on SIGTERM; the yielded list receives the signal number."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, previous)


def _announce(status: ServiceStatus, bundle: ModelBundle, as_json: bool) -> None:
    if as_json:
        print_json(status.to_dict())
        return
    model = f"{status.url}/v2/models/{status.name}"
    click.echo(f"{status.name} is ready at {status.url} (gRPC {status.grpc_url}); Ctrl-C stops it")
    if bundle.signature.is_language_model:
        click.echo(f"  OpenAI clients  base_url {status.url}/openai/v1, model {status.name}")
        return
    click.echo(f"  model metadata  curl {model}")
    click.echo(f"  V1 predictions  POST {status.url}/v1/models/{status.name}:predict")
    click.echo(f"  V2 predictions  POST {model}/infer")


def _explain_end(client: InferenceClient, started: ServiceStatus) -> bool:
    """Report why the service ended without Ctrl-C; return False if it runs again, after a failed replacement."""
    try:
        status = client.get(started.name)
    except NotFoundError:
        click.echo(f"{started.name} was deleted.", err=True)
        return True
    if status.version != started.version:
        click.echo(f"{started.name} was replaced by version {status.version}.", err=True)
    elif status.state is ServiceState.FAILED:
        raise ProcessFailedError(
            f"service {status.name}: {status.message}", log=list(client.logs(status.name, lines=_LAST_LINES))
        )
    elif not status.is_finished:
        return False
    else:
        click.echo(f"{started.name}: {status.message}.", err=True)
    return True
