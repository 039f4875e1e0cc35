"""Kubeflow Pipelines object stores: the ConfigMap `kfp-launcher`, as KFP 2.17's launcher reads it.

A store's credentials are a Secret, which pods receive by reference, or (`fromEnv`) the environment and the pod's
service account.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.kube.resources import CONFIG_MAPS, SECRETS
from kfp_mindspore.settings import KFP_RUNTIME_VARIABLE, KUBERNETES, get_backend_name, get_namespace
from kfp_mindspore.stores.artifact_store import (
    PROTOCOLS,
    SECRET_PREFIX,
    STORES_VARIABLE,
    ArtifactStore,
    Store,
    dump_stores,
)

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

CONFIG_MAP = "kfp-launcher"
# KFP's own default, in KFP 2.17.
_DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"
# KFP's default for minio:// without a provider in the ConfigMap.
_MINIO_DEFAULT = {
    "endpoint": "seaweedfs.kubeflow:9000",
    "region": "minio",
    "disableSSL": True,
    "credentials": {
        "secretRef": {
            "secretName": "mlpipeline-minio-artifact",
            "accessKeyKey": "accesskey",
            "secretKeyKey": "secretkey",
        }
    },
}
# Credentials that a task sets for its own step, by fsspec's protocol.
_OWN_CREDENTIALS = {"s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"), "gcs": ("GOOGLE_APPLICATION_CREDENTIALS",)}
# botocore's are 60 s, repeated by it and by s3fs.
PROBE_TIMEOUTS: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 10, "retries": {"max_attempts": 1}}
_AWS_ENDPOINT = re.compile(r"(https://)?s3\.amazonaws\.com", re.IGNORECASE)


@dataclass(frozen=True)
class StoreConfig:
    """Access to the objects below a prefix, with references to the credentials.

    Args:
        prefix: URI that ends with `/` or is a key prefix, such as `s3://bucket/`.
        options: Keyword arguments for the fsspec file system.
        secret: The Secret's name; empty for the pod's environment and service account.
        keys: Further keyword arguments by name: the Secret's key.
    """

    prefix: str
    options: Mapping[str, Any]
    secret: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


def read_providers(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return the providers in a namespace's ConfigMap `kfp-launcher` by scheme; empty without one.

    Raises:
        UserError: The ConfigMap is not valid YAML.
        ForbiddenError: The service account may not get ConfigMaps.
    """
    try:
        data = cluster.get(CONFIG_MAPS, CONFIG_MAP, namespace).get("data") or {}
    except NotFoundError:
        return {}
    try:
        providers = yaml.safe_load(data.get("providers") or "") or {}
    except yaml.YAMLError as error:
        raise UserError(f"ConfigMap {namespace}/{CONFIG_MAP}: providers: not valid YAML ({error})") from None
    if not isinstance(providers, dict):
        raise UserError(f"ConfigMap {namespace}/{CONFIG_MAP}: providers: must be a mapping")
    return providers


def resolve_stores(uris: Iterable[str], providers: Mapping[str, Any]) -> list[StoreConfig]:
    """Return the stores for URIs, each once.

    Args:
        uris: Artifact URIs.
        providers: `read_providers` result.

    Raises:
        UserError: A job's pods cannot read a URI: the scheme is not supported, or it has a query.
    """
    stores: dict[str, StoreConfig] = {}
    for uri in uris:
        scheme, separator, rest = uri.partition("://")
        if not separator or scheme not in PROTOCOLS:
            raise UserError(
                f"{uri}: the pods of a job cannot read this URI: expected s3://, minio:// or gs://",
                hint="Set a pipeline root with one of them.",
            )
        if "?" in uri:
            raise UserError(
                f"{uri}: the pods of a job cannot use the query of a pipeline root",
                hint=f"Configure the store in the ConfigMap {CONFIG_MAP} instead.",
            )
        bucket, _, key = rest.partition("/")
        found = _resolve_provider(scheme, bucket, key, providers.get(scheme) or {})
        stores[found.prefix] = found
    return list(stores.values())


def read_default_root(cluster: Cluster, namespace: str) -> str:
    """Return a namespace's default pipeline root: the ConfigMap's, else KFP's.

    Raises:
        ForbiddenError: The caller may not get the ConfigMap.
    """
    with contextlib.suppress(NotFoundError):
        data = cluster.get(CONFIG_MAPS, CONFIG_MAP, namespace).get("data") or {}
        return str(data.get("defaultPipelineRoot") or _DEFAULT_ROOT)
    return _DEFAULT_ROOT


