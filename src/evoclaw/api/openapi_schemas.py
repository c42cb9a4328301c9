"""Replaces Litestar's JSON Schemas in the OpenAPI document by those of msgspec.

msgspec reads and writes the bodies, so its schemas are exact. Litestar's lose bounds inside unions
and `forbid_unknown_fields`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from http import HTTPStatus
from typing import Any, cast, get_args

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from msgspec import Struct
from msgspec.inspect import (
    CollectionType,
    DictType,
    Metadata,
    StructType,
    TupleType,
    UnionType,
    multi_type_info,
)
from msgspec.structs import fields

from evoclaw.core.field_docs import field_docs
from evoclaw.core.messages import JSON, is_array, is_object

SCHEMA_REF_PREFIX = "#/components/schemas/"


def use_msgspec_schemas(document: dict[str, JSON], app: Litestar) -> None:
    """Replace the schemas of the document, and drop those that nothing refers to."""
    kinds = list(_structs(app))
    _, exact = msgspec.json.schema_components(kinds, ref_template=SCHEMA_REF_PREFIX + "{name}")
    _describe_fields(kinds, exact)
    found: dict[str, JSON] = document["components"]["schemas"]
    names = {kind: _msgspec_name(kind, exact) for kind in kinds}
    for kind, name in names.items():
        for known in _litestar_names(kind):
            if known in found and known != name:
                found[known] = {"$ref": SCHEMA_REF_PREFIX + name}
    found |= exact
    used = _referenced_schemas(document)
    for name in [name for name in found if name not in used]:
        del found[name]
    _describe_responses(document, found)


def _describe_responses(document: dict[str, JSON], schemas: dict[str, JSON]) -> None:
    """Describe each success by its body; Litestar has only the phrase of the status."""
    phrases = {str(status.value): status.description for status in HTTPStatus}
    for item in document["paths"].values():
        for operation in item.values():
            for status, response in operation["responses"].items():
                if response.get("description") != phrases.get(status):
                    continue
                names = list(_references(response))
                described: JSON = schemas.get(names[0], {}) if names else {}
                response["description"] = described.get("description", "Done.")


def _describe_fields(kinds: Sequence[type[Struct]], exact: dict[str, Any]) -> None:
    """Add the docstring of each field to its property; msgspec knows those of classes only."""
    for kind in _reachable_structs(kinds):
        properties: dict[str, JSON] = exact[_msgspec_name(kind, exact)].get("properties", {})
        docs = field_docs(kind)
        for field in fields(kind):
            if field.name in docs:
                properties[field.encode_name]["description"] = docs[field.name]
        config = kind.__struct_config__
        if config.tag_field is not None:
            properties[config.tag_field]["description"] = f"Always `{config.tag}`."


def _reachable_structs(kinds: Sequence[type[Struct]]) -> Iterator[type[Struct]]:
    """These structs, and the structs in their fields."""
    seen: set[type[Struct]] = set()
    waiting: list[Any] = list(multi_type_info(kinds))
    while waiting:
        match waiting.pop():
            case StructType(cls=kind, fields=inner):
                if kind not in seen:
                    seen.add(kind)
                    yield kind
                    waiting += [field.type for field in inner]
            case UnionType(types=types):
                waiting += types
            case DictType(value_type=value):
                waiting.append(value)
            case TupleType(item_types=items):
                waiting += items
            case CollectionType(item_type=item):
                waiting.append(item)
            case Metadata(type=inner):
                waiting.append(inner)
            case _:
                pass


def _structs(app: Litestar) -> Iterator[type[Struct]]:
    """The structs in the requests and responses of the routes."""
    seen: set[type[Struct]] = set()
    for handler in routes_of(app):
        field = handler.parsed_data_field
        returned = handler.parsed_fn_signature.return_type.annotation
        specs = cast("dict[int, Any]", handler.responses or {})
        declared: list[Any] = [spec.data_container for spec in specs.values()]
        body = None if field is None else field.annotation
        for kind in (*_with_arguments(body), *_with_arguments(returned), *declared):
            if isinstance(kind, type) and issubclass(kind, Struct) and kind not in seen:
                seen.add(kind)
                yield kind


def _with_arguments(kind: Any) -> Iterator[Any]:
    """A type and its type arguments, at any depth, as in `Response[View | str]`."""
    yield kind
    for inner in get_args(kind):
        yield from _with_arguments(inner)


def routes_of(app: Litestar) -> Iterator[HTTPRouteHandler]:
    """The routes that are in the document."""
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            yield from (
                handler for handler in route.route_handlers if handler.resolve_include_in_schema()
            )


def _msgspec_name(kind: type[Struct], exact: Container[str]) -> str:
    """The schema name of msgspec: the qualified name if two structs share a class name."""
    qualified = f"{kind.__module__}.{kind.__qualname__}"
    return qualified if qualified in exact else kind.__name__


def _litestar_names(kind: type[Struct]) -> Iterator[str]:
    """The possible schema names of Litestar: with as many module names as make it unique."""
    parts = kind.__module__.split(".")
    for first in range(len(parts), -1, -1):
        yield "_".join([*parts[first:], kind.__name__])


def _referenced_schemas(document: dict[str, JSON]) -> set[str]:
    """The names of the schemas that something refers to."""
    schemas = document["components"]["schemas"]
    outside = {key: value for key, value in document.items() if key != "components"}
    outside["responses"] = document["components"].get("responses", {})
    used: set[str] = set()
    waiting = list(_references(outside))
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += _references(schemas.get(name, {}))
    return used


def _references(value: Any) -> Iterator[str]:
    if is_object(value):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith(SCHEMA_REF_PREFIX):
            yield reference.removeprefix(SCHEMA_REF_PREFIX)
        for inner in value.values():
            yield from _references(inner)
    elif is_array(value):
        for inner in value:
            yield from _references(inner)
