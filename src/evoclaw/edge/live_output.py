"""The output of a running call: sent in chunks, and kept as an artifact when it is long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from evoclaw.core.errors import EvoClawError
from evoclaw.core.ports import Progress
from evoclaw.edge.reports import Reports
from evoclaw.store.calls.artifacts import Artifact, Artifacts
from evoclaw.transport.wire import Chunk, ReportType, as_payload

SOON = 0.1
"""Seconds that output is gathered."""
MOST = 32_000
"""Characters of one piece; when more comes than can be sent, the oldest is left out and it says so.
The final result holds what matters."""
LEFT_OUT = "\n[some output was left out here]\n"


class Chunks:
    """Gathers and sends the output of one call."""

    def __init__(self, reports: Reports, request_id: str) -> None:
        self._reports, self._request_id = reports, request_id
        self._text = ""
        self._seq = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Take a piece of output."""
        self._text += text
        if len(self._text) > MOST:
            self._text = LEFT_OUT + self._text[-MOST + len(LEFT_OUT) :]
        if self._task is None:
            self._task = asyncio.create_task(self._send_soon())

    async def close(self) -> None:
        """Send what is left; the call has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._send()

    async def _send_soon(self) -> None:
        while self._text:
            await asyncio.sleep(SOON)
            await self._send()
        self._task = None

    async def _send(self) -> None:
        text, self._text = self._text, ""
        if text:
            self._seq += 1
            chunk = Chunk(self._request_id, self._seq, text)
            await self._reports.say(ReportType.CHUNK, as_payload(chunk))


SHOWN = 64 * 1024
"""Characters that are passed on while a call runs."""
NO_MORE = "\n[… more output, not shown while it runs …]\n"
TEXT = "text/plain; charset=utf-8"


class Tee:
    """Told the pieces of one call's output; only what gets long goes to the disk."""

    wants_everything = True
    """Whoever speaks need not keep anything back."""

    def __init__(self, artifacts: Artifacts, progress: Progress, *, long: int) -> None:
        self._artifacts, self._progress, self._long = artifacts, progress, long
        self._shown = 0
        self.total = 0
        """Bytes that were said."""
        self._pieces: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[Artifact] | None = None

    def __call__(self, text: str) -> None:
        """Take a piece of output."""
        self._pass_on(text)
        data = text.encode("utf-8", "replace")
        if self.total < self._artifacts.keep_bytes:
            self._pieces.append(data)
            self._more.set()
        self.total += len(data)
        if self._task is None and self.total > self._long:
            self._task = asyncio.create_task(self._artifacts.put(self._each(), TEXT))

    async def finish(self) -> Artifact | None:
        """What was said, as an artifact; None if it was not long, or cannot be kept."""
        self._ended = True
        self._more.set()
        if self._task is None:
            return None
        try:
            return await self._task
        except EvoClawError:
            return None  # the disk is full: the call's own result must do

    async def close(self) -> None:
        """Let go of what was not asked for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _pass_on(self, text: str) -> None:
        if self._shown < SHOWN:
            self._progress(text[: SHOWN - self._shown])
            self._shown += len(text)
            if self._shown >= SHOWN:
                self._progress(NO_MORE)

    async def _each(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()
