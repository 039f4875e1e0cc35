"""Sweeps as Katib Experiments: what the manifest has, and what Katib cannot express."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError
from kfp_mindspore.sweeps.katib import build_katib_experiment

SPACE = {
    "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
    "batch_size": {"low": 16, "high": 64, "step": 16},
    "optimizer": ["Adam", "SGD"],
}


def test_experiment_has_space_and_quoted_command() -> None:
    template = {"network": "my:Net", "network_arguments": {"classes": 10}, "dataset": "/data", "num_workers": 2}
    spec = build_katib_experiment(
        *("lenet", template, SPACE, "accuracy"),
        image="lenet:1",
        claims=[("digits", "/data")],
        output="s3://bucket/",
        trial_timeout=60,
    )["spec"]

    assert [(item["name"], item["parameterType"], item["feasibleSpace"]) for item in spec["parameters"]] == [
        ("learning_rate", "double", {"min": "0.0001", "max": "0.1", "distribution": "logUniform"}),
        ("batch_size", "int", {"min": "16", "max": "64", "step": "16"}),
        ("optimizer", "categorical", {"list": ["Adam", "SGD"]}),
    ]
    assert spec["trialTemplate"]["trialSpec"]["spec"]["runPolicy"]["activeDeadlineSeconds"] == 60
    worker = spec["trialTemplate"]["trialSpec"]["spec"]["msReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert (worker["replicas"], container["name"]) == (2, spec["trialTemplate"]["primaryContainerName"])
    # Katib joins the words behind `sh -c`.
    assert container["command"] == ["sh", "-c"]
    words = shlex.split(container["args"][0])
    assert words[words.index("--network-arguments") + 1] == '{"classes": 10}'
    assert words[words.index("--learning-rate") + 1] == "${trialParameters.learning_rate}"
    env = {item["name"]: item["value"] for item in container["env"]}
    assert env["KFP_MINDSPORE_CHECKPOINT_DIR"] == "s3://bucket/${trialParameters.trialName}/checkpoints"
    assert container["volumeMounts"] == [{"name": "claim-0", "mountPath": "/data"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "LeNet"}, "name: must be at most 40 lower-case letters"),
        ({"name": "a" * 41}, "name: must be at most 40"),
        ({"image": ""}, "image: is required"),
        ({"space": {"x": [True, False]}}, "x.choices: Katib has numbers and texts only, got True"),
        ({"space": {"x": ["it's"]}}, "x.choices: must have no quotes and backslashes for Katib"),
        ({"space": {"x": [1], "y": {"choices": [1], "when": {"x": 1}}}}, "y.when: Katib has no conditional parameters"),
        ({"seeds": 2}, "seeds: Katib trains a trial once, got 2"),
        ({"objectives": ["latency:minimize"]}, "objectives: Katib improves one"),
        ({"template": {"script": "t.py", "queue_name": "q"}}, "template.queue_name: is not exported"),
    ],
)
def test_what_katib_cannot_express_is_refused(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)
    given = {"name": "lenet", "template": {"script": "t.py"}, "space": {"x": [1, 2]}, "image": "i:1", **changes}
    with pytest.raises(UserError) as caught:
        build_katib_experiment(given.pop("name"), given.pop("template"), given.pop("space"), "loss", **given)
    assert message in str(caught.value)


def test_command_writes_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space, target = tmp_path / "space.yaml", tmp_path / "experiment.yaml"
    space.write_text("x: [0.0, 0.5]\n")
    words = [
        "sweep",
        "export",
        "--katib",
        "--name",
        "grid",
        "--image",
        "i:1",
        "--script",
        "t.py",
        "--objective",
        "loss",
    ]

    assert run([*words, "--space", str(space), "--sampler", "grid", "-o", str(target)]) == 0
    found = yaml.safe_load(target.read_text())
    assert (found["kind"], found["spec"]["maxTrialCount"]) == ("Experiment", 2)
    assert "Katib has no pruner asha" in capsys.readouterr().err
