"""Talks to a Discord bot: https://docs.discord.com/developers/events/gateway."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from enum import IntEnum
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.orchestrator.channels.chat.attachments import AttachedFile, read_attachments
from evoclaw.orchestrator.channels.chat.http import ServiceHttp, object_at, text_at
from evoclaw.orchestrator.channels.chat.messages import (
    ButtonPress,
    ChatBatch,
    ChatEvent,
    ChatInvitation,
    ConversationMessage,
    OutgoingMessage,
    ServiceError,
)
from evoclaw.orchestrator.channels.chat.settings import DiscordBotSettings
from evoclaw.orchestrator.channels.chat.sockets import read_json

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

INTENTS = 1 << 9 | 1 << 12
"""Messages in servers and direct messages. The content of messages that mention the bot, and of
direct messages, needs no privileged intent."""
MAX_CONVERSATIONS = 200
"""Whose last message is remembered, to fetch what was written while the bot was offline."""
MAX_MISSED_MESSAGES = 100
MAX_NONCE_CHARS = 25
_LOGIN_CLOSE_CODES = {
    "4004": "Discord refused the token; copy it again from the page of the bot",
    "4013": "Discord refused the intents of the bot",
    "4014": "Discord refused the intents of the bot; allow them on the page of the bot",
}
_UNKNOWN_SESSION_CODES = ("4007", "4009")


class Opcode(IntEnum):
    """Of messages of the gateway."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HEARTBEAT_ACK = 11


class GatewaySession(Struct, frozen=True, omit_defaults=True):
    """Where a connection continues: stored as the cursor of the channel."""

    session_id: str = ""
    resume_url: str = ""
    seq: int = 0
    last_messages: dict[str, str] = {}
    """By channel of Discord, the id of the last message that was received."""


