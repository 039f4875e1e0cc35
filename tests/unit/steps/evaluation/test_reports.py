from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.evaluation.predictions import build_predictions
from kfp_mindspore.formats.dataset import Column, Dataset
from kfp_mindspore.mindir.evaluate import Evaluation, summarize
from kfp_mindspore.steps.evaluation.plots import build_plot
from kfp_mindspore.steps.evaluation.reports import render_evaluation

GENERATOR = np.random.default_rng(0)
LABELS = ("<cat>", "dog", "owl")
CLASSES = np.array([0, 0, 0, 0, 1, 1, 1, 1])
SCORES = np.eye(3)[[0, 0, 0, 1, 1, 1, 1, 1]]
COLUMNS = {
    "image": GENERATOR.random((8, 1, 8, 8), np.float32),
    "photo": np.array([b"\xff\xd8\xffphoto"] * 8, object),
    "text": np.array([b"<script>" + b"x" * 200] * 8, object),
    "numbers": np.arange(16, dtype=np.int32).reshape(8, 2),
}


def evaluate(task: str, scores, target, labels: tuple[str, ...] = ()) -> Evaluation:
    columns = (Column("x", "float32", ()),)
    dataset = Dataset(Path("data"), "data", task, labels, columns, {"test": len(target)}, 0)
    return summarize(dataset, build_predictions(task, np.asarray(scores), np.asarray(target)))


def count_tags(page: str) -> dict[str, int]:
    tags: dict[str, int] = {}
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.update({tag: tags.get(tag, 0) + 1})  # type: ignore[method-assign]
    parser.feed(page)
    return tags


@pytest.mark.parametrize(
    ("threshold", "found", "absent"),
    [
        (0.8, 'at least 0.8, is\n<strong class="passed">met<', "not met"),
        (0.9, ">not met<", ">met<"),
        (None, "8 held-out samples, task classification.", "gate"),
    ],
)
def test_page_of_classification(threshold: float | None, found: str, absent: str) -> None:
    page = render_evaluation(evaluate("classification", SCORES, CLASSES, LABELS), threshold, COLUMNS)
    assert "<h1>accuracy 0.8750</h1>" in page
    assert found in page
    assert absent not in page
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page
    assert page.count('class="cell"') == 9
    tags = count_tags(page)
    assert tags["svg"] == 1  # calibration
    assert tags["img"] == 16  # two images of each of the eight samples
    assert "script" not in tags
    assert "data:image/jpeg;base64" in page
    assert "x" * 100 not in page
    worst = page[page.index("largest losses") :]
    assert worst.index("<td>3</td>") < worst.index("<td>0</td>")


@pytest.mark.parametrize(
    ("task", "scores", "target", "labels", "words", "plots"),
    [
        ("regression", [1.0, 2.5], [1.0, 2.0], (), ("rmse 0.3536", "Residuals", "largest losses"), 2),
        ("regression", [2.0, 2.0], [2.0, 2.0], (), ("rmse 0.0000",), 2),
        (
            "multi_label",
            [[0.9, 0.2, 0.9], [0.1, 0.8, 0.2]],
            [[1, 0, 0], [0, 0, 0]],
            LABELS,
            ("By class", "f1_macro", ">none<", "&lt;cat&gt;, owl"),
            0,
        ),
        ("language_model", np.zeros((2, 3, 4)), [[0, 1, 2]] * 2, (), ("perplexity 4.0000", ">0 1 2<"), 0),
        ("ranking", [1.0, 2.0], [0, 1], (), ("ndcg@10 1.0000",), 0),
    ],
)
def test_page_by_task(task, scores, target, labels, words, plots) -> None:
    page = render_evaluation(evaluate(task, scores, target, labels), 5.0, {})
    for word in words:
        assert word in page, word
    assert page.count("<svg") == plots
    assert "nan" not in page


def test_plot_places_points_in_limits() -> None:
    plot = build_plot(
        "t", np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 0.5]), labels=("x", "y"), limits=((0, 1), (0, 1)),
        reference=((0, 0), (1, 1)), connected=True,
    )  # fmt: skip
    assert plot.points == ((60.0, 268.0, 2.5), (234.0, 12.0, 2.5), (408.0, 140.0, 2.5))
    assert plot.path == "M60.0 268.0 L234.0 12.0 L408.0 140.0"
    assert plot.reference == "M60.0 268.0 L408.0 12.0"
    assert [tick.label for tick in plot.x_ticks] == ["0.00", "0.25", "0.50", "0.75", "1.00"]


