"""`evoclaw mcp login`: a person signs in to an MCP server with a browser, here or elsewhere."""

from __future__ import annotations

import asyncio
import os
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TextIO
from urllib.parse import parse_qs, urlsplit

from evoclaw.cli.terminal import read_line
from evoclaw.core.errors import ConfigError, EvoClawError

CALLBACK_PATH = "/callback"
MAX_REQUEST_BYTES = 16_384
REQUEST_TIMEOUT_S = 10.0
PAGE = (
    "<!doctype html><meta charset=utf-8><title>EvoClaw</title>"
    "<p>You are signed in to EvoClaw, or were refused: the terminal says which. Close this page."
)


class SignInRefused(EvoClawError):
    """The authorization server refused the sign-in."""


class BrowserSignIn:
    """Shows the address to sign in at, and waits for the browser to come back."""

    def __init__(self, port: int, screen: TextIO, keyboard: int | None, *, browser: bool) -> None:
        """Choose how the person signs in.

        Args:
            port: The local port that the browser is sent back to.
            screen: Where the address is printed.
            keyboard: Where the person may paste the final address; None: nowhere.
            browser: Whether to open a browser.
        """
        self.port = port
        self._screen, self._keyboard, self._browser = screen, keyboard, browser
        self._parameters: asyncio.Future[dict[str, str]] | None = None

    @property
    def redirect_uri(self) -> str:
        """The address that the browser is sent back to."""
        return f"http://127.0.0.1:{self.port}{CALLBACK_PATH}"

    async def show(self, url: str) -> None:
        """Print the address, and open a browser if there is one."""
        self._parameters = asyncio.get_running_loop().create_future()
        self._screen.write(f"Open this address in a browser to sign in:\n\n{url}\n\n")
        if self._keyboard is not None:
            self._screen.write(
                "On another machine: the browser ends at an address that it cannot open, "
                f"{self.redirect_uri}?…; paste it here.\n"
            )
        self._screen.flush()
        if self._browser and _has_screen():
            await asyncio.to_thread(webbrowser.open, url)

    async def result(self) -> tuple[str, str | None, str | None]:
        """Wait for the browser, or for the address that the person pastes."""
        assert self._parameters is not None
        pasted = asyncio.create_task(self._paste())
        try:
            await asyncio.wait((self._parameters, pasted), return_when=asyncio.FIRST_COMPLETED)
            found = self._parameters.result() if self._parameters.done() else pasted.result()
        finally:
            pasted.cancel()
            await asyncio.wait([pasted])
        if "code" not in found:
            reason = found.get("error_description") or found.get("error") or "no code came back"
            raise SignInRefused(f"the sign-in was refused: {reason[:300]}")
        return found["code"], found.get("state"), found.get("iss")

    async def _paste(self) -> dict[str, str]:
        if self._keyboard is None:
            await asyncio.Event().wait()
        assert self._keyboard is not None
        while True:
            line = await read_line(self._keyboard)
            if not line:  # the terminal is closed: only the browser is left
                await asyncio.Event().wait()
            if found := _parameters(line.strip()):
                return found
            self._screen.write(f"This is not an address that starts with {self.redirect_uri}.\n")
            self._screen.flush()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of the browser."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.partition(b"\r\n")[0].decode("ascii", "replace").split(" ")
                path = words[1] if len(words) == 3 and words[0] == "GET" else ""
                found = _parameters(f"http://127.0.0.1{path}")
                status = "200 OK" if found else "404 Not Found"
                body = (PAGE if found else "").encode()
                about = f"content-type: text/html\r\ncontent-length: {len(body)}\r\n"
                answer = f"HTTP/1.1 {status}\r\n{about}connection: close\r\n\r\n"
                writer.write(answer.encode() + body)
                await writer.drain()
                if found and self._parameters is not None and not self._parameters.done():
                    self._parameters.set_result(found)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            return  # a broken request: the browser, or the person, tries again
        finally:
            writer.close()


@asynccontextmanager
async def browser_sign_in(
    port: int, screen: TextIO, keyboard: int | None, *, browser: bool
) -> AsyncGenerator[BrowserSignIn]:
    """Listen on this machine for the browser while the block runs."""
    prompt = BrowserSignIn(port, screen, keyboard, browser=browser)
    try:
        server = await asyncio.start_server(
            prompt.serve, "127.0.0.1", port, limit=MAX_REQUEST_BYTES
        )
    except OSError as problem:
        raise ConfigError(
            f"port {port} cannot be used for the sign-in ({problem.strerror}); choose another with "
            "--port, or `redirect_port` in evoclaw.toml"
        ) from None
    async with server:
        prompt.port = server.sockets[0].getsockname()[1]
        yield prompt


def _parameters(address: str) -> dict[str, str]:
    """The parameters of the final address; empty if it is another address."""
    read = urlsplit(address)
    if read.path != CALLBACK_PATH:
        return {}
    found = {key: values[0] for key, values in parse_qs(read.query).items()}
    return found if found.keys() & {"code", "error"} else {}


def _has_screen() -> bool:
    """Whether a browser could be opened: without a display it would be one in the terminal."""
    return os.name == "nt" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
