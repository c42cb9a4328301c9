"""The browsers of two sessions, as two people would use them at the same time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.executors.browser.processes import find_browser
from tests.support.network_namespaces import add_address, run_in_own_namespace
from tests.support.seat import seat
from tests.support.up_process import SETTINGS
from tests.support.web_pages import answer, serve_pages

PROGRAM = find_browser("", env=os.environ)
PUBLIC_ADDRESS = "20.0.0.1"
"""In a namespace of its own: the browser opens no page of this machine or of a private network."""
TRUSTED = '\n[flow]\ntrusted = ["browser"]\n'
"""So that the text of a page does not make the next call ask for an approval."""


@pytest.mark.slow
@pytest.mark.skipif(isinstance(PROGRAM, str), reason=str(PROGRAM))
async def test_two_sessions_share_neither_cookies_nor_pages(tmp_path: Path) -> None:
    if run_in_own_namespace(
        f"{__file__}::{test_two_sessions_share_neither_cookies_nor_pages.__name__}"
    ):
        return
    add_address(PUBLIC_ADDRESS)
    greeting = answer("<h1>Hello</h1>", "Set-Cookie: who=ann", "Content-Type: text/html")
    async with (
        serve_pages({"/": greeting}, PUBLIC_ADDRESS) as site,
        seat(tmp_path, SETTINGS + TRUSTED) as place,
    ):
        opening = json.dumps({"action": "open", "url": site.url()})
        place.up.models.scripts |= {
            "open it": f"call browser {opening}\nsay done",
            "look": 'call browser {"action": "snapshot"}\nsay done',
        }

        async def say(session: str, text: str) -> str:
            """Say something in a session; what the model was shown last."""
            ran = await place.type("chat", "--session", session, stdin=f"{text}\n".encode())
            assert ran.code == exits.OK, ran.err
            return str(place.up.models.asked[-1].body["messages"][-1]["content"])

        assert "Hello" in await say("ann", "open it")
        await say("ann", "open it")
        assert "Cookie: who=ann" in site.heads[-1], "a session keeps its own cookies"
        assert "No page is open" in await say("bob", "look"), "the page of another session"
        assert "Hello" in await say("bob", "open it")
        assert "Cookie:" not in site.heads[-1]
        await say("ann", "open it")
        assert "Cookie: who=ann" in site.heads[-1]
