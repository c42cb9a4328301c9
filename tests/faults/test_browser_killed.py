"""A browser, one of its pages or its driver is killed: that is told, and the next one works."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.browser.processes import find_main
from tests.executors import test_browser_cleanup
from tests.executors.test_browser_cleanup import (
    PROGRAM,
    SECONDS,
    driver,
    files,
    is_there,
    made,
    processes,
)
from tests.support.web_pages import PageServer

pytestmark = pytest.mark.skipif(isinstance(PROGRAM, str), reason=str(PROGRAM))
folder, site = test_browser_cleanup.folder, test_browser_cleanup.site


@pytest.mark.parametrize("killed", ["browser", "page", "driver"])
async def test_a_killed_browser_is_reported_and_replaced(
    folder: Path, site: PageServer, killed: str
) -> None:
    chromium = made()
    web = chromium.session("a")
    await web.open(site.url(), seconds=SECONDS)
    match killed:
        case "browser":
            victims = processes(folder, "--remote-debugging-pipe")
        case "page":
            victims = processes(folder, "--type=renderer")
        case _:
            victims = {driver(folder)}
    profile = Path(find_main(str(folder)).profile)
    assert victims
    assert is_there(profile)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(ToolFailure, match="ended unexpectedly") as failed:
        await web.snapshot(seconds=SECONDS)
    assert failed.value.kind is ErrorKind.EXECUTION_FAILED

    assert "Hi" in (await web.open(site.url(), seconds=SECONDS)).text
    await chromium.close()
    assert not processes(folder)
    assert not files(folder)
    assert not is_there(profile)


async def test_a_dead_browser_driver_is_replaced_while_another_session_holds_it(
    folder: Path, site: PageServer
) -> None:
    chromium = made()
    await chromium.session("a").open(site.url(), seconds=SECONDS)
    os.kill(driver(folder), signal.SIGKILL)
    assert "Hi" in (await chromium.session("b").open(site.url(), seconds=SECONDS)).text
    with pytest.raises(ToolFailure, match="ended unexpectedly"):
        await chromium.session("a").snapshot(seconds=SECONDS)
    assert "Hi" in (await chromium.session("b").snapshot(seconds=SECONDS)).text
    await chromium.close()
    assert not processes(folder)
