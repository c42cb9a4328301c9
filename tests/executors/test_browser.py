"""A real Chromium, and web pages that are served from here."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.browser.chromium import Chromium, SessionBrowser
from evoclaw.executors.browser.processes import find_browser
from evoclaw.executors.url_guard import UrlGuard
from tests.support.web_pages import answer, redirect_to, serve_pages

PROGRAM = find_browser()
pytestmark = [
    pytest.mark.skipif(isinstance(PROGRAM, str), reason=str(PROGRAM)),
    pytest.mark.asyncio(loop_scope="module"),
]
SECONDS = 20.0
KEYS = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncGenerator[Chromium]:
    """One for all tests here: each has a session of its own."""
    assert isinstance(PROGRAM, Path)
    made = Chromium(PROGRAM, guard=UrlGuard(["127.0.0.1"], resolve=everything_is_here))
    async with serve_pages({"/": "keep it running"}) as site:
        await made.session("first").open(site.url(), seconds=SECONDS)
    yield made
    async with asyncio.timeout(30):
        await made.close()


async def everything_is_here(host: str, port: int) -> list[str]:
    if host.endswith(".elsewhere.example"):
        return ["127.0.0.2"]
    if host.endswith(".example"):
        return ["127.0.0.1"]
    raise OSError("no such host")


@pytest_asyncio.fixture(loop_scope="module")
async def web(chromium: Chromium) -> AsyncGenerator[SessionBrowser]:
    key = f"session {next(KEYS)}"
    yield chromium.session(key)
    async with asyncio.timeout(30):
        await chromium.end(key)


def ref_of(text: str, words: str) -> str:
    """The ref of the first line with these words."""
    line = next(line for line in text.splitlines() if words in line and "[ref=" in line)
    return line.partition("[ref=")[2].partition("]")[0]


async def test_a_page_snapshot_is_text_with_refs_for_interactive_elements(
    web: SessionBrowser,
) -> None:
    page = "<title>Shop</title><h1>Tea</h1><button>Buy</button><p>It is <b>good</b>.</p>"
    async with serve_pages({"/": page}) as site:
        seen = await web.open(site.url(), seconds=SECONDS)

    assert (seen.url, seen.title, seen.status) == (site.url(), "Shop", 200)
    assert 'heading "Tea"' in seen.text
    assert "good" in seen.text
    assert ref_of(seen.text, 'button "Buy"')


async def test_a_click_follows_a_link_and_back_returns(web: SessionBrowser) -> None:
    pages = {"/": "<a href='/next'>on</a>", "/next": "<h1>arrived</h1>"}
    async with serve_pages(pages) as site:
        first = await web.open(site.url(), seconds=SECONDS)
        second = await web.click(ref_of(first.text, 'link "on"'), seconds=SECONDS)
        assert second.url == site.url("/next")
        assert "arrived" in second.text

        again = await web.back(seconds=SECONDS)
        assert 'link "on"' in again.text
        with pytest.raises(ToolFailure, match="no previous page"):
            await web.back(seconds=SECONDS)


async def test_a_form_is_filled_in_and_submitted(web: SessionBrowser) -> None:
    form = (
        "<form action='/sent'><input name=who aria-label=Name>"
        "<select name=size aria-label=Size><option value=1>small<option value=2>large</select>"
        "</form>"
    )
    async with serve_pages({"/": form, "/sent": "thanks"}) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        size, name = ref_of(seen.text, "Size"), ref_of(seen.text, "Name")
        await web.type(size, "large", submit=False, seconds=SECONDS)
        sent = await web.type(name, "Ann Lee", submit=True, seconds=SECONDS)

        assert "thanks" in sent.text
        assert "/sent?who=Ann+Lee&size=2" in site.asked


async def test_typing_into_an_element_that_is_no_field_fails(web: SessionBrowser) -> None:
    async with serve_pages({"/": "<h1>Title</h1>"}) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        with pytest.raises(ToolFailure, match="could not be filled") as failed:
            await web.type(ref_of(seen.text, "Title"), "x", submit=False, seconds=SECONDS)
        assert failed.value.kind is ErrorKind.EXECUTION_FAILED


@pytest.mark.parametrize("how", ["never seen", "removed", "another page"])
async def test_a_stale_ref_asks_for_another_snapshot(web: SessionBrowser, how: str) -> None:
    pages = {
        "/": "<button id=b>one</button><script>window.gone = () => b.remove()</script>"
        "<button onclick='gone()'>two</button>",
        "/next": "<button>three</button><button>four</button>",
    }
    async with serve_pages(pages) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        ref = ref_of(seen.text, 'button "one"')
        if how == "never seen":
            ref = "e4711"
        elif how == "removed":
            await web.click(ref_of(seen.text, 'button "two"'), seconds=SECONDS)
        else:
            await web.open(site.url("/next"), seconds=SECONDS)
            ref = "e99"
        with pytest.raises(ToolFailure, match="Take a snapshot again"):
            await web.click(ref, seconds=SECONDS)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "chrome://version", "data:text/html,hi", "javascript:1", "about:blank"],
)
async def test_only_http_and_https_urls_are_opened(web: SessionBrowser, url: str) -> None:
    with pytest.raises(ToolFailure, match="http") as failed:
        await web.open(url, seconds=SECONDS)
    assert failed.value.kind is ErrorKind.INVALID_PARAMS


@pytest.mark.parametrize("where", ["file:///etc/passwd", "data:text/html,<h1>hi", "chrome://gpu"])
async def test_a_link_to_a_non_http_url_is_not_followed(web: SessionBrowser, where: str) -> None:
    page = f"<a href='{where}'>go</a><h1>still here</h1>"
    async with serve_pages({"/": page}) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        after = await web.click(ref_of(seen.text, 'link "go"'), seconds=SECONDS)
    assert (after.url, "still here" in after.text) == (site.url(), True)


async def test_a_private_address_is_not_contacted(web: SessionBrowser) -> None:
    async with serve_pages({"/": "secret"}, host="127.0.0.2") as inside:
        with pytest.raises(ToolFailure, match="this machine") as failed:
            await web.open(inside.url(), seconds=SECONDS)
        assert failed.value.kind is ErrorKind.PERMISSION_DENIED
        assert not inside.asked


async def test_a_redirect_to_a_private_address_is_refused(web: SessionBrowser) -> None:
    async with serve_pages({"/": "secret"}, host="127.0.0.2") as inside:
        async with serve_pages({"/": redirect_to(inside.url("/"))}) as site:
            with pytest.raises(ToolFailure, match="this machine") as failed:
                await web.open(site.url(), seconds=SECONDS)
        assert failed.value.kind is ErrorKind.PERMISSION_DENIED
        assert not inside.asked


async def test_a_click_on_a_link_to_a_private_address_is_refused_with_the_reason(
    web: SessionBrowser,
) -> None:
    async with serve_pages({"/": "secret"}, host="127.0.0.2") as inside:
        async with serve_pages({"/": f"<a href='{inside.url()}'>in</a>"}) as site:
            seen = await web.open(site.url(), seconds=SECONDS)
            with pytest.raises(ToolFailure, match="this machine"):
                await web.click(ref_of(seen.text, "in"), seconds=SECONDS)
        assert not inside.asked


async def test_background_requests_of_a_page_reach_no_private_address(web: SessionBrowser) -> None:
    """Pictures, frames, requests, sockets, beacons, prefetches: over TCP or UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        async with serve_pages({"/": "secret"}, host="127.0.0.2") as inside:
            place = f"127.0.0.2:{inside.port}"
            page = f"""<link rel=preconnect href="http://{place}"><img src="http://{place}/a">
            <iframe src="http://{place}/b"></iframe><h1 id=h>waiting</h1><script>
            const tries = [
              fetch("http://{place}/c", {{mode: "no-cors"}}),
              fetch("https://{place}/d", {{mode: "no-cors"}}),
              fetch("http://name.elsewhere.example:{inside.port}/e", {{mode: "no-cors"}}),
              new Promise((_, no) => new WebSocket("ws://{place}/f").onerror = no),
              new Promise(done => {{
                const peer = new RTCPeerConnection(
                  {{iceServers: [{{urls: "stun:127.0.0.1:{udp.getsockname()[1]}"}}]}});
                peer.createDataChannel("x");
                peer.onicegatheringstatechange =
                  () => peer.iceGatheringState == "complete" && done();
                peer.createOffer().then(offer => peer.setLocalDescription(offer));
              }}),
            ];
            navigator.sendBeacon("http://{place}/g");
            Promise.allSettled(tries).then(all => h.textContent = "over")
            </script>"""
            async with serve_pages({"/": page}) as site:
                seen = await web.open(site.url(), seconds=SECONDS)
                async with asyncio.timeout(15):
                    while "waiting" in seen.text:
                        seen = await web.snapshot(seconds=SECONDS)
            assert not inside.asked
        with pytest.raises(BlockingIOError):
            udp.recv(1)


