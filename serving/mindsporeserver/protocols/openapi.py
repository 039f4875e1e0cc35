"""The OpenAPI document of what a server serves: one path per model and protocol, with the model's example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

Schema = dict[str, Any]
Document = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_BYTES: Schema = {
    "anyOf": [_TEXT, {"type": "object", "required": ["b64"], "properties": {"b64": {**_TEXT, "format": "byte"}}}]
}
_ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
_LANGUAGE_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message"], "properties": {"message": _TEXT}}},
}
_TOKEN = "token"
_MAX_TOKENS = 16
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["system", "user", "assistant", "tool"]}, "content": _TEXT},
}


@dataclass(frozen=True)
class TensorContract:
    """A tensor model's contract.

    Args:
        name: Model name.
        inputs: V2's metadata: name, datatype, shape with -1 for a free dimension.
        outputs: As `inputs`.
        columns: Names of a table's columns, which V1's rows have in place of the inputs; empty for other models.
        texts: Columns that hold texts.
        lists: Columns that hold lists.
        example: One row's inputs by name as V2 sends them, each with shape (1, …); empty without an example.
        row: One row as V1 sends it; None without an example.
        parameters: Schemas of what a request's `parameters` can have, by name.
    """

    name: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    columns: Sequence[str] = ()
    texts: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    example: Sequence[Mapping[str, Any]] = ()
    row: Any = None
    parameters: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True)
class LanguageContract:
    """A language model's contract.

    Args:
        names: The names that `model` may have: the model's, its adapters' and further ones.
        routes: `chat/completions`, `completions` or `embeddings`.
        has_images: Whether embeddings take messages with texts and images, too.
    """

    names: Sequence[str]
    routes: Sequence[str]
    has_images: bool = False


def build_document(version: str, tensors: Sequence[TensorContract], languages: Sequence[LanguageContract]) -> Document:
    """Return the OpenAPI 3.1 document.

    Args:
        version: The server's version.
        tensors: Contracts of the ready tensor models.
        languages: Contracts of the ready language models.
    """
    paths: dict[str, Any] = {
        "/v2": _get("Server metadata", {"type": "object", "required": ["name", "version", "extensions"]}),
        "/v2/health/live": _get("Liveness", _describe_flag("live")),
        "/v2/health/ready": _get("Readiness", _describe_flag("ready")),
        "/v2/models": _get("Model names", _describe_list("models")),
        "/v1/models": _get("Model names", _describe_list("models")),
    }
    for model in tensors:
        quoted = quote(model.name, safe="")
        metadata: Schema = {"type": "object", "required": ["name", "versions", "platform", "inputs", "outputs"]}
        paths |= {
            f"/v1/models/{quoted}": _get(f"Readiness of {quoted}", _describe_flag("ready")),
            f"/v1/models/{quoted}:predict": _post(f"Predict with {quoted} by V1", *_describe_v1(model)),
            f"/v2/models/{quoted}": _get(f"Metadata of {quoted}", metadata),
            f"/v2/models/{quoted}/ready": _get(f"Readiness of {quoted}", _describe_flag("ready")),
            f"/v2/models/{quoted}/infer": _post(f"Predict with {quoted} by V2", *_describe_v2(model)),
        }
    routes: dict[str, list[str]] = {}
    for language in languages:
        for route in language.routes:
            routes.setdefault(route, []).extend(language.names)
    if routes:
        paths["/openai/v1/models"] = _get("Language models", _describe_list("data"))
    viewers = [name for language in languages if language.has_images for name in language.names]
    for route, names in routes.items():
        described = _describe_generation(route, names)
        if route == "embeddings" and viewers:
            described = (_add_messages(described[0], viewers), *described[1:])
        paths[f"/openai/v1/{route}"] = _post(f"OpenAI's {route}", *described, error=_LANGUAGE_ERROR)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mindsporeserver", "version": version or "unknown"},
        "paths": paths,
        "components": {"securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}}},
        # A token is needed with --token_file only.
        "security": [{}, {_TOKEN: []}],
    }


def _get(summary: str, schema: Schema) -> Document:
    return {"get": {"summary": summary, "responses": _respond(schema, _ERROR)}}


def _post(summary: str, request: Schema, example: Any, response: Schema, *, error: Schema = _ERROR) -> Document:
    content: Document = {"schema": request}
    if example is not None:
        content["example"] = example
    body = {"required": True, "content": {"application/json": content}}
    return {"post": {"summary": summary, "requestBody": body, "responses": _respond(response, error)}}


def _respond(schema: Schema, error: Schema) -> Document:
    return {
        "200": {"description": "The response", "content": {"application/json": {"schema": schema}}},
        "default": {"description": "The reason", "content": {"application/json": {"schema": error}}},
    }


def _describe_flag(name: str) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: {"type": "boolean"}}}


def _describe_list(name: str) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": {}}}}


def _describe_v1(model: TensorContract) -> tuple[Schema, Any, Schema]:
    """Return V1's request schema, example and response schema."""
    columns = {column: _describe_column(model, column) for column in model.columns}
    named = columns or {item["name"]: _nest(item) for item in model.inputs}
    row: Schema = {"type": "object", "required": list(named), "properties": named}
    if len(named) == 1 and not columns:
        (row,) = named.values()
    request = _describe_list("instances")
    request["properties"] |= _describe_parameters(model)
    request["properties"]["instances"] |= {"items": row, "minItems": 1}
    return request, None if model.row is None else {"instances": [model.row]}, _describe_list("predictions")


