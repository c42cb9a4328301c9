"""`evoclaw page`: a link that logs in, which no other user of the machine gets to see."""

from __future__ import annotations

import stat
from pathlib import Path

from aiohttp import web

from tests.support.stub_service import TOKEN, echo_message, serve_stub, shell_for


async def whoever(request: web.Request) -> web.Response:
    return web.json_response({"tenant": "local", "user": "", "token": "t", "scopes": ["*"]})


ME = web.get("/v1/me", whoever)


async def test_page_prints_a_dashboard_link_with_the_token_in_the_fragment(tmp_path: Path) -> None:
    async with serve_stub(echo_message, more=[ME]) as fake:
        typed = await shell_for(fake, tmp_path).type("page")
        assert (typed.code, typed.out) == (0, f"{fake.url}/#token={TOKEN}\n")


async def test_the_browser_is_started_without_the_token_in_its_arguments(tmp_path: Path) -> None:
    script, seen = tmp_path / "browser", tmp_path / "seen"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    script.chmod(0o700)
    async with serve_stub(echo_message, more=[ME]) as fake:
        here = shell_for(fake, tmp_path)
        here.env["BROWSER"] = str(script)
        typed = await here.type("page", "--open")
        assert typed.code == 0, typed.err
        address = seen.read_text()
        file = here.home / ".evoclaw" / "page.html"
        assert address == file.as_uri() and TOKEN not in address
        assert f"{fake.url}/#token={TOKEN}" in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_without_a_browser_the_dashboard_link_is_printed(tmp_path: Path) -> None:
    async with serve_stub(echo_message, more=[ME]) as fake:
        here = shell_for(fake, tmp_path)
        here.env |= {"BROWSER": str(tmp_path / "none"), "PATH": str(tmp_path)}
        typed = await here.type("page", "--open")
        assert typed.code == 0, typed.err
        assert typed.out.startswith(fake.url) and "yourself" in typed.err


async def test_without_a_service_page_says_how_to_start_the_service(tmp_path: Path) -> None:
    async with serve_stub(echo_message, more=[ME]) as fake:
        here = shell_for(fake, tmp_path)
    gone = await here.type("page")
    (here.home / ".evoclaw" / "api.json").unlink()
    never = await here.type("page")
    for typed in (gone, never):
        assert (typed.code, typed.out) == (2, "")
        assert "start it with `evoclaw up`" in typed.err


async def test_page_prints_no_link_for_an_invalid_token(tmp_path: Path) -> None:
    async with serve_stub(echo_message, more=[ME]) as fake:
        here = shell_for(fake, tmp_path)
        here.env["EVOCLAW_TOKEN"] = "ec_wrong"
        typed = await here.type("page")
        assert typed.code == 2 and "ec_wrong" not in typed.out + typed.err
