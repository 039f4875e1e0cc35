"""Drawn pictures: combinations, and their files."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.errors import UserError
from kfp_mindspore.vision.drawings import COLOURS, FORMS, PLACES, draw_pictures, write_drawings


def test_held_out_combinations_have_known_pairs() -> None:
    """Every pair of form, colour and place in a held-out caption is in a training caption too."""
    drawings = draw_pictures(1)
    assert len({drawing.caption for drawing in drawings}) == len(FORMS) * len(COLOURS) * len(PLACES) == len(drawings)
    held = [drawing.caption for drawing in drawings if drawing.held_out]
    known = [drawing.caption for drawing in drawings if not drawing.held_out]
    assert len(held) == 36
    for caption in held:
        _, colour, form, place = caption.split(" ", 3)
        for pair in ((colour, form), (form, place), (colour, place)):
            assert any(all(part in other for part in pair) for other in known)


def test_pictures_show_their_captions() -> None:
    """A picture has its side, and its middle the form's colour; equal seeds draw equal files."""
    drawings = draw_pictures(2, side=40, seed=3)
    assert [drawing.image for drawing in drawings] == [drawing.image for drawing in draw_pictures(2, side=40, seed=3)]
    red = next(drawing for drawing in drawings if drawing.caption == "a red square in the centre")
    pixels = np.asarray(Image.open(io.BytesIO(red.image)))
    assert pixels.shape == (40, 40, 3)
    assert np.abs(pixels[20, 20].astype(int) - COLOURS["red"]).max() <= 18


def test_files_name_pictures_and_captions(tmp_path) -> None:
    """Both lists name existing files; a directory with other content is refused."""
    drawings = draw_pictures(1)
    write_drawings(tmp_path / "drawings", drawings)
    records = [json.loads(line) for line in (tmp_path / "drawings/held_out.jsonl").read_text().splitlines()]
    assert len(records) == 36
    by_caption = {drawing.caption: drawing.image for drawing in drawings}
    for record in records:
        assert (tmp_path / "drawings" / record["image"]).read_bytes() == by_caption[record["caption"]]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(UserError, match="other"):
        write_drawings(tmp_path / "other", drawings)
