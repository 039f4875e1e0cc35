"""Connection to a Kubeflow Pipelines server: URL, credentials, a first request and errors."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kfp_mindspore.compat.lazy_kfp import skip_ipython
from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, NotFoundError, UserError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

HOST_VARIABLES = ("KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT")
TOKEN_VARIABLE = "KFP_TOKEN"
COOKIE_VARIABLE = "KFP_COOKIE"
# Set in a Kubeflow profile's notebooks by the PodDefault `access-ml-pipeline`; also read by kfp.Client.
TOKEN_FILE_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"
_LOG_SECONDS = 30.0


@dataclass(frozen=True)
class ServerCredentials:
    """Credentials for a Kubeflow Pipelines server; the token takes precedence over the token file.

    Args:
        token: Bearer token; empty for none.
        token_file: File with a service account's token, re-read for each request; empty for none.
        cookie: A login page's session cookie, such as `authservice_session=…`; empty for none.
        ca_file: The server's certificate authority; empty for the system's.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    cookie: str = field(default="", repr=False)
    ca_file: str = ""

    def build_headers(self) -> dict[str, str]:
        """Return a request's headers.

        Raises:
            UserError: The token file cannot be read.
        """
        token = self.token
        if not token and self.token_file:
            try:
                token = Path(self.token_file).read_text().strip()
            except OSError as error:
                raise UserError(f"token file: {self.token_file}: {error.strerror or error}") from error
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return {**headers, "Cookie": self.cookie} if self.cookie else headers


def check_host(host: str) -> str:
    """Return a server's URL with a scheme and without a trailing slash.

    Args:
        host: The URL; the default scheme is https, as for kfp.Client.

    Raises:
        UserError: The URL is empty or not an HTTP URL.
    """
    host = host.strip()
    if not host:
        raise UserError(
            "host: the URL of Kubeflow Pipelines is missing",
            hint=f"Set --host or {HOST_VARIABLES[0]}, for example http://127.0.0.1:8888",
        )
    scheme, separator, rest = host.partition("://")
    if not separator:
        return f"https://{host.rstrip('/')}"
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise UserError(f"host: must be an http:// or https:// URL, got {host!r}")
    return host.rstrip("/")


def check_server(host: str, credentials: ServerCredentials, seconds: float) -> None:
    """Check that a URL is served by Kubeflow Pipelines.

    kfp.Client would retry five times at five-second intervals and log a stack trace each time.

    Args:
        host: URL from `check_host`.
        credentials: The credentials.
        seconds: Timeout in seconds.

    Raises:
        UserError: The host is not a URL, or the token file cannot be read.
        KfpMindSporeError: The server is unreachable, refuses the request or is not Kubeflow Pipelines.
    """
    from urllib3.exceptions import HTTPError, LocationParseError

    url = f"{host}/apis/v2beta1/healthz"
    try:
        response = _get(url, credentials, seconds)
    except LocationParseError as error:
        raise UserError(f"host: {host!r} is not a URL ({error})") from None
    except HTTPError as error:
        raise KfpMindSporeError(
            f"{host}: no response from Kubeflow Pipelines ({_shorten(str(error))})",
            hint="Check the URL, or forward a port: kubectl port-forward -n kubeflow svc/ml-pipeline 8888",
        ) from error
    if response.status != 200:
        raise _make_error(host, "connect", response.status, response.reason or "", response.data)
    try:
        json.loads(response.data)
    except ValueError:
        kind = response.headers.get("Content-Type", "no type")
        raise KfpMindSporeError(
            f"{url}: expected JSON from Kubeflow Pipelines, got {kind}",
            hint="This may be a login page: set a token. Or the path of the API differs.",
        ) from None


def read_pod_log(host: str, credentials: ServerCredentials, run_id: str, pod: str) -> list[str]:
    """Return a step pod's log from the server's log API, empty if it is not available.

    The API returns status 200 with an error as JSON for a missing pod, and gateways may serve a page instead.

    Args:
        host: URL from `check_host`.
        credentials: The credentials.
        run_id: Run ID.
        pod: Pod name.
    """
    from urllib3.exceptions import HTTPError

    try:
        response = _get(f"{host}/apis/v1alpha1/runs/{run_id}/nodes/{pod}/log", credentials, _LOG_SECONDS)
    except HTTPError:
        return []
    text = response.data.decode(errors="replace")
    is_log = response.status == 200 and "text/html" not in response.headers.get("Content-Type", "")
    # The error follows the log part that was sent before it.
    lines = text.partition('{"error_message":')[0].splitlines()
    return lines if is_log and not text.lstrip().lower().startswith("<!doctype") else []