async def test_a_host_name_connects_only_to_the_address_that_was_checked(
    web: SessionBrowser,
) -> None:
    """The browser itself would find no such host: it resolves nothing."""
    async with serve_pages({"/": "<h1>found</h1>"}) as site:
        seen = await web.open(f"http://shop.example:{site.port}/?a=1", seconds=SECONDS)
    assert "found" in seen.text
    assert site.asked[0] == "/?a=1"
    assert f"Host: shop.example:{site.port}" in site.heads[0]
    with pytest.raises(ToolFailure, match="is unknown"):
        await web.open("http://unknown.invalid/", seconds=SECONDS)


async def test_the_policy_checks_every_request_and_its_reason_is_reported() -> None:
    asked: list[str] = []

    async def no_ads(url: str) -> str | None:
        asked.append(url)
        return "it is an advertisement" if "/ads" in url else None

    assert isinstance(PROGRAM, Path)
    made = Chromium(PROGRAM, guard=UrlGuard(["127.0.0.1"]), may_visit=no_ads)
    page = (
        "<img src='/ads.png'><img src='/fine.png'><a href='/ads'>more</a>"
        "<img src='https://127.0.0.1:9/whole/path?and=query'>"
    )
    try:
        async with serve_pages({"/": page, "/moved": redirect_to("/ads/x"), "/ads": "buy"}) as site:
            web = made.session("a")
            seen = await web.open(site.url(), seconds=SECONDS)
            with pytest.raises(ToolFailure, match="it is an advertisement"):
                await web.click(ref_of(seen.text, "more"), seconds=SECONDS)
            for path in ("/ads", "/moved"):
                with pytest.raises(ToolFailure, match="it is an advertisement"):
                    await web.open(site.url(path), seconds=SECONDS)
            assert site.url("/fine.png") in asked
            # Of what is encrypted, a proxy alone would see no more than the host.
            assert "https://127.0.0.1:9/whole/path?and=query" in asked
            assert "/fine.png" in site.asked
            assert not [path for path in site.asked if path.startswith("/ads")]
    finally:
        await made.close()


