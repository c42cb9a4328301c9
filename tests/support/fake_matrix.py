"""A local homeserver that speaks the client-server API of Matrix.

https://spec.matrix.org/latest/client-server-api/
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from evoclaw.core.messages import JSON
from tests.support.chat_fakes import PNG, ChatFake, json_response, serve_fake

TOKEN = "syt_Y29vaw_secret"
ANN, EVE, BOT = "@ann:home.test", "@eve:home.test", "@cook:home.test"
ROOM = "!room:home.test"


@dataclass
class FakeMatrix(ChatFake):
    """One account; each event has a position, and sync tokens are positions."""

    timeline: list[tuple[str, JSON]] = field(default_factory=list[tuple[str, JSON]])
    """Room and event; the position is the index plus one."""
    members: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    invitations: dict[str, str] = field(default_factory=dict[str, str])
    """By room, who invited the account."""
    transactions: dict[str, str] = field(default_factory=dict[str, str])
    timeline_limit: int = 100
    """A sync returns no more events of a room, and says that it is limited."""
    syncs: int = 0

    async def write(
        self,
        text: str,
        sender: str = ANN,
        *,
        room: str = ROOM,
        content: dict[str, JSON] | None = None,
    ) -> str:
        """A person writes in a room; the id of the event."""
        body: dict[str, JSON] = {"msgtype": "m.text", "body": text}
        body |= content or {}
        return await self.add("m.room.message", sender, room, body)

    async def add(self, kind: str, sender: str, room: str, content: JSON) -> str:
        """Something happens in a room."""
        self.members.setdefault(room, {BOT, ANN}).add(sender)
        id_ = f"$event{len(self.timeline)}"
        event = {"type": kind, "event_id": id_, "sender": sender, "content": content}
        self.timeline.append((room, event))
        await self.notify()
        return id_

    async def invite(self, room: str, sender: str) -> None:
        """A person invites the account."""
        self.invitations[room] = sender
        await self.notify()

    async def handle(self, request: web.Request) -> web.Response:
        """The API."""
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            found = {"errcode": "M_UNKNOWN_TOKEN", "error": "Invalid access token passed."}
            return json_response(found, 401)
        match (request.method, *request.match_info["path"].split("/")):
            case ("GET", "account", "whoami"):
                self.logins += 1
                return json_response({"user_id": BOT})
            case ("GET", "sync"):
                return await self._sync(request)
            case ("POST", "join", room):
                self.invitations.pop(room, None)
                self.members.setdefault(room, set()).add(BOT)
                await self.notify()
                return json_response({"room_id": room})
            case ("GET", "rooms", room, "joined_members"):
                named: JSON = {"display_name": "?"}
                joined = dict.fromkeys(self.members.get(room, ()), named)
                return json_response({"joined": joined})
            case ("GET", "rooms", room, "messages"):
                return self._messages(room, request)
            case ("PUT", "rooms", room, "typing", user):
                assert user == BOT
                self.typed.append(room)
                return json_response({})
            case ("PUT", "rooms", room, "send", "m.room.message", transaction):
                return await self._send(
                    room, transaction, msgspec.json.decode(await request.read())
                )
            case _:
                return json_response({"errcode": "M_UNRECOGNIZED"}, 404)

    async def _sync(self, request: web.Request) -> web.Response:
        since, wait_s = request.query.get("since", ""), int(request.query["timeout"]) / 1000
        start = int(since.removeprefix("s")) if since else 0
        try:
            async with asyncio.timeout(wait_s), self.changed:
                await self.changed.wait_for(lambda: len(self.timeline) > start or self.invitations)
        except TimeoutError:
            pass
        joined: JSON = {}
        for room in {room for room, _ in self.timeline[start:]}:
            found = [event for where, event in self.timeline[start:] if where == room]
            kept = found[-self.timeline_limit :]
            limited = len(kept) < len(found)
            position = self.timeline.index((room, kept[0]))
            joined[room] = {
                "timeline": {"events": kept, "limited": limited, "prev_batch": f"s{position}"}
            }
        member: JSON = {"type": "m.room.member", "state_key": BOT}
        invited = {
            room: {
                "invite_state": {
                    "events": [{**member, "sender": by, "content": {"membership": "invite"}}]
                }
            }
            for room, by in self.invitations.items()
        }
        self.syncs += 1
        await self.notify()
        rooms = {"join": joined, "invite": invited}
        return json_response({"next_batch": f"s{len(self.timeline)}", "rooms": rooms})

    def _messages(self, room: str, request: web.Request) -> web.Response:
        assert request.query["dir"] == "b"
        end, start = (int(request.query[key].removeprefix("s")) for key in ("from", "to"))
        found = [event for where, event in self.timeline[start:end] if where == room]
        return json_response({"start": f"s{end}", "chunk": found[::-1]})

    async def _send(self, room: str, transaction: str, body: JSON) -> web.Response:
        if transaction in self.transactions:
            return json_response({"event_id": self.transactions[transaction]})
        refusal = await self.accept(room, body["body"], body)
        if refusal is None:
            self.transactions[transaction] = await self.add("m.room.message", BOT, room, body)
        return refusal or json_response({"event_id": self.transactions[transaction]})

    async def media(self, request: web.Request) -> web.Response:
        """`GET /_matrix/client/v1/media/download/SERVER/ID`."""
        allowed = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        return web.Response(body=PNG, status=200 if allowed else 401)


def too_many(milliseconds: int) -> web.Response:
    """The answer to an account that sends too much."""
    body = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too many", "retry_after_ms": milliseconds}
    return json_response(body, 429)


@asynccontextmanager
async def fake_matrix() -> AsyncGenerator[FakeMatrix]:
    """The service, until the block ends."""
    fake, app = FakeMatrix(), web.Application()
    app.router.add_get("/_matrix/client/v1/media/download/{path:.*}", fake.media)
    app.router.add_route("*", "/_matrix/client/v3/{path:.*}", fake.handle)
    async with serve_fake(app) as fake.url:
        yield fake
