"""Pages of the documentation whose commands run on a cluster as printed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import NotFoundError
from kfp_mindspore.kube.resources import NAMESPACES
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster

SKIPPED = "# not executed"
SYSTEM = "msjob-system"
SECONDS = 900.0
# A port-forward accepts connections once it has connected to the pod.
WAIT_FORWARDED = " &\nuntil curl -sf -o /dev/null http://127.0.0.1:8080/v2/health/live; do sleep 0.2; done"

Page = Callable[..., str]


def list_commands(page: Path, section: str) -> list[str]:
    """Return the commands of a section that are not marked."""
    text = page.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if SKIPPED not in line]


def run_commands(lines: list[str], directory: Path, variables: Mapping[str, str]) -> str:
    """Run lines in one shell, with the environment's variables and these, and return the output."""
    script = "\n".join(["set -eo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *lines, ""])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def open_page(
    page: Path,
    cluster: NodeCluster,
    directory: Path,
    variables: Mapping[str, str],
    *,
    programs: Path = Path(sys.executable).parent,
    replaced: tuple[str, ...] = (),
) -> Iterator[Page]:
    """Return a function that runs sections in one shell and returns their output; remove the operator afterwards.

    Args:
        page: The page.
        cluster: The cluster.
        directory: Where the commands run.
        variables: Variables of the environment.
        programs: Directory of `kfp-mindspore` and `python3`.
        replaced: Starts of commands that do not run.
    """
    environment = {
        **variables,
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }

    def run(*sections: str) -> str:
        lines = [line for section in sections for line in list_commands(page, section)]
        kept = [re.sub(r" &$", WAIT_FORWARDED, line) for line in lines if not line.startswith(replaced)]
        return run_commands(kept, directory, environment)

    try:
        yield run
    finally:
        with contextlib.suppress(NotFoundError):
            Cluster(cluster.kubeconfig).delete(NAMESPACES, SYSTEM)
