"""Storage of build contexts between the client and the build pod: a persistent volume claim or an S3 bucket."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from kfp_mindspore import files
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError, ValidationError, require_extra
from kfp_mindspore.images.plan import ImagePlan

CONTEXT_URL_VARIABLE = "KFP_MINDSPORE_CONTEXT_URL"
_MOUNT_PATH = "/run/kfp-mindspore/context"
_FOLDER = "kfp-mindspore-contexts"
# S3's signature version 4 limit.
_MAX_URL_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class StoredContext:
    """An uploaded build context.

    Args:
        archive: Tar path in the pod; empty with `url`.
        url: The tar's presigned URL: anyone who has it can read the context until it expires.
        volumes: The pod's volumes.
        mounts: The build container's volume mounts.
    """

    archive: str = ""
    url: str = ""
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()


class ContextStore(ABC):
    """Storage that the client writes build contexts to and the build pod reads them from."""

    @abstractmethod
    def upload(self, file: BinaryIO, name: str, lifetime_seconds: int) -> StoredContext:
        """Upload the tar from the file's position on.

        Args:
            file: The tar.
            name: The build's unique name.
            lifetime_seconds: Seconds for which the pod must be able to read it.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a build's context, if there is one."""


@dataclass(frozen=True)
class PvcContextStore(ContextStore):
    """A persistent volume claim that this process has mounted, such as a notebook's home or a pipeline's workspace.

    Args:
        claim: Claim name, in the build's namespace.
        mount_path: Where this process has mounted it.
    """

    claim: str
    mount_path: Path

    def __post_init__(self) -> None:
        if not Path(self.mount_path).is_dir():
            raise UserError(
                f"claim {self.claim}: {self.mount_path}: no such folder",
                hint="Name the folder that the claim is mounted on here, or use an object store.",
            )

    def upload(self, file: BinaryIO, name: str, lifetime_seconds: int) -> StoredContext:
        """Copy the tar to the claim."""
        path = self._get_path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.replace_file(path) as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
        except OSError as error:
            raise KfpMindSporeError(f"{path}: cannot be written: {error.strerror}") from error
        return StoredContext(
            archive=f"{_MOUNT_PATH}/{_FOLDER}/{path.name}",
            volumes=({"name": "context", "persistentVolumeClaim": {"claimName": self.claim}},),
            mounts=({"name": "context", "mountPath": _MOUNT_PATH, "readOnly": True},),
        )

    def delete(self, name: str) -> None:
        """Delete the tar from the claim."""
        self._get_path(name).unlink(missing_ok=True)

    def _get_path(self, name: str) -> Path:
        return Path(self.mount_path, _FOLDER, f"{name}.tar")


@dataclass(frozen=True)
class S3ContextStore(ContextStore):
    """A bucket in an S3 service; BuildKit downloads the context by a presigned URL, so the pod needs no credentials.

    Upload credentials are resolved by boto3.

    Args:
        url: `s3://bucket` or `s3://bucket/prefix`.
        endpoint_url: Service address, the same for this process and the pod; empty for AWS.
        region: Region; empty for boto3's default.
    """

    url: str
    endpoint_url: str = ""
    region: str = ""

    def __post_init__(self) -> None:
        if not self.url.startswith("s3://") or not self._bucket:
            raise ValidationError([f"store: must be s3://BUCKET or s3://BUCKET/PREFIX, got {self.url!r}"])

    def upload(self, file: BinaryIO, name: str, lifetime_seconds: int) -> StoredContext:
        """Upload the tar, in parts when it is large, and presign its URL.

        Raises:
            UserError: The service refuses the credentials, or there are none.
            NotFoundError: There is no such bucket.
            KfpMindSporeError: The service fails or does not respond.
        """
        key = self._get_key(name)
        with _convert_errors(f"upload to s3://{self._bucket}/{key}"):
            client = self._connect()
            client.upload_fileobj(file, self._bucket, key)
            url = client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self._bucket, "Key": key},
                ExpiresIn=min(lifetime_seconds, _MAX_URL_SECONDS),
            )
        return StoredContext(url=str(url))

    def delete(self, name: str) -> None:
        """Delete the object."""
        key = self._get_key(name)
        with _convert_errors(f"deletion of s3://{self._bucket}/{key}"):
            self._connect().delete_object(Bucket=self._bucket, Key=key)

    @property
    def _bucket(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[0]

    def _get_key(self, name: str) -> str:
        prefix = self.url.removeprefix("s3://").partition("/")[2].strip("/")
        return f"{prefix}/{name}.tar" if prefix else f"{name}.tar"

    def _connect(self) -> Any:
        with require_extra("boto3", "images"):
            import boto3
            from botocore.config import Config
        # boto3's default session caches the first credentials it resolved.
        return boto3.Session().client(
            "s3",
            endpoint_url=self.endpoint_url or None,
            region_name=self.region or None,
            # Presigned URLs default to version 2, which newer regions and services refuse.
            config=Config(signature_version="s3v4"),
        )


def make_context_store(
    *, claim: str = "", claim_path: Path | str | None = None, store: str = "", store_endpoint: str = ""
) -> ContextStore | None:
    """Return the context store that command-line or step options name, or None when they name no store.

    Args:
        claim: Persistent volume claim name.
        claim_path: Where this process has mounted the claim.
        store: `s3://BUCKET/PREFIX`.
        store_endpoint: The S3 service's address; empty for AWS.

    Raises:
        UserError: Options contradict each other, or one is missing.
    """
    if claim and store:
        raise ValidationError(["claim, store: a context is stored in one of them, got both"])
    if bool(claim) != bool(claim_path):
        raise ValidationError(
            ["claim, claim_path: both or neither: the claim's name and the folder it is mounted on here"]
        )
    if store_endpoint and not store:
        raise ValidationError(["store_endpoint: needs store, which is empty"])
    if claim and claim_path:
        return PvcContextStore(claim, Path(claim_path))
    return S3ContextStore(store, store_endpoint) if store else None


@contextlib.contextmanager
def upload_context(plan: ImagePlan, store: ContextStore, name: str, lifetime_seconds: int) -> Iterator[StoredContext]:
    """Upload a plan's build context for a block, and delete it at the end.

    Args:
        plan: The image plan.
        store: Where to.
        name: The build's unique name.
        lifetime_seconds: Seconds for which the pod must be able to read it.
    """
    try:
        with tempfile.TemporaryFile(prefix="kfp-mindspore-context-") as spool:
            file = cast(BinaryIO, spool)
            plan.write_context(file)
            file.seek(0)
            stored = store.upload(file, name, lifetime_seconds)
        yield stored
    except BaseException:
        # The build's own error is the one to report.
        with contextlib.suppress(KfpMindSporeError):
            store.delete(name)
        raise
    store.delete(name)


@contextlib.contextmanager
def _convert_errors(action: str) -> Iterator[None]:
    with require_extra("boto3", "images"):
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise UserError(f"{action}: {error}", hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.") from None
    except ClientError as error:
        raise _convert_client_error(action, error.response.get("Error") or {}) from None
    except (BotoCoreError, Boto3Error) as error:
        raise KfpMindSporeError(f"{action}: {error}") from None


def _convert_client_error(action: str, error: dict[str, Any]) -> KfpMindSporeError:
    code, text = str(error.get("Code", "")), str(error.get("Message", ""))
    if code in ("404", "NoSuchKey", "NoSuchBucket"):
        return NotFoundError(f"{action}: {text or code}")
    if code in ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return UserError(f"{action}: refused ({code} {text})", hint="Check the account of the credentials.")
    return KfpMindSporeError(f"{action}: {code} {text}")
