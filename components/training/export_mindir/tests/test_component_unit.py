import hashlib
import json
from unittest.mock import create_autospec

import pytest
from kfp import dsl

from ..component import export_mindir

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        (
            {},
            {
                "batch": "free",
                "sample_count": 64,
                "extra_columns": "ignore",
                "statistics": True,
            },
        ),
        (
            {
                "batch": 8,
                "samples": 40,
                "network": "net:build",
                "network_arguments": {"classes": 3},
                "transform": "digits.py",
                "extra_columns": "refuse",
                "statistics": False,
            },
            {
                "batch": 8,
                "sample_count": 40,
                "network": "net:build",
                "network_arguments": {"classes": 3},
                "transform": "digits.py",
                "extra_columns": "refuse",
                "statistics": False,
            },
        ),
    ],
)
def test_arguments_are_passed_to_export_and_metadata_is_set(
    lifecycle, tmp_path, monkeypatch, capsys, arguments, passed_on
) -> None:
    """Arguments are passed to export and metadata is set."""
    from kfp_mindspore import mindir
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.mindir.options import ExportOptions

    export = create_autospec(mindir.export_mindir, return_value=ModelBundle.open(lifecycle.bundle))
    monkeypatch.setattr(mindir, "export_mindir", export)
    bundle = dsl.Model(uri=str(tmp_path / "bundle"), metadata={})
    (difference,) = export_mindir.python_func(
        model=dsl.Model(uri=str(lifecycle.model)),
        dataset=dsl.Dataset(uri=str(lifecycle.dataset)),
        bundle=bundle,
        **arguments,
    )
    export.assert_called_once_with(
        f"{lifecycle.model}/checkpoint",
        bundle.path,
        ExportOptions(rename=[], **passed_on),
        dataset_dir=str(lifecycle.dataset),
    )
    assert 0 <= difference <= 1e-5
    assert bundle.metadata["max_abs_diff"] == difference
    assert f"network {difference:.3g} over 64 samples, tolerance " in capsys.readouterr().out
    mindir_file = lifecycle.bundle / "model.mindir"
    assert json.loads(bundle.metadata["inputs"])[0]["shape"] == [-1, 1, 8, 8]
    assert json.loads(bundle.metadata["labels"]) == [str(digit) for digit in range(10)]
    assert bundle.metadata["digest"] == f"sha256:{hashlib.sha256(mindir_file.read_bytes()).hexdigest()}"
    files = {"model.mindir", "preprocessing.json", "statistics.json", "verified.npz"}
    assert set(json.loads(bundle.metadata["files"])) == files
    assert all(isinstance(value, (str, int, float)) for value in bundle.metadata.values())


def test_without_dataset_training_has_written_one(lifecycle, tmp_path, monkeypatch) -> None:
    """Without a dataset the training has written one."""
    from kfp_mindspore import mindir
    from kfp_mindspore.formats.bundle import ModelBundle

    export = create_autospec(mindir.export_mindir, return_value=ModelBundle.open(lifecycle.bundle))
    monkeypatch.setattr(mindir, "export_mindir", export)
    bundle = dsl.Model(uri=str(tmp_path / "bundle"), metadata={})
    export_mindir.python_func(model=dsl.Model(uri="/self-play"), bundle=bundle)
    assert export.call_args.kwargs["dataset_dir"] == "/self-play/dataset"
