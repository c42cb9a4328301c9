"""`evoclaw mcp login`: a person signs in with a browser, and runs use the tokens."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from evoclaw.cli import exits
from tests.support.command_line import Shell, Typed, shell
from tests.support.oauth_server import AuthorizationServer, authorization_server, protected_server
from tests.support.ports import free_port

pytestmark = pytest.mark.process


@asynccontextmanager
async def machine(folder: Path) -> AsyncGenerator[tuple[Shell, AuthorizationServer, str]]:
    async with (
        asyncio.timeout(120),
        shell(folder) as here,
        authorization_server() as issuer,
        protected_server(issuer) as url,
    ):
        yield here, issuer, url


def configure(here: Shell, url: str, more: str = "") -> None:
    data = here.home / ".evoclaw"
    data.mkdir(mode=0o700, exist_ok=True)
    (data / "evoclaw.toml").write_text(f'[[mcp]]\nname = "tickets"\nurl = "{url}"\n{more}')


async def login(here: Shell, *arguments: str) -> tuple[Typed, str]:
    """Type the command, open the address that it prints in a browser; the end, and that address."""
    process = await here.start("mcp", "login", *arguments, "--no-browser")
    assert process.stderr is not None
    seen = ""
    while not (found := re.search(r"^http\S+$", seen, re.MULTILINE)):
        line = (await process.stderr.readline()).decode()
        assert line, seen
        seen += line
    async with ClientSession() as browser, browser.get(found[0]) as page:
        assert page.status == 200 and "EvoClaw" in await page.text()
    out, err = await process.communicate()
    return Typed(process.returncode or 0, out.decode(), seen + err.decode()), found[0]


async def test_a_person_signs_in_and_the_tools_are_there(tmp_path: Path) -> None:
    port = free_port()
    async with machine(tmp_path) as (here, issuer, url):
        configure(here, url, f"oauth = {{ redirect_port = {port} }}\n")
        before = await here.type("tools")
        ended, address = await login(here, "tickets")
        await here.type("tools")
        approved = await here.type("mcp", "approve", "tickets")
        after = await here.type("tools")
        file = here.home / ".evoclaw/mcp-sign-ins.json"
        mode = stat.S_IMODE(file.stat().st_mode)
        text = before.out + before.err + ended.out + ended.err + after.out + after.err
        out = await here.type("mcp", "logout", "tickets")
        again = await here.type("mcp", "logout", "tickets")

    assert "evoclaw mcp login tickets" in before.out + before.err
    assert ended.code == exits.OK and "signed in to tickets" in ended.err
    assert f"127.0.0.1%3A{port}%2Fcallback" in address
    assert approved.code == exits.OK and "tickets__echo" in after.out and mode == 0o600
    assert not [secret for secret in issuer.secrets() if secret in text]
    assert out.code == exits.OK and again.code == exits.MISUSED


async def test_a_person_signs_in_for_a_server_of_an_edge(tmp_path: Path) -> None:
    async with machine(tmp_path) as (here, _issuer, url):
        (here.workspace / "agent.toml").write_text(
            f'agent_id = "barn"\n[[mcp]]\nname = "tickets"\nurl = "{url}"\n'
            '[mcp.oauth]\nscopes = ["extra"]\n'
        )
        ended, address = await login(here, "barn/tickets")
        other = await here.type("mcp", "login", "mill/tickets")
        stored = (here.home / ".evoclaw/mcp-sign-ins.json").read_text()

    assert ended.code == exits.OK and "signed in to barn/tickets" in ended.err
    assert "extra" in address and '"barn/tickets"' in stored
    assert other.code == exits.MISUSED and "is of the edge 'barn'" in other.err


async def test_a_login_that_cannot_work_says_why(tmp_path: Path) -> None:
    async with machine(tmp_path) as (here, issuer, url):
        configure(here, url)
        unknown = await here.type("mcp", "login", "other")
        issuer.issuer = "https://elsewhere.example.org"
        refused = await here.type("mcp", "login", "tickets", "--no-browser")

    assert unknown.code == exits.MISUSED and "the settings name: tickets" in unknown.err
    assert refused.code == exits.MISUSED and "issuer mismatch" in refused.err
