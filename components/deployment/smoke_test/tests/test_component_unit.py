from types import SimpleNamespace

from kfp import dsl

from kfp_mindspore import inference
from kfp_mindspore.components.deployment.smoke_test import smoke_test


def test_report_is_returned_as_outputs(monkeypatch) -> None:
    calls = []

    def run(*positional, **named):
        calls.append((positional, named))
        return SimpleNamespace(prediction="3", label="8", max_abs_diff=1e-7, samples=40)

    monkeypatch.setattr(inference, "run_smoke_test", run, raising=False)
    outputs = smoke_test.python_func(
        bundle=dsl.Model(uri="/bundle"), url="http://service", model_name="digits", sample_count=40, tolerance=1e-4
    )
    assert outputs == ("3", "8", 1e-7, 40)
    assert calls == [(("http://service", "digits", "/bundle"), {"samples": 40, "tolerance": 1e-4})]
