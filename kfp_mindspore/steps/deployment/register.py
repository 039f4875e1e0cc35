"""The step that registers a model bundle in Kubeflow's Model Registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, MissingExtraError, UserError
from kfp_mindspore.settings import LOCAL, SERVICE_ACCOUNT_DIR, get_backend_name

if TYPE_CHECKING:
    from kfp import dsl

# Model Registry service in a default Kubeflow installation.
DEFAULT_REGISTRY = "http://model-registry-service.kubeflow.svc.cluster.local:8080"
# Registry REST API versions with the same messages; the client requests the first one only.
_API_VERSIONS = ("v1", "v1alpha3")
_API = "/api/model_registry/{}/"
_RETRIES = 3
_VERSION_LENGTH = 12


@dataclass(frozen=True)
class Registration:
    """A registration's names and contents.

    Args:
        name: The registered model's name.
        version: Version name.
        uri: Bundle URI.
        model_format: KServe's model format.
        format_version: MindSpore version that exported the model.
        author: The version's author.
        description: The version's description.
        service_account_name: Service account with access to the URI.
        properties: The version's custom properties.
    """

    name: str
    version: str
    uri: str
    model_format: str
    format_version: str
    author: str
    description: str = ""
    service_account_name: str = ""
    properties: Mapping[str, str | int | float] | None = None


def register_bundle(
    bundle: dsl.Model,
    model_name: str,
    *,
    registry: str = "",
    version: str = "",
    author: str = "",
    description: str = "",
    service_account_name: str = "",
    properties: Mapping[str, Any] | None = None,
) -> tuple[str, str, str]:
    """Register a bundle's URI as a model version; a repeated registration changes nothing.

    Args:
        bundle: The model bundle; the URI is registered, the files stay where they are.
        model_name: The registered model's name, created if it does not exist.
        registry: The registry's http:// or https:// address; may be empty in a local run, which registers nothing.
        version: Version name; empty for the first 12 hexadecimal digits of model.mindir's digest, or of a
            language model's bundle's.
        author: The version's author; empty for `kfp-mindspore`.
        description: The version's description.
        service_account_name: Service account with access to the bundle's URI.
        properties: Further custom properties: texts and numbers.

    Returns:
        The registered model's ID, version ID and version name; empty in a local run without a registry.

    Raises:
        UserError: The registry's address is missing or invalid, or a property is no text or number.
        AlreadyExistsError: The version exists with another URI.
        MissingExtraError: The package model-registry is not installed.
        KfpMindSporeError: The registry does not answer or refuses a request; the message has the response.
    """
    from kfp_mindspore.files import read_json
    from kfp_mindspore.formats.bundle import MODEL_FILE, SIGNATURE_FILE, ModelBundle
    from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT

    if not registry:
        hint = f"Install Kubeflow's Model Registry and set registry={DEFAULT_REGISTRY}."
        if get_backend_name() != LOCAL:
            raise UserError("registry: is missing: the address of Kubeflow's Model Registry", hint=hint)
        print(f"register_model: no registry is given, nothing is registered. {hint}")
        return "", "", ""
    if not registry.startswith(("http://", "https://")):
        raise UserError(f"registry: must be http://host:port or https://host:port, got {registry!r}")
    if wrong := [name for name, value in (properties or {}).items() if not isinstance(value, (str, int, float))]:
        found = f"{(properties or {})[wrong[0]]!r:.80}"
        raise UserError(f"properties.{wrong[0]}: must be text or a number, got {found}")
    signature = ModelBundle.open(bundle.path).signature
    # A language model has no such file: its digest is the whole bundle's.
    digest = (
        signature.files[MODEL_FILE]["sha256"]
        if MODEL_FILE in signature.files
        else str(read_json(Path(bundle.path, SIGNATURE_FILE))["digest"])
    )
    registration = Registration(
        name=model_name,
        version=version or digest[:_VERSION_LENGTH],
        uri=bundle.uri,
        model_format=LANGUAGE_FORMAT if signature.is_language_model else MODEL_FORMAT,
        format_version=signature.mindspore_version,
        author=author or "kfp-mindspore",
        description=description,
        service_account_name=service_account_name,
        properties={"sha256": digest, **(properties or {})},
    )
    model_id, version_id, api = asyncio.run(_register(registry.rstrip("/"), registration))
    print(f"{registry} (API {api}): model {model_name}, version {registration.version}: {registration.uri}")
    return model_id, version_id, registration.version


async def _register(registry: str, registration: Registration) -> tuple[str, str, str]:
    """Create model, version and artifact where missing; return the first two's IDs and the API version."""
    try:
        import aiohttp
        from model_registry.core import ModelRegistryAPIClient
        from model_registry.types import ModelArtifact, ModelVersion, RegisteredModel
        from mr_openapi import ApiClient, Configuration, ModelRegistryServiceApi
        from mr_openapi.exceptions import ApiException, NotFoundException
    except ImportError as error:
        raise MissingExtraError("model-registry", "registry") from error
    token = SERVICE_ACCOUNT_DIR / "token"
    configuration = Configuration(host=registry, access_token=token.read_text() if token.is_file() else None)
    configuration.retries = _RETRIES

    class VersionedApiClient(ApiClient):  # type: ignore[misc]
        api = _API_VERSIONS[0]

        async def call_api(self, method: str, url: str, *args: object, **kwargs: object) -> Any:
            versioned = url.replace(_API.format(_API_VERSIONS[0]), _API.format(self.api), 1)
            return await super().call_api(method, versioned, *args, **kwargs)

    class Client(ModelRegistryAPIClient):  # type: ignore[misc]
        @asynccontextmanager
        async def get_client(self) -> AsyncIterator[ModelRegistryServiceApi]:
            api_client = VersionedApiClient(self.config)
            try:
                yield ModelRegistryServiceApi(api_client)
            finally:
                await api_client.close()

    async def is_served(api: str) -> bool:
        VersionedApiClient.api = api
        async with client.get_client() as service:
            try:
                await service.get_registered_models(page_size="1")
            except NotFoundException:
                return False
        return True

    client = Client(configuration)
    try:
        if not await is_served(_API_VERSIONS[0]) and not await is_served(_API_VERSIONS[1]):
            paths = " nor ".join(_API.format(api) for api in _API_VERSIONS)
            raise KfpMindSporeError(f"{registry}: has neither {paths} of a Model Registry (404)")
        model = await client.get_registered_model_by_params(registration.name)
        if model is None:
            model = await client.upsert_registered_model(
                RegisteredModel(name=registration.name, owner=registration.author)
            )
        version = await client.get_model_version_by_params(model.id, registration.version)
        if version is None:
            version = await client.upsert_model_version(
                ModelVersion(
                    name=registration.version,
                    author=registration.author,
                    description=registration.description or None,
                    custom_properties=dict(registration.properties or {}),
                ),
                model.id,
            )
        artifacts = await client.get_model_version_artifacts(version.id)
        if others := [artifact.uri for artifact in artifacts if artifact.uri != registration.uri]:
            raise AlreadyExistsError(
                f"{registry}: model {registration.name}, version {registration.version} exists with {others[0]}",
                hint="Register under another version.",
            )
        if not artifacts:
            await client.upsert_model_version_artifact(
                ModelArtifact(
                    name=registration.name,
                    uri=registration.uri,
                    model_format_name=registration.model_format,
                    model_format_version=registration.format_version,
                    service_account_name=registration.service_account_name or None,
                ),
                version.id,
            )
    except ApiException as error:
        raise KfpMindSporeError(f"{registry}: answered {error.status}: {error.body or error.reason}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise KfpMindSporeError(f"{registry}: no answer ({error or type(error).__name__})") from error
    return str(model.id), str(version.id), VersionedApiClient.api
