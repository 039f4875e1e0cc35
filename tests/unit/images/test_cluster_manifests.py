import base64
import gzip
import io
import json
import subprocess
import tarfile

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.images import BuildContext, Entry, ImagePlan, RegistryConfig, parse_reference
from kfp_mindspore.images.builders.cluster import ClusterBuilder
from kfp_mindspore.images.builders.cluster_job import JobSettings, write_config_map
from kfp_mindspore.images.builders.cluster_layout import WORK_FOLDER
from kfp_mindspore.images.builders.cluster_log import read_log
from kfp_mindspore.images.builders.cluster_pods import (
    explain_waiting,
    find_ending,
    find_missing_volume,
    find_obstacle,
    has_started,
)
from kfp_mindspore.images.builders.cluster_registry import write_buildkitd_toml, write_registries_conf
from kfp_mindspore.images.builders.context_store import ClaimPlace, ObjectStorePlace, pack_small

DIGEST = "sha256:" + "d" * 64
TARGET = parse_reference("registry.test:5000/team/out:tag")
CONTEXT = BuildContext([Entry.from_bytes("main.py", b"print(1)\n")])


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)


def _plan(**options) -> ImagePlan:
    given = {"containerfile": f"FROM registry.test/base@{DIGEST}\n", **options}
    return ImagePlan(CONTEXT, "registry.test/base", DIGEST, **given)


def _script(builder: ClusterBuilder, plan: ImagePlan) -> str:
    container = builder.write_manifest(plan, TARGET)["spec"]["template"]["spec"]["containers"][0]
    shell, flag, script = container["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    # The shell can read it, whatever labels and arguments hold.
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    return script


@pytest.mark.parametrize("tool", ["buildah", "buildkit"])
def test_labels_and_arguments_with_quotes_stay_whole(tool) -> None:
    plan = _plan(replaced=True, labels={"note": 'it\'s "$HOME" `x`'})
    script = _script(ClusterBuilder(tool=tool, build_args={"A": "b c; rm -rf /"}), plan)
    assert "'\"'\"'" in script
    assert "A=b c; rm -rf /'" in script
    assert str(TARGET) in script


@pytest.mark.parametrize(
    ("tool", "escalates", "added", "seccomp"),
    [
        ("buildah", True, ["SETGID", "SETUID"], {"type": "Localhost", "localhostProfile": "userns.json"}),
        ("buildkit", True, ["SETGID", "SETUID"], {"type": "Localhost", "localhostProfile": "userns.json"}),
        ("append", False, None, {"type": "RuntimeDefault"}),
    ],
)
def test_pod_has_no_privileges(tool, escalates, added, seccomp) -> None:
    settings = JobSettings(seccomp="Localhost/userns.json", service_account="builder", work_size="5Gi")
    builder = ClusterBuilder(tool=tool, package_image="registry.test/package", job=settings)
    job = builder.write_manifest(_plan(), TARGET)
    pod = job["spec"]["template"]["spec"]
    security = pod["containers"][0]["securityContext"]
    assert "privileged" not in security
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["capabilities"].get("add") == added
    assert security["allowPrivilegeEscalation"] is escalates
    assert security["seccompProfile"] == seccomp
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == "builder"
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")


def test_secrets_are_mounted_by_name_and_never_read() -> None:
    registry = RegistryConfig(push_secret="push", pull_secrets=("one", "two"))
    builder = ClusterBuilder(registry, tool="buildah", secrets={"token": "login/key"})
    pod = builder.write_manifest(_plan(replaced=True), TARGET)["spec"]["template"]["spec"]
    named = {volume["secret"]["secretName"]: volume for volume in pod["volumes"] if "secret" in volume}
    assert set(named) == {"push", "one", "two", "login"}
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    script = pod["containers"][0]["command"][2]
    assert (
        script.count(f"buildah --storage-driver vfs --root {WORK_FOLDER}/storage --runroot {WORK_FOLDER}/run pull") == 2
    )
    assert "--secret id=token,src=/run/kfp-mindspore/secrets/token" in script
    assert "--authfile /run/kfp-mindspore/push/config.json" in script


def test_tool_follows_from_what_the_image_needs() -> None:
    assert ClusterBuilder(package_image="p").choose_tool(_plan()) == "append"
    assert ClusterBuilder(package_image="p").choose_tool(_plan(requirements=("x",))) == "buildah"
    assert ClusterBuilder(package_image="p").choose_tool(_plan(replaced=True)) == "buildah"
    assert ClusterBuilder().choose_tool(_plan()) == "buildah"


@pytest.mark.parametrize(
    ("options", "plan", "message"),
    [
        ({"tool": "append"}, {}, "package_image: the append builder runs in an image"),
        ({"tool": "append", "package_image": "p"}, {"requirements": ("x",)}, "installs nothing"),
        ({"tool": "append", "package_image": "p", "secrets": {"a": "b/c"}}, {}, "runs no commands"),
        ({"tool": "buildah"}, {"platform": "all"}, "one platform at a time"),
    ],
)
def test_what_a_tool_cannot_do_is_refused_before_anything_is_asked(options, plan, message) -> None:
    with pytest.raises(UserError, match=message):
        ClusterBuilder(**options).check(_plan(**plan))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool": "kaniko"}, "tool: must be one of auto, buildah, buildkit, append"),
        ({"secrets": {"token": "login"}}, r"secrets\[token\]: must be SECRET/KEY"),
        ({"secrets": {"a/b": "login/key"}}, "must be SECRET/KEY"),
    ],
)
def test_wrong_settings_are_named(options, message) -> None:
    with pytest.raises(UserError, match=message):
        ClusterBuilder(**options)


