"""`--enable_docs_url`: each path of a real server's OpenAPI document answers for its example as the schema says."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from mindsporeserver.protocols.openapi import LanguageContract, TensorContract, build_document
from tests.support.language.language_servers import LanguageServer
from tests.support.models.table_models import export_table, make_rows, write_csv

pytestmark = pytest.mark.mindspore

FLAG = "--enable_docs_url=true"
TOKEN = "f1rst-" + "a" * 40
NAMES = ("digits", "pair", "raw", "files", "table")


@pytest.fixture(scope="module")
def documented(models: Path, start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server of models whose inputs are arrays, two arrays, raw pixels, files and a table's columns."""
    root = tmp_path_factory.mktemp("tables")
    write_csv(root / "table.csv", make_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "support" / "models"))
        export_table(root, "table", {"missing": "mean", "ids": ["id"]})
    others = {"pair": models / "pair", "raw": models / "raw", "files": models / "transformed", "table": root / "table"}
    flags = [f"--model_dir={name}={path}" for name, path in others.items()]
    server = start_server(models / "free", "digits", FLAG, "--allow_model_code=true", *flags)
    server.wait("/v2/health/ready", 240)
    return server


def list_operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def check_operations(url: str, document: dict[str, Any]) -> set[str]:
    """Send each operation's example, compare the responses with their schemas; return the paths that have one."""
    sent = set()
    for path, method, operation in list_operations(document):
        body = None
        if method == "post":
            content = operation["requestBody"]["content"]["application/json"]
            jsonschema.validate(content["example"], content["schema"])
            body = json.dumps(content["example"]).encode()
            sent.add(path)
        request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            value = json.loads(response.read())
        jsonschema.validate(value, operation["responses"]["200"]["content"]["application/json"]["schema"])
    return sent


@pytest.mark.slow
def test_each_path_answers_for_its_example(documented: Any) -> None:
    status, document, _ = documented.request("/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    sent = check_operations(f"http://127.0.0.1:{documented.port}", document)
    assert sent == {f"/v1/models/{name}:predict" for name in NAMES} | {f"/v2/models/{name}/infer" for name in NAMES}


@pytest.mark.slow
def test_schema_refuses_what_server_refuses(documented: Any) -> None:
    document = documented.request("/openapi.json")[1]
    image = document["paths"]["/v1/models/digits:predict"]["post"]["requestBody"]["content"]["application/json"]
    example = image["example"]
    wrong = {
        "/v1/models/digits:predict": ({"instances": []}, {"instances": [example["instances"][0][:0]]}, {}),
        "/v1/models/pair:predict": ({"instances": [{"values": [1.0, 2.0, 3.0]}]},),
        "/v1/models/table:predict": ({"instances": [{"age": 41}]},),
        "/v2/models/digits/infer": ({"inputs": []}, {"inputs": [{"name": "image"}]}),
    }
    for path, bodies in wrong.items():
        operation = document["paths"][path]["post"]
        for body in bodies:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(body, operation["requestBody"]["content"]["application/json"]["schema"])
            status, found, _ = documented.request(path, body)
            assert status == 400, (path, body)
            jsonschema.validate(found, operation["responses"]["default"]["content"]["application/json"]["schema"])


@pytest.mark.slow
def test_page_comes_from_package_alone(documented: Any) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{documented.port}/docs", timeout=30) as response:
        page = response.read().decode()
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://|src=|@import|//cdn", page)
    assert 'href="openapi.json"' in page


@pytest.mark.slow
def test_client_without_proto_file(documented: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{documented.grpc_port}") as channel:
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        assert pool.FindServiceByName("grpc.health.v1.Health")
        method = service.methods_by_name["ModelMetadata"]
        call = channel.unary_unary(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        found = call(GetMessageClass(method.input_type)(name="digits"), timeout=30)
    assert [entry.name for entry in found.inputs] == ["image"]


def test_without_flag_there_is_no_document(server: Any) -> None:
    for path in ("/openapi.json", "/docs"):
        assert server.request(path)[:2] == (404, {"error": "Not Found"})
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel, pytest.raises(grpc.RpcError) as caught:
        list(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.slow
def test_document_needs_token_where_models_do(models: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    (tmp_path / "tokens").chmod(0o600)
    server = start_server(models / "pair", "pair", FLAG, f"--token-file={tmp_path / 'tokens'}")
    server.wait("/v2/health/ready")
    assert server.request("/openapi.json")[0] == 401
    status, document, _ = server.request("/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (status, document["components"]["securitySchemes"]["token"]["scheme"]) == (200, "bearer")


@pytest.mark.parametrize(
    ("path", "rows"), [("/v1/models/eye:predict", "instances"), ("/v2/models/eye/infer", "inputs")]
)
def test_parameters_of_a_model_are_described(path: str, rows: str) -> None:
    tensor = {"name": "image", "datatype": "BYTES", "shape": [-1]}
    threshold = {"type": "number", "minimum": 0, "maximum": 1}
    document = build_document("1", [TensorContract("eye", [tensor], [], parameters={"threshold": threshold})], [])
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    described = schema["properties"]["parameters"]
    jsonschema.validate({"threshold": 0.3}, described)
    with pytest.raises(jsonschema.ValidationError, match="2 is greater than the maximum"):
        jsonschema.validate({"threshold": 2}, described)
    assert rows in schema["required"]


@pytest.mark.parametrize("route", ["chat/completions", "completions", "embeddings"])
def test_routes_of_language_models(route: str) -> None:
    document = build_document("1", [], [LanguageContract(["chat", "support"], [route])])
    content = document["paths"][f"/openai/v1/{route}"]["post"]["requestBody"]["content"]["application/json"]
    jsonschema.validate(content["example"], content["schema"])
    with pytest.raises(jsonschema.ValidationError, match="'other' is not one of"):
        jsonschema.validate({**content["example"], "model": "other"}, content["schema"])


@pytest.mark.slow
def test_language_models_document_their_routes(tmp_path: Path) -> None:
    with LanguageServer(tmp_path, FLAG, "--served-model-name=chat", "--max-num-seqs=2") as server:
        with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=30) as response:
            document = json.loads(response.read())
        sent = check_operations(server.url, document)
    assert "/openai/v1/completions" in sent
