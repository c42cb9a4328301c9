"""`SessionPages`: the pages of one browser session, and the actions on them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.web import PageView
from evoclaw.executors.browser.proxy import GuardedProxy, refused, target_of

if TYPE_CHECKING:
    from playwright.async_api import (
        Browser,
        BrowserContext,
        Dialog,
        Download,
        FloatRect,
        Locator,
        Page,
        Request,
        Route,
    )

    from evoclaw.executors.browser.proxy import MayVisit

VIEWPORT_WIDTH_PX, VIEWPORT_HEIGHT_PX = 1280, 800
MAX_SCREENSHOT_HEIGHT_PX = 4_000
"""Height of a screenshot of the whole page."""
MAX_PAGES = 4
"""Concurrently open pages: the first, and the windows it opened."""
MAX_PDF_BYTES = 20 << 20
MAX_PAGE_TEXT_CHARS = 1 << 20
"""Length of one page's text."""
MAX_NOTE_CHARS = 300
NAVIGATION_START_TIMEOUT_S = 0.3
"""How long a click may take to start a navigation."""
SETTLE_TIMEOUT_S = 5.0
ACTION_TIMEOUT_S = 5.0
"""How long an element may take until it can be clicked or filled."""
CLOSE_TIMEOUT_S = 5.0
NO_PAGE_MESSAGE = "No page is open. Use the action 'open' with a url first."

_REF = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
_NET = re.compile(r"net::(ERR_\w+)")


