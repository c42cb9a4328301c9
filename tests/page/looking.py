"""Somebody who looks at the page, and what a browser complains about."""

from __future__ import annotations

import asyncio
from importlib.resources import files

from playwright.async_api import ConsoleMessage, Error, Locator, Page, Request, Route, expect

from evoclaw.core.messages import JSON
from tests.page.house import House

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
BAD = ("serious", "critical")
VIEWS = {
    "fleet": "Fleet",
    "chat": "Chat",
    "runs": "Runs",
    "agents": "Agents",
    "evolution": "Evolution",
    "workflows": "Workflows",
    "approvals": "Approvals",
    "tools": "Tools & skills",
    "metrics": "Metrics",
    "audit": "Audit",
    "settings": "Settings",
}
"""The views, by their address, with their headings."""
PHONE = {"width": 360, "height": 740}


class Looker:
    """A page in a browser."""

    def __init__(self, house: House, page: Page) -> None:
        self.house, self.page = house, page
        self.complaints: list[str] = []
        """Errors of the console, of scripts, and requests that failed by themselves."""
        page.on("console", self._console)
        page.on("pageerror", self._error)
        page.on("requestfailed", self._failed)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _failed(self, request: Request) -> None:
        # A view that is left lets go of its streams.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{request.url}: {request.failure}")

    async def enter(self, view: str = "chat", *args: str) -> None:
        """Log in with a link, and go to a view."""
        await self.page.goto(self.house.link)
        await expect(self.page.locator("#link")).to_have_attribute("data-state", "open")
        await self.go(view, *args)

    async def go(self, view: str, *args: str) -> None:
        """Go to a view."""
        address = "/".join((view, *args))
        await self.page.evaluate("address => { location.hash = `#/${address}`; }", address)
        await expect(self.page.locator("main h1")).to_be_visible()

    async def hold_back(self, *addresses: str) -> asyncio.Event:
        """Answer requests to some addresses only when the event is set."""
        released = asyncio.Event()

        async def answered_late(route: Route) -> None:
            await released.wait()
            await route.continue_()

        for address in addresses:
            await self.page.route(address, answered_late)
        return released

    def button(self, name: str) -> Locator:
        """A button by its words."""
        return self.page.get_by_role("button", name=name)

    async def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        return int(
            await self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        )

    async def barriers(self) -> list[str]:
        """What keeps people out, as axe sees it: only what is serious."""
        await self.page.evaluate(AXE)
        found: JSON = await self.page.evaluate("axe.run()")
        return [
            f"{one['id']}: {node['html'][:200]} ({node['failureSummary'][:200]})"
            for one in found["violations"]
            if one["impact"] in BAD
            for node in one["nodes"]
        ]
