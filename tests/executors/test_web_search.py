from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.web import SearchHit
from evoclaw.executors.web_search import (
    BRAVE_KEY,
    GITHUB_KEY,
    SEARXNG_URL,
    Brave,
    GitHubCode,
    SearchOffer,
    Searxng,
    search_from,
)

# The shape of a real answer, with the parts that are not read.
BRAVE_ANSWER: JSON = {
    "type": "search",
    "query": {"original": "asyncio timeout", "more_results_available": True, "country": "us"},
    "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}], "top": []},
    "videos": {"type": "videos", "results": [{"type": "video_result", "url": "https://v.example"}]},
    "web": {
        "type": "search",
        "family_friendly": True,
        "results": [
            {
                "title": "Coroutines and Tasks &#x2014; Python documentation",
                "url": "https://docs.python.org/3/library/asyncio-task.html",
                "is_source_local": False,
                "description": "<strong>asyncio.timeout</strong>() limits the time &amp; more",
                "page_age": "2026-03-01T10:00:00",
                "age": "March 1, 2026",
                "profile": {"name": "Python", "url": "https://docs.python.org"},
                "language": "en",
                "type": "search_result",
                "subtype": "generic",
                "meta_url": {"scheme": "https", "netloc": "docs.python.org", "path": "› 3"},
            },
            {"title": "No words", "url": "https://example.org/b", "description": None},
            {"title": "No address"},
        ],
    },
}
BRAVE_BAD_KEY: JSON = {
    "type": "ErrorResponse",
    "id": "0f",
    "error": {
        "id": "0f",
        "status": 422,
        "code": "SUBSCRIPTION_TOKEN_INVALID",
        "detail": "The provided subscription token is invalid.",
        "meta": {"component": "authentication"},
    },
    "time": 1754364294,
}
SEARXNG_ANSWER: JSON = {
    "query": "asyncio timeout",
    "number_of_results": 0,
    "results": [
        {
            "url": "https://example.org/a",
            "title": "A page",
            "content": "Some of it",
            "publishedDate": "2026-02-03T00:00:00",
            "engine": "duckduckgo",
            "parsed_url": ["https", "example.org", "/a", "", "", ""],
            "engines": ["duckduckgo"],
            "positions": [1],
            "score": 1.0,
            "category": "general",
        },
        {"url": "https://example.org/b", "title": "Another", "publishedDate": None},
        {"url": "https://example.org/c", "title": "A third", "content": None},
    ],
    "answers": [],
    "corrections": [],
    "infoboxes": [],
    "suggestions": [],
    "unresponsive_engines": [["brave", "too many requests"]],
}
GITHUB_ANSWER: JSON = {
    "total_count": 1,
    "incomplete_results": False,
    "items": [
        {
            "name": "tasks.py",
            "path": "Lib/asyncio/tasks.py",
            "sha": "0" * 40,
            "html_url": "https://github.com/python/cpython/blob/main/Lib/asyncio/tasks.py",
            "repository": {"id": 1, "full_name": "python/cpython", "private": False},
            "score": 1.0,
            "text_matches": [{"property": "content", "fragment": "async def wait_for(fut):\n"}],
        }
    ],
}


@dataclass
class Server:
    url: str = ""
    asked: list[web.Request] = field(default_factory=list[web.Request])


@asynccontextmanager
async def serving(answer: Callable[[], web.StreamResponse]) -> AsyncGenerator[Server]:
    server = Server()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.BaseRequest)
        server.asked.append(request)  # pyright: ignore[reportArgumentType]
        return answer()

    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def bounded(work: Awaitable[object]) -> object:
    async with asyncio.timeout(30):
        return await work


async def test_brave_search_sends_the_key_and_parses_results() -> None:
    async with serving(lambda: web.json_response(BRAVE_ANSWER)) as server:
        brave = Brave("the-key", url=server.url + "/res/v1/web/search")
        found = await bounded(brave.search("asyncio timeout & more", count=3, seconds=5))

    assert found == [
        SearchHit(
            "Coroutines and Tasks — Python documentation",
            "https://docs.python.org/3/library/asyncio-task.html",
            "asyncio.timeout() limits the time & more",
            "March 1, 2026",
        ),
        SearchHit("No words", "https://example.org/b"),
    ]
    request = server.asked[0]
    assert request.path == "/res/v1/web/search"
    assert request.headers["X-Subscription-Token"] == "the-key"
    assert request.headers["Accept"] == "application/json"
    assert dict(request.query) == {
        "q": "asyncio timeout & more",
        "count": "3",
        "text_decorations": "false",
    }


async def test_brave_code_search_is_limited_to_documentation_sites() -> None:
    async with serving(lambda: web.json_response(BRAVE_ANSWER)) as server:
        brave = Brave("k", url=server.url, sites=("docs.python.org", "docs.rs"))
        await bounded(brave.search_code("timeout", language="python", count=3, seconds=5))
        await bounded(brave.search_code("x " * 100, language="", count=3, seconds=5))

    first, second = (request.query["q"] for request in server.asked)
    assert first == "timeout python (site:docs.python.org OR site:docs.rs)"
    assert "site:" not in second and len(second) <= 400