class SessionPages:
    """One session's context: no cookie, no cache and no page is shared with another."""

    def __init__(self, context: BrowserContext, proxy: GuardedProxy) -> None:
        self._context, self._proxy = context, proxy
        self._page: Page | None = None
        self._windows: list[Page] = []
        self._refs: frozenset[str] = frozenset()
        self._notes: deque[str] = deque(maxlen=10)
        self._asked: Request | None = None
        self._stirred, self._leaving = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.crashed = False
        """A page crashed its process: a new session is needed."""

    @classmethod
    async def begin(
        cls, browser: Browser, proxy: GuardedProxy, may_visit: MayVisit | None
    ) -> SessionPages:
        """Make a context whose every connection goes through the proxy."""
        context = await browser.new_context(
            proxy={"server": proxy.address},
            accept_downloads=False,
            service_workers="block",
            viewport={"width": VIEWPORT_WIDTH_PX, "height": VIEWPORT_HEIGHT_PX},
        )
        visit = cls(context, proxy)
        context.on("page", visit._appeared)
        context.on("dialog", visit._dialog)
        context.on("request", visit._requested)
        if may_visit is not None:
            await context.route("**/*", visit._routing(may_visit))
        return visit

    async def end(self) -> bool:
        """Close everything; False if the browser did not respond and must be killed."""
        from playwright.async_api import Error

        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._context.close()
        except TimeoutError:
            return False
        except Error:
            pass  # it is closed already
        finally:
            await self._proxy.close()
        return True

    @property
    def page(self) -> Page:
        """The page in front."""
        if self._page is None or self._page.is_closed():
            # A window that closed itself leaves the one that opened it.
            remaining = self._open_windows()
            if not remaining:
                raise ToolFailure(ErrorKind.INVALID_PARAMS, NO_PAGE_MESSAGE)
            self._page = remaining[-1]
        return self._page

    def _open_windows(self) -> list[Page]:
        self._windows = [window for window in self._windows if not window.is_closed()]
        return self._windows

    def allow(self, seconds: float) -> None:
        """Set the time limit of the next action."""
        self._context.set_default_timeout(seconds * 1000)
        self._context.set_default_navigation_timeout(seconds * 1000)

    async def open(self, url: str) -> PageView:
        """Go to a URL."""
        from playwright.async_api import Error

        await self._proxy.judge(url)
        if self._page is None or self._page.is_closed():
            self._page = await self._context.new_page()
        try:
            response = await self._page.goto(url, wait_until="domcontentloaded")
        except Error as problem:
            if _NET.search(str(problem)):
                # The browser is about to show its error page, which would disturb the next action.
                self._windows.remove(self._page)
                self._later(self._page.close())
                self._page = None
            raise self._unreached(url, problem) from None
        await self._settle()
        return await self.look(response.status if response is not None else 0)

    async def look(self, status: int = 0) -> PageView:
        """Take a snapshot of the page in front; from now on only its refs are valid."""
        page = self.page
        if page.url.startswith("chrome-error:"):
            raise self._unreached(self._asked.url if self._asked else "the page", None)
        text = (await page.aria_snapshot(mode="ai"))[:MAX_PAGE_TEXT_CHARS]
        self._refs = frozenset(_REF.findall(text))
        notes = tuple(self._notes)
        self._notes.clear()
        return PageView(page.url, (await page.title())[:MAX_NOTE_CHARS], text, status, notes)

    async def click(self, ref: str) -> PageView:
        """Click an element."""
        element = await self._element(ref)
        self._begin()
        await self._act(ref, "clicked", element.click(timeout=ACTION_TIMEOUT_S * 1000))
        await self._follow()
        return await self.look()

    async def type(self, ref: str, text: str, *, submit: bool) -> PageView:
        """Fill a field, or choose an option by its label; then press Enter if asked."""
        element = await self._element(ref)
        milliseconds = ACTION_TIMEOUT_S * 1000
        self._begin()
        if await element.evaluate("element => element.tagName") == "SELECT":
            chosen = element.select_option(label=text, timeout=milliseconds)
            await self._act(ref, "set to that option", chosen)
        else:
            await self._act(ref, "filled", element.fill(text, timeout=milliseconds))
        if submit:
            await self._act(ref, "submitted", element.press("Enter", timeout=milliseconds))
        await self._follow()
        return await self.look()

    async def back(self) -> PageView:
        """Go back; from a page that another page opened, to that page."""
        from playwright.async_api import Error

        page = self.page
        others = [window for window in self._open_windows() if window is not page]
        try:
            came = await page.go_back(wait_until="domcontentloaded")
        except Error as problem:
            raise self._unreached("the page before", problem) from None
        if came is None and not others:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "There is no previous page.")
        if came is None:
            await page.close()
            self._page = others[-1]
        await self._settle()
        return await self.look()

    async def screenshot(self, *, full_page: bool) -> bytes:
        """A JPEG picture of the viewport, or of the whole page up to a maximum height."""
        clip: FloatRect | None = None
        if full_page:
            size = await self.page.evaluate(
                "() => (({scrollWidth, scrollHeight}) => [scrollWidth, scrollHeight])"
                "(document.documentElement)"
            )
            width, height = (min(max(1, int(pixels)), MAX_SCREENSHOT_HEIGHT_PX) for pixels in size)
            clip = {"x": 0, "y": 0, "width": width, "height": height}
        return await self.page.screenshot(
            type="jpeg", quality=70, full_page=full_page, clip=clip, animations="disabled"
        )

    async def pdf(self) -> bytes:
        """The page as it would be printed."""
        data = await self.page.pdf(print_background=True)
        if len(data) > MAX_PDF_BYTES:
            raise ToolFailure(
                ErrorKind.TOO_LARGE,
                f"The PDF of this page has {len(data):,} bytes, more than {MAX_PDF_BYTES:,}.",
            )
        return data

    async def _element(self, ref: str) -> Locator:
        page = self.page
        element = page.locator(f"aria-ref={ref}")
        if ref not in self._refs or not await element.count():
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS,
                f"There is no element '{ref[:20]}' on the page now: the page has changed, or the "
                "ref is wrong. Take a snapshot again and use a ref from it.",
            )
        return element

    async def _act(self, ref: str, done: str, acting: Coroutine[None, None, object]) -> None:
        from playwright.async_api import Error

        try:
            await acting
        except Error as problem:
            if self._page is None or self._page.is_closed():
                return  # it closed its own window: `look` finds the remaining pages
            if self.crashed:
                raise
            raise ToolFailure(
                ErrorKind.EXECUTION_FAILED,
                f"The element '{ref}' could not be {done}: {_reason(problem)}. Take a snapshot "
                "again; another element may be in front of it, or be the right one.",
            ) from None

    def _begin(self) -> None:
        self._stirred.clear()
        self._leaving.clear()

    async def _follow(self) -> None:
        """Wait for the navigation that an action started, if any."""
        from playwright.async_api import Error

        with suppress(TimeoutError):
            async with asyncio.timeout(NAVIGATION_START_TIMEOUT_S):
                await self._stirred.wait()
        if self._stirred.is_set():
            with suppress(Error, TimeoutError):  # `look` sees the result
                async with asyncio.timeout(SETTLE_TIMEOUT_S):
                    await self._leaving.wait()
                    if self._asked is not None:
                        await self._asked.response()
        await self._settle()

    async def _settle(self) -> None:
        """Give the page some time to load its parts; one that never finishes is used as it is."""
        from playwright.async_api import TimeoutError as Late

        with suppress(Late):
            await self.page.wait_for_load_state("load", timeout=SETTLE_TIMEOUT_S * 1000)

    def _unreached(self, url: str, problem: Exception | None) -> ToolFailure:
        """Why a page did not load: refused by the proxy, or a network error."""
        requested = self._asked.url if self._asked is not None else url
        for text in (requested, url):
            if (failure := self._proxy.refusals.get(target_of(text))) is not None:
                return failure
        message = str(problem) if problem is not None else ""
        if "Download is starting" in message:
            return ToolFailure(
                ErrorKind.EXECUTION_FAILED,
                f"'{url[:200]}' is a download, and downloads are disabled. Use webfetch, "
                "if you can.",
            )
        if "Timeout" in message:
            return ToolFailure(
                ErrorKind.TIMEOUT,
                f"'{url[:200]}' did not load in time. Try once more, or take a snapshot of what "
                "is there.",
            )
        found = _NET.search(message)
        what = found[1] if found else _reason(problem) if problem else "the browser shows an error"
        return ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"'{url[:200]}' could not be reached: {what}. Check the URL.",
        )

    def _appeared(self, page: Page) -> None:
        page.on("crash", self._crash)
        page.on("download", self._download)
        self._stirred.set()
        self._leaving.set()
        if len(self._open_windows()) >= MAX_PAGES:
            self._notes.append(f"A new window was closed: {MAX_PAGES} are open already.")
            self._later(page.close())
            return
        if self._page is not None:
            self._notes.append("A new window was opened and is in front; 'back' leaves it.")
        self._page = page
        self._windows.append(page)
        self._refs = frozenset()

    def _requested(self, request: Request) -> None:
        if not request.is_navigation_request():
            return
        level = _level(request)
        if level != "part":
            self._asked = request
            self._stirred.set()
        if level == "page":
            self._leaving.set()

    def _dialog(self, dialog: Dialog) -> None:
        leaving = dialog.type == "beforeunload"
        if not leaving:
            message = " ".join(dialog.message.split())[:MAX_NOTE_CHARS]
            self._notes.append(f"The page showed a dialog, which was dismissed: {message!r}")
        self._later(dialog.accept() if leaving else dialog.dismiss())

    def _download(self, download: Download) -> None:
        self._notes.append(
            "The page started a download, which was refused: downloads are disabled."
        )

    def _crash(self, page: Page) -> None:
        self.crashed = True

    def _routing(self, may_visit: MayVisit) -> Callable[[Route, Request], Awaitable[None]]:
        async def judge(route: Route, request: Request) -> None:
            from playwright.async_api import Error

            reason = await may_visit(request.url)
            with suppress(Error):  # the page was closed meanwhile
                if reason is None:
                    await route.continue_()
                    return
                self._proxy.remember(request.url, refused(request.url, reason))
                await route.abort("blockedbyclient")

        return judge

    def _later(self, doing: Coroutine[None, None, None]) -> None:
        async def quietly() -> None:
            from playwright.async_api import Error

            with suppress(Error):  # its page is closed already
                await doing

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _level(request: Request) -> Literal["page", "part", "new window"]:
    from playwright.async_api import Error

    try:
        return "page" if request.frame.parent_frame is None else "part"
    except Error:
        return "new window"  # it appears when its page starts to load


def _reason(problem: Exception) -> str:
    """Playwright's error, in one short line."""
    text = str(problem)
    for cause in ("intercepts pointer events", "not visible", "not enabled", "not editable"):
        if cause in text:
            return f"something {cause}" if cause.startswith("intercepts") else f"it is {cause}"
    first = text.splitlines()[0] if text else type(problem).__name__
    return first.rpartition("Error: ")[2][:MAX_NOTE_CHARS].rstrip(".")
