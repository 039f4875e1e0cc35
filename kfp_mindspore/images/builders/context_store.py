"""Where a context waits for the build's pod: in a ConfigMap when it is small, else in a claim or an object store."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.images.builders.cluster_layout import CONTEXT_FOLDER, FETCH_CONTAINER, SETTINGS_FOLDER
from kfp_mindspore.images.builders.cluster_pods import run_loader
from kfp_mindspore.images.builders.store import ObjectStore, parse_url
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.kube.cluster import Cluster

# An object may have 1 MiB; the settings and the API's own fields need some of it.
LARGEST_CONFIG_MAP_BYTES = 900_000
_PACKED_FILE = "context.tar.gz"
_FOLDER = "kfp-mindspore-contexts"


@dataclass(frozen=True)
class PlacedContext:
    """A context that the pod can reach.

    Args:
        archive: Path of its tar in the pod.
        data: What the build's ConfigMap holds besides its settings.
        volumes: Volumes of the pod.
        mounts: Where the build's container mounts them.
        init_containers: What runs before the build.
    """

    archive: str
    data: Mapping[str, bytes] = field(default_factory=dict)
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Site:
    """What placing a context needs to know of the build.

    Args:
        cluster: The cluster.
        namespace: Namespace of the build.
        name: Name of the build, unique.
        image: Image of the build's container, which has a shell.
        package_image: Image with this package, for what fetches from an object store; an empty text when unknown.
        pod: Fields of every pod of the build, such as imagePullSecrets.
    """

    cluster: Cluster
    namespace: str
    name: str
    image: str
    package_image: str = ""
    pod: Mapping[str, Any] = field(default_factory=dict)


class ContextPlace(ABC):
    """A place for contexts that are too large for a ConfigMap."""

    @abstractmethod
    def put(self, file: BinaryIO, size: int, site: Site) -> PlacedContext:
        """Bring the tar there from the file's position on."""

    @abstractmethod
    def remove(self, site: Site) -> None:
        """Remove what `put` brought; nothing there is no error."""


