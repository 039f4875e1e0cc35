"""Asynchronous Kubernetes API client: objects as JSON types, so that no field is dropped; connections and retries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kfp_mindspore.errors import NotFoundError, require_extra
from kfp_mindspore.kube.backoff import Backoff
from kfp_mindspore.kube.config import ClusterConfig, load_config
from kfp_mindspore.kube.errors import (
    ApiRequest,
    ExpiredError,
    NotInstalledError,
    UncertainError,
    UnreachableError,
    explain_response,
    parse_status,
)
from kfp_mindspore.kube.resources import Resource

if TYPE_CHECKING:
    import aiohttp

Document = dict[str, Any]
# Within the class, `list` is a verb.
Documents = list[Document]
Lines = list[bytes]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "kfp-mindspore"
_PAGE = 500
_CONCURRENT_REQUESTS = 64
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_LONGEST_LINE = 64 * 1024 * 1024
# 500 is retried only with Retry-After: without, it is also the response to requests that fail every time.
_RETRIED = frozenset({429, 502, 503, 504})
_IS_IT_UP = "Is the cluster up, and is it the right one (--context, --kubeconfig)?"
# Streams may be silent for hours; keepalive detects peers that are gone.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
        if hasattr(socket, name)
    ),
)


class AsyncClient:
    """A client for one API server, for one event loop; connects on first use. `close` it.

    Requests are retried on 429, 502, 503, 504 and broken connections where repeating is safe. A server that has never
    responded is not retried, since its address is probably wrong, unless it belongs to a pod's own cluster.

    Methods raise the errors in `kfp_mindspore.kube.errors`, or NotFoundError, AlreadyExistsError and ValidationError
    from `kfp_mindspore.errors`.

    Args:
        kubeconfig: See `load_config`.
        context: See `load_config`.
        field_manager: Owner name for the fields that it writes.
        retry_timeout: Seconds for which a server that has responded before is retried, and in a pod any server: a pod's
            network, such as an Istio sidecar, may start after its containers.
        count_response: Called with verb and HTTP status after each request (0 for no response).
    """

    def __init__(
        self,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        field_manager: str = FIELD_MANAGER,
        retry_timeout: float = 300.0,
        count_response: Callable[[str, int], None] | None = None,
    ) -> None:
        self.retry_timeout = retry_timeout
        self._field_manager = field_manager
        self._resources: dict[tuple[str, str], Resource] = {}
        self._kubeconfig = kubeconfig
        self._context = context
        self._count_response = count_response
        self._config: ClusterConfig | None = None
        self._is_rejected = False
        self._sessions: list[aiohttp.ClientSession] = []
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        self._has_responded = False

    async def get(self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "") -> Document:
        """Return an object."""
        request = ApiRequest("get", _join(resource.full_name, subresource), name, namespace)
        document: Document = await self.request(request, "GET", resource.get_path(namespace, name, subresource))
        return document

    async def list(self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "") -> Documents:
        """Return a collection's objects, read page by page.

        Args:
            resource: Their kind.
            namespace: Their namespace; empty for all.
            labels: Label selector.
            fields: Field selector.
        """
        try:
            pages = self.list_pages(resource, namespace, labels=labels, fields=fields)
            return [item async for items, _ in pages for item in items]
        except ExpiredError:
            # Reading all pages took longer than the server keeps the list's version.
            pages = self.list_pages(resource, namespace, labels=labels, fields=fields, limit=0)
            return [item async for items, _ in pages for item in items]

    async def list_pages(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = _PAGE
    ) -> AsyncIterator[tuple[Documents, str]]:
        """Yield a collection's objects by page, each with the list's resourceVersion; see `list`.

        Raises:
            ExpiredError: The list's version expired between two pages.
        """
        request = ApiRequest("list", resource.full_name, namespace=namespace)
        query: dict[str, Any] = {"labelSelector": labels, "fieldSelector": fields, "limit": limit or None}
        while True:
            page = await self.request(request, "GET", resource.get_path(namespace), query)
            query["continue"] = page["metadata"].get("continue")
            yield page.get("items") or [], str(page["metadata"].get("resourceVersion") or "")
            if not query["continue"]:
                return

    async def create(
        self,
        resource: Resource,
        document: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        manager: str = "",
        strict: bool = True,
        dry_run: bool = False,
    ) -> Document:
        """Create an object and return it as stored.

        Args:
            resource: Object kind.
            document: The object.
            namespace: Object namespace.
            subresource: Such as `binding`, on the object that the document names.
            manager: Field manager; default the client's.
            strict: Refuse fields that the server does not know, as `kubectl create` does.
            dry_run: Validate and default the object without storing it.
        """
        name = document["metadata"].get("name", "")
        query = {
            "fieldManager": manager or self._field_manager,
            "fieldValidation": "Strict" if strict else "Ignore",
            "dryRun": "All" if dry_run else None,
        }
        request = ApiRequest("create", _join(resource.full_name, subresource), name, namespace)
        path = resource.get_path(namespace, name if subresource else "", subresource)
        created: Document = await self.request(request, "POST", path, query, document)
        return created

    async def update(self, resource: Resource, document: Mapping[str, Any], *, subresource: str = "") -> Document:
        """Replace an object, if its resourceVersion still equals the document's; ConflictError otherwise."""
        metadata = document["metadata"]
        namespace = metadata.get("namespace") or ""
        request = ApiRequest("update", _join(resource.full_name, subresource), metadata["name"], namespace)
        path = resource.get_path(namespace, metadata["name"], subresource)
        updated: Document = await self.request(request, "PUT", path, {"fieldManager": self._field_manager}, document)
        return updated

    async def patch(
        self, resource: Resource, name: str, namespace: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Document:
        """Apply a JSON merge patch (RFC 7396) to an object.

        Args:
            resource: Object kind.
            name: Object name.
            namespace: Object namespace.
            patch: The patch.
            subresource: Such as `status`.
        """
        request = ApiRequest("patch", _join(resource.full_name, subresource), name, namespace)
        query = {"fieldManager": self._field_manager, "fieldValidation": "Strict"}
        path = resource.get_path(namespace, name, subresource)
        patched: Document = await self.request(request, "PATCH", path, query, patch, MERGE_PATCH)
        return patched

    async def apply(
        self, document: Mapping[str, Any], *, manager: str = "", force: bool = True, dry_run: bool = False
    ) -> Document:
        """Apply an object by server-side apply, whatever its kind: other managers' fields stay.

        Args:
            document: The object, with apiVersion, kind and name.
            manager: Field manager; default the client's.
            force: Take over conflicting fields from other managers.
            dry_run: Validate the object without storing it.
        """
        resource = await self.resolve_resource(str(document["apiVersion"]), str(document["kind"]))
        metadata = document["metadata"]
        namespace = ""
        if resource.namespaced:
            namespace = metadata.get("namespace") or (await self.get_config()).namespace
        query = {
            "fieldManager": manager or self._field_manager,
            "force": "true" if force else "false",
            "fieldValidation": "Strict",
            "dryRun": "All" if dry_run else None,
        }
        request = ApiRequest("patch", resource.full_name, metadata["name"], namespace)
        path = resource.get_path(namespace, metadata["name"])
        applied: Document = await self.request(request, "PATCH", path, query, document, APPLY_PATCH)
        return applied

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        propagation: str = "Background",
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> Document:
        """Request an object's deletion, and return the object while it is terminating, or a Status once it is gone.

        Args:
            resource: Object kind.
            name: Object name.
            namespace: Object namespace.
            propagation: How its dependents are deleted: `Background`, `Foreground` (the owner is deleted last) or
                `Orphan`.
            grace_seconds: For a pod: seconds between SIGTERM and SIGKILL.
            uid: Precondition: ConflictError if the object has another uid.
        """
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        request = ApiRequest("delete", resource.full_name, name, namespace)
        deleted: Document = await self.request(request, "DELETE", resource.get_path(namespace, name), None, options)
        return deleted

    async def resolve_resource(self, api_version: str, kind: str) -> Resource:
        """Return a kind's resource, by API discovery.

        Raises:
            NotInstalledError: The server does not know it.
        """
        if (api_version, kind) not in self._resources:
            group, _, version = api_version.rpartition("/")
            path = f"/apis/{api_version}" if group else f"/api/{api_version}"
            found: Document = {}
            with contextlib.suppress(NotFoundError, NotInstalledError):
                found = await self.request(ApiRequest("get", f"the kinds of {api_version}"), "GET", path)
            for item in found.get("resources") or []:
                if "/" not in item["name"]:
                    resource = Resource(group, version, item["name"], item["kind"], item["namespaced"])
                    self._resources[api_version, item["kind"]] = resource
        if (api_version, kind) not in self._resources:
            raise NotInstalledError(f"the API server does not know {kind} of {api_version}")
        return self._resources[api_version, kind]

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions:
            await session.close()

    async def get_config(self) -> ClusterConfig:
        """Return address and credentials, read on first use."""
        async with self._lock:
            if self._config is None or self._is_rejected:
                # Exec plugins may take seconds.
                config = await asyncio.to_thread(load_config, self._kubeconfig, self._context)
                if config != self._config:
                    # Requests under way continue on the old session's connections.
                    self._sessions.append(_create_session(config))
                if self._config is None:
                    self._has_responded = config.is_given
                self._config, self._is_rejected = config, False
            return self._config

    async def request(
        self,
        request: ApiRequest,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Send a request and return the JSON response, or any other response's text.

        Args:
            request: Verb and object, for error messages.
            method: HTTP method.
            path: Path at the server.
            query: Query parameters; None and empty ones are left out.
            body: JSON types to send.
            content_type: The body's media type.

        Raises:
            KfpMindSporeError: An error in `kfp_mindspore.kube.errors`, NotFoundError, AlreadyExistsError or
                ValidationError.
        """
        response, content = await self._send(request, method, path, query, body, content_type)
        return json.loads(content) if response.content_type == JSON else content.decode(errors="replace")

    @contextlib.asynccontextmanager
    async def stream(
        self,
        request: ApiRequest,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        read_timeout: float | None = None,
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """Send a GET request with an open-ended response, and yield an iterator over its lines, in batches.

        Args:
            request: Verb and object, for error messages.
            path: Path at the server.
            query: Query parameters.
            read_timeout: Silent seconds until reading raises; None for no limit.
        """
        response, _ = await self._send(request, "GET", path, query, None, JSON, stream=True, read_timeout=read_timeout)
        try:
            yield _read_lines(response)
        finally:
            response.close()

    def describe(self, error: Exception) -> str:
        """Return a sentence about a connection that failed or broke."""
        server, source = (self._config.server, self._config.source) if self._config else ("", "")
        return f"the API server {server} of {source} cannot be reached: {str(error) or type(error).__name__}"

    async def _send(
        self,
        request: ApiRequest,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        content_type: str,
        *,
        stream: bool = False,
        read_timeout: float | None = _READ_SECONDS,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Return a response with status 2xx and the body, after retries where they are safe."""
        with require_extra("aiohttp", "kubernetes"):
            import aiohttp

        given = {key: value for key, value in (query or {}).items() if value not in (None, "")}
        target = path + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": f"{JSON}, */*", **({} if data is None else {"Content-Type": content_type})}
        backoff = Backoff(self.retry_timeout)
        is_renewed = False
        while True:
            try:
                async with contextlib.nullcontext() if stream else self._slots:
                    response, content = await self._try(method, target, data, headers, stream, read_timeout)
            except transport_errors() as error:
                self._count(request, 0)
                text = f"cannot {request}: {self.describe(error)}"
                not_sent = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
                if method == "POST" and not not_sent:
                    raise UncertainError(text, hint=_IS_IT_UP) from error
                if not self._has_responded:
                    raise UnreachableError(text, hint=_IS_IT_UP) from error
                await self._wait(backoff, text)
                continue
            self._has_responded = True
            self._count(request, response.status)
            if response.status < 300:
                return response, content
            if response.status == 401 and not is_renewed:
                # The token may have expired before its time, or have been rotated.
                is_renewed = self._is_rejected = True
                continue
            refusal = explain_response(request, response.status, parse_status(content))
            if method == "POST" and response.status in (502, 504):
                raise UncertainError(str(refusal))
            retry_after = response.headers.get("Retry-After")
            if response.status not in _RETRIED and not (response.status == 500 and retry_after):
                raise refusal
            seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
            await self._wait(backoff, str(refusal), seconds)

    async def _try(
        self,
        method: str,
        target: str,
        data: bytes | None,
        headers: Mapping[str, str],
        stream: bool,
        read_timeout: float | None,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        import aiohttp
        from yarl import URL

        config = await self.get_config()
        if authorization := config.get_authorization():
            headers = {**headers, "Authorization": authorization}
        response = await self._sessions[-1].request(
            method,
            URL(config.server + target, encoded=True),
            data=data,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=read_timeout),
            server_hostname=config.server_name,
            allow_redirects=False,
        )
        return response, b"" if stream and response.status < 300 else await response.read()

    async def _wait(self, backoff: Backoff, reason: str, retry_after: float | None = None) -> None:
        try:
            await backoff.wait(reason, retry_after)
        except UnreachableError:
            # Later requests, such as deletions during cleanup, fail fast.
            self._has_responded = False
            raise

    def _count(self, request: ApiRequest, status: int) -> None:
        if self._count_response is not None:
            self._count_response(request.verb, status)


def transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for connections that cannot be made, or break."""
    import aiohttp

    return (aiohttp.ClientError, OSError, asyncio.TimeoutError)


async def _read_lines(response: aiohttp.ClientResponse) -> AsyncIterator[Lines]:
    """Yield each chunk's complete lines; the last line may be incomplete.

    Raises:
        ValueError: A line is longer than 64 MiB.
    """
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > _LONGEST_LINE:
            raise ValueError("a line of more than 64 MiB")
    if rest:
        yield [rest]


def _create_session(config: ClusterConfig) -> aiohttp.ClientSession:
    with require_extra("aiohttp", "kubernetes"):
        import aiohttp

    from kfp_mindspore import __version__

    def create_socket(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        created = socket.socket(family, kind, protocol)
        for option in _KEEPALIVE:
            created.setsockopt(*option)
        return created

    connector = aiohttp.TCPConnector(
        # Each watch and each followed log holds a connection.
        limit=0,
        ssl=config.create_ssl_context() if config.server.startswith("https") else False,
        socket_factory=create_socket,
    )
    return aiohttp.ClientSession(connector=connector, headers={"User-Agent": f"kfp-mindspore/{__version__}"})


def _join(resource: str, subresource: str) -> str:
    return f"{resource}/{subresource}" if subresource else resource