def find_execution_run(host: str, credentials: ServerCredentials, execution: str) -> str:
    """Return the ID of the run that computed a step's outputs, empty if the server does not know it.

    Args:
        host: URL from `check_host`.
        credentials: The credentials.
        execution: ID of the step's execution in ML Metadata.
    """
    from urllib3.exceptions import HTTPError

    predicate = {"key": "mlmdExecutionID", "op": "EQUALS", "string_value": execution}
    query = urlencode({"filter": json.dumps({"predicates": [predicate]})})
    try:
        response = _get(f"{host}/apis/v1alpha1/tasks?{query}", credentials, _LOG_SECONDS)
        tasks = json.loads(response.data).get("tasks") or [] if response.status == 200 else []
    except (HTTPError, ValueError):
        return ""
    return str(tasks[0].get("runId") or "") if tasks else ""


def retry_run(host: str, credentials: ServerCredentials, run_id: str) -> None:
    """Retry a failed run; kfp.Client 2.17 has no method for it.

    Args:
        host: URL from `check_host`.
        credentials: The credentials.
        run_id: Run ID.

    Raises:
        kfp_server_api.ApiException: The server refuses the request.
    """
    from kfp_server_api import (  # type: ignore[import-untyped,unused-ignore]
        ApiClient,
        Configuration,
        RunServiceApi,
    )

    configuration = Configuration(host=host)
    if credentials.ca_file:
        configuration.ssl_ca_cert = credentials.ca_file
    with ApiClient(configuration) as client:
        for name, value in credentials.build_headers().items():
            client.set_default_header(name, value)
        RunServiceApi(client).run_service_retry_run(run_id)


def _get(url: str, credentials: ServerCredentials, seconds: float) -> BaseHTTPResponse:
    import urllib3

    headers = {"Accept": "application/json", **credentials.build_headers()}
    with urllib3.PoolManager(retries=False, timeout=seconds, ca_certs=credentials.ca_file or None) as pool:
        return pool.request("GET", url, headers=headers)


@contextlib.contextmanager
def explain_errors(host: str, action: str, *, version: str = "", subject: str = "", hint: str = "") -> Iterator[None]:
    """Convert kfp.Client's errors in the block to this package's errors, and suppress the client's output.

    Args:
        host: Server URL.
        action: Operation name, for messages.
        version: The uploaded pipeline version's name.
        subject: The requested object, such as `run 6f2c`.
        hint: The next step after an internal error (500).

    Raises:
        AlreadyExistsError: The server has a version with this name.
        NotFoundError: The server does not have the requested object.
        KfpMindSporeError: The server is unreachable or refuses the request.
    """
    from kfp_server_api import ApiException  # type: ignore[import-untyped,unused-ignore]
    from urllib3.exceptions import HTTPError

    try:
        with contextlib.redirect_stdout(io.StringIO()), skip_ipython():
            yield
    except ApiException as error:
        # KFP 2.17's message is only "Failed to create a pipeline version".
        if version and (error.status == 409 or "already exist" in _read_message(error.body).lower()):
            raise AlreadyExistsError(
                f"version {version!r}: already exists, nothing was uploaded",
                hint="Without --version, this means that the same pipeline was uploaded before.",
            ) from error
        if subject and error.status == 404 and _read_message(error.body):
            raise NotFoundError(f"{subject}: does not exist on {host}, or was deleted") from error
        explained = _make_error(host, action, error.status or 0, error.reason or "", error.body)
        if error.status == 500:
            explained.hint = explained.hint or hint
        raise explained from error
    except (HTTPError, ValueError) as error:
        # After its retries, urllib3's message starts with the whole URL.
        reason = getattr(error, "reason", None) or error
        raise KfpMindSporeError(f"{host}: {action}: {_shorten(str(reason))}") from error


def _make_error(host: str, action: str, status: int, reason: str, body: Any) -> KfpMindSporeError:
    message = _read_message(body)
    hint = ""
    if status in (301, 302, 303, 307, 308, 401, 403):
        hint = (
            f"Set a token (--token, {TOKEN_VARIABLE}), a token file (--token-file) or a session cookie (--cookie), "
            "and your namespace (--namespace)."
        )
    elif status == 404 and not message:
        hint = "The path of the API may be missing: many installations serve it at …/pipeline."
    summary = f"{host}: {action}: HTTP {status} {reason}".rstrip()
    return KfpMindSporeError(f"{summary}: {message}" if message else summary, hint=hint)


def _read_message(body: Any) -> str:
    """Return the error message in a response body: KFP's message, or the text unless it is HTML."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        document = json.loads(text)
    except ValueError:
        return "" if "<" in text else _shorten(text)
    if isinstance(document, dict):
        return _shorten(str(document.get("error_message") or document.get("message") or document.get("error") or ""))
    return _shorten(text)


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 300 else f"{words[:297]}…"
