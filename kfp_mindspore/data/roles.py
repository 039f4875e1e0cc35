"""A source's field roles: target, weight, ids, and the network's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kfp_mindspore.data.sources.base import Source
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.tensors import is_ragged

Inputs = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Roles:
    """Fields by role.

    Args:
        target: Target fields, () for none.
        weight: The sample weights' field, empty for none.
        ids: Fields that identify a sample.
        order: Split field by time or group, or with the split names; empty for none.
        inputs: Fields by network input: one field, kept as it is, or several that become one float32 matrix.
    """

    target: tuple[str, ...]
    weight: str
    ids: tuple[str, ...]
    order: str
    inputs: Mapping[str, str | tuple[str, ...]]

    def list_fields(self) -> list[str]:
        """Return all fields with a role, input fields last."""
        needed = [name for name in (*self.target, self.weight, *self.ids, self.order) if name]
        return list(dict.fromkeys([*needed, *self.list_features()]))

    def list_features(self) -> list[str]:
        """Return the input fields."""
        return [name for fields in self.inputs.values() for name in _to_list(fields)]


def list_exact_fields(
    target: Sequence[str], weight: str, ids: Sequence[str], order: str, inputs: Inputs | None
) -> frozenset[str]:
    """Return the fields whose dtype is kept, named by options."""
    alone = [fields for fields in (inputs or {}).values() if isinstance(fields, str)]
    return frozenset(name for name in (*target, weight, *ids, order, *alone) if name)


def list_named_fields(
    exact: frozenset[str], features: Sequence[str] | None, inputs: Inputs | None
) -> frozenset[str] | None:
    """Return all fields named by options; None when every field is needed."""
    if features is None and inputs is None:
        return None
    several = [name for fields in (inputs or {}).values() if not isinstance(fields, str) for name in fields]
    return exact | frozenset(features or ()) | frozenset(several)


def resolve_roles(
    source: Source,
    *,
    target: Sequence[str],
    weight: str,
    ids: Sequence[str],
    order: str,
    features: Sequence[str] | None,
    inputs: Inputs | None,
) -> Roles:
    """Return each field's role; fields without a role are features.

    Without `inputs`, the fields with one value per sample become the input `features`, and each other field, and each
    field with format preprocessing, is its own input.

    Raises:
        ValidationError: A field is missing or has two roles.
        UserError: There is no feature.
    """
    target = tuple(target) or source.target
    taken = [*target, weight, *ids, order]
    # A split's field may have another role too, such as a ranking's group.
    named = [name for name in taken[:-1] if name]
    errors = [f"{name}: has two roles" for name in sorted({name for name in named if named.count(name) > 1})]
    used = [*(features or ()), *(name for fields in (inputs or {}).values() for name in _to_list(fields))]
    errors += [f"features: {name}: is the target, weight or id" for name in used if name in named]
    if inputs is not None and features is not None:
        errors.append("features: cannot be combined with inputs, which name their fields")
    if errors:
        raise ValidationError(errors, subject="load_dataset")
    if inputs is None:
        default = [name for name in source.columns if name not in taken and name not in source.times]
        chosen = default if features is None else list(features)
        scalars = tuple(name for name in chosen if source.columns[name].ndim == 1 and not _is_alone(source, name))
        resolved: dict[str, str | tuple[str, ...]] = {"features": scalars} if scalars else {}
        for name in chosen:
            if name in scalars:
                continue
            if name in resolved:
                raise UserError(
                    f"{source.where}: the field {name!r} has the name of the stacked fields {', '.join(scalars[:5])}",
                    hint='Name the inputs: inputs={"NAME": "FIELD", "OTHER": ["FIELD", "FIELD"]}',
                )
            resolved[name] = name
    else:
        resolved = {name: fields if isinstance(fields, str) else tuple(fields) for name, fields in inputs.items()}
    if not resolved:
        raise UserError(f"{source.where}: no feature is left: the fields are {', '.join(source.columns)}")
    return Roles(target, weight, tuple(ids), order, resolved)


def _to_list(fields: str | Sequence[str]) -> list[str]:
    return [fields] if isinstance(fields, str) else list(fields)


def _is_alone(source: Source, name: str) -> bool:
    """Return whether a field has format preprocessing, as images and ids have, or is a whole text or a list."""
    if is_ragged(source.columns[name]):
        return True
    is_text = source.columns[name].dtype == object and not source.is_table
    return is_text or any(step.column == name for step in source.steps)
