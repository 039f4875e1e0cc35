"""Example pipeline for notify."""

from kfp import dsl, kubernetes


@dsl.pipeline(name="notify-example")
def example_pipeline(epochs: int = 5):
    """Train, and send a notice to Slack when a step fails.

    Args:
        epochs: Passes over the training split.
    """
    from kfp_mindspore.components import load_dataset, notify, train_msjob

    notice = notify(webhook="slack")
    kubernetes.use_secret_as_env(notice, "slack", {"url": "KFP_MINDSPORE_WEBHOOK_URL"})
    with dsl.ExitHandler(notice):
        data = load_dataset(name="digits")
        train_msjob(
            dataset=data.outputs["dataset"],
            command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
            hyperparameters={"epochs": epochs},
        )
