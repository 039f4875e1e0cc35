"""Triton's model repository, configuration and statistics messages, which tritonclient sends to the same service.

The Open Inference Protocol has no such methods; kserve's load and unload messages have Triton's names but other fields.
These are the fields that this server reads or writes, by Triton's names and numbers, in their own pool.
Source: https://github.com/triton-inference-server/common/tree/main/protobuf (grpc_service.proto, model_config.proto)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols.tensors import shorten

if TYPE_CHECKING:
    from mindsporeserver.models.served_model import ServedModel, TensorModel

BACKEND = "mindspore"
_PACKAGE = "inference"
# Fields in number order unless they name one; `*` is repeated. An enum is an int32 and a map a repeated message of key
# and value: both have the same encoding.
_MESSAGES = {
    "RepositoryIndexRequest": "string repository_name, bool ready",
    "RepositoryIndexResponse": "*ModelIndex models",
    "ModelIndex": "string name, string version, string state, string reason",
    "RepositoryModelRequest": "string repository_name, string model_name, *Parameter parameters",
    "Parameter": "string key",
    "ModelConfigRequest": "string name, string version",
    "ModelConfigResponse": "ModelConfig config",
    "ModelConfig": "string name, string platform, int32 max_batch_size=4, *ModelInput input, *ModelOutput output, "
    "*ConfigParameter parameters=14, string backend=17",
    "ConfigParameter": "string key, ParameterValue value",
    "ParameterValue": "string string_value",
    "ModelInput": "string name, int32 data_type, int64 dims=4",
    "ModelOutput": "string name, int32 data_type, int64 dims=3",
    "ModelStatisticsRequest": "string name, string version",
    "ModelStatisticsResponse": "*ModelStatistics model_stats",
    "ModelStatistics": "string name, string version, uint64 inference_count=4, uint64 execution_count, "
    "InferStatistics inference_stats",
    "InferStatistics": "Duration success, Duration fail, Duration queue, Duration compute_infer=5",
    "Duration": "uint64 count, uint64 ns",
}
_REPEATED_SCALARS = ("dims",)
_DATA_TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
_TYPE_STRING = len(_DATA_TYPES) + 1


def _build_messages() -> dict[str, Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="triton.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message, number = file.message_type.add(name=name), 0
        for field in fields.split(", "):
            kind, _, rest = field.partition(" ")
            label, _, fixed = rest.partition("=")
            number = int(fixed) if fixed else number + 1
            is_repeated, kind = kind.startswith("*") or label in _REPEATED_SCALARS, kind.lstrip("*")
            added = message.field.add(name=label, number=number)
            added.label = field_type.LABEL_REPEATED if is_repeated else field_type.LABEL_OPTIONAL
            if kind in _MESSAGES:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


messages = _build_messages()
# Request and response for the methods that the Open Inference Protocol lacks.
METHODS = {
    name: (messages[f"{name}Request"], messages[f"{name}Response"])
    for name in ("RepositoryIndex", "ModelConfig", "ModelStatistics")
}
RepositoryModelRequest = messages["RepositoryModelRequest"]


def get_model_name(request: Any) -> str:
    """Return the model that a request loads or unloads: Triton's second field, kserve's first and only one.

    Raises:
        InvalidRequestError: The request overrides configuration or files.
    """
    # tritonclient sends this with each unload; there are no ensembles, so no dependents.
    overrides = [parameter.key for parameter in request.parameters if parameter.key != "unload_dependents"]
    if overrides:
        raise InvalidRequestError(f"parameters: load with overrides is not supported, got {shorten(overrides[0])}")
    return str(request.model_name or request.repository_name)


def encode_config(model: TensorModel) -> Any:
    """Return a ModelConfigResponse; as Triton's, for a model with a batch, shapes are row shapes."""
    description, batched = model.describe(), bool(model.bundle.signature.batch_size)
    tensors = {
        kind: [
            {
                "name": spec["name"],
                "data_type": _get_data_type(spec["datatype"]),
                "dims": spec["shape"][1:] if batched else spec["shape"],
            }
            for spec in description[f"{kind}s"]
        ]
        for kind in ("input", "output")
    }
    size = model.max_batch if batched else 0
    config: dict[str, Any] = {
        "name": model.name,
        "platform": description["platform"],
        "backend": BACKEND,
        "max_batch_size": size,
    }
    if model.rows is not None:
        text = json.dumps(model.rows.layout.to_dict())
        config["parameters"] = [{"key": "rows", "value": {"string_value": text}}]
    return messages["ModelConfigResponse"](config={**config, **tensors})


def encode_index(entries: list[dict[str, str]], *, only_ready: bool) -> Any:
    """Return a RepositoryIndexResponse for the repository's entries."""
    models = [entry for entry in entries if not only_ready or entry["state"] == "READY"]
    return messages["RepositoryIndexResponse"](models=models)


def encode_statistics(models: list[ServedModel]) -> Any:
    """Return a ModelStatisticsResponse: process totals since the model was first loaded, over all the versions."""
    entries = []
    for model in models:
        totals = model.metrics.sum_up()
        stats = {
            kind: {"count": int(count), "ns": int(seconds * 1e9)} for kind, (count, seconds) in totals.durations.items()
        }
        counts = {"inference_count": int(totals.rows), "execution_count": int(totals.batches)}
        entries.append({"name": model.name, "version": model.version, **counts, "inference_stats": stats})
    return messages["ModelStatisticsResponse"](model_stats=entries)


def _get_data_type(datatype: str) -> int:
    return _DATA_TYPES.index(datatype) + 1 if datatype in _DATA_TYPES else _TYPE_STRING if datatype == "BYTES" else 0
