"""Uploads and runs pipelines on a cluster, by kfp.Client: its defaults made safe, its errors made readable."""

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

# kfp.Client's own wait knows neither the last one nor that a new run has no state yet.
_FINISHED = ("SUCCEEDED", "FAILED", "SKIPPED", "CANCELED")
# The number of this operation in KFP's filters.
_EQUALS = 1


@dataclass(frozen=True)
class UploadedPipeline:
    """A pipeline on a cluster.

    Args:
        name: Its name.
        pipeline_id: Its id.
        version_id: Id of the version that was uploaded; empty when it is the first one.
        version: Name of that version; empty when it is the first one.
        url: Its page.
    """

    name: str
    pipeline_id: str
    version_id: str
    version: str
    url: str


@dataclass(frozen=True)
class RemoteRun:
    """A run on a cluster.

    Args:
        run_id: Its id.
        name: Its name.
        state: `PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED`, `SKIPPED`, `CANCELED`, or another of KFP's.
        url: Its page.
        failed_steps: Steps that failed.
        error: What KFP says about a failure; often empty.
    """

    run_id: str
    name: str
    state: str
    url: str
    failed_steps: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.state in _FINISHED


class RemoteClient:
    """A Kubeflow Pipelines server, asked by kfp.Client.

    Args:
        host: Its address, such as `https://kubeflow.example.com/pipeline` or `http://127.0.0.1:8080`.
        namespace: The user's namespace, for servers with several users; empty for a server with one.
        token: Bearer token; empty for none.
        connect_seconds: Seconds to wait for the server's first answer.

    Raises:
        UserError: There is no host, or it is no address.
        KfpMindSporeError: The server cannot be reached, refuses, or is no Kubeflow Pipelines server.
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
            # It always warns that servers before 2.0 are not supported.
            warnings.simplefilter("ignore", FutureWarning)
            # Without an own namespace it asks the server whether there are several users, and remembers the answer in
            # the home directory; the name it takes for none is kubeflow.
            self._client = Client(host=self.host, namespace=namespace or "kubeflow", existing_token=token or None)

    def upload(self, text: str, *, name: str = "", version: str = "", description: str = "") -> UploadedPipeline:
        """Upload a compiled pipeline; as a new version when there is a pipeline of this name.

        Args:
            text: The compiled pipeline.
            name: Its name on the server; by default its own.
            version: Name of the version when there is a pipeline already; by default made from the digest of the text.
            description: What the server shows.

        Raises:
            UserError: The text is no compiled pipeline, or its steps have no image.
            AlreadyExistsError: The pipeline has a version of this name.
            KfpMindSporeError: The server cannot be reached or refuses.
        """
        spec = check_package(text)
        name = name or get_pipeline_name(spec)
        version = version or f"{name} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with _write_package(text) as package, explain_errors(self.host, "upload", version=version):
            pipeline_id = self._find_pipeline(name)
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
        """Start a compiled pipeline and return at once.

        Args:
            text: The compiled pipeline.
            arguments: Its arguments; text is read as the parameter's type.
            name: Name of the run; by default the pipeline's with the time.
            experiment: The experiment to put it into; made when missing.
            cache: Whether steps may be answered from the server's cache.
            pipeline_root: Where artifacts go, such as `s3://bucket/runs`; by default where the server puts them.
            service_account: Service account of the steps; by default the server's.

        Raises:
            UserError: The text is no compiled pipeline, its steps have no image, or an argument is wrong.
            KfpMindSporeError: The server cannot be reached or refuses.
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
        """Ask for a run.

        Raises:
            KfpMindSporeError: The server cannot be reached or knows no such run.
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
            run_id: The run.
            timeout: Seconds to wait; None for ever. A run whose workflow was deleted stays RUNNING for ever.
            interval: Seconds between two questions.
            on_state: Called with the run when its state is another than before.

        Raises:
            ProcessFailedError: The run failed, was skipped or cancelled; the failed steps are named.
            WaitTimeoutError: It had not ended in time; it goes on.
            KfpMindSporeError: The server cannot be reached or knows no such run.
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
                    f"run {run.name}: still {state} after {timeout:g} s", hint=f"It goes on: {run.url}"
                )
            time.sleep(min(interval, left))
        if run.state != "SUCCEEDED":
            steps = f" in step {', '.join(run.failed_steps)}" if run.failed_steps else ""
            error = f": {run.error}" if run.error else ""
            raise ProcessFailedError(f"run {run.name} ended {run.state}{steps}{error}", hint=f"Its page: {run.url}")
        return run

    def _find_pipeline(self, name: str) -> str | None:
        # kfp.Client.get_pipeline_id does not look into a namespace.
        predicate = {"operation": _EQUALS, "key": "display_name", "stringValue": name}
        found = self._client.list_pipelines(
            filter=json.dumps({"predicates": [predicate]}), namespace=self.namespace or None
        )
        return next((pipeline.pipeline_id for pipeline in found.pipelines or ()), None)

    def _describe_run(self, run: Any) -> RemoteRun:
        details = run.run_details.task_details or [] if run.run_details else []
        failed = tuple(dict.fromkeys(task.display_name for task in details if task.state == "FAILED" and task.pod_name))
        return RemoteRun(
            run_id=run.run_id,
            name=run.display_name or run.run_id,
            state=run.state or "PENDING",
            url=self._link("runs", run.run_id),
            failed_steps=failed
            or tuple(dict.fromkeys(task.display_name for task in details if task.state == "FAILED")),
            error=str(run.error.message or "") if run.error else "",
        )

    def _link(self, kind: str, identifier: str) -> str:
        return f"{self.host}/#/{kind}/details/{identifier}"


def check_package(text: str) -> PipelineSpec:
    """Return the pipeline of a compiled text whose steps can run on a cluster.

    Raises:
        UserError: It is no compiled pipeline, or a step's image is still a placeholder.
    """
    spec = parse_spec(text)
    placeholders = list_placeholders(spec)
    if placeholders:
        raise UserError(
            f"{get_pipeline_name(spec)}: its steps have no image, only the placeholder {placeholders[0]}",
            hint="Name one that holds kfp-mindspore: --image, or KFP_MINDSPORE_IMAGE.",
        )
    return spec


def disable_caching(text: str) -> str:
    """Return a compiled pipeline whose steps are not cached, those in conditions and loops included.

    Args:
        text: A compiled pipeline; documents after the first stay as they are.
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
