import pytest

from ..component import load_dataset

pytest_plugins = ["kfp_mindspore.testing"]


def test_digits_are_loaded_by_a_step(run_component) -> None:
    from kfp_mindspore.formats.dataset import Dataset

    outputs = run_component(load_dataset, name="digits")
    assert outputs.parameters == {"train_samples": 1167, "validation_samples": 270, "test_samples": 360}
    features, labels = Dataset.open(outputs.artifacts["dataset"]["uri"]).read("test")
    assert features.shape == (360, 1, 8, 8)
    assert labels.shape == (360,)


def test_invalid_argument_fails_the_step(run_component) -> None:
    with pytest.raises(RuntimeError, match="test_fraction: must be between 0 and 1, got 2"):
        run_component(load_dataset, name="digits", test_fraction=2.0)
