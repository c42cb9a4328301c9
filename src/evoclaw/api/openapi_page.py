"""The HTML page of the OpenAPI document, rendered here without external scripts or styles."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

import msgspec

from evoclaw.core.messages import JSON, is_object

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{border-bottom:1px solid #ddd;margin-top:2.5rem;text-transform:capitalize}
details{margin:.4rem 0;border:1px solid #ddd;border-radius:.4rem;padding:.4rem .8rem}
summary{cursor:pointer}code,pre{font:14px/1.4 ui-monospace,monospace}
pre{overflow:auto;background:#f6f6f6;padding:.6rem;border-radius:.3rem}
b.m{display:inline-block;min-width:4.2rem;color:#06c}b.delete{color:#b00}b.post,b.patch{color:#070}
table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre{background:#1c1c1c}
details{border-color:#333}b.m{color:#6bf}b.post,b.patch{color:#6c6}b.delete{color:#f77}}
"""


def content_security_policy() -> str:
    """The Content-Security-Policy of the page: its own style, no scripts."""
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'"


def render_page(document: dict[str, JSON]) -> str:
    """Render an OpenAPI document as HTML."""
    info = document["info"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<style>{STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        "<p><a href=/openapi.json>openapi.json</a></p>"
    ]
    for tag in document.get("tags", []):
        found = list(_operations(document, tag["name"]))
        if found:
            parts.append(f"<h2>{escape(tag['name'])}</h2><p>{escape(tag['description'])}</p>")
            parts += [_operation(*operation) for operation in found]
    parts.append("<h2>schemas</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(
            f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
            f"{escape(schema.get('description', ''))}</summary>{_pre(schema)}</details>"
        )
    return "".join(parts)


def _operations(document: dict[str, JSON], tag: str) -> list[tuple[str, str, dict[str, JSON]]]:
    return [
        (path, method, operation)
        for path, item in sorted(document["paths"].items())
        for method, operation in item.items()
        if is_object(operation) and tag in operation.get("tags", [])
    ]


def _operation(path: str, method: str, operation: dict[str, JSON]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(parameter['name'])}</code><td>{escape(parameter['in'])}"
        f"<td>{escape(parameter.get('description') or '')}"
        for parameter in operation.get("parameters", [])
    )
    body = operation.get("requestBody", {}).get("content", {})
    responses = "".join(
        f"<tr><td>{escape(status)}<td>{_links(response)}"
        for status, response in sorted(operation["responses"].items())
    )
    return (
        f"<details><summary><b class='m {method}'>{method.upper()}</b> <code>{escape(path)}</code> "
        f"{escape(operation.get('description') or '')}</summary>"
        + (f"<h4>Parameters</h4><table>{rows}</table>" if rows else "")
        + (f"<h4>Body</h4><p>{_links(body)}</p>" if body else "")
        + f"<h4>Responses</h4><table>{responses}</table></details>"
    )


def _links(value: JSON) -> str:
    """The description of a part of the document, and links to the schemas that it refers to."""
    encoded = msgspec.json.encode(value).decode()
    names = sorted({part.split('"')[0] for part in encoded.split("#/components/schemas/")[1:]})
    description = value.get("description", "") if is_object(value) else ""
    reference = str(value.get("$ref", "")) if is_object(value) else ""
    text = description or reference.rpartition("/")[2]
    links = " ".join(f"<a href='#{escape(name)}'><code>{escape(name)}</code></a>" for name in names)
    return f"{escape(text)} {links}"


def _pre(value: JSON) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    return f"<pre>{escape(text)}</pre>"
