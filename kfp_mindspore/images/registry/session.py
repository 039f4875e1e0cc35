"""A repository of a registry by its HTTP API: python-dxf's requests, with retries, authentication and told errors."""

from __future__ import annotations

import base64
import random
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import dxf
import requests
import www_authenticate

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.reference import DEFAULT_HOST, Reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.credentials import Credentials, find_credentials
from kfp_mindspore.images.registry.errors import RegistryError, TransientError, explain_failure, explain_response

_HUB_HOST = "registry-1.docker.io"
_LONGEST_PAUSE_SECONDS = 15.0


class Retry:
    """Counts failures and waits between them, twice as long each time.

    Args:
        config: `attempts` and `backoff_seconds`.
    """

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._failures = 0

    def reset(self) -> None:
        """Start anew: something got through."""
        self._failures = 0

    def pause(self, error: TransientError) -> None:
        """Wait before the next attempt.

        Raises:
            TransientError: `error`, when it was the last attempt.
        """
        self._failures += 1
        if self._failures >= self._config.attempts:
            if self._failures > 1:
                raise TransientError(f"{error.message}; tried {self._failures} times", hint=error.hint) from error
            raise error
        backoff = self._config.backoff_seconds * 2.0 ** (self._failures - 1) * random.uniform(0.75, 1.25)
        time.sleep(max(min(backoff, _LONGEST_PAUSE_SECONDS), error.retry_after))


class Session(dxf.DXF):
    """Requests to one repository over kept connections.

    Every request that can be repeated is, as `RegistryConfig` says; `send` sends once. Use as a context manager.

    Args:
        reference: The repository; tag and digest are not looked at.
        config: How registries are reached.

    Raises:
        UserError: docker's logins cannot be read.
    """

    def __init__(self, reference: Reference, config: RegistryConfig) -> None:
        self.reference = reference
        self.config = config
        self._credentials: Credentials | None = None
        self._asked_for_credentials = False
        self._has_only_read = True
        super().__init__(
            _HUB_HOST if reference.host == DEFAULT_HOST else reference.host,
            reference.repository,
            auth=_authenticate,
            insecure=config.is_insecure(reference.host),
            tlsverify=str(config.ca_file) if config.ca_file else True,
            timeout=config.timeout_seconds,
        )

    def __enter__(self) -> Session:
        super().__enter__()
        session = self._sessions[0]
        assert isinstance(session, requests.Session)
        # Without it requests would take a login from ~/.netrc.
        session.auth = _keep_request
        session.hooks["response"].append(self._remember_refusal)
        return self

    @property
    def credentials(self) -> Credentials | None:
        """The login for this registry, looked up once; None for none."""
        if not self._asked_for_credentials:
            self._credentials = find_credentials(self.reference.host, self.config)
            self._asked_for_credentials = True
        return self._credentials

    def ask(self, method: str, path: str, action: str, **options: Any) -> requests.Response:
        """Send a request below the repository, again while the registry fails.

        Args:
            method: Such as `head`.
            path: Below the repository, such as `manifests/latest`.
            action: What it is for, in an error's words.
            **options: Options of `requests`.

        Raises:
            CredentialsError: 401.
            PermissionDeniedError: 403.
            MissingError: 404.
            TransientError: It failed as often as `attempts` says.
            RegistryError: Any other answer of 400 or more.
        """
        return self.ask_url(method, self._repo_path + path, action, **options)

    def ask_url(self, method: str, url: str, action: str, **options: Any) -> requests.Response:
        """Send a request to a URL, absolute or relative to the API's root, as `ask` does."""
        retry = Retry(self.config)
        while True:
            try:
                return self.send(method, url, action, **options)
            except TransientError as error:
                retry.pause(error)
            except RegistryError as error:
                # docker-registry reads links while another push of the same digest writes them.
                if error.code != "DIGEST_INVALID":
                    raise
                retry.pause(TransientError(error.message))

    def send(self, method: str, url: str, action: str, **options: Any) -> requests.Response:
        """Send a request once; `url` can be relative to the API's root. Raises as `ask` does."""
        what = f"{action} {self.reference.name}"
        request: Any = self._base_request
        self._has_only_read &= method in ("get", "head")
        reads = self._has_only_read
        try:
            response: requests.Response = request(method, url, **options)
        except dxf.exceptions.DXFUnauthorizedError as error:
            raise explain_response(self._refused, what, self.reference.host, self._user, reads=reads) from error
        except requests.HTTPError as error:
            raise explain_response(error.response, what, self.reference.host, self._user, reads=reads) from error
        except requests.RequestException as error:
            raise explain_failure(error, what, self.reference.host, reads=reads) from error
        return response

    def _remember_refusal(self, response: requests.Response, **_: Any) -> None:
        if response.status_code == requests.codes["unauthorized"]:
            self._refused = response

    @property
    def _user(self) -> str:
        return self._credentials.username if self._credentials else ""

    def authorize(self, response: requests.Response) -> None:
        """Answer a 401: by the user's name, or by a token that the registry's server gives for it."""
        challenge = www_authenticate.parse(response.headers.get("WWW-Authenticate", ""))
        credentials = self.credentials
        if "bearer" in challenge:
            self.token = self._fetch_token(challenge["bearer"], credentials)
        elif credentials and credentials.password:
            self._headers = {"Authorization": _basic(credentials)}

    def _fetch_token(self, challenge: Any, credentials: Credentials | None) -> str:
        realm = urlsplit(str(challenge["realm"]))
        if realm.scheme != "https" and not self.config.is_insecure(realm.netloc):
            raise UserError(
                f"{self.reference.host}: sends to {realm.netloc} for a token by plain HTTP",
                hint="Name that host in insecure if this is meant.",
            )
        scopes = str(challenge["scope"]).split() if "scope" in challenge else []
        query = [(name, str(challenge[name])) for name in ("service",) if name in challenge]
        options: dict[str, Any] = {"verify": self._tlsverify, "timeout": self._timeout}
        session: Any = self._sessions[0]
        try:
            if credentials and credentials.identity_token:
                form = [*query, ("scope", " ".join(scopes)), ("grant_type", "refresh_token")]
                form += [("client_id", "kfp-mindspore"), ("refresh_token", credentials.identity_token)]
                answer = session.post(urlunsplit(realm), data=form, **options)
            else:
                query += [*parse_qsl(realm.query), *(("scope", scope) for scope in scopes)]
                headers = {"Authorization": _basic(credentials)} if credentials else {}
                url = urlunsplit(realm._replace(query=urlencode(query)))
                answer = session.get(url, headers=headers, **options)
        except requests.RequestException as error:
            raise explain_failure(error, "get a token", realm.netloc) from error
        if not answer.ok:
            raise explain_response(answer, "get a token", self.reference.host, self._user)
        content = answer.json()
        token = content.get("access_token") or content.get("token")
        if not token:
            raise RegistryError(f"get a token: {realm.netloc} answered without one")
        return str(token)


def _authenticate(session: dxf.DXFBase, response: requests.Response) -> None:
    if isinstance(session, Session):
        session.authorize(response)


def _keep_request(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.username}:{credentials.password}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
