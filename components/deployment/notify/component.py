"""Component that sends a notice of a failed run."""

from kfp import dsl


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def notify(
    status: dsl.PipelineTaskFinalStatus,
    webhook: str = "",
    recipients: list[str] = [],
    sender: str = "",
    smtp_server: str = "",
    smtp_security: str = "starttls",
    smtp_user: str = "",
    when: str = "failure",
    lines: int = 20,
    ui: str = "",
    timeout: float = 10.0,
):
    """Send a notice of a failed run to a webhook or by e-mail, as dsl.ExitHandler's exit task.

    The notice has the failed step, its reason and its last log lines, as they are: a step must print no secrets. On a
    cluster they are read from the run's Workflow and pods, which needs the rights of pipeline-runner. The webhook's URL
    and the SMTP password are read from the environment variables KFP_MINDSPORE_WEBHOOK_URL and
    KFP_MINDSPORE_SMTP_PASSWORD, which `kfp.kubernetes.use_secret_as_env` sets from a Secret; they are never printed. A
    notice that cannot be sent fails this task.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines].

    Args:
        status: Filled in by KFP: the final state of the tasks under the ExitHandler.
        webhook: Form of the webhook's body: `slack`, `json`, or empty for no webhook.
        recipients: E-mail addresses; empty for no e-mail.
        sender: The e-mail's sender address.
        smtp_server: SMTP server, HOST or HOST:PORT.
        smtp_security: `starttls`, `tls` or `none`.
        smtp_user: User at the SMTP server; empty for no login.
        when: `failure`, or `always` for a notice of each run.
        lines: Last log lines of the failed step in the notice.
        ui: URL of Kubeflow Pipelines' pages, for a link to the run; empty for none.
        timeout: Seconds for each of three attempts.
    """
    from kfp_mindspore.runs.notice import NotifyOptions, send_notice

    options = NotifyOptions(
        webhook=webhook,
        recipients=recipients,
        sender=sender,
        smtp_server=smtp_server,
        smtp_security=smtp_security,
        smtp_user=smtp_user,
        when=when,
        lines=lines,
        ui=ui,
        timeout=timeout,
    )
    send_notice(status, options)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(notify, package_path=__file__.replace(".py", ".yaml"))
