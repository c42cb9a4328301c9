"""A running call's output, piece by piece: soon, but not in more pieces than a link can bear."""

from __future__ import annotations

import asyncio

from evoclaw.edge.reports import Reports
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
