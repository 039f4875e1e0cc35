"""KubeRay's operator, beside a test cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import KUBERAY, get_binaries
from tests.cluster.infrastructure.cluster import Cluster
from tests.cluster.infrastructure.control_plane import is_healthy
from tests.cluster.ray_image import make_ray_archive
from tests.support.controllers.kserve_cluster import KUBEFLOW_VARIABLE

_NAME = "ray-operator"
_PROBE = 8092


@contextlib.contextmanager
def run_kuberay(cluster: Cluster) -> Iterator[None]:
    """Run KubeRay with its own definitions; the node has the image RAY_IMAGE.

    The operator reaches dashboards through the API server: as a process of this machine it has no cluster DNS.
    """
    if not os.environ.get(KUBEFLOW_VARIABLE):
        pytest.skip(f"the build of KubeRay is slow: run `make test-kubeflow`, which sets {KUBEFLOW_VARIABLE}")
    folder = Path(start(lambda: get_binaries(KUBERAY)))
    cluster.import_image(start(make_ray_archive))
    definitions = [yaml.safe_load((folder / name).read_text()) for name in KUBERAY.files]
    list(apply_objects(definitions, kubeconfig=str(cluster.kubeconfig)))
    flags = [f"--kubeconfig={cluster.kubeconfig}", "--metrics-addr=:0", f"--health-probe-bind-address=:{_PROBE}"]
    command = [str(folder / _NAME), *flags, "--enable-leader-election=false", "--use-kubernetes-proxy"]
    cluster.daemons.start(_NAME, command)
    try:
        ready = f"http://{cluster.network.node}:{_PROBE}/readyz"
        cluster.daemons.wait_ready(_NAME, lambda: is_healthy(ready))
        yield
        # An operator that exited explains a failure better than the test's own timeout.
        cluster.daemons.check(_NAME)
    finally:
        cluster.daemons.stop(_NAME)
