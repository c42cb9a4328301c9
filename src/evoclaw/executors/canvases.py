"""`FileCanvas`: a canvas as one HTML file, to be opened in a browser."""

from __future__ import annotations

import asyncio
import html
import os
import secrets
from hashlib import sha256
from pathlib import Path

import msgspec

from evoclaw.core.canvases import CanvasSheet

_PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'">
<style>html, body, iframe {{ margin: 0; width: 100%; height: 100%; border: 0 }}</style></head>
<body><iframe sandbox="allow-scripts" srcdoc="{inner}"></iframe></body></html>
"""
_INNER = """<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
img-src data:; font-src data:">
{heading}{body}"""


class FileCanvas:
    """One HTML file. The model's content is shown in a frame without network access."""

    def __init__(self, path: Path) -> None:
        """Set the file, which ends in `.html`; its content outlives this process."""
        self._path, self._kept = path, path.with_suffix(".json")

    async def show(self, sheet: CanvasSheet) -> str:
        """Replace the shown sheet; return the address to look at."""
        await asyncio.to_thread(self._write, sheet)
        return self._path.as_uri()

    async def current(self) -> CanvasSheet | None:
        """The sheet that is shown now; None if there is none."""
        try:
            data = await asyncio.to_thread(self._kept.read_bytes)
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=CanvasSheet)

    async def changed_at(self) -> float:
        """When the sheet was last changed: Unix seconds, 0 without a sheet."""
        try:
            return (await asyncio.to_thread(self._kept.stat)).st_mtime
        except FileNotFoundError:
            return 0.0

    async def clear(self) -> None:
        """Remove the sheet."""
        for path in (self._kept, self._path):
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def _write(self, sheet: CanvasSheet) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(self._path, page(sheet).encode(errors="replace"))
        _replace(
            self._kept, msgspec.json.encode(CanvasSheet(sheet.content, sheet.format, sheet.title))
        )


class CanvasFolder:
    """The canvases of sessions: one file each, which no other session may read or change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, tenant: str, session_id: str) -> FileCanvas:
        """The canvas of one session."""
        # Session ids are untrusted: they must not appear in a file name.
        name = sha256(f"{tenant}/{session_id}".encode()).hexdigest()[:32]
        return FileCanvas(self._folder / f"{name}.html")


def page(sheet: CanvasSheet) -> str:
    """A complete HTML page that shows a sheet in a sandboxed frame."""
    heading = f"<h1>{html.escape(sheet.title)}</h1>" if sheet.title else ""
    is_html = sheet.format == "html"
    body = sheet.content if is_html else f"<pre>{html.escape(sheet.content)}</pre>"
    inner = _INNER.format(heading=heading, body=body)
    return _PAGE.format(title=html.escape(sheet.title or "canvas"), inner=html.escape(inner))


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)
