"""The shapes in the OpenAPI document, described by what reads and writes them: msgspec itself.

The framework knows less about them: it drops bounds inside of unions, and that a body takes nothing
but what it names.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, cast, get_args

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object

BELOW = "#/components/schemas/"


def shape(document: dict[str, JSON], app: Litestar) -> None:
    """Put exact shapes in the place of the framework's; what nothing refers to is left out."""
    kinds = list(_structs(app))
    _, exact = msgspec.json.schema_components(kinds, ref_template=BELOW + "{name}")
    found: dict[str, JSON] = document["components"]["schemas"]
    names = {kind: _name(kind, exact) for kind in kinds}
    for kind, name in names.items():
        for known in _names(kind):
            if known in found and known != name:
                found[known] = {"$ref": BELOW + name}
    found |= exact
    used = _used(document)
    for name in [name for name in found if name not in used]:
        del found[name]


def _structs(app: Litestar) -> Iterator[type[Struct]]:
    """What the routes take and give."""
    seen: set[type[Struct]] = set()
    for handler in routes_of(app):
        field = handler.parsed_data_field
        returned = handler.parsed_fn_signature.return_type.annotation
        specs = cast("dict[int, Any]", handler.responses or {})
        declared: list[Any] = [one.data_container for one in specs.values()]
        taken = None if field is None else field.annotation
        for kind in (taken, *get_args(taken), returned, *get_args(returned), *declared):
            if isinstance(kind, type) and issubclass(kind, Struct) and kind not in seen:
                seen.add(kind)
                yield kind


def routes_of(app: Litestar) -> Iterator[HTTPRouteHandler]:
    """Every route that is in the document."""
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            yield from (one for one in route.route_handlers if one.resolve_include_in_schema())


def _name(kind: type[Struct], exact: Container[str]) -> str:
    """What msgspec calls it: by its whole name, if two have the same."""
    whole = f"{kind.__module__}.{kind.__qualname__}"
    return whole if whole in exact else kind.__name__


def _names(kind: type[Struct]) -> Iterator[str]:
    """What the framework may call it: with as much of its module as is needed to tell it apart."""
    parts = kind.__module__.split(".")
    for first in range(len(parts), -1, -1):
        yield "_".join([*parts[first:], kind.__name__])


def _used(document: dict[str, JSON]) -> set[str]:
    """The shapes that something refers to."""
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
        if isinstance(reference, str) and reference.startswith(BELOW):
            yield reference.removeprefix(BELOW)
        for inner in value.values():
            yield from _references(inner)
    elif is_array(value):
        for inner in value:
            yield from _references(inner)
