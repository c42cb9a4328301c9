"""Search backends of the tools: Brave, a SearXNG server, GitHub's code search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, is_object
from evoclaw.core.web import FetchedPage, SearchHit
from evoclaw.executors.url_guard import ANY_NETWORK, UrlGuard
from evoclaw.executors.web_fetch import FetchLimits, WebFetcher

BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"
GITHUB_URL = "https://api.github.com/search/code"
BRAVE_KEY, SEARXNG_URL, GITHUB_KEY = "BRAVE_API_KEY", "SEARXNG_URL", "GITHUB_SEARCH_TOKEN"
MAX_ANSWER_BYTES = 4 << 20
T = TypeVar("T")
CODE_SITES = (
    "stackoverflow.com",
    "github.com",
    "docs.python.org",
    "developer.mozilla.org",
    "docs.rs",
    "pkg.go.dev",
    "readthedocs.io",
)
"""The sites that Brave searches for code and documentation by default."""
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


def to_server() -> WebFetcher:
    """A fetcher for configured addresses: any network, but no redirects."""
    limits = FetchLimits(wire_bytes=MAX_ANSWER_BYTES, body_bytes=2 * MAX_ANSWER_BYTES, redirects=0)
    return WebFetcher(UrlGuard(ANY_NETWORK), limits=limits)


class _BraveHit(Struct, frozen=True):
    title: str = ""
    url: str = ""
    description: str | None = None
    age: str | None = None
    page_age: str | None = None


class _BraveWeb(Struct, frozen=True):
    results: list[_BraveHit] | None = None


class _BraveAnswer(Struct, frozen=True):
    web: _BraveWeb | None = None


class Brave:
    """Brave Search, with a key."""

    def __init__(
        self,
        key: str,
        *,
        url: str = BRAVE_URL,
        sites: Sequence[str] = CODE_SITES,
        ask: WebFetcher | None = None,
    ) -> None:
        """Set the key and the endpoint.

        Args:
            key: The subscription token.
            url: The web search endpoint.
            sites: The sites to search for code and documentation.
            ask: The fetcher.
        """
        self._key, self._url, self._sites = _one_line(key), _checked(url), tuple(sites)
        self._ask = ask or to_server()

    async def search(self, query: str, *, count: int, seconds: float) -> Sequence[SearchHit]:
        """Find pages."""
        params = {"q": query, "count": str(min(count, 20)), "text_decorations": "false"}
        page = await self._ask.fetch(
            f"{self._url}?{urlencode(params)}",
            seconds=seconds,
            headers={"Accept": "application/json", "X-Subscription-Token": self._key},
        )
        answer = _read(page, _BraveAnswer, "Brave Search")
        hits = (answer.web.results if answer.web else None) or []
        return [
            SearchHit(
                _plain(hit.title),
                hit.url,
                _plain(hit.description or ""),
                hit.age or hit.page_age or "",
            )
            for hit in hits
            if hit.url
        ]

    async def search_code(
        self, query: str, *, language: str, count: int, seconds: float
    ) -> Sequence[SearchHit]:
        """Find pages on the sites that document code."""
        sites = " OR ".join(f"site:{site}" for site in self._sites)
        words = f"{query} {language}".strip()
        text = f"{words} ({sites})" if sites else words
        # Brave refuses more than 400 characters or 50 words.
        fits = len(text) <= 400 and len(text.split()) <= 50
        return await self.search(text if fits else words[:400], count=count, seconds=seconds)


class _SearxngHit(Struct, frozen=True, rename={"date": "publishedDate"}):
    title: str = ""
    url: str = ""
    content: str | None = None
    date: str | None = None


class _SearxngAnswer(Struct, frozen=True):
    results: list[_SearxngHit] = []


class Searxng:
    """A SearXNG server that gives JSON (`search.formats` in its settings must hold `json`)."""

    def __init__(
        self,
        url: str,
        *,
        categories: str = "general",
        code_categories: str = "it",
        ask: WebFetcher | None = None,
    ) -> None:
        """Set the address of the server.

        Args:
            url: The URL of the server, with or without `/search`.
            categories: The categories that `search` uses.
            code_categories: The categories that `search_code` uses.
            ask: The fetcher.
        """
        self._url = _checked(url).rstrip("/").removesuffix("/search") + "/search"
        self._categories, self._code_categories = categories, code_categories
        self._ask = ask or to_server()

    async def search(self, query: str, *, count: int, seconds: float) -> Sequence[SearchHit]:
        """Find pages."""
        return await self._search(query, self._categories, count, seconds)

    async def search_code(
        self, query: str, *, language: str, count: int, seconds: float
    ) -> Sequence[SearchHit]:
        """Find pages about programming."""
        words = f"{query} {language}".strip()
        return await self._search(words, self._code_categories, count, seconds)

    async def _search(
        self, query: str, categories: str, count: int, seconds: float
    ) -> Sequence[SearchHit]:
        params = {"q": query, "format": "json", "categories": categories}
        page = await self._ask.fetch(
            f"{self._url}?{urlencode(params)}",
            seconds=seconds,
            headers={"Accept": "application/json"},
        )
        if page.status == 403:
            raise ToolFailure(
                ErrorKind.EXECUTION_FAILED,
                "The SearXNG server refuses to answer in JSON: its settings must list `json` under "
                "`search.formats`. Explain this to the user.",
            )
        hits = _read(page, _SearxngAnswer, "SearXNG").results
        found = [
            SearchHit(_plain(hit.title), hit.url, _plain(hit.content or ""), hit.date or "")
            for hit in hits
            if hit.url
        ]
        return found[:count]


class _GitHubRepository(Struct, frozen=True):
    full_name: str = ""


class _GitHubMatch(Struct, frozen=True):
    fragment: str = ""


class _GitHubHit(Struct, frozen=True):
    path: str = ""
    html_url: str = ""
    repository: _GitHubRepository = _GitHubRepository()
    text_matches: list[_GitHubMatch] = []


class _GitHubAnswer(Struct, frozen=True):
    items: list[_GitHubHit] = []


class GitHubCode:
    """GitHub's code search, with a token."""

    def __init__(self, token: str, *, url: str = GITHUB_URL, ask: WebFetcher | None = None) -> None:
        """Set the token and the endpoint."""
        self._token, self._url, self._ask = _one_line(token), _checked(url), ask or to_server()

    async def search_code(
        self, query: str, *, language: str, count: int, seconds: float
    ) -> Sequence[SearchHit]:
        """Find files."""
        words = f"{query} language:{language}" if language else query
        params = {"q": words, "per_page": str(count)}
        headers = {
            "Accept": "application/vnd.github.text-match+json",
            "Authorization": f"Bearer {self._token}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        page = await self._ask.fetch(
            f"{self._url}?{urlencode(params)}", seconds=seconds, headers=headers
        )
        hits = _read(page, _GitHubAnswer, "GitHub").items
        return [
            SearchHit(
                f"{hit.repository.full_name} {hit.path}",
                hit.html_url,
                " … ".join(match.fragment for match in hit.text_matches[:2]),
            )
            for hit in hits
        ]


