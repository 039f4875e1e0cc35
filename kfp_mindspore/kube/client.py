"""Asynchronous Kubernetes API client: objects as JSON types, so that no field is dropped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.errors import ApiRequest, ExpiredError, NotInstalledError
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.kube.transport import Transport

Document = dict[str, Any]
# Within the class, `list` is a verb.
Documents = list[Document]

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "kfp-mindspore"
_PAGE = 500


class AsyncClient(Transport):
    """A client for one API server, for one event loop; connects on first use. `close` it.

    Requests are retried on 429, 502, 503, 504 and broken connections where repeating is safe. A server that has never
    responded is not retried, since its address is probably wrong, unless it belongs to a pod's own cluster.

    Methods raise the errors in `kfp_mindspore.kube.errors`, or NotFoundError, AlreadyExistsError and ValidationError
    from `kfp_mindspore.errors`.

    Args:
        kubeconfig: See `load_config`.
        context: See `load_config`.
        field_manager: Owner name for the fields that it writes.
        retry_timeout: Seconds for which a server that has responded before is retried.
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
        super().__init__(kubeconfig, context, retry_timeout=retry_timeout, count_response=count_response)
        self._field_manager = field_manager
        self._resources: dict[tuple[str, str], Resource] = {}

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
            resource: Its kind.
            document: The object.
            namespace: Its namespace.
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
            resource: Its kind.
            name: Its name.
            namespace: Its namespace.
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
            resource: Its kind.
            name: Its name.
            namespace: Its namespace.
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


def _join(resource: str, subresource: str) -> str:
    return f"{resource}/{subresource}" if subresource else resource
