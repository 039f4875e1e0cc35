"""The CustomResourceDefinition `msjobs.mindspore.gitee.com`, generated from the types and Kubernetes' pod template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_mindspore import __version__
from kfp_mindspore.kube.names import SERVICE_NAME
from kfp_mindspore.kube.pod_schema import Schema
from kfp_mindspore.msjob.api.names import (
    CONTAINER_NAME,
    GROUP,
    KIND,
    MAXIMUM_NAME,
    PLURAL,
    REPLICA_TYPES,
    SCHEDULER,
    SHORT_NAME,
    SINGULAR,
    VERSION_LABEL,
    WORKER,
)
from kfp_mindspore.msjob.api.schema import describe_class
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.api.status import StatusSummary

# Replica types are a map's keys, since ms-operator accepts them in any case; without maxProperties the API server
# estimates an unlimited cost for its rules and refuses them.
_FOLDED = {name: name.lower() for name in REPLICA_TYPES}
_RESTING = "has(oldSelf.spec.runPolicy) && has(oldSelf.spec.runPolicy.suspend) && oldSelf.spec.runPolicy.suspend"
# A status write cannot change the spec, and other writes cannot change the status: skip the spec rules, which cost the
# API server as much CPU as all else in a status write.
_STATUS_WRITTEN = (
    "has(self.status) && (!has(oldSelf.status) || has(self.status.state) != has(oldSelf.status.state) || "
    "has(self.status.state) && self.status.state != oldSelf.status.state)"
)
_SUSPEND_FIRST = "cannot change unless the job is suspended (spec.runPolicy.suspend: true); make a new job instead"


def build_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {VERSION_LABEL: __version__}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all", "kubeflow"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": build_job_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": f".spec.msReplicaSpecs.{WORKER}.replicas",
                            "statusReplicasPath": f".status.replicaStatuses.{WORKER}.active",
                            "labelSelectorPath": f".status.replicaStatuses.{WORKER}.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        _column("State", "string", ".status.state", "The condition of highest precedence."),
                        _column("Workers", "string", ".status.workers", "Ready workers, of all."),
                        _column("Restarts", "integer", ".status.restarts", "Number of gang restarts."),
                        _column("Progress", "integer", ".status.progress.percentage", "Steps done in percent."),
                        _column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
                    ],
                }
            ],
        },
    }


def build_job_schema() -> Schema:
    """Return an MSJob's structural schema: defaults, limits and rules included."""
    extras = {"label_selector": {"definition": "LabelSelector"}, "conditions": _map_by("type")}
    job = describe_class(JobManifest, extras)
    fields = job["properties"]
    status = fields.pop("status")
    summary = describe_class(StatusSummary)
    # Without maxLength the API server estimates an unlimited cost for comparing it.
    state = {"description": "The condition of highest precedence.", "type": "string", "maxLength": 64}
    status["properties"] = {"state": state, **summary["properties"], **status["properties"]}
    status["description"] = "Observed state of the job, written by the operator."
    head = {name: fields.pop(name) for name in ("apiVersion", "kind", "metadata")}
    spec = {
        "description": "Desired state of the job.",
        "type": "object",
        "required": ["msReplicaSpecs"],
        "properties": fields,
    }
    _add_rules(fields)
    return {
        "description": job["description"],
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Version of this form: mindspore.gitee.com/v1.", **_bare(head["apiVersion"])},
            "kind": {"description": "MSJob.", **_bare(head["kind"])},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [*_list_name_rules(), _build_type_rule(), _build_change_rule()],
    }


def _add_rules(fields: dict[str, Schema]) -> None:
    replicas = fields["msReplicaSpecs"]
    replicas["maxProperties"] = len(REPLICA_TYPES)
    replica = replicas["additionalProperties"]
    replica["properties"]["template"]["required"] = ["spec"]
    replica["x-kubernetes-validations"] = [
        _rule(
            f"self.template.spec.containers.exists(c, c.name == '{CONTAINER_NAME}')",
            f"template.spec.containers: must have one named '{CONTAINER_NAME}'",
        )
    ]
    # A default for the object: without it its fields' defaults are not applied when it is absent.
    fields["runPolicy"]["default"] = {}
    fields["runPolicy"]["x-kubernetes-validations"] = [_rule(_is_same("managedBy"), "managedBy: cannot change")]
    fields["elasticPolicy"]["x-kubernetes-validations"] = [
        _rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas: must be at most maxReplicas",
        )
    ]


