"""The messages of ACP over standard input and output: JSON-RPC, one message on each line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from evoclaw.api.stdio import StdioPipes
from evoclaw.core.messages import JSON, is_object

MAX_MESSAGE_BYTES = 16 << 20
PARSE_ERROR, INVALID_REQUEST = -32_700, -32_600


class AcpTransport:
    """The transport of the SDK's connection; answers what is no message with an error.

    The SDK's own transport logs a traceback for a line that is not JSON, and a line that is JSON
    but no message ends its connection.
    """

    def __init__(self, pipes: StdioPipes) -> None:
        """Read and write on these pipes."""
        self._pipes = pipes
        self._line = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message as one line."""
        data = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        async with self._line:
            try:
                await self._pipes.write(data)
            except BrokenPipeError:
                # The editor has exited; the end of standard input ends the connection.
                return

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the client has closed standard input."""
        while True:
            try:
                line = await self._pipes.read_line()
            except ValueError:
                # The start of the next message is unknown.
                await self._refuse(INVALID_REQUEST, f"a line is over {MAX_MESSAGE_BYTES:,} bytes")
                return None
            if not line:
                return None
            if not line.strip():
                continue
            try:
                message: JSON = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as problem:
                await self._refuse(PARSE_ERROR, f"a line is not JSON: {problem}")
                continue
            if problem := message_problem(message):
                await self._refuse(INVALID_REQUEST, problem, _id_of(message))
                continue
            assert is_object(message)
            return message

    async def close(self) -> None:
        """Do nothing: `open_stdio` closes the pipes."""

    async def _refuse(self, code: int, problem: str, id_: JSON = None) -> None:
        error = {"code": code, "message": problem}
        await self.send({"jsonrpc": "2.0", "id": id_, "error": error})


def message_problem(message: JSON) -> str:
    """Why a JSON value is no request, notification or response; empty if it is one."""
    if not is_object(message):
        return "a message is a JSON object; batches are not supported"
    if not isinstance(message.get("id"), str | int | None):
        return "the id of a message is a string or an integer"
    if "method" in message:
        return "" if isinstance(message["method"], str) else "the method of a request is a string"
    if "id" not in message:
        return "a message has a method or an id"
    return "" if is_object(message.get("error", {})) else "the error of a response is an object"


def _id_of(message: JSON) -> JSON:
    found = message.get("id") if is_object(message) else None
    return found if isinstance(found, str | int) else None
