"""The values of web tools: a fetched page, a search hit, a page in a browser."""

from __future__ import annotations

from msgspec import Struct


class FetchedPage(Struct, frozen=True):
    """The response of a URL."""

    url: str
    """The URL after redirects."""
    status: int
    content_type: str
    """As the server sent it; may be empty."""
    body: bytes
    """Decompressed; of an error only the beginning."""
    retry_after: str = ""
    """The Retry-After header."""


class SearchHit(Struct, frozen=True):
    """One search result."""

    title: str
    url: str
    text: str = ""
    """A snippet of the page."""
    date: str = ""
    """The publication date; empty if unknown."""


class PageView(Struct, frozen=True):
    """The content of a page. All of it is untrusted: the page wrote it, or it quotes the page."""

    url: str
    title: str
    text: str
    """Its accessibility tree, a line for each element, with a `ref` for what can be acted on."""
    status: int = 0
    """The HTTP status, if the page was just requested."""
    notes: tuple[str, ...] = ()
    """Other events: a dialog dismissed, a download refused."""