async def test_browser_sessions_share_no_cookies(chromium: Chromium, web: SessionBrowser) -> None:
    async with serve_pages(
        {"/": answer("hello", "Set-Cookie: who=ann", "Content-Type: text/html")}
    ) as site:
        await web.open(site.url(), seconds=SECONDS)
        await web.open(site.url(), seconds=SECONDS)
        assert "Cookie: who=ann" in site.heads[-1]
        other = chromium.session("another")
        await other.open(site.url(), seconds=SECONDS)
        assert "Cookie:" not in site.heads[-1]
        await chromium.end("another")
        await web.close()
        await web.open(site.url(), seconds=SECONDS)
        assert "Cookie:" not in site.heads[-1]


async def test_dialogs_are_dismissed_and_reported(web: SessionBrowser) -> None:
    page = """<button onclick="h.textContent = [alert('hi'), confirm('sure?'), prompt('who?')]">
    ask</button><h1 id=h>-</h1><script>onbeforeunload = () => 'stay'</script>"""
    async with serve_pages({"/": page, "/next": "free"}) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        after = await web.click(ref_of(seen.text, "ask"), seconds=SECONDS)
        assert 'heading ",false,"' in after.text
        assert [note.rpartition(": ")[2] for note in after.notes] == ["'hi'", "'sure?'", "'who?'"]
        assert "free" in (await web.open(site.url("/next"), seconds=SECONDS)).text