class SearchOffer(Struct, frozen=True):
    """The configured search backends, if any."""

    web: Brave | Searxng | None
    code: Brave | Searxng | GitHubCode | None
    reason: str
    """The backend's name, or what to configure; for people."""


def search_from(settings: Mapping[str, str]) -> SearchOffer:
    """Choose the backends by the environment variables; raise `ConfigError` if one is invalid.

    A SearXNG server has priority over Brave; for code GitHub has priority over both.
    """
    key, url, token = (
        settings.get(name, "").strip() for name in (BRAVE_KEY, SEARXNG_URL, GITHUB_KEY)
    )
    web: Brave | Searxng | None = Searxng(url) if url else Brave(key) if key else None
    code = GitHubCode(token) if token else web
    if web is None:
        how = f"set {BRAVE_KEY} (Brave Search) or {SEARXNG_URL} (a SearXNG server)"
        also = "" if code is not None else f", or {GITHUB_KEY} for codesearch alone"
        return SearchOffer(None, code, f"no web search backend is configured: {how}{also}")
    names = {Brave: "Brave Search", Searxng: "SearXNG", GitHubCode: "GitHub"}
    return SearchOffer(web, code, f"web: {names[type(web)]}; code: {names[type(code or web)]}")


def _read(page: FetchedPage, shape: type[T], who: str) -> T:
    if page.status != 200:
        raise _refusal(page, who)
    try:
        return msgspec.json.decode(page.body, type=shape)
    except (msgspec.DecodeError, RecursionError):
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"{who} did not answer with a list of results "
            f"({page.content_type[:80] or 'no content type'}, {len(page.body):,} bytes). "
            "Try again later, or explain this to the user.",
        ) from None


def _refusal(page: FetchedPage, who: str) -> ToolFailure:
    code, detail = _complaint(page.body)
    if page.status in (401, 403) or code == "SUBSCRIPTION_TOKEN_INVALID":
        what = "does not accept the configured key. Searching is not possible; tell the user"
    elif page.status == 429:
        wait = f" for {page.retry_after[:40]} s" if page.retry_after.isdecimal() else " a while"
        what = f"has had too many requests. Wait{wait} before you search again"
    elif page.status >= 500:
        what = "has a problem. Try again later"
    elif 300 <= page.status < 400:
        what = "redirects elsewhere, which is not followed. Tell the user to check its address"
    else:
        what = "refuses the search. Try other or fewer words"
    quoted = f" It says: {detail!r}" if detail else ""
    return ToolFailure(
        ErrorKind.EXECUTION_FAILED,
        f"{who} {what} (status {page.status}).{quoted}",
        status=page.status,
    )


def _complaint(body: bytes) -> tuple[str, str]:
    """The code and the message of an error, in any of the formats these servers use."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    if not is_object(answer):
        return "", ""
    error = answer.get("error")
    inner = error if is_object(error) else answer
    message = inner.get("detail") or inner.get("message") or ""
    return str(inner.get("code", "")), " ".join(str(message).split())[:200]


def _plain(text: str) -> str:
    # Imported here: an idle edge need not spend the memory.
    import html

    return html.unescape(_TAG.sub("", text))


def _one_line(secret: str) -> str:
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ConfigError("the key of a search service contains a space or an invalid character")
    return secret


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(f"the address of a search server must be an http(s) URL, not {url!r}")
    return url
