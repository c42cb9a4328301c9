"""The JSON Schema of tool arguments: checked at registration, compiled once, with readable errors.

A schema comes from untrusted sources (skills, MCP servers, edges, callers), so its size and its
references are checked before a validator sees it: measured, an 18-fold `allOf` costs seconds, and a
remote `$ref` is fetched. A schema may refer to itself: then the depth of the arguments is limited,
by how often each level of them is validated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from evoclaw.core.encoding import is_deeper
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
MAX_RECURSION_DEPTH = 64
"""Nested values in the arguments of a tool whose schema refers to itself, at most."""
MAX_VALIDATION_STEPS = 1_000_000
"""Parts of such a schema that the deepest arguments are checked against."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_INNER = frozenset(
    {"items", "additionalProperties", "additionalItems", "contains", "prefixItems",
     "patternProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)  # fmt: skip
"""Keywords whose schemas apply to values inside the value."""


class RecursiveValidator:
    """The validator of a schema that refers to itself: it refuses values that are too deep."""

    def __init__(self, inner: Validator, max_depth: int) -> None:
        self._inner, self.max_depth = inner, max_depth

    def is_valid(self, value: JSON) -> bool:
        """Whether the value is not too deep, and fits the schema."""
        return not is_deeper(value, self.max_depth) and self._inner.is_valid(value)

    def iter_errors(self, value: JSON) -> Iterator[ValidationError]:
        """What is wrong with a value that is not too deep."""
        return iter(self._inner.iter_errors(value))


SchemaValidator: TypeAlias = "Validator | RecursiveValidator"


def compile_schema(tool: Tool) -> SchemaValidator:
    """Check and compile a tool's schema; patterns run on a linear-time engine.

    Raises `SchemaError` if it is not an object schema, is too big, or refers to a URL.
    """
    try:
        return _compiled(msgspec.json.encode(tool.parameters))
    except (TypeError, RecursionError) as error:
        raise SchemaError(tool.name, f"the schema is not plain JSON ({error})") from None
    except SchemaError as error:
        raise SchemaError(tool.name, error.problem) from None


@lru_cache(maxsize=MAX_COMPILED_SCHEMAS)
def _compiled(schema: bytes) -> SchemaValidator:
    """Cached: most runs are offered the same tools."""
    size = len(schema)
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(
            "", f"the schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed"
        )
    parameters = msgspec.json.decode(schema)
    max_depth = _check(parameters)
    # Imported late: it costs an idle device five megabytes.
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for(
            parameters,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=1 << 20),
            validate_formats=False,
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise SchemaError("", f"not a valid JSON Schema: {first_line}") from None
    return validator if max_depth is None else RecursiveValidator(validator, max_depth)


def _check(schema: dict[str, JSON]) -> int | None:
    """Check a schema; returns how deep its values may be if it refers to itself, else None."""
    if _root(schema).get("type") != "object":
        raise SchemaError("", 'the schema must have "type": "object"')
    for nodes, (node, depth) in enumerate(_walk(schema, 1), 1):
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError("", f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
        if nodes > MAX_SCHEMA_NODES:
            raise SchemaError("", f"the schema has more than {MAX_SCHEMA_NODES} parts")
        if is_object(node):
            _check_reference(node)
    return _Expansion(schema).max_depth()


def _root(schema: dict[str, JSON]) -> dict[str, JSON]:
    """The schema, or the one that it only refers to."""
    target = schema.get("$ref")
    if "type" in schema or not isinstance(target, str) or not target.startswith("#/"):
        return schema
    found = _resolve(schema, target)
    return found if is_object(found) else schema


def describe_problems(validator: SchemaValidator, arguments: dict[str, JSON]) -> str:
    """Describe at most three validation errors in one line; empty if there are none."""
    if isinstance(validator, RecursiveValidator) and is_deeper(arguments, validator.max_depth):
        return f"nested more than {validator.max_depth} deep"
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
    for keyword in _REFERENCES:
        target = node.get(keyword)
        if isinstance(target, str) and target != "#" and not target.startswith("#/"):
            raise SchemaError(
                "", f"{keyword} {target[:80]!r}: only references within the schema are allowed"
            )
    for keyword in ("$id", "id", "$schema"):
        target = node.get(keyword)
        if keyword != "$schema" and isinstance(target, str) and "://" in target:
            raise SchemaError("", f"{keyword} {target[:80]!r}: URLs are not allowed")


class _Expansion:
    """Follows the references of a schema as a validator does, once around each cycle.

    It limits what a validator visits, and counts how many references to what is being expanded
    apply to one and the same inner value: with two, each level of a value doubles the work.
    """

    def __init__(self, schema: dict[str, JSON]) -> None:
        self._schema = schema
        self._visited = 0
        self._cycles: Counter[tuple[str, ...]] = Counter()
        """References back, by the position of the value that they apply to."""
        self._visit(schema, {"#": 0}, ())

    def max_depth(self) -> int | None:
        """How deep values may be, so that they are validated quickly; None: not recursive."""
        if not self._cycles:
            return None
        anywhere = sum(count for where, count in self._cycles.items() if "*" in where)
        named = max((n for where, n in self._cycles.items() if "*" not in where), default=0)
        if (factor := named + anywhere) <= 1:
            return MAX_RECURSION_DEPTH
        depth = int(log(MAX_VALIDATION_STEPS / self._visited) / log(factor))
        if depth < 2:
            raise SchemaError("", "the schema refers to itself too often")
        return min(depth, MAX_RECURSION_DEPTH)

    def _visit(self, node: JSON, trail: dict[str, int], where: tuple[str, ...]) -> None:
        self._visited += 1
        if self._visited > MAX_SCHEMA_NODES:
            raise SchemaError(
                "", f"the schema has more than {MAX_SCHEMA_NODES} parts with references"
            )
        if is_array(node):
            for child in node:
                self._visit(child, trail, where)
        if not is_object(node):
            return
        for keyword in _REFERENCES:
            if isinstance(target := node.get(keyword), str):
                self._follow(target, trail, where)
        for key, child in node.items():
            if key not in ("$defs", "definitions"):
                self._visit_keyword(key, child, trail, where)

    def _visit_keyword(
        self, key: str, child: JSON, trail: dict[str, int], where: tuple[str, ...]
    ) -> None:
        if key == "properties" and is_object(child):
            for name, inner in child.items():
                self._visit(inner, trail, (*where, f".{name}"))
        else:
            self._visit(child, trail, (*where, "*") if key in _INNER else where)

    def _follow(self, target: str, trail: dict[str, int], where: tuple[str, ...]) -> None:
        if target not in trail:
            self._visit(_resolve(self._schema, target), {**trail, target: len(where)}, where)
            return
        if len(where) == trail[target]:
            raise SchemaError("", f"$ref {target[:80]!r} refers to itself")
        self._cycles[where] += 1


def _resolve(schema: dict[str, JSON], target: str) -> JSON:
    node: JSON = schema
    for part in target[2:].split("/") if target != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if not is_object(node) or key not in node:
            raise SchemaError("", f"$ref {target[:80]!r} does not exist in the schema")
        node = node[key]
    return node
