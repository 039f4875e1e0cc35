"""YAML to documents: duplicate keys and excessive nesting are refused, dates stay text."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.api.names import API_VERSION, KIND

# Pod templates have at most 20 levels; thousands would end in a RecursionError.
_MAX_DEPTH = 100
_SHOWN = 80


def parse_yaml_documents(text: str, *, source: str = "", repeated: list[str] | None = None) -> list[dict[str, Any]]:
    """Parse YAML of one or more mappings. Dates stay text, as in Kubernetes.

    Args:
        text: The YAML.
        source: File name, for messages.
        repeated: Receives `line N, column M: KEY` for keys that are given twice, where the last counts; None refuses
            them.

    Raises:
        ValidationError: Not YAML (with line and column), a duplicate key, or a document that is no mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            reader: Any = self
            if (depth := getattr(self, "depth", 0)) >= _MAX_DEPTH:
                raise yaml.MarkedYAMLError(
                    problem=f"is nested deeper than {_MAX_DEPTH} levels", problem_mark=reader.peek_event().start_mark
                )
            self.depth = depth + 1
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth = depth

        def compose_mapping_node(self, anchor: Any) -> Any:
            # Before merge keys (<<) are resolved: a merged key may be overridden.
            node: Any = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
                if name is None or key.tag == "tag:yaml.org,2002:merge":
                    continue
                if name in seen and repeated is not None:
                    mark = key.start_mark
                    repeated.append(f"line {mark.line + 1}, column {mark.column + 1}: {key.value}")
                elif name in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add(name)
            return node

    where = f"{source}: " if source else ""
    try:
        documents = [item for item in yaml.load_all(text, Loader) if item is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValidationError([f"{where}{place}{error.problem or error.context}"], subject="YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValidationError([f"{where}{error}"], subject="YAML") from None
    for document in documents:
        if not isinstance(document, dict):
            found = "a list" if isinstance(document, list) else repr(document)[:_SHOWN]
            raise ValidationError([f"{where}must hold one MSJob, got {found}"], subject="YAML")
    return documents


def parse_msjob_yaml(text: str, *, source: str = "") -> dict[str, Any]:
    """Parse one job's YAML without validating it.

    Args:
        text: The YAML.
        source: File name, for messages.

    Raises:
        ValidationError: Not YAML (with line and column), a duplicate key, not exactly one mapping, or a job of another
            kind or generation.
    """
    from kfp_mindspore.msjob.validation import get_convert_hint

    documents = parse_yaml_documents(text, source=source)
    where = f"{source}: " if source else ""
    for document in documents:
        if hint := get_convert_hint(document, source):
            names = f"{document['kind']} of {document['apiVersion']}"
            raise ValidationError([f"{where}must be {KIND} of {API_VERSION}, got {names}"], subject="YAML", hint=hint)
    if len(documents) != 1:
        raise ValidationError([f"{where}must hold one MSJob, got {len(documents)} documents"], subject="YAML")
    return documents[0]