@dataclass(frozen=True)
class ClaimPlace(ContextPlace):
    """A persistent volume claim in the build's namespace.

    Args:
        claim: Its name.
        mount_path: Where this process sees the claim, such as a notebook's home or a pipeline's workspace. Without it
            a pod that mounts the claim takes the context by `exec`.
    """

    claim: str
    mount_path: Path | None = None

    def __post_init__(self) -> None:
        if self.mount_path is not None and not Path(self.mount_path).is_dir():
            raise UserError(f"mount_path: {self.mount_path}: no such folder", hint="Leave it out to load by a pod.")

    def put(self, file: BinaryIO, size: int, site: Site) -> PlacedContext:
        """Write the tar into the claim."""
        if self.mount_path is None:
            run_loader(site.cluster, self._describe_loader(site), site.namespace, self._write_command(site, size), file)
        else:
            path = Path(self.mount_path, _FOLDER, f"{site.name}.tar")
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            try:
                with temporary.open("wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                temporary.replace(path)
            except OSError as error:
                temporary.unlink(missing_ok=True)
                raise KfpMindSporeError(f"{path}: cannot be written: {error.strerror}") from error
        return PlacedContext(
            archive=f"{CONTEXT_FOLDER}/{_FOLDER}/{site.name}.tar",
            volumes=(self._volume,),
            mounts=({"name": "context", "mountPath": CONTEXT_FOLDER, "readOnly": True},),
        )

    def remove(self, site: Site) -> None:
        """Remove the tar from the claim."""
        if self.mount_path is not None:
            Path(self.mount_path, _FOLDER, f"{site.name}.tar").unlink(missing_ok=True)
            return
        path = f"{CONTEXT_FOLDER}/{_FOLDER}/{site.name}.tar"
        run_loader(site.cluster, self._describe_loader(site), site.namespace, ["rm", "-f", path, f"{path}.tmp"], None)

    @property
    def _volume(self) -> dict[str, Any]:
        return {"name": "context", "persistentVolumeClaim": {"claimName": self.claim}}

    def _write_command(self, site: Site, size: int) -> list[str]:
        folder = f"{CONTEXT_FOLDER}/{_FOLDER}"
        path = f"{folder}/{site.name}.tar"
        # An exec's standard input has no end that the pod would see: the number of bytes is it.
        return ["sh", "-ec", f"mkdir -p {folder}; head -c {size} > {path}.tmp; mv {path}.tmp {path}"]

    def _describe_loader(self, site: Site) -> dict[str, Any]:
        container = {
            "name": "load",
            "image": site.image,
            "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
            "volumeMounts": [{"name": "context", "mountPath": CONTEXT_FOLDER}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{site.name}-load", "labels": {"app.kubernetes.io/managed-by": "kfp-mindspore"}},
            "spec": {
                **site.pod,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "activeDeadlineSeconds": 3600,
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [self._volume],
            },
        }


@dataclass(frozen=True)
class ObjectStorePlace(ContextPlace):
    """A bucket of an S3 service; the pod fetches from it with this package's image.

    Args:
        url: Where contexts are put, `s3://bucket/folder`.
        endpoint_url: Address of the service as this process and the pod reach it; an empty text for AWS.
        region: Region; an empty text for boto3's choice.
        secret: Name of the Secret whose keys become the pod's environment, AWS_ACCESS_KEY_ID and
            AWS_SECRET_ACCESS_KEY; an empty text where the pod's account is enough.
    """

    url: str
    endpoint_url: str = ""
    region: str = ""
    secret: str = ""

    def __post_init__(self) -> None:
        try:
            parse_url(self._locate("context"))
        except UserError:
            raise UserError(f"object store: must be s3://BUCKET or s3://BUCKET/FOLDER, got {self.url!r}") from None

    def put(self, file: BinaryIO, size: int, site: Site) -> PlacedContext:
        """Upload the tar."""
        if not site.package_image:
            raise UserError(
                "package_image: the pod needs an image with kfp-mindspore to fetch from an object store",
                hint="Build one with `kfp-mindspore image runtime` and name it, or set KFP_MINDSPORE_IMAGE.",
            )
        url = self._locate(site.name)
        self._store.put(url, file)
        archive = f"{CONTEXT_FOLDER}/context.tar"
        command = ["python3", "-m", "kfp_mindspore.images.builders.fetch", url, archive]
        if self.endpoint_url:
            command += ["--endpoint-url", self.endpoint_url]
        if self.region:
            command += ["--region", self.region]
        mount = {"name": "context", "mountPath": CONTEXT_FOLDER}
        fetch: dict[str, Any] = {
            "name": FETCH_CONTAINER,
            "image": site.package_image,
            "command": command,
            "volumeMounts": [mount],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        if self.secret:
            fetch["envFrom"] = [{"secretRef": {"name": self.secret}}]
        return PlacedContext(
            archive=archive,
            volumes=({"name": "context", "emptyDir": {}},),
            mounts=({**mount, "readOnly": True},),
            init_containers=(fetch,),
        )

    def remove(self, site: Site) -> None:
        """Remove the object."""
        self._store.delete(self._locate(site.name))

    @property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.endpoint_url, self.region)

    def _locate(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}.tar"


@contextlib.contextmanager
def place_context(plan: ImagePlan, place: ContextPlace | None, site: Site) -> Iterator[PlacedContext]:
    """Bring a plan's context to where the pod can reach it, and remove it afterwards.

    Args:
        plan: Whose context it is.
        place: Where it goes when it is too large for a ConfigMap.
        site: The build.

    Raises:
        UserError: It is too large and there is no place for it.
    """
    with tempfile.TemporaryFile(prefix="kfp-mindspore-context-") as spool:
        file = cast(BinaryIO, spool)
        plan.write_context(file)
        size = file.tell()
        file.seek(0)
        packed = pack_small(file)
        if packed is not None:
            yield PlacedContext(archive=f"{SETTINGS_FOLDER}/{_PACKED_FILE}", data={_PACKED_FILE: packed})
            return
        if place is None:
            raise UserError(
                f"context: has {size:,} bytes, and a ConfigMap takes {LARGEST_CONFIG_MAP_BYTES:,} compressed",
                hint="Name a claim or an object store for it, or leave files out with a .dockerignore.",
            )
        file.seek(0)
        try:
            yield place.put(file, size, site)
        except BaseException:
            # What went wrong is worth more than what is left over from it.
            with contextlib.suppress(KfpMindSporeError):
                place.remove(site)
            raise
        place.remove(site)


def pack_small(file: BinaryIO) -> bytes | None:
    """Return the compressed content of a file when it fits into a ConfigMap, else None.

    Reading stops as soon as it does not, so that memory stays small whatever the file's size is.
    """
    packed = io.BytesIO()
    # The time of compression would make the same context another ConfigMap.
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as archive:
        while chunk := file.read(1 << 18):
            archive.write(chunk)
            if packed.tell() > LARGEST_CONFIG_MAP_BYTES:
                return None
    return packed.getvalue() if packed.tell() <= LARGEST_CONFIG_MAP_BYTES else None
