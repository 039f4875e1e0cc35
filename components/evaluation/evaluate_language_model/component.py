"""Component that evaluates a language model beside its base."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def evaluate_language_model(
    model: Input[Model],
    metrics: Output[Metrics],
    report: Output[HTML],
    base: Input[Model] = None,
    data: str = "",
    dataset: Input[Dataset] = None,
    metric: str = "",
    min_improvement: float = 0.0,
    length: int = 128,
    max_examples: int = 0,
    generated: int = 16,
    max_tokens: int = 48,
    chat: bool = True,
) -> NamedTuple(
    "Outputs",
    [("passed", bool), ("metric", str), ("value", float), ("base_value", float), ("improvement", float)],
):
    """Evaluate a language model on held-out examples, and decide whether it is better than its base.

    The perplexity counts the answers' tokens; exact match, ROUGE-L and valid JSON are measured on greedy answers. An
    embedding model searches all answers for each question's: the share found among the first five, and the mean
    reciprocal rank. The default metric is the perplexity, of an encoder-decoder exact_match, of an embedding model
    recall_at_5. The step succeeds whether or not the gate is met: give `passed` to `deploy_kserve` as its gate.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[lm,pipelines,train].

    Args:
        model: The bundle, such as finetune_language_model's output `tuned`.
        metrics: The metrics, the base's as `base.<metric>`, and the improvement.
        report: HTML page with the metrics and the answers of both.
        base: The bundle that it was tuned from; optional: without it no gate, for an embedding model TF-IDF's.
        data: Path or URI of JSON lines; empty for `dataset`.
        dataset: finetune_language_model's `held_out_examples`, or another artifact with JSON lines; optional.
        metric: `perplexity`, `exact_match`, `rouge_l`, `valid_json`, `recall_at_5` or `mrr`; default by kind.
        min_improvement: Least improvement over the base: a part of its perplexity, or another metric's difference.
        length: Most tokens in an example whose loss is computed.
        max_examples: Examples to evaluate; 0 for all.
        generated: How many of them are answered by greedy decoding, for the metrics other than perplexity.
        max_tokens: Most tokens in an answer.
        chat: Whether a prompt and its completion are chat messages, if the model has a chat template.

    Returns:
        passed: Whether the metric is improved sufficiently; True without a base.
        metric: Metric name.
        value: The model's metric.
        base_value: The base's or TF-IDF's metric; 0 without a base.
        improvement: A part of the base's perplexity, or another metric's difference.
    """
    from kfp_mindspore.lm.options import EvaluationOptions
    from kfp_mindspore.steps.language_model import evaluate_examples

    options = EvaluationOptions(
        metric=metric,
        min_improvement=min_improvement,
        length=length,
        max_examples=max_examples,
        generated=generated,
        max_tokens=max_tokens,
        chat=chat,
    )
    return evaluate_examples(model, metrics, report, options, base=base, data=data, dataset=dataset)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(evaluate_language_model, package_path=__file__.replace(".py", ".yaml"))
