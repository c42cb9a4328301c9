"""The frame of the canvas: whatever is put into it, nothing gets out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.page.looking import Looker

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
NESTED = "<scr' + 'ipt>top.postMessage(`escaped`, `*`)</scr' + 'ipt>"
START = (
    f"<body><div id=box></div><script>const M = '{NESTED}';"
    "const F = () => document.createElement('iframe'), add = (f) => document.body.append(f);"
    'const I = `<iframe srcdoc="${M}"></iframe>`;'
)
XHTML = "http://www.w3.org/1999/xhtml"
FRAMES: Mapping[str, str] = {
    "set": "const f = F(); f.srcdoc = M; add(f)",
    "an attribute": "const f = F(); f.setAttribute('srcdoc', M); add(f)",
    "an attribute of a namespace": "const f = F(); f.setAttributeNS(null, 'srcdoc', M); add(f)",
    "a node": "const a = document.createAttribute('srcdoc'); a.value = M; const f = F();"
    "f.setAttributeNode(a); add(f)",
    "a changed node": "const f = F(); f.setAttribute('srcdoc', '');"
    "f.getAttributeNode('srcdoc').value = M; add(f)",
    "inner markup": "box.innerHTML = I",
    "a shadow": "box.attachShadow({ mode: 'closed' }).innerHTML = I",
    "a fragment": "add(document.createRange().createContextualFragment(I))",
    "pieces": "document.write('<ifr'); document.write(I.slice(4))",
    "a parser": "add(new DOMParser().parseFromString(I, 'text/html').body.firstChild)",
    "an unsafe parser": "add(Document.parseHTMLUnsafe(I).body.firstChild)",
    "XML": f"const d = document.implementation.createDocument('{XHTML}', 'html');"
    f"d.documentElement.innerHTML = `<h:iframe xmlns:h='{XHTML}' "
    "srcdoc='${M.replace(/</g, '&lt;')}'/>`; add(d.documentElement.firstChild)",
    "another policy": "const p = trustedTypes.createPolicy('x', { createHTML: (s) => s });"
    "const f = F(); f.srcdoc = p.createHTML(M); add(f)",
    "changed expressions": "try { RegExp.prototype.exec = () => null } catch {}"
    "String.prototype.replace = function () { return this }; box.innerHTML = I",
    "an address": "const f = F(); f.src = 'javascript:top.postMessage(`escaped`, `*`)'; add(f)",
}
LEAVE: Mapping[str, str] = {
    "a script": "<script>location = 'http://127.0.0.1:PORT/'</script>",
    "this place": "<script>location = '/?leak=1'</script>",
    "a link": "<a id=a href='http://127.0.0.1:PORT/'>x</a><script>a.click()</script>",
    "a form": "<form id=f action='http://127.0.0.1:PORT/'></form><script>f.submit()</script>",
    "the top": "<script>top.location = 'http://127.0.0.1:PORT/'</script>",
    "a window": "<script>open('http://127.0.0.1:PORT/')</script>",
    "a refresh": "<meta http-equiv=refresh content='0;url=http://127.0.0.1:PORT/'>",
    "a picture": "<img src='http://127.0.0.1:PORT/'>",
    "a request": "<script>fetch('http://127.0.0.1:PORT/').catch(() => 0)</script>",
    "a beacon": "<script>navigator.sendBeacon('http://127.0.0.1:PORT/', 'x')</script>",
    "a peer": "<script>const c = new RTCPeerConnection({ iceServers: [{ urls:"
    "'stun:127.0.0.1:PORT' }] }); c.createDataChannel('x');"
    "c.createOffer().then((o) => c.setLocalDescription(o))</script>",
}
SHOWN = """(content) => new Promise((done) => {
  const heard = [], frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.src = "/ui/frame.html";
  const settle = () => {
    const last = document.createElement("iframe"); // asked for later, so it is ready later
    last.sandbox = "allow-scripts";
    last.src = "/ui/frame.html";
    addEventListener("message", ({ source }) => {
      if (source === last.contentWindow) { frame.remove(); last.remove(); done(heard); }
    });
    document.body.append(last);
  };
  addEventListener("message", ({ source, data }) => {
    if (data === "evoclaw:ready" && source === frame.contentWindow && !heard.length) {
      source.postMessage({ format: "html", content }, "*");
    }
    heard.push(data);
    if (data === "tried") settle();
  });
  document.body.append(frame);
})"""
TRIED = "<script>setTimeout(() => top.postMessage('tried', '*'))</script>"


@pytest_asyncio.fixture(loop_scope="session")
async def outside() -> AsyncGenerator[tuple[int, list[str]]]:
    """A port that nobody should come to, and who came."""
    came: list[str] = []

    class Datagrams(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            came.append("datagram")

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append("connection")
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    datagrams, _ = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", port))
    yield port, came
    datagrams.close()
    server.close()
    await server.wait_closed()


async def at_the_page(looker: Looker) -> Page:
    await looker.enter("chat")
    return looker.page


@pytest.mark.parametrize("way", FRAMES)
async def test_canvas_content_cannot_nest_an_iframe(looker: Looker, way: str) -> None:
    page = await at_the_page(looker)

    heard = await page.evaluate(SHOWN, f"{TRIED}{START}{FRAMES[way]}</script>")

    assert "tried" in heard and "escaped" not in heard
    looker.complaints.clear()  # the browser says what it stopped


@pytest.mark.parametrize("way", LEAVE)
async def test_canvas_content_cannot_navigate_or_send_requests(
    looker: Looker, outside: tuple[int, list[str]], way: str
) -> None:
    page = await at_the_page(looker)
    port, came = outside
    answered: list[str] = []
    page.on("response", lambda response: answered.append(response.url))
    address = page.url

    heard = await page.evaluate(SHOWN, TRIED + LEAVE[way].replace("PORT", str(port)))

    assert "tried" in heard
    assert came == [] and page.url == address and len(page.context.pages) == 1
    assert not [one for one in answered if "leak" in one]
    looker.complaints.clear()


async def test_canvas_content_can_run_scripts_and_change_its_dom(looker: Looker) -> None:
    page = await at_the_page(looker)
    content = "<p id=p></p><script>p.innerHTML = '<b>bold</b>';"
    content += "top.postMessage(p.firstChild.tagName, '*')</script>"

    assert "B" in await page.evaluate(SHOWN, content + TRIED)
