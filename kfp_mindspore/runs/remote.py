"""Client of a Kubeflow Pipelines server: uploads and runs by kfp.Client."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.compat.lazy_kfp import import_kfp
from kfp_mindspore.errors import ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.runs.image import list_placeholders
from kfp_mindspore.runs.server import check_host, check_server, explain_errors
from kfp_mindspore.runs.spec import PipelineSpec, convert_arguments, get_pipeline_name, parse_spec

CONNECT_SECONDS = 10.0
POLL_SECONDS = 5.0

# kfp.Client.wait_for_run_completion misses CANCELED, and fails while a new run has no state.
_FINISHED = ("SUCCEEDED", "FAILED", "SKIPPED", "CANCELED")
# Enumeration value in KFP's filters.
_EQUALS = 1


@dataclass(frozen=True)
class UploadedPipeline:
    """A pipeline on a server.

    Args:
        name: Name of the pipeline.
        pipeline_id: ID of the pipeline.
        version_id: ID of the uploaded version; empty for the first one.
        version: Name of the uploaded version; empty for the first one.
        url: URL of its page.
    """

    name: str
    pipeline_id: str
    version_id: str
    version: str
    url: str


@dataclass(frozen=True)
class RemoteRun:
    """A run on a server.

    Args:
        run_id: ID of the run.
        name: Name of the run.
        state: `PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED`, `SKIPPED`, `CANCELED`, or another of KFP's.
        url: URL of its page.
        failed_steps: Names of the failed steps.
        error: KFP's error message; often empty.
    """

    run_id: str
    name: str
    state: str
    url: str
    failed_steps: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the run has succeeded, failed, or was skipped or cancelled."""
        return self.state in _FINISHED


