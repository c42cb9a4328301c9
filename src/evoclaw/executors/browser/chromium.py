"""Chromium through Playwright: one process, one context per session, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.web import PageView
from evoclaw.executors.browser.processes import BrowserMain, end_all, find_main
from evoclaw.executors.browser.proxy import GuardedProxy, MayVisit
from evoclaw.executors.browser.session_pages import NO_PAGE_MESSAGE, SessionPages
from evoclaw.executors.url_guard import UrlGuard, read_url

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

T = TypeVar("T")

SESSION_IDLE_TIMEOUT_S = 300.0
MAX_SESSIONS = 8
START_TIMEOUT_S = 25.0
END_TIMEOUT_S = 5.0
UNREACHABLE_PROXY_URL = "http://127.0.0.1:9"
"""An address without a listener: requests that belong to no session go there."""
CHROMIUM_ARGUMENTS = (
    # No DNS lookup and no packet bypasses the proxy.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # Autofill would report the forms it sees to Google.
    f"--autofill-server-url={UNREACHABLE_PROXY_URL}/",
)
PASSED_ON_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "FONTCONFIG_PATH", "FONTCONFIG_FILE")
"""Variables of our environment that are passed on; the rest may hold secrets."""
BROWSER_ENDED_MESSAGE = (
    "The browser ended unexpectedly. Use the action 'open' to continue with a new one."
)


@dataclass(frozen=True, slots=True)
class _Running:
    playwright: Playwright
    browser: Browser
    home: Path
    """Its home folder; its name marks all processes that belong to it."""
    main: BrowserMain

    async def stop(self) -> None:
        """Stop the browser, and verify that all its processes have ended."""
        from playwright.async_api import Error

        with suppress(Error, TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.browser.close()
        await end_all(str(self.home))
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.playwright.stop()
        await end_all(str(self.home), also=self.main.driver)
        for folder in (self.home, self.main.profile):
            if folder:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class Chromium:
    """The browser of a machine: started when first needed, ended when no session needs it."""

    def __init__(
        self,
        program: Path,
        *,
        guard: UrlGuard | None = None,
        may_visit: MayVisit | None = None,
        idle: float = SESSION_IDLE_TIMEOUT_S,
        sessions: int = MAX_SESSIONS,
    ) -> None:
        """Set the rules; nothing is started yet.

        Args:
            program: What `find_browser` found.
            guard: Which addresses may be reached; only the public internet if not given.
            may_visit: Called for every URL as well.
            idle: Seconds after which a session that does nothing is closed.
            sessions: How many may have pages at once.
        """
        self._program, self._room = program, sessions
        self._guard, self._may_visit, self.idle = guard or UrlGuard(), may_visit, idle
        # As root Chromium does not start with its sandbox on.
        self._sandbox = not hasattr(os, "geteuid") or os.geteuid() != 0
        self._start: asyncio.Task[_Running] | None = None
        # A session that has pages is in `_active`; the others need not be remembered.
        self._sessions: WeakValueDictionary[str, SessionBrowser] = WeakValueDictionary()
        self._active: set[SessionBrowser] = set()
        self._unwatched: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    @property
    def isolation(self) -> str:
        """The sandbox that pages actually run in."""
        if self._sandbox:
            return "chromium"
        return "none (as root, Chromium runs without its sandbox)"

    def session(self, key: str) -> SessionBrowser:
        """The browser of one session; the same for the same key until that has ended."""
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = SessionBrowser(self)
        return found

    async def end(self, key: str) -> None:
        """Close everything of a session that has ended."""
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """Close every session, and the browser itself."""
        for key in list(self._sessions):
            await self.end(key)
        async with self._lock:
            await self._stop()
        if self._unwatched:
            await asyncio.wait(self._unwatched)

    async def begin(self, session: SessionBrowser) -> tuple[SessionPages, Browser]:
        """Create the context of a session; the browser is started if needed."""
        from playwright.async_api import Error

        if session not in self._active and len(self._active) >= self._room:
            raise ToolFailure(
                ErrorKind.QUEUE_FULL,
                f"{self._room} sessions already use the browser. Try again later.",
            )
        self._active.add(session)
        browser = await self._browser()
        try:
            return await self._visit(browser), browser
        except Error:
            # The driver is dead, which Playwright only notices at the next request.
            await self._give_up(browser)
        browser = await self._browser()
        return await self._visit(browser), browser

    async def _visit(self, browser: Browser) -> SessionPages:
        proxy = GuardedProxy(self._guard, may_visit=self._may_visit)
        await proxy.start()
        try:
            return await SessionPages.begin(browser, proxy, self._may_visit)
        except BaseException:
            await proxy.close()
            raise

    async def _give_up(self, browser: Browser) -> None:
        async with self._lock:
            start = self._start
            # Another session may have started a new browser already.
            if start is not None and _is_up(start) and start.result().browser is browser:
                await self._stop()

    async def leave(self, session: SessionBrowser, *, obeys: bool = True) -> None:
        """Note that a session has no pages; stop a browser that is unused or hangs."""
        async with self._lock:
            self._active.discard(session)
            if not self._active or not obeys:
                await self._stop()

    def unwatched(self, doing: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something to completion even if no caller awaits it; `close` waits for it."""
        task = asyncio.create_task(doing)
        self._unwatched.add(task)
        task.add_done_callback(self._unwatched.discard)
        return task

    async def _browser(self) -> Browser:
        async with self._lock:
            if self._start is not None and self._start.done() and not _is_up(self._start):
                await self._stop()
            if self._start is None:
                self._start = asyncio.create_task(self._launch())
            start = self._start
        # The caller may be cancelled; the start continues, and `leave` stops the browser.
        return (await asyncio.shield(start)).browser

    async def _stop(self) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        await asyncio.wait((start,))
        if not start.cancelled() and start.exception() is None:
            # An interrupted stop would leave processes behind.
            await asyncio.shield(self.unwatched(start.result().stop()))

    async def _launch(self) -> _Running:
        from playwright.async_api import Error, async_playwright

        home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="evoclaw-browser-"))
        environment = {name: os.environ[name] for name in PASSED_ON_VARIABLES if name in os.environ}
        playwright: Playwright | None = None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                playwright = await async_playwright().start()
                browser = await playwright.chromium.launch(
                    executable_path=self._program,
                    headless=True,
                    chromium_sandbox=self._sandbox,
                    proxy={"server": UNREACHABLE_PROXY_URL},
                    args=[*CHROMIUM_ARGUMENTS, f"--evoclaw-home={home}"],
                    artifacts_dir=home,
                    ignore_default_args=["--disable-popup-blocking"],
                    env={**environment, "HOME": str(home), "TMPDIR": str(home)},
                )
            main = await asyncio.to_thread(find_main, str(home))
            return _Running(playwright, browser, home, main)
        except (Error, OSError, TimeoutError) as problem:
            await end_all(str(home))
            if playwright is not None:
                await playwright.stop()
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
            raise self._unstartable(problem) from None

    def _unstartable(self, problem: Exception) -> ToolFailure:
        message = " ".join(str(problem).split())
        if self._sandbox and "sandbox" in message.lower():
            return ToolFailure(
                ErrorKind.SANDBOX_UNAVAILABLE,
                "Chromium cannot create its sandbox on this machine, and is not started "
                "without it. Continue without the browser; explain this to the user.",
            )
        return ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"Chromium could not be started: {message[:300] or type(problem).__name__}. Do without "
            "the browser; explain this to the user.",
        )


