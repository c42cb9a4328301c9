"""Talks to an account at a Matrix homeserver: https://spec.matrix.org/latest/client-server-api/."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from urllib.parse import quote

import msgspec

from evoclaw.core.messages import JSON, is_array
from evoclaw.orchestrator.channels.chat.attachments import AttachedFile, read_attachments
from evoclaw.orchestrator.channels.chat.http import (
    REQUEST_TIMEOUT_S,
    ServiceHttp,
    object_at,
    text_at,
)
from evoclaw.orchestrator.channels.chat.messages import (
    ButtonPress,
    ChatBatch,
    ChatEvent,
    ChatInvitation,
    ConversationMessage,
    OutgoingMessage,
    ServiceError,
)
from evoclaw.orchestrator.channels.chat.settings import MatrixAccountSettings

CLIENT = "/_matrix/client/v3"
LONG_POLL_S = 30
TYPING_S = 20
MEMBERS_CACHE_S = 60.0
MAX_BACKFILL_PAGES = 10
"""Of 100 events, that are fetched of a room after a gap."""
_FILTER = msgspec.json.encode(
    {
        "presence": {"types": []},
        "account_data": {"types": []},
        "room": {
            "timeline": {"types": ["m.room.message", "m.room.encrypted"], "limit": 100},
            "state": {"types": []},
            "ephemeral": {"types": []},
            "account_data": {"types": []},
        },
    }
).decode()
ENCRYPTED_TEXT = "/encrypted"
"""Stands for a message that cannot be read: a command, which says so."""
_FILE_TYPES = ("m.image", "m.file", "m.audio", "m.video")


class MatrixAccount:
    """One account; it joins rooms that allowed people invite it to."""

    max_chars, has_buttons, answers_strangers, typing_interval_s = 8_000, False, True, 15.0

    def __init__(self, settings: MatrixAccountSettings, token: str) -> None:
        self._url, self._user = settings.url.rstrip("/"), ""
        self._auth = {"Authorization": f"Bearer {token}"}
        self._http = ServiceHttp(
            "The Matrix homeserver",
            settings.url,
            headers=self._auth,
            secrets=(token,),
            describe=lambda body: text_at(body, "error") or text_at(body, "errcode"),
        )
        self._group_rooms: dict[str, tuple[float, bool]] = {}

    async def check(self) -> str:
        """The user id of the account."""
        found = await self._call("GET", f"{CLIENT}/account/whoami")
        self._user = text_at(found, "user_id")
        return self._user

    async def receive(self, cursor: str) -> AsyncGenerator[ChatBatch, None]:
        """Sync; without a cursor, messages from before are skipped and invitations are not."""
        if not self._user:
            await self.check()
        since, is_first = cursor, not cursor
        while True:
            query = {"filter": _FILTER, "timeout": "0" if is_first else str(LONG_POLL_S * 1_000)}
            if since:
                query["since"] = since
            found = await self._call(
                "GET", f"{CLIENT}/sync", query=query, timeout_s=LONG_POLL_S + REQUEST_TIMEOUT_S
            )
            events = [*self._invitations(found)]
            if since:
                events += await self._messages(found, since)
            since, is_first = text_at(found, "next_batch"), False
            yield ChatBatch(tuple(events), since)

    async def post(self, message: OutgoingMessage) -> None:
        """Send a message; the homeserver recognises its transaction id."""
        room, _, thread = message.conversation.partition("/")
        content: dict[str, JSON] = {"msgtype": "m.notice", "body": message.text}
        if thread:
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread}
        transaction = sha256(message.id.encode()).hexdigest()[:32]
        path = f"{CLIENT}/rooms/{quote(room, safe='')}/send/m.room.message/{transaction}"
        await self._call("PUT", path, content)

    async def show_typing(self, conversation: str) -> None:
        """Shown until the answer is sent, or for some seconds."""
        room = quote(conversation.partition("/")[0], safe="")
        path = f"{CLIENT}/rooms/{room}/typing/{quote(self._user, safe='')}"
        await self._call("PUT", path, {"typing": True, "timeout": TYPING_S * 1_000})

    async def acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        """Join the room of an invitation."""
        if isinstance(event, ChatInvitation):
            await self._call("POST", f"{CLIENT}/join/{quote(event.conversation, safe='')}", {})

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _invitations(self, found: JSON) -> Sequence[ChatEvent]:
        events: list[ChatEvent] = []
        for room, data in object_at(found, "rooms", "invite").items():
            state = object_at(data, "invite_state").get("events")
            for event in state if is_array(state) else ():
                is_own = (
                    text_at(event, "type") == "m.room.member"
                    and text_at(event, "state_key") == self._user
                    and text_at(event, "content", "membership") == "invite"
                )
                if is_own:
                    events.append(ChatInvitation(text_at(event, "sender"), room))
        return events

    async def _messages(self, found: JSON, since: str) -> Sequence[ChatEvent]:
        events: list[ChatEvent] = []
        for room, data in object_at(found, "rooms", "join").items():
            timeline = object_at(data, "timeline")
            listed = timeline.get("events")
            raw: list[JSON] = [*listed] if is_array(listed) else []
            if timeline.get("limited") and (start := text_at(timeline, "prev_batch")):
                raw = [*await self._earlier(room, start, since), *raw]
            for event in raw:
                message = await self._message(room, event)
                if message is not None:
                    events.append(message)
        return events

    async def _earlier(self, room: str, start: str, since: str) -> Sequence[JSON]:
        """The events of a room between two syncs that the second one left out, in order."""
        found: list[JSON] = []
        path = f"{CLIENT}/rooms/{quote(room, safe='')}/messages"
        for _ in range(MAX_BACKFILL_PAGES):
            query = {"dir": "b", "from": start, "to": since, "limit": "100"}
            page = await self._call("GET", path, query=query)
            chunk = page.get("chunk")
            found += chunk if is_array(chunk) else []
            start = text_at(page, "end")
            if not chunk or not start:
                break
        return found[::-1]

    async def _message(self, room: str, event: JSON) -> ConversationMessage | None:
        sender, content = text_at(event, "sender"), object_at(event, "content")
        relation = object_at(content, "m.relates_to")
        is_edit = text_at(relation, "rel_type") == "m.replace"
        if not sender or sender == self._user or is_edit:
            return None
        kind, text = text_at(content, "msgtype"), text_at(content, "body")
        files: list[AttachedFile] = []
        if text_at(event, "type") == "m.room.encrypted":
            text = ENCRYPTED_TEXT
        elif kind in _FILE_TYPES:
            files, text = [self._file(content)], ""
        elif kind != "m.text":
            return None  # a notice of another bot, or an edit
        is_private = not await self._is_group(room)
        if not (is_private or self._mentions_bot(content, text)):
            return None
        text, images = await read_attachments(text, files)
        if not text and not images:
            return None
        thread = (
            text_at(relation, "event_id") if text_at(relation, "rel_type") == "m.thread" else ""
        )
        return ConversationMessage(
            text_at(event, "event_id"),
            sender,
            f"{room}/{thread}" if thread else room,
            _without_quote(text),
            images,
            is_private=is_private,
        )

    def _mentions_bot(self, content: Mapping[str, JSON], text: str) -> bool:
        mentioned = object_at(content, "m.mentions").get("user_ids")
        return self._user in text or (is_array(mentioned) and self._user in mentioned)

    async def _is_group(self, room: str) -> bool:
        known = self._group_rooms.get(room)
        if known is not None and time.monotonic() - known[0] < MEMBERS_CACHE_S:
            return known[1]
        path = f"{CLIENT}/rooms/{quote(room, safe='')}/joined_members"
        try:
            members = object_at(await self._call("GET", path), "joined")
        except ServiceError as problem:
            if not problem.final:
                raise
            return True  # the account left the room
        if len(self._group_rooms) > 1_000:
            self._group_rooms.clear()
        self._group_rooms[room] = time.monotonic(), len(members) > 2
        return len(members) > 2

    def _file(self, content: Mapping[str, JSON]) -> AttachedFile:
        info = object_at(content, "info")
        return AttachedFile(
            text_at(content, "filename") or text_at(content, "body"),
            text_at(info, "mimetype"),
            int(text_at(info, "size") or 0),
            partial(self._download, text_at(content, "url")),
        )

    async def _download(self, url: str, limit: int) -> bytes:
        server, _, media = url.removeprefix("mxc://").partition("/")
        path = f"{quote(server, safe='')}/{quote(media, safe='')}"
        return await self._http.download(
            f"{self._url}/_matrix/client/v1/media/download/{path}", limit, headers=self._auth
        )

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, JSON]:
        try:
            return await self._http.call(method, path, body, query=query, timeout_s=timeout_s)
        except ServiceError as problem:
            wait_ms = text_at(problem.body, "retry_after_ms")
            text = str(problem)
            if problem.is_login:
                text = "The Matrix homeserver refused the access token; make a new one"
            raise ServiceError(
                text,
                code=text_at(problem.body, "errcode"),
                is_login=problem.is_login,
                final=problem.final,
                retry_after=int(wait_ms) / 1_000 if wait_ms else problem.retry_after,
                status=problem.status,
                body=problem.body,
            ) from None


def _without_quote(text: str) -> str:
    """The text of a reply without the lines that older clients quote before it."""
    lines = text.split("\n")
    if not lines[0].startswith("> <"):
        return text
    rest = next((n for n, line in enumerate(lines) if not line.startswith(">")), len(lines))
    return "\n".join(lines[rest:]).strip()
