"""A house and a browser for all tests of the page; every test has a page of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.page.browsing import chromium
from tests.page.house import House, page_house
from tests.page.looking import Looker

LOOP = "session"
PATIENCE = 60_000
"""Milliseconds; a first command on a busy machine takes more than the usual five seconds."""


@pytest_asyncio.fixture(loop_scope=LOOP, scope="session")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[House]:
    folder: Path = tmp_path_factory.mktemp("house")
    async with page_house(folder) as house:
        yield house


@pytest_asyncio.fixture(loop_scope=LOOP, scope="session")
async def browser() -> AsyncGenerator[Browser]:
    expect.set_options(timeout=PATIENCE)
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope=LOOP)
async def context(browser: Browser) -> AsyncGenerator[BrowserContext]:
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope=LOOP)
async def looker(house: House, context: BrowserContext) -> AsyncGenerator[Looker]:
    """Somebody logged in; whatever the console complained about fails the test in the end."""
    page: Page = await context.new_page()
    looker = Looker(house, page)
    yield looker
    assert looker.complaints == []
