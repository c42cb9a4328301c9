"""A local server that speaks Discord's REST API and gateway.

https://docs.discord.com/developers/events/gateway
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import WSMsgType, web

from evoclaw.core.messages import JSON
from tests.support.chat_fakes import (
    PNG,
    ChatFake,
    SentMessage,
    json_response,
    serve_fake,
    utf16_units,
)

TOKEN = "MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs"
ANN, EVE, BOT = "80351110224678912", "666", "1001"
DIRECT, GUILD_CHANNEL = "500", "600"


@dataclass
class FakeDiscord(ChatFake):
    """One bot; the events of a session can be replayed when it is resumed."""

    session: str = ""
    """The id of the session; empty after it was invalidated."""
    events: list[JSON] = field(default_factory=list[JSON])
    """Dispatched events of the session; their number is their position from 1 on."""
    messages: list[JSON] = field(default_factory=list[JSON])
    """What people wrote, for clients that ask over REST."""
    identifies: int = 0
    resumes: int = 0
    heartbeats: int = 0
    answers_heartbeats: bool = True
    heartbeat_ms: int = 20_000
    interactions: list[JSON] = field(default_factory=list[JSON])
    nonces: dict[str, str] = field(default_factory=dict[str, str])
    _number: int = 10_000
    _socket: web.WebSocketResponse | None = None

    async def write(
        self, text: str, sender: str = ANN, *, channel: str = DIRECT, **more: JSON
    ) -> JSON:
        """A person writes to the bot, or mentions it in a channel of a server."""
        self._number += 1
        is_direct = channel == DIRECT
        message: JSON = {
            "id": str(self._number),
            "channel_id": channel,
            "author": {"id": sender, "username": "ann"},
            "content": text if is_direct else f"<@{BOT}> {text}",
            "mentions": [] if is_direct else [{"id": BOT}],
            "attachments": [],
            **({} if is_direct else {"guild_id": "9"}),
            **more,
        }
        self.messages.append(message)
        await self.dispatch("MESSAGE_CREATE", message)
        return message

    async def press(self, sent: SentMessage, label: str, sender: str = ANN) -> None:
        """A person presses a button below a message of the bot."""
        (row,) = sent.body["components"]
        (button,) = [one for one in row["components"] if one["label"] == label]
        self._number += 1
        data: JSON = {
            "id": str(self._number),
            "token": "interaction-token",
            "type": 3,
            "data": {"custom_id": button["custom_id"], "component_type": 2},
            "user": {"id": sender},
            "channel_id": sent.conversation,
        }
        await self.dispatch("INTERACTION_CREATE", data)

    async def dispatch(self, kind: str, data: JSON) -> None:
        """Something happened; a session that is gone does not hear of it."""
        if not self.session:
            return
        self.events.append({"op": 0, "t": kind, "s": len(self.events) + 1, "d": data})
        if self._socket is not None:
            await self._socket.send_json(self.events[-1])

    async def drop(self, code: int = 4000) -> None:
        """Close the connection; the session can be resumed."""
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.close(code=code)

    async def ask_to_reconnect(self) -> None:
        """As Discord does before maintenance."""
        assert self._socket is not None
        socket, self._socket = self._socket, None
        await socket.send_json({"op": 7, "d": None})

    async def forget_session(self) -> None:
        """End the session: it cannot be resumed."""
        self.session, self.events = "", []
        await self.drop()

    async def rest(self, request: web.Request) -> web.Response:
        """The REST API."""
        path = request.match_info["path"]
        if path.startswith("interactions/"):
            self.interactions.append(msgspec.json.decode(await request.read()))
            await self.notify()
            return web.Response(status=204)
        if request.headers.get("Authorization") != f"Bot {TOKEN}":
            return json_response({"message": "401: Unauthorized", "code": 0}, 401)
        match (request.method, *path.split("/")):
            case ("GET", "users", "@me"):
                self.logins += 1
                return json_response({"id": BOT, "username": "cook"})
            case ("GET", "gateway", "bot"):
                return json_response({"url": f"{self.url.replace('http', 'ws')}/gateway"})
            case ("GET", "channels", channel, "messages"):
                after = int(request.query["after"])
                found = [
                    {key: value for key, value in one.items() if key != "guild_id"}
                    for one in self.messages
                    if one["channel_id"] == channel and int(one["id"]) > after
                ]
                return json_response(found[::-1])
            case ("POST", "channels", channel, "typing"):
                self.typed.append(channel)
                return web.Response(status=204)
            case ("POST", "channels", channel, "messages"):
                return await self._create(channel, msgspec.json.decode(await request.read()))
            case _:
                return json_response({"message": "404: Not Found", "code": 0}, 404)

    async def _create(self, channel: str, body: JSON) -> web.Response:
        if not 0 < utf16_units(body.get("content", "")) <= 2000:
            return json_response({"code": 50035, "message": "Invalid Form Body"}, 400)
        assert len(body["nonce"]) <= 25
        for row in body.get("components", ()):
            assert all(len(button["custom_id"]) <= 100 for button in row["components"])
        if body.get("enforce_nonce") and body["nonce"] in self.nonces:
            return json_response({"id": self.nonces[body["nonce"]]})
        refusal = await self.accept(channel, body["content"], body)
        if refusal is None:
            self.nonces[body["nonce"]] = str(len(self.sent))
        return refusal or json_response({"id": str(len(self.sent))})

    async def gateway(self, request: web.Request) -> web.WebSocketResponse:
        """The web socket: hello, then identify or resume, then events and heartbeats."""
        assert request.query["encoding"] == "json"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        hello = {"op": 10, "d": {"heartbeat_interval": self.heartbeat_ms}}
        await socket.send_json(hello)
        async for message in socket:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                break
            await self._obey(socket, msgspec.json.decode(message.data))
        if self._socket is socket:
            self._socket = None
        return socket

    async def _obey(self, socket: web.WebSocketResponse, body: JSON) -> None:
        data = body["d"]
        match body["op"]:
            case 1:
                self.heartbeats += 1
                await self.notify()
                if self.answers_heartbeats:
                    await socket.send_json({"op": 11})
            case 2 | 6 if data["token"] != TOKEN:
                await socket.close(code=4004, message=b"Authentication failed.")
            case 2:
                self.identifies += 1
                self.session, self.events, self._socket = f"s{self.identifies}", [], socket
                resume_url = f"{self.url.replace('http', 'ws')}/gateway"
                ready = {"session_id": self.session, "resume_gateway_url": resume_url}
                await self.dispatch("READY", ready | {"v": 10, "user": {"id": BOT}})
                await self.notify()
            case 6 if data["session_id"] != self.session or data["seq"] > len(self.events):
                await socket.send_json({"op": 9, "d": False})
            case 6:
                self.resumes += 1
                for event in self.events[data["seq"] :]:
                    await socket.send_json(event)
                self._socket = socket
                await self.dispatch("RESUMED", {})
                await self.notify()
            case _:
                await socket.close(code=4001)

    async def file(self, request: web.Request) -> web.Response:
        """A file of the content delivery network."""
        assert "Authorization" not in request.headers
        return web.Response(body=PNG)


def too_many(seconds: float) -> web.Response:
    """The answer to a bot that sends too much."""
    body = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
    return json_response(body, 429, Retry_After=str(seconds))


@asynccontextmanager
async def fake_discord() -> AsyncGenerator[FakeDiscord]:
    """The service, until the block ends."""
    fake, app = FakeDiscord(), web.Application()
    app.router.add_get("/gateway/", fake.gateway)
    app.router.add_get("/cdn/{name}", fake.file)
    app.router.add_route("*", "/api/v10/{path:.*}", fake.rest)
    async with serve_fake(app) as fake.url:
        yield fake