class RemoteClient:
    """Uploads, runs and watches pipelines on a Kubeflow Pipelines server.

    Args:
        host: URL of the server, such as `https://kubeflow.example.com/pipeline` or `http://127.0.0.1:8080`.
        namespace: Namespace of the user on a multi-user server; empty on a single-user server.
        token: Bearer token; empty for none.
        connect_seconds: Timeout of the first request, in seconds.

    Raises:
        UserError: The host is missing or not a URL.
        KfpMindSporeError: The server is unreachable, refuses the request or is not Kubeflow Pipelines.
        MissingExtraError: kfp is not installed.
    """

    def __init__(
        self, host: str, *, namespace: str = "", token: str = "", connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self.host = check_host(host)
        self.namespace = namespace
        import_kfp()
        from kfp.client import Client

        check_server(self.host, token, connect_seconds)
        with warnings.catch_warnings(), explain_errors(self.host, "connect"):
            # It always warns about servers before 2.0.
            warnings.simplefilter("ignore", FutureWarning)
            # Without a namespace it requests the server's multi-user mode and caches the response in the home
            # directory; `kubeflow` means no namespace.
            self._client = Client(host=self.host, namespace=namespace or "kubeflow", existing_token=token or None)

    def upload(self, text: str, *, name: str = "", version: str = "", description: str = "") -> UploadedPipeline:
        """Upload a compiled pipeline, as a new version if a pipeline of this name exists.

        Args:
            text: The compiled pipeline.
            name: Name on the server; default the pipeline's.
            version: Name of the version of an existing pipeline; default derived from the digest of the text.
            description: Description on the server.

        Raises:
            UserError: The text is not a compiled pipeline, or its steps have no image.
            AlreadyExistsError: The pipeline has a version of this name.
            KfpMindSporeError: The server is unreachable or refuses the request.
        """
        spec = check_package(text)
        name = name or get_pipeline_name(spec)
        version = version or f"{name} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with _write_package(text) as package, explain_errors(self.host, "upload", version=version):
            pipeline_id = self._get_pipeline_id(name)
            if pipeline_id is None:
                created = self._client.upload_pipeline(
                    package, pipeline_name=name, description=description or None, namespace=self.namespace or None
                )
                return UploadedPipeline(name, created.pipeline_id, "", "", self._link("pipelines", created.pipeline_id))
            added = self._client.upload_pipeline_version(
                package, version, pipeline_id=pipeline_id, description=description or None
            )
            link = f"{self._link('pipelines', pipeline_id)}/version/{added.pipeline_version_id}"
            return UploadedPipeline(name, pipeline_id, added.pipeline_version_id, version, link)

    def run(
        self,
        text: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        experiment: str = "Default",
        cache: bool = True,
        pipeline_root: str = "",
        service_account: str = "",
    ) -> RemoteRun:
        """Start a run of a compiled pipeline and return immediately.

        Args:
            text: The compiled pipeline.
            arguments: Arguments of the pipeline; text is parsed as the parameter's type.
            name: Name of the run; default the pipeline's name with the time.
            experiment: Name of the experiment; created if missing.
            cache: Whether to use the server's cache.
            pipeline_root: URI of the artifacts, such as `s3://bucket/runs`; default the server's.
            service_account: Service account of the steps; default the server's.

        Raises:
            UserError: The text is not a compiled pipeline, its steps have no image, or an argument is invalid.
            KfpMindSporeError: The server is unreachable or refuses the request.
        """
        spec = check_package(text)
        values = convert_arguments(spec, arguments or {})
        if not cache:
            text = disable_caching(text)
        name = name or f"{get_pipeline_name(spec)} {time.strftime('%Y-%m-%d %H-%M-%S')}"
        with _write_package(text) as package, explain_errors(self.host, "run"):
            started = self._client.create_run_from_pipeline_package(
                package,
                arguments=values,
                run_name=name,
                experiment_name=experiment,
                namespace=self.namespace or None,
                pipeline_root=pipeline_root or None,
                service_account=service_account or None,
            )
            return self._describe_run(started.run_info)

    def get_run(self, run_id: str) -> RemoteRun:
        """Return a run.

        Raises:
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        with explain_errors(self.host, "get the run"):
            return self._describe_run(self._client.get_run(run_id))

    def wait(
        self,
        run_id: str,
        *,
        timeout: float | None = None,
        interval: float = POLL_SECONDS,
        on_state: Callable[[RemoteRun], None] | None = None,
    ) -> RemoteRun:
        """Wait until a run has succeeded.

        Args:
            run_id: ID of the run.
            timeout: Timeout in seconds; None for none. A run whose workflow was deleted stays RUNNING forever.
            interval: Poll interval in seconds.
            on_state: Called with the run after each change of its state.

        Raises:
            ProcessFailedError: The run failed, was skipped or cancelled; the message names the failed steps.
            WaitTimeoutError: The timeout expired; the run continues.
            KfpMindSporeError: The server is unreachable, or the run does not exist.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        state = ""
        while True:
            run = self.get_run(run_id)
            if on_state is not None and run.state != state:
                on_state(run)
            state = run.state
            if run.is_finished:
                break
            left = interval if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeoutError(
                    f"run {run.name}: still {state} after {timeout:g} s", hint=f"The run continues: {run.url}"
                )
            time.sleep(min(interval, left))
        if run.state != "SUCCEEDED":
            steps = f" in step {', '.join(run.failed_steps)}" if run.failed_steps else ""
            error = f": {run.error}" if run.error else ""
            raise ProcessFailedError(f"run {run.name} ended {run.state}{steps}{error}", hint=f"Details: {run.url}")
        return run

    def _get_pipeline_id(self, name: str) -> str | None:
        # kfp.Client.get_pipeline_id has no namespace argument.
        predicate = {"operation": _EQUALS, "key": "display_name", "stringValue": name}
        found = self._client.list_pipelines(
            filter=json.dumps({"predicates": [predicate]}), namespace=self.namespace or None
        )
        return next((pipeline.pipeline_id for pipeline in found.pipelines or ()), None)

    def _describe_run(self, run: Any) -> RemoteRun:
        details = run.run_details.task_details or [] if run.run_details else []
        failed = [task for task in details if task.state == "FAILED"]
        # Tasks without a pod are the DAGs around the failed steps.
        steps = [task for task in failed if task.pod_name] or failed
        return RemoteRun(
            run_id=run.run_id,
            name=run.display_name or run.run_id,
            state=run.state or "PENDING",
            url=self._link("runs", run.run_id),
            failed_steps=tuple(dict.fromkeys(task.display_name for task in steps)),
            error=str(run.error.message or "") if run.error else "",
        )

    def _link(self, kind: str, identifier: str) -> str:
        return f"{self.host}/#/{kind}/details/{identifier}"


def check_package(text: str) -> PipelineSpec:
    """Parse a compiled pipeline and check that its steps have images.

    Raises:
        UserError: The text is not a compiled pipeline, or a step has a placeholder image.
    """
    spec = parse_spec(text)
    placeholders = list_placeholders(spec)
    if placeholders:
        raise UserError(
            f"{get_pipeline_name(spec)}: its steps have no image, only the placeholder {placeholders[0]}",
            hint="Set an image with kfp-mindspore installed: --image, or KFP_MINDSPORE_IMAGE.",
        )
    return spec


def disable_caching(text: str) -> str:
    """Return a compiled pipeline with caching disabled for each step, including those in conditions and loops.

    Args:
        text: A compiled pipeline; documents after the first are not changed.
    """
    import yaml

    documents = [document for document in yaml.safe_load_all(text) if document]
    spec = documents[0]
    for component in (spec["root"], *spec.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task["cachingOptions"] = {}
    return str(yaml.safe_dump_all(documents, sort_keys=True))


@contextlib.contextmanager
def _write_package(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-") as directory:
        file = Path(directory, "pipeline.yaml")
        file.write_text(text)
        yield str(file)
