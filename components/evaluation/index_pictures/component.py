"""Component that embeds pictures and evaluates the search for them."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def index_pictures(
    model: Input[Model],
    index: Output[Dataset],
    metrics: Output[Metrics],
    report: Output[HTML],
    source: str,
    captions: str = "",
    max_pictures: int = 0,
    strict: bool = False,
    min_improvement: float = 0.0,
) -> NamedTuple("Outputs", [("passed", bool), ("pictures", int), ("recall_at_5", float), ("words_recall_at_5", float)]):
    """Embed a folder's pictures for a search by words, and decide whether captions find them.

    Each picture's first caption is searched for by the model and, as the baseline, by words in the pictures' other
    captions and names. The step succeeds whether or not the gate is met: give `passed` to `deploy_kserve` as its gate.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[data,lm,pipelines,train].

    Args:
        model: A dual encoder, such as import_vision_model's.
        index: Parquet file with the columns id and vector, for `kfp-mindspore vision search`.
        metrics: The metrics, those of the search by words as `words.<metric>`.
        report: HTML page with the metrics, what captions find, and the pictures that could not be read.
        source: Folder of PNG and JPEG files, also in folders, its URI, or a file *.txt with a path or URI a line.
        captions: Path or URI of JSON lines with image, a name in `source`, and caption; empty for no gate.
        max_pictures: Pictures to index, the first ones by name; 0 for all.
        strict: Whether a picture that cannot be read is an error; else it is listed and left out.
        min_improvement: Least difference of recall_at_5 from a search by words alone.

    Returns:
        passed: Whether the difference is reached; True without captions.
        pictures: Indexed pictures.
        recall_at_5: Captions with one of their pictures among the first five, a fraction; 0 without captions.
        words_recall_at_5: The same for the search by words; 0 without captions.
    """
    from kfp_mindspore.steps.vision import index_folder
    from kfp_mindspore.vision.index_options import IndexOptions

    options = IndexOptions(max_pictures=max_pictures, strict=strict, min_improvement=min_improvement)
    return index_folder(model, index, metrics, report, options, source=source, captions=captions)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(index_pictures, package_path=__file__.replace(".py", ".yaml"))
