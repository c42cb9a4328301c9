"""The output of a running call: sent in chunks, and kept as an artifact when it is long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from evoclaw.core.errors import EvoClawError
from evoclaw.core.ports import Progress
from evoclaw.edge.reports import EdgeReports
from evoclaw.store.calls.artifacts import Artifact, ArtifactStore
from evoclaw.transport.wire import OutputChunk, ReportType, as_payload

CHUNK_INTERVAL_S = 0.1
"""How long output is collected before it is sent."""
MAX_CHUNK_CHARS = 32_000
"""Characters of a chunk; when output comes faster than it can be sent, the oldest is dropped, with
a note. The final result is complete."""
LEFT_OUT_NOTE = "\n[some output was left out here]\n"


class OutputChunks:
    """Collects and sends the output of one call."""

    def __init__(self, reports: EdgeReports, request_id: str) -> None:
        self._reports, self._request_id = reports, request_id
        self._text = ""
        self._seq = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Add output."""
        self._text += text
        if len(self._text) > MAX_CHUNK_CHARS:
            self._text = LEFT_OUT_NOTE + self._text[-MAX_CHUNK_CHARS + len(LEFT_OUT_NOTE) :]
        if self._task is None:
            self._task = asyncio.create_task(self._send_soon())

    async def close(self) -> None:
        """Send the rest; the call has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._send()

    async def _send_soon(self) -> None:
        while self._text:
            await asyncio.sleep(CHUNK_INTERVAL_S)
            await self._send()
        self._task = None

    async def _send(self) -> None:
        text, self._text = self._text, ""
        if text:
            self._seq += 1
            chunk = OutputChunk(self._request_id, self._seq, text)
            await self._reports.send(ReportType.CHUNK, as_payload(chunk))


MAX_SHOWN_CHARS = 64 * 1024
"""Output that is forwarded while a call runs."""
NO_MORE_NOTE = "\n[… more output, not shown while it runs …]\n"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"


class OutputTee:
    """Forwards the output of a call and stores it; only long output goes to the disk."""

    wants_everything = True
    """The process need not truncate its output."""

    def __init__(self, artifacts: ArtifactStore, progress: Progress, *, long: int) -> None:
        self._artifacts, self._progress, self._long = artifacts, progress, long
        self._shown = 0
        self.total = 0
        """Bytes of output so far."""
        self._pieces: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[Artifact] | None = None

    def __call__(self, text: str) -> None:
        """Add output."""
        self._pass_on(text)
        data = text.encode("utf-8", "replace")
        if self.total < self._artifacts.max_artifact_bytes:
            self._pieces.append(data)
            self._more.set()
        self.total += len(data)
        if self._task is None and self.total > self._long:
            self._task = asyncio.create_task(self._artifacts.put(self._each(), TEXT_MEDIA_TYPE))

    async def finish(self) -> Artifact | None:
        """The output as an artifact; None if it is short, or cannot be stored."""
        self._ended = True
        self._more.set()
        if self._task is None:
            return None
        try:
            return await self._task
        except EvoClawError:
            return None  # the disk is full: only the call's own result is available

    async def close(self) -> None:
        """Drop output that `finish` did not take."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _pass_on(self, text: str) -> None:
        if self._shown < MAX_SHOWN_CHARS:
            self._progress(text[: MAX_SHOWN_CHARS - self._shown])
            self._shown += len(text)
            if self._shown >= MAX_SHOWN_CHARS:
                self._progress(NO_MORE_NOTE)

    async def _each(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()
