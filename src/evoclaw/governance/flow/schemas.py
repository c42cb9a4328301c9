"""The default and the allowed values of a parameter, from the tool's JSON Schema."""

from __future__ import annotations

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import Tool

MAX_SCHEMA_DEPTH = 8


def default_of(tool: Tool, name: str) -> JSON:
    """The default value of a parameter; None if it has none."""
    node = _property(tool, name)
    return node.get("default")


def allowed_values(tool: Tool, name: str) -> tuple[JSON, ...]:
    """The values that the schema lists for a parameter."""
    return tuple(_allowed_values(tool, _property(tool, name), 0))


def _property(tool: Tool, name: str) -> dict[str, JSON]:
    properties = tool.parameters.get("properties")
    node = properties.get(name) if is_object(properties) else None
    return node if is_object(node) else {}


def _allowed_values(tool: Tool, node: JSON, depth: int) -> list[JSON]:
    if not is_object(node) or depth > MAX_SCHEMA_DEPTH:
        return []
    found: list[JSON] = []
    if is_array(listed := node.get("enum")):
        found.extend(listed)
    if "const" in node:
        found.append(node["const"])
    for word in ("anyOf", "oneOf", "allOf"):
        if is_array(parts := node.get(word)):
            for part in parts:
                found.extend(_allowed_values(tool, part, depth + 1))
    found.extend(_allowed_values(tool, node.get("items"), depth + 1))
    found.extend(_allowed_values(tool, _resolve_ref(tool, node.get("$ref")), depth + 1))
    return found


def _resolve_ref(tool: Tool, ref: JSON) -> JSON:
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    node: JSON = tool.parameters
    for step in ref[2:].split("/"):
        node = node.get(step) if is_object(node) else None
    return node
