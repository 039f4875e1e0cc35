"""`kfp-mindspore operator`: the controller of MSJobs on Kubernetes."""

from __future__ import annotations

import click

from kfp_mindspore.operator.options import GANG_SCHEDULERS, GangScheduler


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def operator() -> None:
    """Run MSJobs on Kubernetes: the controller, and what it needs in a cluster."""


@operator.command(epilog="Example: kfp-mindspore operator run --context kind-kind -n team-a -n team-b")
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only jobs of this namespace; repeatable.")
@click.option("--kubeconfig", default="", help="A kubeconfig file. [default: the pod's account, or $KUBECONFIG]")
@click.option("--context", default="", help="A context of the kubeconfig. [default: its current one]")
@click.option(
    "--gang-scheduler",
    type=click.Choice(GANG_SCHEDULERS),
    default="none",
    show_default=True,
    help="Who admits all pods of a job, or none of them.",
)
@click.option("--scheduler-name", default="", help="schedulerName of pods with a gang scheduler. [default: its usual]")
@click.option("--istio-sidecar", is_flag=True, help="Let Istio put its sidecar into job pods.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=16, show_default=True, help="Jobs that are looked at at once."
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="A line of the log."
)
@click.option("--verbose", is_flag=True, help="Tell of requests that are tried again.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address of probes and metrics.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port of /healthz, /readyz and /metrics; 0: a free one.",
)
@click.option("--leader-elect/--no-leader-elect", help="Act only while holding the Lease, as one of several replicas.")
@click.option("--lease-namespace", default="", help="Where the Lease is. [default: the operator's own namespace]")
def run(
    namespaces: tuple[str, ...],
    kubeconfig: str,
    context: str,
    gang_scheduler: GangScheduler,
    scheduler_name: str,
    istio_sidecar: bool,
    workers: int,
    log_format: str,
    verbose: bool,
    host: str,
    metrics_port: int,
    leader_elect: bool,
    lease_namespace: str,
) -> None:
    """Run the operator in the foreground until Ctrl-C or SIGTERM."""
    from kfp_mindspore.operator.credentials import Login
    from kfp_mindspore.operator.logs import start_log
    from kfp_mindspore.operator.options import Options
    from kfp_mindspore.operator.runtime import Settings, run_operator

    start_log("json" if log_format == "json" else "text", verbose=verbose)
    run_operator(
        Settings(
            login=Login(kubeconfig, context),
            namespaces=namespaces,
            options=Options(istio_sidecar=istio_sidecar, gang_scheduler=gang_scheduler, scheduler_name=scheduler_name),
            workers=workers,
            host=host,
            port=metrics_port,
            leader_elect=leader_elect,
            lease_namespace=lease_namespace,
        )
    )
