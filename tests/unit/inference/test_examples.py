"""examples/kserve: against KServe's schemas, and their flags against the server's command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mindsporeserver.options import ServerFlags, build_parser, read_options
from tests.support.controllers.definitions import read_schema

EXAMPLES = Path(__file__).parents[3] / "examples" / "kserve"
DOCUMENTS = {
    f"{file.stem}-{number}": document
    for file in sorted(EXAMPLES.glob("*.yaml"))
    for number, document in enumerate(yaml.safe_load_all(file.read_text()))
}
TLS = re.compile(r"\{\{ if \.GlobalConfig\.EnableTLS \}\}(.*?)(?:\{\{ else \}\}(.*?))?\{\{ end \}\}")
# What KServe 0.20's controller puts before the configuration's arguments.
ADAPTERS = (
    "--enable-lora",
    "--max-lora-rank=8",
    "--lora-modules",
    """'{"name":"support","path":"/mnt/lora/support"}'""",
    """'{"name":"publishers/models/models/support","path":"/mnt/lora/support"}'""",
)


def read(arguments: list[str]) -> ServerFlags:
    return read_options(build_parser().parse_args(arguments))


def find(kind: str) -> list[dict[str, Any]]:
    return [document for document in DOCUMENTS.values() if document["kind"] == kind]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_example_is_valid_for_kserve(name: str) -> None:
    document = DOCUMENTS[name]
    schema = read_schema(document["kind"], document["apiVersion"].rpartition("/")[2])
    jsonschema.Draft7Validator(schema).validate(document)


def test_arguments_of_services_are_flags_of_server() -> None:
    models = [document["spec"]["predictor"]["model"] for document in find("InferenceService")]
    found = [read(["--model_name=chat", "--model_dir=/mnt/models", *model["args"]]) for model in models]
    assert {model["modelFormat"]["name"] for model in models} == {"mindspore-lm"}
    assert {flags.model_name for flags in found} == {"chat"}
    adapters = [flags.lora_paths for flags in found if flags.lora_paths]
    assert adapters == [{"support": "/mnt/adapters/support"}] * 2


@pytest.mark.parametrize("has_tls", [False, True])
def test_arguments_of_configuration_are_flags_of_server(has_tls: bool) -> None:
    (configuration,) = find("LLMInferenceServiceConfig")
    (container,) = configuration["spec"]["template"]["containers"]
    assert container["name"] == "main"
    assert container["command"] == ["python", "-m", "mindsporeserver"]

    def fill_in(text: str) -> str:
        text = TLS.sub(lambda match: (match[1] if has_tls else match[2]) or "", text)
        return text.replace("{{ .Spec.Model.Name }}", "chat").replace("{{ .ObjectMeta.Namespace }}", "models")

    flags = read([*ADAPTERS, *map(fill_in, container["args"])])
    assert flags.model_dirs == {"chat": "/mnt/models"}
    assert flags.aliases == {"publishers/models/models/chat": "chat", "publishers/models/models/support": "support"}
    assert flags.lora_paths == {"support": "/mnt/lora/support"}
    assert (flags.http_port, flags.enable_grpc, flags.grace_period) == (8000, False, 40)
    assert bool(flags.ssl_certfile) is has_tls
    assert fill_in(container["readinessProbe"]["httpGet"]["scheme"]) == ("HTTPS" if has_tls else "HTTP")
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")} == {8000}
