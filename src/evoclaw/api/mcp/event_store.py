"""Recent messages of the event streams, so that a client whose connection broke gets the rest."""

from __future__ import annotations

from collections import OrderedDict
from secrets import token_hex

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage

MAX_EVENTS = 5_000
"""Of all clients; the oldest are forgotten first."""
MAX_EVENT_BYTES = 32 << 20
"""Of all messages that are kept."""


class RecentEvents:
    """The last messages of all sessions, in memory."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_EVENT_BYTES) -> None:
        """Keep at most so many messages, and so many bytes."""
        self._max_events, self._max_bytes = max_events, max_bytes
        self._events: OrderedDict[EventId, tuple[SessionEvents, int]] = OrderedDict()
        self._bytes = 0

    def add(self, owner: SessionEvents, event_id: EventId, size: int) -> None:
        """Count a message of a session, and forget the oldest of all sessions."""
        self._events[event_id] = owner, size
        self._bytes += size
        while len(self._events) > self._max_events or self._bytes > self._max_bytes:
            oldest, (session, freed) = self._events.popitem(last=False)
            session.forget(oldest)
            self._bytes -= freed


class SessionEvents(EventStore):
    """The last messages of one session: the ids of its streams are unique in the session only."""

    def __init__(self, recent: RecentEvents) -> None:
        """Share the limits of all sessions."""
        self._recent = recent
        self._events: OrderedDict[EventId, tuple[StreamId, JSONRPCMessage | None]] = OrderedDict()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep a message."""
        size = 0 if message is None else len(message.model_dump_json())
        event_id = token_hex(8)
        self._events[event_id] = stream_id, message
        self._recent.add(self, event_id, size)
        return event_id

    def forget(self, event_id: EventId) -> None:
        """Drop a message."""
        self._events.pop(event_id, None)

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        """Send what the stream of an event had after it; None if the event is not known."""
        if last_event_id not in self._events:
            return None
        stream_id = self._events[last_event_id][0]
        ids = list(self._events)
        for event_id in ids[ids.index(last_event_id) + 1 :]:
            stream, message = self._events.get(event_id, ("", None))
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, event_id))
        return stream_id
