"""The dashboard as an app: installable, there without the service, and of one version."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from litestar import Litestar
from playwright.async_api import Browser, BrowserContext, Page, expect

import evoclaw.dashboard
from evoclaw.core.messages import JSON
from evoclaw.dashboard.static_files import dashboard_routes
from tests.page.looking import Looker
from tests.support.waiting import until

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
STATIC = Path(evoclaw.dashboard.__file__).parent / "static"
STORED = """async () => {
  const found = {};
  for (const name of await caches.keys()) {
    for (const request of await (await caches.open(name)).keys()) {
      const { pathname, search } = new URL(request.url);
      (found[name] ||= []).push(pathname + search);
    }
  }
  return found;
}"""


async def served(page: Page) -> None:
    """Wait until the service worker serves the page."""

    async def is_served() -> bool:
        return bool(await page.evaluate("navigator.serviceWorker.controller !== null"))

    await until(is_served, 60, "the service worker serves the page")


async def test_the_dashboard_can_be_installed(looker: Looker) -> None:
    await looker.enter("chat")
    await served(looker.page)
    session: Any = await looker.page.context.new_cdp_session(looker.page)

    manifest: JSON = await session.send("Page.getAppManifest")
    errors: JSON = await session.send("Page.getInstallabilityErrors")

    assert manifest["url"].endswith("/ui/manifest.webmanifest") and manifest["errors"] == []
    # The contexts of these tests are private windows, in which nothing can be installed.
    found = {error["errorId"] for error in errors["installabilityErrors"]}
    assert found <= {"in-incognito"}


async def test_a_reload_without_the_service_shows_the_shell_and_reconnects(
    looker: Looker, context: BrowserContext
) -> None:
    await looker.enter("runs")
    page = looker.page
    await served(page)
    await context.set_offline(True)
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("The orchestrator is unreachable.")

    await context.set_offline(False)
    await expect(page.locator("#link")).to_have_attribute("data-state", "open", timeout=60_000)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    looker.complaints.clear()  # of requests without a network


async def test_only_static_files_are_stored_also_after_a_logout(looker: Looker) -> None:
    await looker.enter("runs")
    page = looker.page
    await served(page)
    for view in ("fleet", "approvals", "audit", "settings/tokens"):
        await looker.go(*view.split("/"))
    listed: JSON = await page.evaluate("async () => (await fetch('/ui/files.json')).json()")
    await looker.button("Log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()

    stored: JSON = await page.evaluate(STORED)

    assert list(stored) == [f"evoclaw-files-{listed['version']}"]
    assert sorted(*stored.values()) == sorted(listed["files"])
    token = looker.house.link.partition("token=")[2]
    leaks: JSON = await page.evaluate(
        """async (token) => {
          const cache = await caches.open((await caches.keys())[0]);
          const texts = await Promise.all((await cache.matchAll()).map((one) => one.text()));
          return texts.filter((text) => text.includes(token)).length;
        }""",
        token,
    )
    assert leaks == 0


@asynccontextmanager
async def files_of(folder: Path, port: int) -> AsyncGenerator[str]:
    """Only the files of a dashboard, on a port."""
    app = Litestar(dashboard_routes(folder), openapi_config=None)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: _is(server), 30, "the files are served")
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def _is(server: uvicorn.Server) -> bool:
    return server.started


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


async def test_a_new_version_replaces_all_files_at_once(browser: Browser) -> None:
    port = free_port()
    context = await browser.new_context()
    page = await context.new_page()
    with tempfile.TemporaryDirectory() as place:
        old, new = Path(place, "old"), Path(place, "new")
        for folder in (old, new):
            shutil.copytree(STATIC, folder)
        for name, before, after in (
            ("index.html", "<title>EvoClaw</title>", "<title>EvoClaw 2</title>"),
            ("app.js", '"Enter your API token."', '"Enter your token, please."'),
        ):
            changed = (new / name).read_text().replace(before, after)
            assert changed != (new / name).read_text()
            (new / name).write_text(changed)

        async with files_of(old, port) as url:
            await page.goto(url)
            await expect(page.get_by_text("Enter your API token.")).to_be_visible()
            await served(page)
            before = await page.evaluate("caches.keys()")
        await page.reload()  # nothing is served now
        await expect(page.get_by_text("Enter your API token.")).to_be_visible()
        async with files_of(new, port) as url:
            await page.goto(url)
            await expect(page.get_by_text("Enter your token, please.")).to_be_visible(
                timeout=60_000
            )
            await expect(page).to_have_title("EvoClaw 2")

            async def one_version() -> bool:
                return len(await page.evaluate("caches.keys()")) == 1

            await until(one_version, 60, "the files of the old version are deleted")
            assert await page.evaluate("caches.keys()") != before
    await context.close()


async def test_an_open_page_offers_a_new_version_and_keeps_its_files_until_then(
    browser: Browser,
) -> None:
    port = free_port()
    context = await browser.new_context()
    page = await context.new_page()
    with tempfile.TemporaryDirectory() as place:
        old, new = Path(place, "old"), Path(place, "new")
        for folder in (old, new):
            shutil.copytree(STATIC, folder)
        (new / "format.js").write_text("export const version = 2;\n")
        async with files_of(old, port) as url:
            await page.goto(url)
            await served(page)
        async with files_of(new, port):
            # As if the page had been open for a while, and then looked for a new version.
            await page.evaluate("performance.now = () => 1e6")
            await page.evaluate("document.querySelector('iframe').contentWindow.location.reload()")
            await expect(
                page.get_by_text("A new version of the dashboard is ready.")
            ).to_be_visible(timeout=60_000)
            text = "async () => (await fetch('/ui/format.js')).text()"
            assert "version = 2" not in await page.evaluate(text)
            async with page.expect_event("load"):
                await page.get_by_role("button", name="Reload").click()
            assert "version = 2" in await page.evaluate(text)
    await context.close()