class SessionBrowser:
    """The browser of one session: its own pages, one action at a time."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._visit: SessionPages | None = None
        self._browser: Browser | None = None
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def isolation(self) -> str:
        """The sandbox that pages actually run in."""
        return self._chromium.isolation

    async def open(self, url: str, *, seconds: float) -> PageView:
        """Go to a URL."""
        read_url(url)  # an invalid URL is refused before anything is started
        return await self._act(seconds, lambda visit: visit.open(url), begin=True)

    async def snapshot(self, *, seconds: float) -> PageView:
        """Take a snapshot of the page in front."""
        return await self._act(seconds, lambda visit: visit.look())

    async def click(self, ref: str, *, seconds: float) -> PageView:
        """Click an element of the last snapshot."""
        return await self._act(seconds, lambda visit: visit.click(ref))

    async def type(self, ref: str, text: str, *, submit: bool, seconds: float) -> PageView:
        """Fill a field of the last snapshot."""
        return await self._act(seconds, lambda visit: visit.type(ref, text, submit=submit))

    async def back(self, *, seconds: float) -> PageView:
        """Go to the previous page."""
        return await self._act(seconds, lambda visit: visit.back())

    async def screenshot(self, *, full_page: bool, seconds: float) -> bytes:
        """A JPEG picture of the page in front."""
        return await self._act(seconds, lambda visit: visit.screenshot(full_page=full_page))

    async def pdf(self, *, seconds: float) -> bytes:
        """The page in front as a PDF."""
        return await self._act(seconds, lambda visit: visit.pdf())

    async def close(self) -> None:
        """Forget all pages, cookies and refs."""
        async with self._lock:
            self._cancel_idle_timer()
            # Once started it runs to completion, even if the caller is cancelled.
            await asyncio.shield(self._chromium.unwatched(self._drop()))

    async def _act(
        self, seconds: float, doing: Callable[[SessionPages], Awaitable[T]], *, begin: bool = False
    ) -> T:
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(seconds), self._lock:
                self._cancel_idle_timer()
                try:
                    visit = await self._ready(begin=begin)
                    visit.allow(seconds)
                    return await doing(visit)
                except Error as problem:
                    raise await self._explained(problem, seconds) from None
                finally:
                    self._start_idle_timer()
        except TimeoutError:
            raise _late(seconds) from None

    async def _ready(self, *, begin: bool) -> SessionPages:
        if self._is_lost():
            await self._drop()
            if not begin:
                raise ToolFailure(ErrorKind.EXECUTION_FAILED, BROWSER_ENDED_MESSAGE)
        if self._visit is None:
            if not begin:
                raise ToolFailure(ErrorKind.INVALID_PARAMS, NO_PAGE_MESSAGE)
            self._visit, self._browser = await self._chromium.begin(self)
        return self._visit

    def _is_lost(self) -> bool:
        if self._visit is None or self._browser is None:
            return False
        return self._visit.crashed or not self._browser.is_connected()

    async def _explained(self, problem: Exception, seconds: float) -> ToolFailure:
        from playwright.async_api import TimeoutError as Late

        if isinstance(problem, Late):
            return _late(seconds)
        if self._is_lost() or "has been closed" in str(problem) or "crashed" in str(problem):
            await self._drop()
            return ToolFailure(ErrorKind.EXECUTION_FAILED, BROWSER_ENDED_MESSAGE)
        message = " ".join(str(problem).split())[:300]
        return ToolFailure(
            ErrorKind.EXECUTION_FAILED, f"The browser failed: {message}. Take a snapshot."
        )

    async def _drop(self) -> None:
        visit, self._visit, self._browser = self._visit, None, None
        obeys = await visit.end() if visit is not None else True
        await self._chromium.leave(self, obeys=obeys)

    def _cancel_idle_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_idle_timer(self) -> None:
        """Close the session after a while without an action."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            self._chromium.idle, lambda: self._chromium.unwatched(self.close())
        )


def _is_up(start: asyncio.Task[_Running]) -> bool:
    if not start.done() or start.cancelled() or start.exception() is not None:
        return False
    return start.result().browser.is_connected()


def _late(seconds: float) -> ToolFailure:
    return ToolFailure(
        ErrorKind.TIMEOUT,
        f"The browser did not finish within {seconds:g} seconds. Take a snapshot to see "
        "the current page; if that fails too, close the browser and open the page again.",
    )
