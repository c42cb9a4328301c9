"""Reads JSON objects from a web socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.messages import JSON, is_object
from evoclaw.orchestrator.channels.chat.messages import ServiceError

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse


async def read_json(socket: ClientWebSocketResponse, service: str) -> dict[str, JSON]:
    """The next object; raise `ServiceError` with the close code if the connection ends."""
    from aiohttp import WSMsgType

    message = await socket.receive()
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        code = socket.close_code
        raise ServiceError(f"{service} closed the connection (code {code})", code=str(code))
    try:
        found: JSON = msgspec.json.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ServiceError(f"{service} sent a message that is not JSON") from None
    return found if is_object(found) else {}