def test_wrong_places_are_named(tmp_path) -> None:
    with pytest.raises(UserError, match=r"mount_path: .*: no such folder"):
        ClaimPlace("claim", tmp_path / "none")
    with pytest.raises(UserError, match="must be s3://BUCKET or s3://BUCKET/FOLDER, got 'gs://bucket'"):
        ObjectStorePlace("gs://bucket")


def test_config_map_goes_with_its_job_and_holds_the_context() -> None:
    data = {"context.tar.gz": b"\x1f\x8b"}
    written = write_config_map("name", {"plan.json": "{}"}, data, {"metadata": {"uid": "u"}})
    assert written["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "name", "uid": "u"}
    ]
    assert base64.b64decode(written["binaryData"]["context.tar.gz"]) == b"\x1f\x8b"
    assert written["immutable"] is True


def test_small_contexts_are_packed_the_same_each_time() -> None:
    buffer = io.BytesIO()
    _plan().write_context(buffer)
    packed = [pack_small(io.BytesIO(buffer.getvalue())) for _ in range(2)]
    assert packed[0] == packed[1]
    assert packed[0] is not None
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed[0]))) as tar:
        assert {"Containerfile", "sources/main.py"} <= set(tar.getnames())


def test_registries_are_told_to_buildah_and_buildkit(tmp_path) -> None:
    (tmp_path / "ca.crt").write_text("PEM")
    registry = RegistryConfig(
        insecure=("plain:5000",), mirrors={"docker.io": "plain:5000/docker"}, ca_file=tmp_path / "ca.crt"
    )
    conf = write_registries_conf(registry)
    assert 'prefix = "docker.io"\nlocation = "plain:5000/docker"\ninsecure = true' in conf
    assert 'prefix = "plain:5000"\nlocation = "plain:5000"\ninsecure = true' in conf
    toml = write_buildkitd_toml(registry, ("registry.test",))
    assert '[registry."docker.io"]\nmirrors = ["plain:5000/docker"]' in toml
    assert '[registry."plain:5000"]\nhttp = true' in toml
    assert '[registry."registry.test"]\nca = ["/run/kfp-mindspore/settings/ca.crt"]' in toml


def _pod(**status):
    return {"metadata": {"name": "p", "uid": "u"}, "status": status}


def _container(**state):
    return [{"name": "build", "image": "registry.test/tool", "state": state}]


def test_pod_that_cannot_start_is_told_with_the_next_step() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    obstacle = find_obstacle(_pod(containerStatuses=_container(waiting=waiting)))
    assert obstacle is not None
    assert "registry.test/tool: ImagePullBackOff: Back-off pulling image" in obstacle.message
    assert "pull secrets" in obstacle.hint
    assert find_obstacle(_pod(containerStatuses=_container(waiting={"reason": "ContainerCreating"}))) is None


def test_pod_that_waits_says_for_what() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert explain_waiting(_pod(conditions=[unscheduled])) == "Unschedulable: 0/3 nodes"
    creating = _container(waiting={"reason": "ContainerCreating"})
    assert explain_waiting(_pod(containerStatuses=creating)) == "ContainerCreating"
    assert not has_started(_pod(containerStatuses=creating))
    assert has_started(_pod(containerStatuses=_container(running={})))
    events = [{"reason": "FailedMount", "message": 'secret "login" not found'}, {"reason": "Scheduled"}]
    assert find_missing_volume(events) == 'secret "login" not found'


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": _container(running={})}, None),
        (
            {"containerStatuses": _container(terminated={"exitCode": 0, "reason": "Completed", "message": DIGEST})},
            (0, "Completed", "build"),
        ),
        (
            {"containerStatuses": _container(terminated={"exitCode": 137, "reason": "OOMKilled"})},
            (137, "OOMKilled", "build"),
        ),
        (
            {"initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}]},
            (2, "Error", "fetch"),
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, (137, "Evicted", "build")),
    ],
)
def test_end_of_a_pod_is_read_from_its_status(status, expected) -> None:
    ending = find_ending(_pod(**status))
    assert (None if ending is None else (ending.exit_code, ending.reason, ending.container)) == expected


def test_logs_of_each_tool_become_progress_and_a_failure() -> None:
    seen = []
    failure = read_log(
        "buildah", ["STEP 1/2: FROM b", "STEP 2/2: RUN false", "said", "Error: building: exit status 1"], seen.append
    )
    assert failure.message == "STEP 2/2 (RUN false): building: exit status 1"
    assert [entry.step for entry in seen if not entry.text] == ["STEP 1/2 (FROM b)", "STEP 2/2 (RUN false)"]

    seen.clear()
    moved = {"step": "Push layer", "item": "sha256:1", "done_bytes": 5, "total_bytes": 5, "text": ""}
    failure = read_log("append", [json.dumps(moved), "Error: the registry is full"], seen.append)
    assert seen[0].done_bytes == 5
    assert failure.message == "append: the registry is full"

    failure = read_log("buildkit", ["#4 [2/2] RUN false", "#4 ERROR: exit code: 1"], seen.append)
    assert failure.message == "[2/2] RUN false: exit code: 1"
