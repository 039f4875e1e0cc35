"""HTTP requests to one repository in a registry, with authentication and retries."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import parse_qsl, urljoin, urlsplit

import requests
from requests.utils import parse_dict_header

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.reference import DEFAULT_HOST, Reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.credentials import RegistryCredentials, get_credentials
from kfp_mindspore.images.registry.errors import RegistryError, TransientError, explain_request_error, explain_status
from kfp_mindspore.retries import wait_with_jitter

if TYPE_CHECKING:
    from typing_extensions import Unpack

_HUB_HOST = "registry-1.docker.io"
_MAX_BACKOFF_SECONDS = 15.0
Result = TypeVar("Result")


def retry(config: RegistryConfig, operation: Callable[[], Result]) -> Result:
    """Return an operation's result, repeating it after transient errors with exponential backoff.

    Args:
        config: `attempts` and `backoff_seconds`.
        operation: The operation.

    Raises:
        TransientError: The last attempt failed too.
    """
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

    def explain(state: RetryCallState) -> Result:
        assert state.outcome is not None
        if state.attempt_number > 1 and isinstance(error := state.outcome.exception(), TransientError):
            raise TransientError(f"{error.message}; tried {state.attempt_number} times", hint=error.hint) from error
        result: Result = state.outcome.result()
        return result

    retrying = Retrying(
        retry=retry_if_exception_type(TransientError),
        retry_error_callback=explain,
        stop=stop_after_attempt(config.attempts),
        wait=wait_with_jitter(config.backoff_seconds, _MAX_BACKOFF_SECONDS),
    )
    return retrying(operation)


class RequestOptions(TypedDict, total=False):
    """Options of `requests` that a request may have."""

    data: Any
    headers: Mapping[str, str]
    stream: bool


class RegistrySession:
    """A connection pool for one repository; a context manager.

    Args:
        reference: The repository; tag and digest are ignored.
        config: How registries are reached.
    """

    def __init__(self, reference: Reference, config: RegistryConfig) -> None:
        self.reference = reference
        self.config = config
        scheme = "http" if config.is_insecure(reference.host) else "https"
        host = _HUB_HOST if reference.host == DEFAULT_HOST else reference.host
        self.base_url = f"{scheme}://{host}/v2/{reference.repository}/"
        self._authorization = ""
        self._http = requests.Session()
        # Per request: requests prefers $REQUESTS_CA_BUNDLE to the session's own setting.
        self._options: dict[str, Any] = {
            "timeout": config.timeout_seconds,
            "verify": str(config.ca_file) if config.ca_file else True,
        }
        # An explicit auth also keeps requests from reading ~/.netrc.
        self._http.auth = self._add_authorization

    def __enter__(self) -> RegistrySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @cached_property
    def credentials(self) -> RegistryCredentials | None:
        """The login for this registry; None without one."""
        return get_credentials(self.reference.host, self.config)

    def request(self, method: str, path: str, action: str, **options: Unpack[RequestOptions]) -> requests.Response:
        """Send a request below the repository, with retries.

        Args:
            method: Such as `head`.
            path: Path below the repository, such as `manifests/latest`.
            action: The request in an error message's words, such as `push a layer to`.
            **options: Body, headers, and whether the body is streamed.

        Raises:
            CredentialsError: 401.
            PermissionDeniedError: 403.
            MissingError: 404.
            TransientError: All attempts failed.
            RegistryError: Another status >= 400.
        """

        def send() -> requests.Response:
            try:
                return self.send(method, path, action, **options)
            except RegistryError as error:
                # docker-registry returns DIGEST_INVALID while another client pushes the same digest.
                if error.code != "DIGEST_INVALID":
                    raise
                raise TransientError(error.message) from error

        return retry(self.config, send)

    def send(self, method: str, path: str, action: str, **options: Unpack[RequestOptions]) -> requests.Response:
        """Send a request once; `path` is relative to the repository, or a URL. Raises the same errors as `request`."""
        description = f"{action} {self.reference.name}"
        url = urljoin(self.base_url, path)
        response = self._send(method, url, description, **options)
        if response.status_code == 401 and self._authorize(response.headers.get("WWW-Authenticate", "")):
            response.close()
            response = self._send(method, url, description, **options)
        if response.status_code >= 400:
            raise explain_status(response, description, self.reference.host, self._user)
        return response

    def _send(self, method: str, url: str, description: str, **options: Unpack[RequestOptions]) -> requests.Response:
        try:
            return self._http.request(method, url, **self._options, **options)
        except requests.RequestException as error:
            raise explain_request_error(error, description, self.reference.host) from error

    @property
    def _user(self) -> str:
        return self.credentials.username if self.credentials else ""

    def _add_authorization(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        # requests removes the header on a redirect to another host.
        if self._authorization:
            request.headers["Authorization"] = self._authorization
        return request

    def _authorize(self, challenge: str) -> bool:
        """Respond to a challenge; return whether the request can be sent again."""
        scheme, _, rest = challenge.partition(" ")
        before = self._authorization
        if scheme.lower() == "bearer":
            parameters: dict[str, str | None] = parse_dict_header(rest)  # type: ignore[no-untyped-call]
            self._authorization = f"Bearer {self._request_token(parameters)}"
        elif scheme.lower() == "basic" and self.credentials and self.credentials.password:
            self._authorization = _make_basic(self.credentials)
        return self._authorization != before

    def _request_token(self, challenge: dict[str, str | None]) -> str:
        realm = str(challenge.get("realm") or "")
        host = urlsplit(realm).netloc
        if urlsplit(realm).scheme != "https" and not self.config.is_insecure(host):
            raise UserError(
                f"{self.reference.host}: its token server {host or realm!r} does not use HTTPS",
                hint="Name that host in insecure to allow plain HTTP.",
            )
        credentials = self.credentials
        service = [("service", str(challenge["service"]))] if challenge.get("service") else []
        scopes = str(challenge.get("scope") or "").split()
        options: dict[str, Any] = {**self._options, "auth": _keep_request}
        try:
            if credentials and credentials.identity_token:
                form = [*service, ("scope", " ".join(scopes)), ("grant_type", "refresh_token")]
                form += [("client_id", "kfp-mindspore"), ("refresh_token", credentials.identity_token)]
                response = self._http.post(realm, data=form, **options)
            else:
                query = [*parse_qsl(urlsplit(realm).query), *service, *(("scope", scope) for scope in scopes)]
                headers = {"Authorization": _make_basic(credentials)} if credentials else {}
                response = self._http.get(realm.partition("?")[0], params=query, headers=headers, **options)
        except requests.RequestException as error:
            raise explain_request_error(error, "request a token", host) from error
        if not response.ok:
            raise explain_status(response, "request a token", self.reference.host, self._user)
        content = response.json()
        token = content.get("access_token") or content.get("token")
        if not token:
            raise RegistryError(f"request a token: {host} returned none")
        return str(token)


def _keep_request(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _make_basic(credentials: RegistryCredentials) -> str:
    pair = f"{credentials.username}:{credentials.password}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
