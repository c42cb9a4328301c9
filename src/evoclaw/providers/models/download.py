"""Downloads a file over HTTP into a partial file, and resumes after an interruption."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from evoclaw.core.errors import EvoClawError
from evoclaw.providers.errors import one_line
from evoclaw.providers.models.memory import format_bytes
from evoclaw.providers.models.partial_file import PartialFile

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MAX_MODEL_BYTES = 200 * 10**9
MAX_REDIRECTS = 5
RETRY_DELAYS_S = (0.5, 2.0, 5.0)
"""After a broken connection; counted again after progress."""
CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 60.0
_CHUNK_BYTES = 2**20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes of the whole file."""


class DownloadFailed(EvoClawError):
    """A model could not be downloaded; the message says whether the next attempt resumes."""


class _ConnectionBroken(Exception):
    """The connection or the server failed in a way that may pass."""


async def download(
    url: str, part: PartialFile, *, size_bytes: int, has_digest: bool, progress: Progress
) -> None:
    """Download what is missing of a file.

    Args:
        url: The address.
        part: Where to; what is there is not downloaded again.
        size_bytes: Of the whole file; 0 if it is not known.
        has_digest: Whether the digest of the file is known. Otherwise only a part with an entity
            tag is resumed, because nothing else proves that the file is still the same.
        progress: Called with every piece.

    Raises:
        DownloadFailed: It did not work.
        DiskFull: There is too little space.
    """
    import aiohttp

    session = aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        # A compressed body could not be resumed.
        headers={"Accept-Encoding": "identity", "User-Agent": "evoclaw"},
    )
    transfer = _Transfer(session, url, part, size_bytes, has_digest, progress)
    async with session:
        failures, reached = 0, part.size
        while True:
            try:
                await transfer.attempt()
                return
            except (_ConnectionBroken, aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                if part.size > reached:
                    failures, reached = 0, part.size
                if failures == len(RETRY_DELAYS_S):
                    raise transfer.failure(error) from None
            except OSError as problem:
                raise DownloadFailed(
                    f"cannot write {part.path}: {problem.strerror}; check the disk"
                ) from None
            await asyncio.sleep(RETRY_DELAYS_S[failures])
            failures += 1


class _Transfer:
    """The attempts of one download."""

    def __init__(
        self,
        session: ClientSession,
        url: str,
        part: PartialFile,
        size_bytes: int,
        has_digest: bool,
        progress: Progress,
    ) -> None:
        self._session, self._url, self._part = session, url, part
        self._expected, self._has_digest, self._progress = size_bytes, has_digest, progress
        self._total = size_bytes

    async def attempt(self) -> None:
        """Request the rest of the file and append it; return when the file is complete."""
        part = self._part
        etag = part.etag(self._url)
        if part.size and not (etag or self._has_digest):
            part.restart()
        if self._expected and part.size >= self._expected:
            return
        headers = {"Range": f"bytes={part.size}-"} if part.size else {}
        if headers and etag:
            headers["If-Range"] = etag
        async with self._session.get(
            self._url, headers=headers, max_redirects=MAX_REDIRECTS
        ) as response:
            self._check(response)
            await asyncio.to_thread(part.check_space, self._total)
            strong = response.headers.get("ETag", "")
            part.remember(self._url, "" if strong.startswith("W/") else strong)
            await self._receive(response)

    def _check(self, response: ClientResponse) -> None:
        """Check status, address and size; forget the part if the whole file comes."""
        addresses = [*(step.url for step in response.history), response.url]
        if self._url.startswith("https:") and any(url.scheme != "https" for url in addresses):
            raise DownloadFailed(
                f"{self._url} redirects to an address without TLS; nothing was downloaded"
            )
        match response.status:
            case 200:
                self._part.restart()
                self._total = response.content_length or 0
            case 206:
                found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != self._part.size:
                    self._part.restart()
                    raise _ConnectionBroken("the server sent another part than was asked for")
                self._total = int(found[2])
            case 416:
                self._part.restart()
                raise _ConnectionBroken("the file has become shorter")
            case status if status in _RETRYABLE:
                raise _ConnectionBroken(f"the server answered {status}")
            case status:
                raise DownloadFailed(f"{self._url} answered {status} {_meaning(status)}")
        if self._expected and self._total not in (0, self._expected):
            raise DownloadFailed(
                f"{self._url} has {self._total:,} bytes, not {self._expected:,}: it is not the "
                "file that the catalogue names; nothing was downloaded"
            )
        if not 0 < (self._total or self._expected) <= MAX_MODEL_BYTES:
            raise DownloadFailed(
                f"{self._url} does not say how large it is; download it with another program, and "
                "run `evoclaw models pull PATH`"
            )
        self._total = self._total or self._expected

    async def _receive(self, response: ClientResponse) -> None:
        async for piece in response.content.iter_chunked(_CHUNK_BYTES):
            if self._part.size + len(piece) > self._total:
                await asyncio.to_thread(self._part.delete)
                raise DownloadFailed(f"{self._url} sent more than the {self._total:,} bytes it has")
            await asyncio.to_thread(self._part.add, piece)
            self._progress(self._part.size, self._total)
        if self._part.size < self._total:
            raise _ConnectionBroken("the connection was closed early")

    def failure(self, error: Exception) -> DownloadFailed:
        """The error for the user after the last attempt."""
        why = one_line(str(error)) or type(error).__name__
        if not self._part.size:
            return DownloadFailed(
                f"cannot download {self._url}: {why}; check the network, or download the file on "
                "another machine and run `evoclaw models pull PATH`"
            )
        return DownloadFailed(
            f"the download was interrupted after {format_bytes(self._part.size)} of "
            f"{format_bytes(self._total)}: {why}; run the same command again to resume it"
        )


def _meaning(status: int) -> str:
    match status:
        case 401 | 403:
            return "(not allowed): download the file in a browser, and install it by its path"
        case 404 | 410:
            return "(not found): check the address"
        case _:
            return "(unexpected): try again later"
