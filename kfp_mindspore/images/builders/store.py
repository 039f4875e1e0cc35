"""Contexts in an object store that speaks S3: the client puts and removes them, the build's pod takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, NotFoundError, UserError

_SCHEME = "s3://"


class ObjectStore:
    """A bucket of an S3 service; credentials come from where boto3 looks for them.

    Args:
        endpoint_url: Address of the service, such as `http://minio:9000`; an empty text for AWS.
        region: Region; an empty text for boto3's choice.
    """

    def __init__(self, endpoint_url: str = "", region: str = "") -> None:
        self._endpoint_url = endpoint_url
        self._region = region

    def put(self, url: str, file: BinaryIO) -> None:
        """Upload a file from its current position, in parts when it is large.

        Raises:
            UserError: The URL is wrong, or the store refuses the credentials or has no such bucket.
            KfpMindSporeError: The store failed or does not answer.
        """
        bucket, key = parse_url(url)
        with self._explain(f"upload to {url}"):
            self._connect().upload_fileobj(file, bucket, key)

    def get(self, url: str, file: BinaryIO) -> None:
        """Download an object into a file; errors are those of `put`."""
        bucket, key = parse_url(url)
        with self._explain(f"download of {url}"):
            self._connect().download_fileobj(bucket, key, file)

    def delete(self, url: str) -> None:
        """Remove an object; one that is not there is no error."""
        bucket, key = parse_url(url)
        with self._explain(f"removal of {url}"):
            self._connect().delete_object(Bucket=bucket, Key=key)

    def _connect(self) -> Any:
        try:
            import boto3
        except ImportError:
            raise MissingExtraError("boto3", "images") from None
        # The module's own session keeps the credentials that it found first.
        return boto3.Session().client("s3", endpoint_url=self._endpoint_url or None, region_name=self._region or None)

    @contextlib.contextmanager
    def _explain(self, what: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

        try:
            yield
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise UserError(
                f"{what}: {error}", hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a Secret with them."
            ) from None
        except ClientError as error:
            raise _explain_answer(what, error.response.get("Error") or {}) from None
        except (BotoCoreError, Boto3Error) as error:
            raise KfpMindSporeError(f"{what}: {error}") from None


def parse_url(url: str) -> tuple[str, str]:
    """Return bucket and key of `s3://bucket/key`.

    Raises:
        UserError: It is none.
    """
    bucket, _, key = url.removeprefix(_SCHEME).partition("/")
    if not url.startswith(_SCHEME) or not bucket or not key:
        raise UserError(f"object store: must be s3://BUCKET/KEY, got {url!r}")
    return bucket, key


def _explain_answer(what: str, error: dict[str, Any]) -> KfpMindSporeError:
    code, text = str(error.get("Code", "")), str(error.get("Message", ""))
    if code in ("404", "NoSuchKey", "NoSuchBucket"):
        return NotFoundError(f"{what}: {text or code}")
    if code in ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return UserError(f"{what}: refused ({code} {text})", hint="See which account the credentials belong to.")
    return KfpMindSporeError(f"{what}: {code} {text}")
