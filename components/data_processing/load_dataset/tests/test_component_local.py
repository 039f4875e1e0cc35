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


def test_importer_hands_over_a_table(run_component, tmp_path) -> None:
    """An importer hands over a table."""
    from kfp.dsl import Dataset

    file = tmp_path / "own.csv"
    file.write_text("size,price\n" + "".join(f"{row},{row / 7}\n" for row in range(40)))
    outputs = run_component(load_dataset, {"source": (Dataset, file)}, target=["price"], split="random")
    assert sum(outputs.parameters.values()) == 40


def test_own_component_hands_over_a_table(local_home, tmp_path) -> None:
    """A user's own component hands over a table, in a pipeline that compiles too."""
    from kfp import compiler, dsl, local
    from kfp_mindspore.formats.dataset import Dataset as DatasetDirectory

    @dsl.component(base_image="python:3.11", install_kfp_package=False)
    def export_table(table: dsl.Output[dsl.Dataset]):
        from pathlib import Path

        Path(table.path).write_text("size;price\n" + "".join(f"{row};{row / 7}\n" for row in range(60)))

    @dsl.pipeline(name="own-data")
    def own_data():
        load_dataset(source=export_table().outputs["table"], target=["price"], split="random")

    compiler.Compiler().compile(own_data, str(tmp_path / "own.yaml"))
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"))
    own_data()
    (description,) = (tmp_path / "root").rglob("dataset.json")
    assert sum(DatasetDirectory.open(description.parent).splits.values()) == 60


def test_invalid_argument_fails_step(run_component) -> None:
    """Invalid argument fails the step."""
    with pytest.raises(RuntimeError, match="test_fraction: must be between 0 and 1, got 2"):
        run_component(load_dataset, name="digits", test_fraction=2.0)