async def test_a_new_window_is_active_until_back_is_called(web: SessionBrowser) -> None:
    pages = {"/": "<a target=_blank href='/new'>new</a>", "/new": "<h1>window</h1>"}
    async with serve_pages(pages) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        new = await web.click(ref_of(seen.text, "new"), seconds=SECONDS)
        assert new.url == site.url("/new")
        assert "window" in new.text
        assert "back" in new.notes[0]
        assert (await web.back(seconds=SECONDS)).url == site.url()


async def test_closing_a_window_activates_the_previous_one(web: SessionBrowser) -> None:
    pages = {
        "/": "<a target=_blank rel=opener href='/new'>new</a>",
        "/new": "<button onclick='window.close()'>done</button>",
    }
    async with serve_pages(pages) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        new = await web.click(ref_of(seen.text, "new"), seconds=SECONDS)
        left = await web.click(ref_of(new.text, "done"), seconds=SECONDS)
        assert left.url == site.url()


async def test_the_number_of_open_windows_is_limited(web: SessionBrowser) -> None:
    pages = {"/": "<a target=_blank href='/'>again</a>"}
    async with serve_pages(pages) as site:
        seen = await web.open(site.url(), seconds=SECONDS)
        for _ in range(6):
            seen = await web.click(ref_of(seen.text, "again"), seconds=SECONDS)
        assert any("was closed" in note for note in seen.notes)
        for _ in range(3):
            await web.back(seconds=SECONDS)
        with pytest.raises(ToolFailure, match="no previous page"):
            await web.back(seconds=SECONDS)


async def test_a_download_is_refused(web: SessionBrowser) -> None:
    file = answer("data", "Content-Disposition: attachment; filename=x.bin")
    async with serve_pages({"/": "<a href='/x'>get</a>", "/x": file}) as site:
        with pytest.raises(ToolFailure, match="downloads are disabled"):
            await web.open(site.url("/x"), seconds=SECONDS)
        seen = await web.open(site.url(), seconds=SECONDS)
        after = await web.click(ref_of(seen.text, "get"), seconds=SECONDS)
        assert any("download" in note for note in after.notes)


async def test_a_page_can_be_captured_as_screenshot_and_pdf(web: SessionBrowser) -> None:
    async with serve_pages({"/": "<h1>Hi</h1><div style='height:99999px'></div>"}) as site:
        await web.open(site.url(), seconds=SECONDS)
        part = await web.screenshot(full_page=False, seconds=SECONDS)
        whole = await web.screenshot(full_page=True, seconds=SECONDS)
        pdf = await web.pdf(seconds=SECONDS)
    assert part.startswith(b"\xff\xd8\xff")
    assert size_of(part) == (1280, 800)
    assert size_of(whole) == (1280, 4000)
    assert pdf.startswith(b"%PDF")


def size_of(jpeg: bytes) -> tuple[int, int]:
    from io import BytesIO

    from PIL import Image

    return Image.open(BytesIO(jpeg)).size


async def test_a_snapshot_without_an_open_page_is_refused(web: SessionBrowser) -> None:
    with pytest.raises(ToolFailure, match="No page is open"):
        await web.snapshot(seconds=SECONDS)


async def test_an_unreachable_page_fails_with_the_reason(web: SessionBrowser) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(ToolFailure, match="could not be reached"):
            await web.open(url, seconds=SECONDS)
    async with serve_pages({}) as site:
        assert (await web.open(site.url("/x"), seconds=SECONDS)).status == 404


async def test_a_session_without_pages_is_not_remembered() -> None:
    made = Chromium(Path("chromium"))
    first = made.session("a")
    assert made.session("a") is first
    assert made.session("b") is not first
    known = weakref.ref(first)
    del first
    gc.collect()
    assert known() is None
    await made.close()
