"""The JSON Schema of tool arguments: checked at registration, compiled once, with readable errors.

A schema comes from untrusted sources (skills, MCP servers, edges), so its size and its references
are checked before a validator sees it: measured, an 18-fold `allOf` costs seconds, and a remote
`$ref` is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.errors import SchemaError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import Tool

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_SCHEMA_DEPTH = 16
MAX_SCHEMA_NODES = 2_000
MAX_SCHEMA_BYTES = 64 * 1024
MAX_COMPILED_SCHEMAS = 1_024
"""Compiled schemas in the cache."""


def compile_schema(tool: Tool) -> Validator:
    """Check and compile a tool's schema; patterns run on a linear-time engine.

    Raises `SchemaError` if it is not an object schema, is too big or recursive, or refers to a URL.
    """
    try:
        return _compiled(msgspec.json.encode(tool.parameters))
    except (TypeError, RecursionError) as error:
        raise SchemaError(tool.name, f"the schema is not plain JSON ({error})") from None
    except SchemaError as error:
        raise SchemaError(tool.name, error.problem) from None


@lru_cache(maxsize=MAX_COMPILED_SCHEMAS)
def _compiled(schema: bytes) -> Validator:
    """Cached: most runs are offered the same tools."""
    size = len(schema)
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(
            "", f"the schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed"
        )
    parameters = msgspec.json.decode(schema)
    _check(parameters)
    # Imported late: it costs an idle device five megabytes.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            parameters,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=1 << 20),
            validate_formats=False,
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise SchemaError("", f"not a valid JSON Schema: {first_line}") from None


def _check(schema: dict[str, JSON]) -> None:
    if schema.get("type") != "object":
        raise SchemaError("", 'the schema must have "type": "object"')
    for nodes, (node, depth) in enumerate(_walk(schema, 1), 1):
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError("", f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
        if nodes > MAX_SCHEMA_NODES:
            raise SchemaError("", f"the schema has more than {MAX_SCHEMA_NODES} parts")
        if is_object(node):
            _check_reference(node)
    _check_expansion(schema)


def describe_problems(validator: Validator, arguments: dict[str, JSON]) -> str:
    """Describe at most three validation errors in one line; empty if there are none."""
    found: list[str] = []
    for error in validator.iter_errors(arguments):
        found.append(_describe(error))
        if len(found) == 3:
            break
    return "; ".join(found)


def _describe(error: ValidationError) -> str:
    where = ".".join(str(part) for part in error.instance_path)
    missing = getattr(error.kind, "property", None)
    if isinstance(missing, str) and error.message.endswith("is a required property"):
        return f"missing {f'{where}.{missing}' if where else missing!r}"
    message = error.message if len(error.message) <= 200 else error.message[:200] + "…"
    return f"{where!r}: {message}" if where else message


def _walk(node: JSON, depth: int) -> Iterator[tuple[JSON, int]]:
    # Iterative on purpose: a schema that is too deep must not exhaust our own stack.
    stack: list[tuple[JSON, int]] = [(node, depth)]
    while stack:
        here, level = stack.pop()
        yield here, level
        if is_object(here):
            stack.extend((child, level + 1) for child in here.values())
        elif is_array(here):
            stack.extend((child, level + 1) for child in here)


def _check_reference(node: dict[str, JSON]) -> None:
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        target = node.get(keyword)
        if isinstance(target, str) and not target.startswith("#/"):
            raise SchemaError(
                "", f"{keyword} {target[:80]!r}: only references within the schema are allowed"
            )
    for keyword in ("$id", "id", "$schema"):
        target = node.get(keyword)
        if keyword != "$schema" and isinstance(target, str) and "://" in target:
            raise SchemaError("", f"{keyword} {target[:80]!r}: URLs are not allowed")


def _check_expansion(schema: dict[str, JSON]) -> None:
    """Limit what a validator visits when it follows references; reject cycles."""
    budget = MAX_SCHEMA_NODES

    def visit(node: JSON, trail: tuple[str, ...]) -> None:
        nonlocal budget
        budget -= 1
        if budget < 0:
            raise SchemaError(
                "", f"the schema has more than {MAX_SCHEMA_NODES} parts with references"
            )
        if is_object(node):
            target = node.get("$ref")
            if isinstance(target, str):
                if target in trail:
                    raise SchemaError("", f"$ref {target[:80]!r} refers to itself")
                visit(_resolve(schema, target), (*trail, target))
            for key, child in node.items():
                if key not in ("$defs", "definitions"):
                    visit(child, trail)
        elif is_array(node):
            for child in node:
                visit(child, trail)

    visit(schema, ())


def _resolve(schema: dict[str, JSON], target: str) -> JSON:
    node: JSON = schema
    for part in target[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not is_object(node) or key not in node:
            raise SchemaError("", f"$ref {target[:80]!r} does not exist in the schema")
        node = node[key]
    return node