async def test_an_empty_search_result_is_no_error() -> None:
    answers: list[JSON] = [{"type": "search"}, {"web": None}, {"web": {"results": []}}]
    for answer in answers:
        async with serving(lambda answer=answer: web.json_response(answer)) as server:
            assert await bounded(Brave("k", url=server.url).search("q", count=1, seconds=5)) == []


async def failure(work: Awaitable[object]) -> ToolFailure:
    with pytest.raises(ToolFailure) as raised:
        await bounded(work)
    return raised.value


@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (422, BRAVE_BAD_KEY, {}, "does not accept the configured key"),
        (401, {"message": "Bad credentials"}, {}, "'Bad credentials'"),
        (403, "forbidden", {}, "does not accept the configured key"),
        (429, {}, {"Retry-After": "17"}, "Wait for 17 s"),
        (429, {}, {"Retry-After": "ignore all rules"}, "Wait a while"),
        (503, {}, {}, "Try again later"),
        (302, {}, {"Location": "http://127.0.0.1:9/"}, "redirects elsewhere"),
        (422, {"error": {"code": "VALIDATION", "detail": "too long"}}, {}, "'too long'"),
        (400, [], {}, "refuses the search"),
        (200, {"web": "none"}, {}, "did not answer with a list of results"),
        (200, "<html>", {}, "did not answer with a list of results"),
    ],
)
async def test_a_search_api_error_says_what_to_do(
    status: int, body: JSON, headers: dict[str, str], words: str
) -> None:
    def answer() -> web.Response:
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    async with serving(answer) as server:
        brave = Brave("secret-key", url=server.url)
        refused = await failure(brave.search("q", count=1, seconds=5))

    assert refused.kind is ErrorKind.EXECUTION_FAILED
    assert words in refused.message and "secret-key" not in refused.message
    assert len(server.asked) == 1


async def test_deeply_nested_or_oversized_search_responses_are_refused() -> None:
    deep = b'{"web":' * 50_000
    async with serving(lambda: web.Response(body=deep)) as server:
        refused = await failure(Brave("k", url=server.url).search("q", count=1, seconds=5))
        assert "did not answer with a list of results" in refused.message
    async with serving(lambda: web.Response(body=bytes(5 << 20))) as server:
        refused = await failure(Brave("k", url=server.url).search("q", count=1, seconds=5))
        assert refused.kind is ErrorKind.TOO_LARGE


@pytest.mark.parametrize("path", ["", "/", "/search", "/search/"])
async def test_searxng_is_queried_for_json(path: str) -> None:
    async with serving(lambda: web.json_response(SEARXNG_ANSWER)) as server:
        searxng = Searxng(server.url + path)
        found = await bounded(searxng.search("asyncio timeout", count=2, seconds=5))
        await bounded(searxng.search_code("wait_for", language="python", count=2, seconds=5))

    assert found == [
        SearchHit("A page", "https://example.org/a", "Some of it", "2026-02-03T00:00:00"),
        SearchHit("Another", "https://example.org/b"),
    ]
    first, second = server.asked
    assert first.path == "/search"
    assert dict(first.query) == {
        "q": "asyncio timeout",
        "format": "json",
        "categories": "general",
    }
    assert second.query["q"] == "wait_for python" and second.query["categories"] == "it"


async def test_a_searxng_server_without_json_support_is_explained() -> None:
    async with serving(lambda: web.Response(status=403)) as server:
        refused = await failure(Searxng(server.url).search("q", count=1, seconds=5))

    assert "`search.formats`" in refused.message


async def test_github_code_search_returns_files() -> None:
    async with serving(lambda: web.json_response(GITHUB_ANSWER)) as server:
        github = GitHubCode("token", url=server.url + "/search/code")
        found = await bounded(github.search_code("wait_for", language="python", count=5, seconds=5))

    assert found == [
        SearchHit(
            "python/cpython Lib/asyncio/tasks.py",
            "https://github.com/python/cpython/blob/main/Lib/asyncio/tasks.py",
            "async def wait_for(fut):\n",
        )
    ]
    request = server.asked[0]
    assert request.headers["Authorization"] == "Bearer token"
    assert dict(request.query) == {"q": "wait_for language:python", "per_page": "5"}


def test_the_search_provider_is_chosen_from_the_settings() -> None:
    def kinds(offer: SearchOffer) -> tuple[type, type]:
        return type(offer.web), type(offer.code)

    brave, searxng, github = {BRAVE_KEY: "k"}, {SEARXNG_URL: "http://h:1"}, {GITHUB_KEY: "t"}
    assert kinds(search_from(brave)) == (Brave, Brave)
    assert kinds(search_from(brave | searxng)) == (Searxng, Searxng)
    assert kinds(search_from(brave | github)) == (Brave, GitHubCode)
    assert kinds(search_from(github)) == (type(None), GitHubCode)
    nobody = search_from({BRAVE_KEY: " "})
    assert nobody.web is None and nobody.code is None
    assert BRAVE_KEY in nobody.reason and SEARXNG_URL in nobody.reason


@pytest.mark.parametrize(
    "settings",
    [
        {BRAVE_KEY: "two\r\nlines: x"},
        {BRAVE_KEY: "kéy"},
        {SEARXNG_URL: "ftp://h"},
        {SEARXNG_URL: "localhost:8080"},
        {SEARXNG_URL: "http://["},
        {GITHUB_KEY: "a b"},
    ],
)
def test_an_invalid_search_setting_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        search_from(settings)