def test_plot_of_many_points_is_thinned() -> None:
    x = np.linspace(0, 1, 50_000)
    plot = build_plot("t", x, x, labels=("x", "y"), limits=((0, 1), (0, 1)), reference=((0, 0), (1, 1)))
    assert len(plot.points) == 1500


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (b"\x89PNG\r\n", "data:image/png;base64,iVBORw0K"),
        (b"GIF89a", "data:image/gif;base64,R0lGODlh"),
        (b"a <b> & c", "a &lt;b&gt; &amp; c"),
        (b"caf\xe9", "caf\ufffd"),
        (b"y" * 81, "y" * 79 + "…"),
        (b"z" * 80, "z" * 80),
        (np.array([1.0, 0.25, 1e-9]), "1 0.25 1e-09"),
        (np.array(7), "<td>7</td>"),
        (np.array([b"red", b"blue"], object), "red blue"),
        (np.arange(100), " 28 29 …"),
        # An image has sides of 4 to 512 pixels and one or three channels.
        (np.zeros((3, 6, 6)), "data:image/png;base64,"),
        (np.zeros((6, 6, 3), np.uint8), "data:image/png;base64,"),
        (np.ones((4, 4)), "data:image/png;base64,"),
        (np.ones((3, 3)), "1 1 1 1 1 1 1 1 1"),
        (np.zeros((2, 4, 4)), "0 0 0 0 0"),
    ],
)
def test_worst_sample_is_shown(sample: Any, expected: str) -> None:
    column = np.empty(8, object) if isinstance(sample, bytes) else np.stack([sample] * 8)
    if isinstance(sample, bytes):
        column[:] = sample
    page = render_evaluation(evaluate("classification", SCORES, CLASSES, LABELS), None, {"x": column})
    assert expected in page[page.index("largest losses") :]


def test_channels_of_images_are_moved_last() -> None:
    """Both orders of channels give the same picture, scaled to its own range."""
    image = GENERATOR.random((8, 3, 6, 5))
    evaluation = evaluate("classification", SCORES, CLASSES, LABELS)
    pages = [
        render_evaluation(evaluation, None, {"x": array}) for array in (image, np.moveaxis(image, 1, 3), 4 * image)
    ]
    assert pages[0] == pages[1] == pages[2]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_large_pictures_become_thumbnails(kind: str) -> None:
    pixels = GENERATOR.integers(0, 256, (600, 800, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    columns = {
        "photo": np.array([stream.getvalue()] * 7 + [stream.getvalue()[:40_000]], object),
        "array": np.stack([pixels[:, :600]] * 8),
    }
    page = render_evaluation(evaluate("classification", SCORES, CLASSES, LABELS), None, columns)
    assert count_tags(page)["img"] == 15
    assert "an image file of 40000 bytes that cannot be decoded" in page
    for uri in re.findall(r"data:image/png;base64,([^\"]+)", page):
        assert max(Image.open(io.BytesIO(base64.b64decode(uri))).size) == 96


def test_headers_are_not_broken_within_words() -> None:
    page = render_evaluation(evaluate("classification", SCORES, CLASSES, LABELS), None, COLUMNS)
    assert "thead th { white-space: nowrap; }" in page
    assert re.search(r'class="text">better is<', page)
    assert page.count("overflow-wrap: anywhere") == 1
    assert ".free { overflow-wrap: anywhere;" in page


def test_worst_pictures_are_shown_with_their_boxes() -> None:
    box = [0.5, 0.5, 0.5, 0.5]
    logits = np.log([[[0.8, 0.1, 0.1]], [[0.1, 0.8, 0.1]]])
    scores = np.concatenate([logits, np.full((2, 1, 4), 0.5)], -1)
    target = np.array([[[0.0, *box], [-1, 0, 0, 0, 0]], [[0, *box], [0, 0.1, 0.1, 0.1, 0.1]]])
    buffer = io.BytesIO()
    Image.new("RGB", (20, 40), "white").save(buffer, "PNG")
    pictures = np.array([buffer.getvalue()] * 2, object)
    page = render_evaluation(evaluate("detection", scores, target, ("<cat>", "dog")), 0.5, {"image": pictures})
    assert "map50" in page
    assert re.search(r"&lt;cat&gt;</th><td>3</td><td>0.337</td><td>0.337</td>", page)
    assert re.search(r"dog</th><td>0</td><td>-</td><td>-</td>", page)
    worst = page[page.index("Pictures with the most errors") :]
    assert worst.index("<td>1</td>") < worst.index("<td>0</td>")
    assert "&lt;cat&gt;, &lt;cat&gt;" in worst
    assert "dog 0.80" in worst
    first = base64.b64decode(re.findall(r"data:image/png;base64,([^\"]+)", worst)[0])
    with Image.open(io.BytesIO(first)) as image:
        assert image.size == (128, 256)
        # The true box covers the wrong one; the missed one is in a corner.
        assert image.getpixel((32, 128)) == (0x2F, 0xD0, 0x5A)
        assert image.getpixel((7, 26)) == (0x2F, 0xD0, 0x5A)
