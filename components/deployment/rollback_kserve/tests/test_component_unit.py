import pytest

from ..component import rollback_kserve


def test_missing_service_is_refused(monkeypatch, tmp_path) -> None:
    """Missing service is refused."""
    from kfp_mindspore.errors import NotFoundError

    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    with pytest.raises(NotFoundError, match="service digits does not exist in namespace team"):
        rollback_kserve.python_func(service_name="digits", namespace="team")