def _describe_parameters(model: TensorContract) -> Schema:
    return {"parameters": {"type": "object", "properties": dict(model.parameters)}} if model.parameters else {}


def _describe_column(model: TensorContract, column: str) -> Schema:
    if column in model.lists:
        return {"type": "array", "items": {}}
    return _TEXT if column in model.texts else {"type": "number"}


def _describe_v2(model: TensorContract) -> tuple[Schema, Any, Schema]:
    """Return V2's request schema, example and response schema."""
    request = _describe_list("inputs")
    request["properties"] |= {"id": _TEXT, **_describe_parameters(model)}
    request["properties"]["inputs"] |= {"items": _describe_tensor(model.inputs), "minItems": len(model.inputs)}
    response: Schema = {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "model_name": {"const": model.name},
            "outputs": {"type": "array", "items": _describe_tensor(model.outputs)},
        },
    }
    return request, {"inputs": list(model.example)} if model.example else None, response


def _describe_tensor(specs: Sequence[Mapping[str, Any]]) -> Schema:
    """Return the schema of one of several tensors."""
    described = [
        {
            "type": "object",
            "required": ["name", "shape", "datatype", "data"],
            "properties": {
                "name": {"const": spec["name"]},
                "datatype": {"const": spec["datatype"]},
                "shape": {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1},
                    "minItems": len(spec["shape"]),
                    "maxItems": len(spec["shape"]),
                    "description": f"{spec['shape']}, -1 for any size",
                },
                "data": {"type": "array", "items": {}},
            },
        }
        for spec in specs
    ]
    return described[0] if len(described) == 1 else {"anyOf": described}


def _nest(spec: Mapping[str, Any]) -> Schema:
    """Return the schema of one row of an input."""
    schema = _describe_value(str(spec["datatype"]))
    for size in reversed(spec["shape"][1:]):
        limits = {"minItems": size, "maxItems": size} if size >= 0 else {"minItems": 1}
        schema = {"type": "array", "items": schema, **limits}
    return schema


def _describe_value(datatype: str) -> Schema:
    if datatype == "BYTES":
        return _BYTES
    if datatype == "BOOL":
        return {"type": "boolean"}
    if not datatype.lstrip("U").startswith("INT"):
        return {"type": "number"}
    bits = int(datatype.partition("INT")[2])
    is_signed = datatype.startswith("INT")
    most: int = 2 ** (bits - is_signed) - 1
    return {"type": "integer", "minimum": -most - 1 if is_signed else 0, "maximum": most}


def _add_messages(request: Schema, names: Sequence[str]) -> Schema:
    """Return the schema of an embedding request by `input`, or for models of images by `messages`."""
    url = {**_TEXT, "pattern": "^data:image/(png|jpeg);base64,", "description": "A data URL"}
    image: Schema = {"type": "object", "required": ["url"], "properties": {"url": url}}
    parts = [
        {"type": "object", "required": ["type", name], "properties": {"type": {"const": name}, name: schema}}
        for name, schema in (("text", _TEXT), ("image_url", image))
    ]
    content = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": parts}, "minItems": 1}]}
    message = {**_MESSAGE, "properties": {"role": {"const": "user"}, "content": content}}
    messages = {"type": "array", "items": message, "minItems": 1}
    properties = {"model": {"enum": list(names)}, "messages": messages}
    return {"anyOf": [request, {"type": "object", "required": ["model", "messages"], "properties": properties}]}


def _describe_generation(route: str, names: Sequence[str]) -> tuple[Schema, Any, Schema]:
    """Return a route's request schema, example and response schema."""
    field, value, schema = {
        "chat/completions": (
            *("messages", [{"role": "user", "content": "Hello"}]),
            {"type": "array", "items": _MESSAGE, "minItems": 1},
        ),
        "completions": ("prompt", "Hello", _TEXT),
        "embeddings": ("input", "Hello", {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}),
    }[route]
    properties: Schema = {"model": {"enum": list(names)}, field: schema}
    example: dict[str, Any] = {"model": names[0], field: value}
    if route != "embeddings":
        properties["max_tokens"] = {"type": "integer", "minimum": 1}
        example["max_tokens"] = _MAX_TOKENS
    request: Schema = {"type": "object", "required": ["model", field], "properties": properties}
    return request, example, _describe_list("data" if route == "embeddings" else "choices")
