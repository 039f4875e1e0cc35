"""Options that several `kfp-mindspore pipeline` commands share: the source, the server and its runs' cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kfp_mindspore.cli.shared.completion import complete_pipelines
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import PairType
from kfp_mindspore.settings import IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster
    from kfp_mindspore.runs.remote.client import RemoteClient

Command = TypeVar("Command", bound=Callable[..., Any])

SOURCE = "NAME|FILE.py[:FUNCTION]|FILE.yaml"
# An unreachable API server delays a run poll by this many seconds.
_CLUSTER_SECONDS = 10.0


@dataclass(frozen=True)
class PipelineServerOptions:
    """Server option values.

    Args:
        host: URL of Kubeflow Pipelines. [env: KFP_ENDPOINT]
        namespace: Your namespace on a multi-user server.
        token: Bearer token. [env: KFP_TOKEN]
        token_file: File with a service account's token. [env: KF_PIPELINES_SA_TOKEN_PATH]
        cookie: Session cookie, such as `authservice_session=…`. [env: KFP_COOKIE]
        ca_file: Certificate authority of the server, PEM.
        kubeconfig: Cluster of the runs, for reasons of failures. [default: KUBECONFIG, ~/.kube/config if it exists]
        context: Context of the kubeconfig. [default: its current one]
    """

    host: str = ""
    namespace: str = ""
    token: str = ""
    token_file: str = ""
    cookie: str = ""
    ca_file: str = ""
    kubeconfig: Path | None = None
    context: str | None = None

    def connect(self) -> RemoteClient:
        """Return a client for the server.

        Raises:
            UserError: The host is missing or not a URL.
            KfpMindSporeError: The server is unreachable or refuses the request.
        """
        from kfp_mindspore.runs.remote.client import RemoteClient

        return RemoteClient(
            self.host,
            namespace=self.namespace,
            token=self.token,
            token_file=self.token_file,
            cookie=self.cookie,
            ca_file=self.ca_file,
            cluster=self._open_cluster(),
        )

    def prepare(self, source: str, image: str) -> tuple[RemoteClient, str]:
        """Compile a pipeline, then connect: pipeline errors are reported without a server."""
        from kfp_mindspore.runs.compiled.package import check_package
        from kfp_mindspore.runs.compiled.sources import check_source, compile_text
        from kfp_mindspore.runs.remote.server import check_host
        from kfp_mindspore.steps.handover.storage_spec import check_pipeline

        check_source(source)
        check_host(self.host)
        text = compile_text(source, image)
        check_package(text)
        check_pipeline(text)
        return self.connect(), text

    def _open_cluster(self) -> Cluster | None:
        """Return the cluster if one is configured; a run is watched without it otherwise."""
        from kfp_mindspore.errors import KfpMindSporeError
        from kfp_mindspore.kube.cluster import Cluster

        cluster = Cluster(self.kubeconfig, self.context, retry_timeout=_CLUSTER_SECONDS)
        try:
            cluster.namespace  # noqa: B018 - reads the configuration
        except KfpMindSporeError:
            if self.kubeconfig is not None or self.context is not None:
                raise
            return None
        return cluster


@dataclass(frozen=True)
class RunOptions:
    """Options for a run and a schedule, as `RemoteClient.run` and `schedule` have them.

    Args:
        experiment: Experiment of the run.
        pipeline_root: URI of the artifacts, such as `s3://bucket/runs`.
        service_account: Service account of the steps.
        no_cache: Disable caching.
    """

    experiment: str = "Default"
    pipeline_root: str = ""
    service_account: str = ""
    no_cache: bool = False

    def to_arguments(self) -> dict[str, Any]:
        """Return the client's keyword arguments."""
        arguments = dataclasses.asdict(self)
        return {"cache": not arguments.pop("no_cache"), **arguments}


add_server_options = dataclass_options(
    PipelineServerOptions,
    into="server",
    names={"namespace": "-n --namespace"},
    types={"kubeconfig": click.Path(path_type=Path)},
    settings={
        "host": {"envvar": ["KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT"]},
        "token": {"envvar": "KFP_TOKEN"},
        "token_file": {"envvar": "KF_PIPELINES_SA_TOKEN_PATH"},
        "cookie": {"envvar": "KFP_COOKIE"},
    },
)
# Pipeline arguments, passed to the command as `parameters`.
add_parameters = click.option(
    "-p", "--param", "parameters", type=PairType(), multiple=True, help="Pipeline argument; repeatable."
)
_add_run_options = dataclass_options(RunOptions)


def add_source(command: Command) -> Command:
    """Add the argument SOURCE and the option `--image`."""
    image = click.option(
        "--image",
        envvar=IMAGE_VARIABLE,
        default="",
        help="Image of the steps and of the jobs' pods, preferably by digest. [env: KFP_MINDSPORE_IMAGE]",
    )
    return click.argument("source", metavar=SOURCE, shell_complete=complete_pipelines)(image(command))


def add_run_options(command: Command) -> Command:
    """Add `RunOptions` and the pipeline arguments."""
    return add_parameters(_add_run_options(command))
