"""MSJob: a job's manifest with its readers; pod templates stay the dicts that the user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.kinds import export_job
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.msjob.yaml_document import parse_msjob_yaml


@dataclass
class MSJob(JobManifest):
    """A MindSpore training job.

    Attributes:
        metadata: Kubernetes object metadata, a dict as in YAML; `name` is a DNS label of at most 51 characters.
        ms_replica_specs: Replica type (`Scheduler`, `PS`, `Worker`) to its replicas. With more than one worker and no
            scheduler given, a scheduler runs the workers' template.
        run_policy: Deadline, restarts and clean-up.
        success_policy: Empty or None: the job succeeds with worker 0; `AllWorkers`: with all workers.
        enable_dynamic_worker: Stored for ms-operator.
        elastic_policy: Bounds on the worker count.
        warm_spares: Spare pods that have imported MindSpore and become members at the next restart; default 0; the
            local backend ignores it and forks members.
        topology_key: Node label, such as `topology.kubernetes.io/zone`: all the job's pods are scheduled to nodes with
            the same value; the local backend ignores it.
        status: Observed state, written by the backend.
    """

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, validate: bool = True) -> MSJob:
        """Read a manifest.

        Args:
            document: As parsed from YAML; it is copied.
            validate: Whether to validate it; False for a backend's document.

        Raises:
            ValidationError: It is invalid; the message names the fields.
        """
        if validate:
            validate_msjob(document)
        spec = document["spec"]
        return cls(
            metadata=document["metadata"],
            ms_replica_specs=spec["msReplicaSpecs"],
            run_policy=spec.get("runPolicy"),
            success_policy=spec.get("successPolicy"),
            enable_dynamic_worker=spec.get("enableDynamicWorker"),
            elastic_policy=spec.get("elasticPolicy"),
            warm_spares=spec.get("warmSpares"),
            topology_key=spec.get("topologyKey"),
            status=document.get("status"),
            api_version=document["apiVersion"],
            kind=document["kind"],
        )

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "") -> MSJob:
        """Read one YAML document.

        Args:
            text: The YAML.
            source: File name, for messages.

        Raises:
            ValidationError: Not YAML (with line and column), or an invalid MSJob.
        """
        return cls.from_dict(parse_msjob_yaml(text, source=source))

    def to_yaml(self) -> str:
        """Return the manifest as YAML."""
        import yaml

        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False)
        return text

    def to(self, kind: str) -> list[dict[str, Any]]:
        """Return the job manifests as another kind, in the order in which they are created.

        Args:
            kind: `MPIJob`, `TrainJob`, `AscendJob`, `volcano`, `legacy` (ms-operator) or `first-generation`.

        Raises:
            ValidationError: The kind is unknown, or cannot express the job; the message names the fields.
        """
        return export_job(self, kind).manifests