def _list_name_rules() -> list[dict[str, Any]]:
    # Names are validated on creation only: an existing job with an invalid name and a finalizer could not be deleted.
    def at_creation(rule: str) -> str:
        return f"oldSelf.hasValue() || {rule}"

    return [
        {
            **_rule(
                at_creation(f"self.metadata.name.matches('^{SERVICE_NAME}$')"),
                "metadata.name: must be lower-case letters, digits and '-', starting with a letter and not ending "
                "with '-'",
            ),
            "optionalOldSelf": True,
        },
        {
            **_rule(
                at_creation(f"self.metadata.name.size() <= {MAXIMUM_NAME}"),
                f"metadata.name: must have at most {MAXIMUM_NAME} characters",
            ),
            "optionalOldSelf": True,
        },
    ]


def _build_type_rule() -> dict[str, Any]:
    known = ", ".join(f"'{name}'" for name in _FOLDED.values())
    types, before = "self.spec.msReplicaSpecs", "oldSelf.value().spec.msReplicaSpecs"
    joined = _join(
        {
            f"unknown replica type, must be one of {', '.join(REPLICA_TYPES)} (in any case)": (
                f"{types}.all(k, k.lowerAscii() in [{known}])"
            ),
            "give each replica type once; two differ only in upper and lower case": (
                f"{types}.all(k, {types}.exists_one(o, o.lowerAscii() == k.lowerAscii()))"
            ),
            f"{WORKER}: is required; a job without a worker would never end": (
                f"{types}.exists(k, k.lowerAscii() == '{_FOLDED[WORKER]}')"
            ),
            f"{SCHEDULER}.replicas: must be 1": (
                f"{types}.all(k, k.lowerAscii() != '{_FOLDED[SCHEDULER]}' || !has({types}[k].replicas) || "
                f"{types}[k].replicas == 1)"
            ),
        }
    )
    written = _STATUS_WRITTEN.replace("oldSelf", "oldSelf.value()")
    # Jobs admitted by an older definition may keep their replica types, so that they can be updated and deleted.
    same = _is_same("replicas", f"{types}[k]", f"{before}[k]")
    kept = f"{types}.size() == {before}.size() && {types}.all(k, k in {before} && {same})"
    return {
        **joined,
        "rule": f"oldSelf.hasValue() && ({written} || {kept}) || {joined['rule']}",
        "fieldPath": ".spec.msReplicaSpecs",
        "optionalOldSelf": True,
    }


def _build_change_rule() -> dict[str, Any]:
    replicas, before = "self.spec.msReplicaSpecs", "oldSelf.spec.msReplicaSpecs"
    new, old = f"{replicas}[k]", f"{before}[k]"
    both = f"{replicas}.all(k, !(k in {before}) || ({{}}))"
    kept = {
        "msReplicaSpecs: replica types": f"{replicas}.size() == {before}.size() && {replicas}.all(k, k in {before})",
        "msReplicaSpecs: template": both.format(f"{new}.template == {old}.template"),
        "msReplicaSpecs: restartPolicy": both.format(_is_same("restartPolicy", new, old)),
        f"msReplicaSpecs: replicas of any type but {WORKER}": both.format(
            f"k.lowerAscii() == '{_FOLDED[WORKER]}' || ({_is_same('replicas', new, old)})"
        ),
        **{
            f"{name}:": _is_same(name, "self.spec", "oldSelf.spec")
            for name in ("successPolicy", "enableDynamicWorker", "topologyKey")
        },
    }
    joined = _join({f"{what} {_SUSPEND_FIRST}": rule for what, rule in kept.items()})
    return {**joined, "rule": f"{_STATUS_WRITTEN} || {_RESTING} || {joined['rule']}", "fieldPath": ".spec"}


def _is_same(name: str, new: str = "self", old: str = "oldSelf") -> str:
    return f"has({new}.{name}) == has({old}.{name}) && (!has({new}.{name}) || {new}.{name} == {old}.{name})"


def _join(rules: Mapping[str, str]) -> dict[str, Any]:
    """Join rules by message into one: each rule costs the API server a full object evaluation at each write."""
    *others, last = rules
    expression = "".join(f"!({rules[message]}) ? '{message}' : " for message in others)
    return {
        **_rule(" && ".join(f"({rule})" for rule in rules.values()), "; or ".join(rules)),
        "messageExpression": f"{expression}'{last}'",
    }


def _rule(rule: str, message: str) -> dict[str, Any]:
    return {"rule": rule, "message": message}


def _map_by(key: str) -> dict[str, Any]:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _column(name: str, kind: str, path: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description}


def _bare(schema: Schema) -> Schema:
    return {"type": schema["type"]}
