"""The steps from a language model and texts to the tuned model's service."""


def tune_and_deploy(base, tuning, evaluation, service_name, namespace, service_account, **options):
    """Train a language model, compare it with the one before the training and deploy it if it has improved.

    Args:
        base: The model before the training.
        tuning: Arguments for `finetune_language_model`; its `length` is the evaluation's too.
        evaluation: Arguments for `evaluate_language_model`.
        service_name: Name for the service and for the model in requests.
        namespace: Service namespace; empty for the steps'.
        service_account: Service account for the service's pods; empty for the default.
        **options: Further arguments for `deploy_kserve`.
    """
    from kfp_mindspore.components import evaluate_language_model, finetune_language_model
    from kfp_mindspore.pipelines.shared.deployment import deploy

    outputs = finetune_language_model(model=base, **tuning).outputs
    tuned, examples = outputs["tuned"], outputs["held_out_examples"]
    gate = evaluate_language_model(
        model=tuned, base=base, dataset=examples, length=tuning["length"], **evaluation
    ).outputs["passed"]
    deploy(tuned, gate, service_name, namespace, service_account, wait_seconds=600, **options)
