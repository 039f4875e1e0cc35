"""iter_mindspore_batches: the grammar of iter_torch_batches with MindSpore tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.ray.batches import iter_mindspore_batches

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def dataset(ray_session: Any) -> Any:
    images = np.arange(10 * 6, dtype=np.float64).reshape(10, 2, 3)
    return ray_session.data.from_numpy(images).map_batches(
        lambda batch: {"image": batch["data"], "label": batch["data"][:, 0, 0].astype(np.int64)}
    )


def test_batches_are_tensors_with_requested_dtypes(dataset: Any) -> None:
    import mindspore as ms

    batches = iter_mindspore_batches(dataset, batch_size=4, dtypes={"image": ms.float32, "label": ms.int32})
    for _ in range(2):  # an epoch each
        found = list(batches)
        assert [len(batch["image"]) for batch in found] == [4, 4, 2]
        assert {(batch["image"].dtype, batch["label"].dtype) for batch in found} == {(ms.float32, ms.int32)}
        labels = np.concatenate([batch["label"].asnumpy() for batch in found])
        assert sorted(labels.tolist()) == list(range(0, 60, 6))


def test_drop_last_and_own_dtypes(dataset: Any) -> None:
    import mindspore as ms

    found = list(iter_mindspore_batches(dataset, batch_size=4, drop_last=True))
    assert [batch["image"].shape for batch in found] == [(4, 2, 3), (4, 2, 3)]
    assert found[0]["image"].dtype == ms.float64


def test_collate_function_replaces_conversion(dataset: Any) -> None:
    found = list(iter_mindspore_batches(dataset, batch_size=None, collate_fn=lambda batch: batch["image"].sum()))
    assert sum(found) == sum(range(60))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtypes": {"other": None}}, "dtypes: no column 'other', found image, label"),
        ({"dtypes": {}, "collate_fn": dict}, "dtypes: cannot be combined with collate_fn"),
    ],
)
def test_wrong_arguments_are_refused(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(iter_mindspore_batches(dataset, batch_size=4, **options))


def test_text_column_is_refused(ray_session: Any) -> None:
    texts = ray_session.data.from_items([{"text": "a"}, {"text": "b"}])
    with pytest.raises(UserError, match="column 'text': must hold numbers"):
        list(iter_mindspore_batches(texts))