def list_secrets(root: str, providers: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the Secrets that pods of jobs may refer to, by name with their keys.

    Args:
        root: Pipeline root.
        providers: `read_providers` result.

    Raises:
        UserError: See `resolve_stores`.
    """
    uris = [root.partition("?")[0]]
    for scheme, provider in providers.items():
        if scheme in PROTOCOLS and provider:
            uris += [f"{scheme}://"] if provider.get("default") else []
            for override in provider.get("Overrides") or provider.get("overrides") or []:
                uris.append(f"{scheme}://{override.get('bucketName')}/{override.get('keyPrefix') or ''}")
    found: dict[str, set[str]] = {}
    for store in resolve_stores(uris, providers):
        if store.secret:
            found.setdefault(store.secret, set()).update(store.keys.values())
    return found


def build_env(stores: Sequence[StoreConfig]) -> list[dict[str, Any]]:
    """Return the EnvVars with which pods access the stores; credentials are references to Secrets."""
    env: list[dict[str, Any]] = []
    entries = []
    for index, store in enumerate(stores):
        variables = {name: f"{SECRET_PREFIX}{index}_{name.upper()}" for name in sorted(store.keys)}
        for name, variable in variables.items():
            reference = {"secretKeyRef": {"name": store.secret, "key": store.keys[name]}}
            env.append({"name": variable, "valueFrom": reference})
        entries.append(Store(store.prefix, store.options, variables))
    return [{"name": STORES_VARIABLE, "value": dump_stores(entries)}, *env]


def open_stores(stores: Sequence[StoreConfig], cluster: Cluster, namespace: str) -> ArtifactStore:
    """Return access to the stores for this process.

    Raises:
        UserError: A Secret does not exist or lacks a key.
        ForbiddenError: The service account may not get Secrets.
    """
    return ArtifactStore([_read_credentials(store, cluster, namespace) for store in stores], {})


@dataclass(frozen=True)
class StoreAccess:
    """This process's access to the data behind a URI.

    Args:
        store: The store.
        credentials: Where the credentials were looked for, for messages.
        hint: What to do where they are refused.
        has_secret: Whether they come from a Secret.
    """

    store: ArtifactStore
    credentials: str
    hint: str
    has_secret: bool = False


def open_source(uri: str) -> StoreAccess:
    """Return access to a data source: the run's for a step on a cluster, elsewhere the environment's.

    Credentials in a step's environment take precedence, since they were set on the task.

    Raises:
        UserError: The ConfigMap or the Secret is invalid.
        ForbiddenError: The service account may not get them.
    """
    protocol = PROTOCOLS.get(uri.partition("://")[0], "")
    names = _OWN_CREDENTIALS.get(protocol, ())
    is_step = os.environ.get(KFP_RUNTIME_VARIABLE) == "true" and get_backend_name() == KUBERNETES
    if is_step and protocol and not any(os.environ.get(name) for name in names):
        from kfp_mindspore.kube.cluster import Cluster

        cluster = Cluster()
        return open_run_source(uri, cluster, get_namespace() or cluster.namespace)
    if not protocol:
        return StoreAccess(
            ArtifactStore([], {}), "none: it was requested without", "Use a presigned URL, or copy the data to a store."
        )
    found = "; ".join(f"{name} is {'set' if os.environ.get(name) else 'not set'}" for name in names)
    return StoreAccess(
        ArtifactStore([], {}),
        f"the environment and the configuration files of this process ({found})",
        f"Set {names[0]} and what belongs to it, such as AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL."
        if protocol == "s3"
        else f"Set {names[0]} to a file with credentials.",
    )


def open_run_source(uri: str, cluster: Cluster, namespace: str, *, is_probe: bool = False) -> StoreAccess:
    """Return the access to a data source that steps in a namespace have.

    Args:
        uri: An object store URI.
        cluster: The cluster.
        namespace: Run namespace.
        is_probe: Whether s3 requests time out early, from a machine that may not reach the store.

    Raises:
        UserError: The ConfigMap or the Secret is invalid.
        ForbiddenError: The caller may not get them.
    """
    (store,) = resolve_stores([uri.partition("?")[0]], read_providers(cluster, namespace))
    if is_probe and "config_kwargs" in store.options:
        store = replace(
            store, options={**store.options, "config_kwargs": {**store.options["config_kwargs"], **PROBE_TIMEOUTS}}
        )
    place = f"ConfigMap {namespace}/{CONFIG_MAP}"
    endpoint = store.options.get("endpoint_url", "")
    credentials = (
        f"Secret {namespace}/{store.secret}" if store.secret else "environment and service account of the step"
    )
    return StoreAccess(
        open_stores([store], cluster, namespace),
        f"{credentials}, by the {place}" + (f", for {endpoint}" if endpoint else ""),
        f"Give these credentials access to {store.prefix}, or add the bucket with a Secret of its own to "
        f"providers.{uri.partition('://')[0]}.overrides of the {place}.",
        has_secret=bool(store.secret),
    )


def read_model_store(cluster: Cluster, namespace: str, endpoint: str = "") -> Store:
    """Return the S3 store for a namespace's pipeline root, with the credentials.

    Args:
        cluster: Cluster client.
        namespace: The run namespace.
        endpoint: Store URL; empty for the ConfigMap `kfp-launcher`'s.

    Raises:
        UserError: The pipeline root is in no S3 store, or the credentials are not in a Secret.
        ForbiddenError: The caller may not get the ConfigMap or the Secret.
    """
    root, providers = read_default_root(cluster, namespace), read_providers(cluster, namespace)
    scheme = root.partition("://")[0]
    if endpoint and not providers.get(scheme):
        providers = {scheme: {"default": _MINIO_DEFAULT}}
    (store,) = resolve_stores([root], providers)
    if scheme == "gs" or not store.secret:
        raise UserError(
            f"{root}: its credentials are not in a Secret with S3 keys",
            hint="Make the service account for your store: https://kserve.github.io/website",
        )
    if endpoint:
        store = replace(store, options={**store.options, "endpoint_url": endpoint})
    return _read_credentials(store, cluster, namespace)


def _read_credentials(store: StoreConfig, cluster: Cluster, namespace: str) -> Store:
    options = dict(store.options)
    if store.secret:
        try:
            data = cluster.get(SECRETS, store.secret, namespace).get("data") or {}
        except NotFoundError:
            raise UserError(
                f"Secret {namespace}/{store.secret} with the credentials of {store.prefix} does not exist",
                hint=f"It is named in the ConfigMap {namespace}/{CONFIG_MAP}, or is the default of KFP.",
            ) from None
        for name, key in store.keys.items():
            if key not in data:
                raise UserError(f"Secret {namespace}/{store.secret}: has no key {key!r}")
            value = base64.b64decode(data[key]).decode()
            options[name] = json.loads(value) if name == "token" else value
    return Store(store.prefix, options)


def _resolve_provider(scheme: str, bucket: str, key: str, provider: Mapping[str, Any]) -> StoreConfig:
    default = provider.get("default")
    overrides = provider.get("Overrides") or provider.get("overrides") or []
    prefix = f"{scheme}://{bucket}/"
    if not default and not overrides:
        if scheme != "minio":
            return StoreConfig(prefix, {})
        default = _MINIO_DEFAULT
    settings = dict(default or {})
    for override in overrides:
        key_prefix = override.get("keyPrefix") or ""
        if override.get("bucketName") == bucket and f"{key}/".startswith(key_prefix):
            prefix += key_prefix
            settings.update({name: value for name, value in override.items() if value not in ("", None)})
            break
    credentials = settings.get("credentials")
    reference = (credentials or {}).get("secretRef") or {}
    if credentials is None or not (credentials.get("fromEnv") or reference.get("secretName")):
        raise UserError(
            f"ConfigMap {CONFIG_MAP}: providers.{scheme}: credentials: must have fromEnv or secretRef, got neither"
        )
    is_environment = bool(credentials.get("fromEnv"))
    keys = {"token": "tokenKey"} if scheme == "gs" else {"key": "accessKeyKey", "secret": "secretKeyKey"}
    return StoreConfig(
        prefix,
        {} if scheme == "gs" else _build_s3_options(settings),
        "" if is_environment else str(reference["secretName"]),
        {} if is_environment else {name: str(reference.get(entry, "")) for name, entry in keys.items()},
    )


def _build_s3_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return s3fs's arguments; they mean what KFP's Go client does with the same settings."""
    options: dict[str, Any] = {
        "config_kwargs": {
            "s3": {"addressing_style": "path" if settings.get("forcePathStyle", True) else "auto"},
            "retries": {"max_attempts": int(settings.get("maxRetries") or 5), "mode": "standard"},
            # Stores other than AWS refuse the checksums that botocore ≥ 1.36 adds by default.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    }
    endpoint = str(settings.get("endpoint") or "")
    if endpoint and not _AWS_ENDPOINT.match(endpoint):
        if "://" not in endpoint:
            endpoint = ("http://" if settings.get("disableSSL") else "https://") + endpoint
        options["endpoint_url"] = endpoint
    if settings.get("region"):
        options["client_kwargs"] = {"region_name": str(settings["region"])}
    return options
