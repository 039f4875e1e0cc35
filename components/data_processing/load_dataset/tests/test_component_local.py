import pytest

from ..component import load_dataset

pytest_plugins = ["kfp_mindspore.testing"]


def test_digits_are_loaded_by_step(run_component) -> None:
    """Digits are loaded by a step."""
    from kfp_mindspore.data import read_samples

    outputs = run_component(load_dataset, name="digits")
    assert outputs.parameters == {"train_samples": 1167, "validation_samples": 270, "test_samples": 360}
    samples = read_samples(outputs.artifacts["dataset"]["uri"], "test")
    assert samples.inputs["image"].shape == (360, 1, 8, 8)
    assert samples.target.shape == (360,)


def test_invalid_argument_fails_step(run_component) -> None:
    """Invalid argument fails the step."""
    with pytest.raises(RuntimeError, match="test_fraction: must be between 0 and 1, got 2"):
        run_component(load_dataset, name="digits", test_fraction=2.0)
