from unittest.mock import create_autospec

from kfp import dsl

from ..component import smoke_test


def test_report_is_returned_as_outputs(monkeypatch) -> None:
    """Report is returned as outputs."""
    from kfp_mindspore import inference
    from kfp_mindspore.inference.smoke import SmokeReport

    report = SmokeReport(
        url="http://service",
        model_name="digits",
        samples=40,
        max_abs_diffs={"v1": 1e-7, "v2": 0.0},
        tolerance=1e-4,
        prediction="3",
        label="8",
        index=0,
        seconds=0.1,
    )
    run = create_autospec(inference.run_smoke_test, return_value=report)
    monkeypatch.setattr(inference, "run_smoke_test", run)
    outputs = smoke_test.python_func(
        bundle=dsl.Model(uri="/bundle"), url="http://service", model_name="digits", sample_count=40, tolerance=1e-4
    )
    assert outputs == ("3", "8", 1e-7, 40)
    run.assert_called_once_with("http://service", "digits", "/bundle", samples=40, tolerance=1e-4)
