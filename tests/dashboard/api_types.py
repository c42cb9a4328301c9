"""Writes `dashboard/api.d.ts`, the types of the HTTP API for the dashboard's scripts: `make docs`.

They are made from the OpenAPI document and from the events of a run, so that a field that the
service renames is an error in the scripts that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import evoclaw.dashboard
from evoclaw.api.app import api_routes
from evoclaw.api.openapi import build_openapi
from evoclaw.api.openapi_schemas import SCHEMA_REF_PREFIX
from evoclaw.api.routes.channels import ChannelList, ChannelPairingCode, FailedDeliveryList
from evoclaw.api.routes.notifications import NotifierList, PushKey, PushSubscriptionView
from evoclaw.core.events import Record
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.orchestrator.notifications.service import NotifierCheck

PATH = Path(evoclaw.dashboard.__file__).with_name("api.d.ts")
TOO_GENERAL = "any"
"""The type of a value without a schema: JSON of a tool, a model or a device."""
HEADER = """// The types of the HTTP API, made from its OpenAPI document: `make docs`. Do not edit.

declare namespace Api {
  type JsonObject<T> = { [key: string]: T };

"""
EXTRA_ROUTES = {
    "get": {
        "/v1/channels": ChannelList,
        "/v1/deliveries/given-up": FailedDeliveryList,
        "/v1/notify": NotifierList,
        "/v1/push/key": PushKey,
    },
    "post": {
        "/v1/channel-pairings/{name}": ChannelPairingCode,
        "/v1/notify/{name}/test": NotifierCheck,
        "/v1/push/subscriptions": PushSubscriptionView,
    },
}
"""Routes that a process adds to those of the document."""
ALSO = ("Record", "ErrorDetails", "AttachedImage")
"""What the scripts use besides the answers: a record of a run, an error, a picture to send."""
_SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}
_OPENAI = "/v1/chat"


def api_types() -> str:
    """The content of `api.d.ts`."""
    document = build_openapi(api_routes())
    routes = _routes(document["paths"])
    more = [Record, *(kind for kinds in EXTRA_ROUTES.values() for kind in kinds.values())]
    _, found = msgspec.json.schema_components(more, ref_template=SCHEMA_REF_PREFIX + "{name}")
    schemas: dict[str, Any] = document["components"]["schemas"] | found
    for method, kinds in EXTRA_ROUTES.items():
        routes[method] |= {path: kind.__name__ for path, kind in kinds.items()}
    used = _used(schemas, {name for named in routes.values() for name in named.values()})
    types = [_type(name, schemas[name]) for name in sorted(used)]
    return HEADER + "\n".join((*types, *map(_route_type, routes, routes.values()))) + "}\n"


def _routes(paths: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By method and path, the name of the type of the answer."""
    found: dict[str, dict[str, str]] = {"get": {}, "post": {}, "put": {}, "patch": {}, "delete": {}}
    for path, item in paths.items():
        for method, operation in item.items():
            for status, answer in operation["responses"].items():
                contents: list[Any] = list(answer.get("content", {}).values())
                ref = contents[0].get("schema", {}).get("$ref", "") if contents else ""
                if status.startswith("2") and ref and not path.startswith(_OPENAI):
                    found[method][path] = ref.removeprefix(SCHEMA_REF_PREFIX)
    return found


def _used(schemas: Mapping[str, Any], names: set[str]) -> set[str]:
    """The names and all that they refer to."""
    found: set[str] = set()
    left = [*ALSO, *names]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _refs(schemas[name])
    return found


def _refs(schema: JSON) -> Iterable[str]:
    if is_object(schema):
        if isinstance(ref := schema.get("$ref"), str):
            yield ref.removeprefix(SCHEMA_REF_PREFIX)
        for key, value in schema.items():
            if key not in ("discriminator", "default"):
                yield from _refs(value)
    elif is_array(schema):
        for value in schema:
            yield from _refs(value)


def _type(name: str, schema: Mapping[str, Any]) -> str:
    about = str(schema.get("description", "")).partition("\n\n")[0].replace("\n", " ")
    comment = f"  /** {about} */\n" if about else ""
    if "properties" not in schema:
        return f"{comment}  type {name} = {_written(schema)};\n"
    required = schema.get("required", ())
    fields = "".join(
        f"    {field}{'' if field in required else '?'}: {_written(kind)};\n"
        for field, kind in schema["properties"].items()
    )
    return f"{comment}  interface {name} {{\n{fields}  }}\n"


def _written(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": ref}:
            return str(ref).removeprefix(SCHEMA_REF_PREFIX)
        case {"enum": values}:
            return " | ".join(msgspec.json.encode(value).decode() for value in values)
        case {"const": value}:
            return msgspec.json.encode(value).decode()
        case {"anyOf": kinds}:
            return " | ".join(dict.fromkeys(_written(kind) for kind in kinds))
        case {"type": "null"}:
            return "null"
        case {"type": "array"}:
            return f"Array<{_written(schema.get('items') or {})}>"
        case {"type": "object"}:
            return f"JsonObject<{_written(schema.get('additionalProperties') or {})}>"
        case {"type": str(kind)} if kind in _SIMPLE:
            return _SIMPLE[kind]
        case _:
            return TOO_GENERAL


def _route_type(method: str, routes: Mapping[str, str]) -> str:
    """The type of the answer to a path. A part of a path may hold anything, so the longest and
    the most exact paths come first."""
    ordered = sorted(routes, key=lambda path: (-path.count("/"), path.count("{"), path))
    lines = "".join(f"    P extends {_pattern(path)} ? {routes[path]} :\n" for path in ordered)
    return (
        f"  /** The answer to {method.upper()} of a path. */\n"
        f"  type {method.capitalize()}<P extends string> =\n{lines}    {TOO_GENERAL};\n"
    )


def _pattern(path: str) -> str:
    parts = ["${string}" if part.startswith("{") else part for part in path.split("/")]
    return f"`{'/'.join(parts)}`" if "${string}" in parts else f'"{"/".join(parts)}"'


if __name__ == "__main__":
    PATH.write_text(api_types(), encoding="utf-8")
