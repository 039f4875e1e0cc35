"""Import a dual encoder, embed a folder's pictures, deploy the model if captions find their pictures."""

from kfp import dsl


@dsl.pipeline(
    name="image-search",
    description="Import a published model of images and texts, write an index of a folder's pictures, search for the "
    "pictures of captions by the model and by words and, if the model finds more by enough, deploy it; any client of "
    "the OpenAI protocol can request embeddings of texts and images.",
)
def image_search(
    source: str,
    pictures: str,
    captions: str = "",
    max_pictures: int = 0,
    strict: bool = False,
    min_improvement: float = 0.1,
    serve: bool = True,
    service_name: str = "images",
    namespace: str = "",
    service_account: str = "",
):
    """Index a folder's pictures for a search by words, and serve the model if it finds more than words do.

    Args:
        source: Path or URI of a Hugging Face directory with a CLIP or SigLIP.
        pictures: Folder of PNG and JPEG files, also in folders, its URI, or a file *.txt with a path or URI a line.
        captions: Path or URI of JSON lines with image, a name in `pictures`, and caption; empty for no gate.
        max_pictures: Pictures to index, the first ones by name; 0 for all.
        strict: Whether a picture that cannot be read is an error; else it is listed and left out.
        min_improvement: Least difference of recall_at_5 from a search by words alone.
        serve: Whether the model is deployed.
        service_name: Name for the service and for the model in requests.
        namespace: Service namespace; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import import_vision_model, index_pictures
    from kfp_mindspore.pipelines.shared.deployment import deploy

    model = import_vision_model(source=source).outputs["model"]
    index = index_pictures(
        model=model,
        source=pictures,
        captions=captions,
        max_pictures=max_pictures,
        strict=strict,
        min_improvement=min_improvement,
    )
    with dsl.If(serve == True):
        deploy(
            model, index.outputs["passed"], service_name, namespace, service_account, wait_seconds=600, smoke_samples=2
        )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(image_search, package_path=__file__.replace(".py", ".yaml"))
