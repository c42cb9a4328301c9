"""The port of canvases: the page that a user sees beside a conversation, one for each session."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class CanvasSheet(Struct, frozen=True):
    """The page that a canvas shows."""

    content: str
    format: str
    """`html` or `markdown`."""
    title: str = ""


class Canvas(Protocol):
    """The canvas of one session."""

    async def show(self, sheet: CanvasSheet) -> str:
        """Replace the page; returns where the user can see it."""
        ...

    async def current(self) -> CanvasSheet | None:
        """The current page; None if the canvas is empty."""
        ...

    async def changed_at(self) -> float:
        """When the page changed, in Unix seconds; 0 if the canvas is empty."""
        ...

    async def clear(self) -> None:
        """Remove the page."""
        ...


class Canvases(Protocol):
    """The canvases of sessions, in files or in a database."""

    def of(self, tenant: str, session_id: str) -> Canvas:
        """The canvas of a session, which no other session may see or change."""
        ...
