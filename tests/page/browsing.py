"""A real Chromium, as the page's tests, its pictures and its figures use it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """Started, and ended with the block."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "the page is looked at in Chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        # The container is the sandbox here: a browser of root cannot build its own.
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()
