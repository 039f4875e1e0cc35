import pytest

from ..component import deploy_graph


@pytest.fixture
def services(monkeypatch):
    """Two services of a client without servers, in the namespace `vision`; return the client's requests."""
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.service import ServiceState, ServiceStatus

    def get(self, name, namespace=None):
        url = f"http://{name}.example.org"
        return ServiceStatus(name, self.namespace, ServiceState.READY, url, "", f"s3://models/{name}/")

    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.setattr(InferenceClient, "get", get)


def _build(names=("a", "b"), **arguments):
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.graph import build_graph

    client = InferenceClient(namespace="vision")
    return build_graph("both", [client.get(name) for name in names], **arguments)


def test_ensemble_has_node_per_protocol(services) -> None:
    """Ensemble has a node per protocol."""
    document = _build()
    assert document["metadata"]["namespace"] == "vision"
    nodes = document["spec"]["nodes"]
    assert [(step["nodeName"], step["condition"]) for step in nodes["root"]["steps"]] == [
        ("v1", "instances"),
        ("v2", "inputs"),
    ]
    assert nodes["v1"]["steps"][0] == {"name": "a", "serviceUrl": "http://a.example.org/v1/models/a:predict"}
    assert nodes["v2"]["routerType"] == "Ensemble"


@pytest.mark.parametrize(("weights", "expected"), [((90, 10), [90, 10]), ((), [33, 33, 34])])
def test_splitter_weights_sum_to_100(services, weights, expected) -> None:
    """Splitter weights sum to 100."""
    document = _build(("a", "b", "c")[: len(expected)], router="Splitter", weights=weights)
    assert [step["weight"] for step in document["spec"]["nodes"]["v2"]["steps"]] == expected


def test_change_of_graph_changes_its_version(services) -> None:
    """Change of the graph changes its version."""
    versions = [
        _build(router="Splitter", weights=weights)["metadata"]["annotations"] for weights in ((50, 50), (90, 10))
    ]
    assert versions[0] != versions[1]


def test_local_run_returns_no_address(services, capsys) -> None:
    """Local run returns no address."""
    assert deploy_graph.python_func(graph_name="both", services=["a", "b"]) == ("",)
    assert "no InferenceGraph router" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"services": ["a"]}, "services: must be at least two"),
        ({"services": ["a", "a"]}, "services: must be at least two, each once"),
        ({"graph_name": "a"}, "name: must differ"),
        ({"router": "Sequence"}, "router: must be one of Ensemble, Splitter"),
        ({"weights": [50, 50]}, "weights: are of the router Splitter"),
        ({"router": "Splitter", "weights": [50, 60]}, "weights: must be one of at least 1"),
        ({"router": "Splitter", "weights": [100]}, "weights: must be one of at least 1"),
    ],
)
def test_invalid_argument_is_refused(services, arguments, message) -> None:
    """Invalid argument is refused."""
    from kfp_mindspore.errors import ValidationError

    with pytest.raises(ValidationError, match=message):
        deploy_graph.python_func(**{"graph_name": "both", "services": ["a", "b"], **arguments})