class DiscordBot:
    """One bot; the connection to the gateway is opened from here."""

    max_chars, has_buttons, answers_strangers, typing_interval_s = 2_000, True, True, 8.0

    def __init__(self, settings: DiscordBotSettings, token: str) -> None:
        self._token, self._user = token, ""
        self._http = ServiceHttp(
            "Discord",
            settings.url,
            headers={"Authorization": f"Bot {token}"},
            secrets=(token,),
            describe=lambda body: text_at(body, "message"),
        )

    async def check(self) -> str:
        """The name of the bot."""
        found = await self._call("GET", "/users/@me")
        return text_at(found, "username")

    async def receive(self, cursor: str) -> AsyncGenerator[ChatBatch, None]:
        """Receive events, and resume an earlier connection so that none is missed."""
        session = _session(cursor)
        url = session.resume_url
        if not url:
            url = text_at(await self._call("GET", "/gateway/bot"), "url")
        async with self._http.websocket(f"{url}/?v=10&encoding=json") as socket:
            hello = await self._read(socket)
            interval_s = int(text_at(hello, "d", "heartbeat_interval") or 45_000) / 1_000
            async with _Connection(socket, session, interval_s).beating() as connection:
                await socket.send_bytes(msgspec.json.encode(self._login(session)))
                async with aclosing(self._batches(connection)) as batches:
                    async for batch in batches:
                        yield batch

    async def _batches(self, connection: _Connection) -> AsyncGenerator[ChatBatch, None]:
        while True:
            message = await self._read(connection.socket)
            match message.get("op"):
                case Opcode.DISPATCH:
                    seq = int(text_at(message, "s") or connection.session.seq)
                    connection.session = replace(connection.session, seq=seq)
                    async with aclosing(self._dispatched(message, connection)) as batches:
                        async for batch in batches:
                            yield batch
                case Opcode.HEARTBEAT:
                    await connection.beat()
                case Opcode.HEARTBEAT_ACK:
                    connection.is_acknowledged = True
                case Opcode.RECONNECT:
                    return
                case Opcode.INVALID_SESSION:
                    if message.get("d") is not True:
                        yield ChatBatch(cursor=_forgotten(connection.session))
                    return
                case _:
                    pass

    async def post(self, message: OutgoingMessage) -> None:
        """Send a message; Discord recognises its nonce for some minutes."""
        nonce = sha256(message.id.encode()).hexdigest()[:MAX_NONCE_CHARS]
        body: dict[str, JSON] = {
            "content": message.text,
            "nonce": nonce,
            "enforce_nonce": True,
            "allowed_mentions": {"parse": []},
        }
        if message.buttons:
            body["components"] = [
                {
                    "type": 1,
                    "components": [
                        {
                            "type": 2,
                            "style": 3 if number == 0 else 4,
                            "label": button.label,
                            "custom_id": button.token,
                        }
                        for number, button in enumerate(message.buttons)
                    ],
                }
            ]
        await self._call("POST", f"/channels/{message.conversation}/messages", body)

    async def show_typing(self, conversation: str) -> None:
        """Shown for ten seconds."""
        await self._call("POST", f"/channels/{conversation}/typing", {})

    async def acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        """Answer the interaction by removing the buttons; Discord waits three seconds for it."""
        if isinstance(event, ButtonPress):
            body: dict[str, JSON] = {"type": 7, "data": {"components": []}}
            await self._call("POST", f"/interactions/{event.reply_to}/callback", body)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _login(self, session: GatewaySession) -> dict[str, JSON]:
        if session.session_id:
            data: dict[str, JSON] = {
                "token": self._token,
                "session_id": session.session_id,
                "seq": session.seq,
            }
            return {"op": Opcode.RESUME, "d": data}
        properties: dict[str, JSON] = {"os": "linux", "browser": "evoclaw", "device": "evoclaw"}
        return {
            "op": Opcode.IDENTIFY,
            "d": {"token": self._token, "intents": INTENTS, "properties": properties},
        }

    async def _dispatched(
        self, message: Mapping[str, JSON], connection: _Connection
    ) -> AsyncGenerator[ChatBatch, None]:
        """The batches of an event; the session of the connection follows them."""
        data = object_at(message, "d")
        match message.get("t"):
            case "READY":
                self._user = text_at(data, "user", "id")
                connection.session = replace(
                    connection.session,
                    session_id=text_at(data, "session_id"),
                    resume_url=text_at(data, "resume_gateway_url"),
                )
                yield ChatBatch(cursor=_cursor(connection.session))
                async with aclosing(self._missed(connection)) as batches:
                    async for batch in batches:
                        yield batch
            case "RESUMED":
                yield ChatBatch()
            case "MESSAGE_CREATE":
                yield connection.batch(await self._message(data))
            case "INTERACTION_CREATE":
                yield connection.batch(_press(data))
            case _:
                pass

    async def _missed(self, connection: _Connection) -> AsyncGenerator[ChatBatch, None]:
        """What was written in known conversations while no connection could be resumed."""
        for channel, last in connection.session.last_messages.items():
            path = f"/channels/{channel}/messages?after={last}&limit={MAX_MISSED_MESSAGES}"
            try:
                found = await self._http.call_list("GET", path)
            except ServiceError as problem:
                if not problem.final:
                    raise
                continue  # the conversation is gone
            for data in sorted(found, key=lambda data: int(text_at(data, "id") or 0)):
                event = await self._message({"channel_id": channel, **object_at(data)})
                if event is not None:
                    yield connection.batch(event)

    async def _message(self, data: Mapping[str, JSON]) -> ConversationMessage | None:
        author, mentions = object_at(data, "author"), data.get("mentions")
        is_private = "guild_id" not in data
        mentioned = is_array(mentions) and any(
            text_at(user, "id") == self._user for user in mentions
        )
        if not author or author.get("bot") or not (is_private or mentioned):
            return None
        content = text_at(data, "content")
        for form in (f"<@{self._user}>", f"<@!{self._user}>"):
            content = content.replace(form, "")
        text, images = await read_attachments(content.strip(), self._files(data))
        if not text and not images:
            return None
        return ConversationMessage(
            text_at(data, "id"),
            text_at(author, "id"),
            text_at(data, "channel_id"),
            text,
            images,
            is_private=is_private,
        )

    def _files(self, data: Mapping[str, JSON]) -> Sequence[AttachedFile]:
        files = data.get("attachments")
        return [
            AttachedFile(
                text_at(file, "filename"),
                text_at(file, "content_type"),
                int(text_at(file, "size") or 0),
                partial(self._http.download, text_at(file, "url")),
            )
            for file in (files if is_array(files) else ())
            if is_object(file)
        ]

    async def _read(self, socket: ClientWebSocketResponse) -> dict[str, JSON]:
        try:
            return await read_json(socket, "Discord")
        except ServiceError as problem:
            if (text := _LOGIN_CLOSE_CODES.get(problem.code)) is not None:
                raise ServiceError(text, code=problem.code, is_login=True) from None
            if problem.code in _UNKNOWN_SESSION_CODES:
                return {"op": Opcode.INVALID_SESSION, "d": False}
            raise

    async def _call(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> dict[str, JSON]:
        try:
            return await self._http.call(method, path, body)
        except ServiceError as problem:
            if problem.is_login:
                text = _LOGIN_CLOSE_CODES["4004"]
                raise ServiceError(text, is_login=True, status=problem.status) from None
            raise


class _Connection:
    """A connection: what was received, and the heartbeats without which Discord closes it."""

    def __init__(
        self, socket: ClientWebSocketResponse, session: GatewaySession, interval_s: float
    ) -> None:
        self.socket, self.session, self._interval_s = socket, session, interval_s
        self.is_acknowledged = True

    @asynccontextmanager
    async def beating(self) -> AsyncGenerator[_Connection]:
        """Send heartbeats until the block ends."""
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    def batch(self, event: ChatEvent | None) -> ChatBatch:
        """The batch of an event, with the session after it."""
        if isinstance(event, ConversationMessage):
            self.session = _with_last(self.session, event)
        return ChatBatch(() if event is None else (event,), _cursor(self.session))

    async def beat(self) -> None:
        """Send a heartbeat now."""
        body = {"op": Opcode.HEARTBEAT, "d": self.session.seq or None}
        await self.socket.send_bytes(msgspec.json.encode(body))

    async def _run(self) -> None:
        await asyncio.sleep(self._interval_s * random.random())
        while self.is_acknowledged and not self.socket.closed:
            self.is_acknowledged = False
            try:
                await self.beat()
            except (ConnectionError, RuntimeError):
                return  # the reader sees the end of the connection
            await asyncio.sleep(self._interval_s)
        # Any code but 1000 and 1001 keeps the session, so that it can be resumed.
        await self.socket.close(code=4000)


def _session(cursor: str) -> GatewaySession:
    if not cursor:
        return GatewaySession()
    try:
        return msgspec.json.decode(cursor, type=GatewaySession)
    except msgspec.DecodeError:
        return GatewaySession()


def _cursor(session: GatewaySession) -> str:
    return msgspec.json.encode(session).decode()


def _forgotten(session: GatewaySession) -> str:
    """The cursor without the connection, which Discord no longer knows."""
    return _cursor(GatewaySession(last_messages=session.last_messages))


def _with_last(session: GatewaySession, message: ConversationMessage) -> GatewaySession:
    last = {
        channel: id_
        for channel, id_ in session.last_messages.items()
        if channel != message.conversation
    }
    last[message.conversation] = message.id
    while len(last) > MAX_CONVERSATIONS:
        del last[next(iter(last))]
    return replace(session, last_messages=last)


def _press(data: Mapping[str, JSON]) -> ButtonPress | None:
    if text_at(data, "type") != "3":
        return None
    user = text_at(data, "member", "user", "id") or text_at(data, "user", "id")
    id_ = text_at(data, "id")
    return ButtonPress(
        f"press-{id_}",
        user,
        text_at(data, "channel_id"),
        text_at(data, "data", "custom_id"),
        f"{id_}/{text_at(data, 'token')}",
    )
