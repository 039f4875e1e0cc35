"""The verbs of the Kubernetes API, on objects as JSON types: nothing that the server says is dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.connection import APPLY_PATCH, JSON, MERGE_PATCH, Connection
from kfp_mindspore.kube.errors import ExpiredError, NotInstalledError, Request
from kfp_mindspore.kube.logs import read_log, stream_log
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.kube.stop import Stop
from kfp_mindspore.kube.watch import watch

Document = dict[str, Any]
# Within the class, `list` is a verb.
Documents = list[Document]

FIELD_MANAGER = "kfp-mindspore"
_PAGE = 500


class Cluster:
    """A cluster, reached on first use.

    Every method raises the errors of `kfp_mindspore.kube.errors`, or NotFoundError, AlreadyExistsError and
    ValidationError of `kfp_mindspore.errors`. Troubles that pass (429, 5xx, broken connections) are waited out.

    Args:
        kubeconfig: Its kubeconfig; default KUBECONFIG, then ~/.kube/config, then the account of the pod.
        context: Context of the kubeconfig; default the current one.
        patience: Seconds for which an API server that has answered before is waited for.
    """

    def __init__(
        self, kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None, *, patience: float = 300.0
    ) -> None:
        self.connection = Connection(kubeconfig, context, patience)
        self._kinds: dict[tuple[str, str], Resource] = {}

    @property
    def namespace(self) -> str:
        """The namespace of the context, or of the pod."""
        return self.connection.access.namespace

    def get(self, resource: Resource, name: str, namespace: str = "") -> Document:
        """Return an object."""
        request = Request("get", resource.full_name, name, namespace)
        document: Document = self.connection.send(request, "GET", resource.locate(namespace, name))
        return document

    def list(self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "") -> Documents:
        """Return the objects of a collection, page by page.

        Args:
            resource: Their kind.
            namespace: Their namespace; empty for all.
            labels: Label selector.
            fields: Field selector.
        """
        return self.list_with_version(resource, namespace, labels=labels, fields=fields)[0]

    def list_with_version(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "", page: int = _PAGE
    ) -> tuple[Documents, str]:
        """Return the objects of a collection, and the resource version from which to watch it; see `list`."""
        request = Request("list", resource.full_name, namespace=namespace)
        query: dict[str, Any] = {"labelSelector": labels, "fieldSelector": fields, "limit": page}
        items: Documents = []
        while True:
            try:
                answer = self.connection.send(request, "GET", resource.locate(namespace), query)
            except ExpiredError:
                # Writing all pages took longer than the server keeps the list's version: all at once, then.
                if not query.pop("limit", None):
                    raise
                query.pop("continue", None)
                items = []
                continue
            items += answer.get("items") or []
            query["continue"] = answer["metadata"].get("continue")
            if not query["continue"]:
                return items, str(answer["metadata"].get("resourceVersion") or "")

    def create(
        self,
        resource: Resource,
        document: Mapping[str, Any],
        namespace: str = "",
        *,
        manager: str = FIELD_MANAGER,
        dry_run: bool = False,
    ) -> Document:
        """Create an object; a field that the server does not know is refused, as `kubectl create` does.

        Args:
            resource: Its kind.
            document: The object.
            namespace: Its namespace.
            manager: Whose fields they are.
            dry_run: Let the server judge and complete it, and keep nothing.
        """
        name = document["metadata"].get("name", "")
        query = {
            "fieldManager": manager,
            "fieldValidation": "Strict",
            "dryRun": "All" if dry_run else None,
        }
        request = Request("create", resource.full_name, name, namespace)
        created: Document = self.connection.send(request, "POST", resource.locate(namespace), query, dict(document))
        return created

    def patch(
        self, resource: Resource, name: str, namespace: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Document:
        """Merge a patch into an object (RFC 7396).

        Args:
            resource: Its kind.
            name: Its name.
            namespace: Its namespace.
            patch: The patch.
            subresource: Such as `status`.
        """
        request = Request("patch", _join(resource.full_name, subresource), name, namespace)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        path = resource.locate(namespace, name, subresource)
        patched: Document = self.connection.send(request, "PATCH", path, query, dict(patch), MERGE_PATCH)
        return patched

    def apply(
        self, document: Mapping[str, Any], *, manager: str = FIELD_MANAGER, force: bool = True, dry_run: bool = False
    ) -> Document:
        """Apply an object of any kind by the server's side: what it says becomes so, what others wrote stays.

        Args:
            document: The object, with apiVersion, kind and name.
            manager: Whose fields they are.
            force: Take fields over that belong to another manager.
            dry_run: Let the server judge it, and keep nothing.
        """
        resource = self.find_resource(str(document["apiVersion"]), str(document["kind"]))
        metadata = document["metadata"]
        namespace = (metadata.get("namespace") or self.namespace) if resource.namespaced else ""
        query = {
            "fieldManager": manager,
            "force": "true" if force else "false",
            "fieldValidation": "Strict",
            "dryRun": "All" if dry_run else None,
        }
        request = Request("patch", resource.full_name, metadata["name"], namespace)
        path = resource.locate(namespace, metadata["name"])
        applied: Document = self.connection.send(request, "PATCH", path, query, dict(document), APPLY_PATCH)
        return applied

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        propagation: str = "Background",
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> None:
        """Ask for an object's deletion; it may go on when this returns.

        Args:
            resource: Its kind.
            name: Its name.
            namespace: Its namespace.
            propagation: What becomes of what it owns: `Background`, `Foreground` (the owner goes last) or `Orphan`.
            grace_seconds: Of a pod: seconds between SIGTERM and SIGKILL.
            uid: Only the object with this uid, not one that was made anew.
        """
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        request = Request("delete", resource.full_name, name, namespace)
        self.connection.send(request, "DELETE", resource.locate(namespace, name), None, options, JSON)

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        timeout: float | None = None,
        stop: Stop | None = None,
    ) -> Iterator[Mapping[str, Document]]:
        """Yield the objects of a collection by name: as they are now, and again after each change.

        What breaks the watch (an expired version, a lost connection, a token that runs out) is mended by listing
        again; changes in between are seen together.

        Args:
            resource: Their kind.
            namespace: Their namespace; empty for all, whose names then must differ.
            labels: Label selector.
            fields: Field selector.
            timeout: Seconds after which it ends; None for never.
            stop: Ends it from another thread.
        """
        return watch(self, resource, namespace, labels=labels, fields=fields, timeout=timeout, stop=stop)

    def read_log(self, pod: str, namespace: str, *, container: str = "", last: int | None = None) -> str:
        """Return what a pod's container has written; see `kfp_mindspore.kube.logs.read_log`."""
        return read_log(self.connection, pod, namespace, container=container, last=last)

    def stream_log(
        self, pod: str, namespace: str, *, container: str = "", uid: str = "", stop: Stop | None = None
    ) -> Iterator[str]:
        """Yield a container's lines until it ends; see `kfp_mindspore.kube.logs.stream_log`."""
        return stream_log(self.connection, pod, namespace, container=container, uid=uid, stop=stop)

    def find_resource(self, api_version: str, kind: str) -> Resource:
        """Return the resource of a kind, as the server lists it.

        Raises:
            NotInstalledError: The server does not know it.
        """
        if (api_version, kind) not in self._kinds:
            group, _, version = api_version.rpartition("/")
            path = f"/apis/{api_version}" if group else f"/api/{api_version}"
            request = Request("get", f"the kinds of {api_version}")
            try:
                answer = self.connection.send(request, "GET", path)
            except (NotFoundError, NotInstalledError):
                answer = {}
            for item in answer.get("resources") or []:
                if "/" not in item["name"]:
                    found = Resource(group, version, item["name"], item["kind"], item["namespaced"])
                    self._kinds[api_version, item["kind"]] = found
        if (api_version, kind) not in self._kinds:
            raise NotInstalledError(f"the API server does not know {kind} of {api_version}")
        return self._kinds[api_version, kind]


def _join(resource: str, subresource: str) -> str:
    return f"{resource}/{subresource}" if subresource else resource
