"""What becomes of a browser that is closed, forgotten or stuck: nothing is left of it.

One that is killed is in `tests/faults`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.browser.chromium import Chromium
from evoclaw.executors.browser.processes import belonging, find_browser, find_main
from evoclaw.executors.url_guard import UrlGuard
from tests.support.web_pages import PageServer, serve_pages

PROGRAM = find_browser()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(isinstance(PROGRAM, str), reason=str(PROGRAM)),
]
SECONDS = 20.0
LOOP = "<button onclick='while (true) {}'>hang</button>"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the browser of this test keeps what it needs; its name marks the processes."""
    # Not `tmp_path`: the name of a socket in it may have 107 letters.
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.fixture
async def site() -> AsyncGenerator[PageServer]:
    async with serve_pages({"/": "<h1>Hi</h1>", "/hang": LOOP}) as served:
        yield served


def made(*, idle: float = 300.0, sessions: int = 8, program: Path | None = None) -> Chromium:
    assert isinstance(PROGRAM, Path)
    here = UrlGuard(["127.0.0.1"])
    return Chromium(program or PROGRAM, guard=here, idle=idle, sessions=sessions)


def processes(folder: Path, kind: str = "") -> set[int]:
    """The browser's, or of them those of one kind."""
    return {pid for pid in belonging(str(folder)) if kind in command(pid)}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def is_there(folder: Path) -> bool:
    return folder.is_dir()


def driver(folder: Path) -> int:
    found = find_main(str(folder)).driver
    assert "playwright" in command(found)
    return found


async def test_closing_the_last_browser_session_leaves_no_process_and_no_file(
    folder: Path, site: PageServer
) -> None:
    chromium = made()
    await chromium.session("a").open(site.url(), seconds=SECONDS)
    await chromium.session("b").open(site.url(), seconds=SECONDS)
    node = driver(folder)
    assert len(processes(folder)) > 3

    await chromium.end("a")
    assert "Hi" in (await chromium.session("b").snapshot(seconds=SECONDS)).text
    await chromium.session("b").close()

    assert not processes(folder)
    assert not command(node)
    assert not files(folder)
    await chromium.close()


async def test_an_idle_browser_session_is_closed(folder: Path, site: PageServer) -> None:
    chromium = made(idle=0.1)
    web = chromium.session("a")
    await web.open(site.url(), seconds=SECONDS)
    async with asyncio.timeout(20):
        while files(folder):
            await asyncio.to_thread(processes, folder)
    assert not processes(folder)
    with pytest.raises(ToolFailure, match="No page is open"):
        await web.snapshot(seconds=SECONDS)
    await chromium.close()


async def test_a_hanging_page_times_out_and_can_be_closed(folder: Path, site: PageServer) -> None:
    chromium = made()
    web = chromium.session("a")
    seen = await web.open(site.url("/hang"), seconds=SECONDS)
    button = seen.text.partition("button")[2].partition("[ref=")[2].partition("]")[0]
    for _ in range(2):
        with pytest.raises(ToolFailure, match="close the browser") as failed:
            await web.click(button, seconds=0.5)
        assert failed.value.kind is ErrorKind.TIMEOUT
    async with asyncio.timeout(20):
        await web.close()
    assert not processes(folder)
    assert "Hi" in (await web.open(site.url(), seconds=SECONDS)).text
    await chromium.close()


async def test_a_cancelled_browser_start_leaves_no_process_and_no_file(
    folder: Path, site: PageServer
) -> None:
    chromium = made()
    opening = asyncio.create_task(chromium.session("a").open(site.url(), seconds=SECONDS))
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(processes, folder):
            pass
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(20):
        await chromium.close()
    assert not processes(folder)
    assert not files(folder)


async def test_a_cancelled_close_still_ends_the_browser(folder: Path, site: PageServer) -> None:
    chromium = made()
    web = chromium.session("a")
    await web.open(site.url(), seconds=SECONDS)
    closing = asyncio.create_task(web.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(20):
        await chromium.close()
    assert not processes(folder)
    assert not files(folder)


async def test_a_program_that_is_no_browser_fails_to_start_and_leaves_no_file(
    folder: Path, site: PageServer
) -> None:
    chromium = made(program=Path("/bin/false"))
    for _ in range(2):
        with pytest.raises(ToolFailure, match="could not be started"):
            await chromium.session("a").open(site.url(), seconds=SECONDS)
    await chromium.close()
    assert not files(folder)


async def test_the_number_of_browser_sessions_is_limited(folder: Path, site: PageServer) -> None:
    chromium = made(sessions=2)
    for key in ("0", "1"):
        await chromium.session(key).open(site.url(), seconds=SECONDS)
    with pytest.raises(ToolFailure, match="Try again later") as failed:
        await chromium.session("one more").open(site.url(), seconds=SECONDS)
    assert failed.value.kind is ErrorKind.QUEUE_FULL
    await chromium.end("0")
    await chromium.session("one more").open(site.url(), seconds=SECONDS)
    await chromium.close()
    assert not processes(folder)


async def test_the_browser_environment_contains_no_secrets(
    folder: Path, site: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    chromium = made()
    await chromium.session("a").open(site.url(), seconds=SECONDS)
    environments = [environment(pid) for pid in processes(folder)]
    await chromium.close()
    assert any(b"HOME=" in one for one in environments)
    assert not [one for one in environments if b"sk-secret" in one]


def test_the_browser_reports_its_isolation() -> None:
    expected = "none (as root" if os.geteuid() == 0 else "chromium"
    assert made().session("a").isolation.startswith(expected)


def test_find_browser_explains_a_missing_browser(tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_browser(env={"PATH": str(tmp_path)}) == program
    assert find_browser("no-such-browser") == "no such program: 'no-such-browser'"
    assert find_browser(str(program)) == program
