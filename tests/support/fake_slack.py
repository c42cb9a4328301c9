"""A local server that speaks Slack's Web API and Socket Mode.

https://docs.slack.dev/apis/events-api/using-socket-mode
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from evoclaw.core.messages import JSON
from tests.support.chat_fakes import ChatFake, SentMessage, json_response, serve_fake

BOT_TOKEN, APP_TOKEN = "xoxb-17653672481-19874698323", "xapp-1-A0123456789-secret"
ANN, EVE, BOT = "U0ANN", "U0EVE", "U0BOT"
DIRECT = "D0ANN"


@dataclass
class FakeSlack(ChatFake):
    """One app in one workspace; envelopes are sent again until they are acknowledged."""

    pending: dict[str, JSON] = field(default_factory=dict[str, JSON])
    """Envelopes that were not acknowledged."""
    connections: int = 0
    updated: list[JSON] = field(default_factory=list[JSON])
    missing_scope: str = ""
    _number: int = 0
    _sockets: list[web.WebSocketResponse] = field(default_factory=list[web.WebSocketResponse])

    async def write(
        self, text: str, sender: str = ANN, *, channel: str = DIRECT, **more: JSON
    ) -> JSON:
        """A person writes to the app, or mentions it in a channel."""
        self._number += 1
        is_direct = channel.startswith("D")
        event: JSON = {
            "type": "message" if is_direct else "app_mention",
            "user": sender,
            "text": text if is_direct else f"<@{BOT}> {text}",
            "ts": f"1793016000.{self._number:06}",
            "channel": channel,
            **({"channel_type": "im"} if is_direct else {}),
            **more,
        }
        payload = {"type": "event_callback", "event_id": f"Ev{self._number}", "event": event}
        await self._arrive({"type": "events_api", "payload": payload})
        return event

    async def press(self, sent: SentMessage, label: str, sender: str = ANN) -> None:
        """A person presses a button below a message of the app."""
        elements = sent.body["blocks"][1]["elements"]
        (button,) = [one for one in elements if one["text"]["text"] == label]
        self._number += 1
        action = {"value": button["value"], "action_ts": f"{self._number}.1"}
        payload: JSON = {
            "type": "block_actions",
            "user": {"id": sender},
            "channel": {"id": sent.body["channel"]},
            "message": {"ts": "1793016000.9", "text": sent.text},
            "actions": [action],
        }
        await self._arrive({"type": "interactive", "payload": payload})

    async def _arrive(self, envelope: JSON) -> None:
        id_ = f"envelope-{self._number}"
        self.pending[id_] = {"envelope_id": id_, "accepts_response_payload": False, **envelope}
        for socket in self._sockets:
            with suppress(ConnectionError):
                await socket.send_json(self.pending[id_])

    async def refresh(self) -> None:
        """Slack replaces its connections from time to time."""
        for socket in self._sockets:
            await socket.send_json({"type": "disconnect", "reason": "refresh_requested"})

    async def call(self, request: web.Request) -> web.Response:
        """`POST /api/METHOD`."""
        method = request.match_info["method"]
        expected = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if request.headers.get("Authorization") != f"Bearer {expected}":
            return json_response({"ok": False, "error": "invalid_auth"})
        body: JSON = msgspec.json.decode(await request.read())
        match method:
            case "auth.test":
                self.logins += 1
                return json_response(
                    {"ok": True, "user": "cook", "team": "Kitchen", "user_id": BOT}
                )
            case "apps.connections.open":
                url = f"{self.url.replace('http', 'ws')}/link"
                return json_response({"ok": True, "url": url})
            case "chat.postMessage":
                return await self._post(body)
            case "chat.update":
                self.updated.append(body)
                await self.notify()
                return json_response({"ok": True})
            case _:
                return json_response({"ok": False, "error": "unknown_method"})

    async def _post(self, body: JSON) -> web.Response:
        if self.missing_scope:
            found = {"ok": False, "error": "missing_scope", "needed": self.missing_scope}
            return json_response(found)
        if not body.get("channel") or not body.get("text"):
            return json_response({"ok": False, "error": "no_text"})
        for block in body.get("blocks", ()):
            if block["type"] == "section" and len(block["text"]["text"]) > 3000:
                return json_response({"ok": False, "error": "invalid_blocks"})
        thread = body.get("thread_ts", "")
        where = f"{body['channel']}/{thread}" if thread else body["channel"]
        refusal = await self.accept(where, body["text"], body)
        return refusal or json_response({"ok": True, "ts": f"1793016001.{len(self.sent)}"})

    async def link(self, request: web.Request) -> web.WebSocketResponse:
        """The web socket of Socket Mode."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connections += 1
        await socket.send_json({"type": "hello", "num_connections": 1})
        self._sockets.append(socket)
        try:
            for envelope in [*self.pending.values()]:
                await socket.send_json({**envelope, "retry_attempt": 1, "retry_reason": "timeout"})
            async for message in socket:
                id_ = msgspec.json.decode(message.data)["envelope_id"]
                self.pending.pop(id_, None)
                await self.notify()
        finally:
            self._sockets.remove(socket)
        return socket


@asynccontextmanager
async def fake_slack() -> AsyncGenerator[FakeSlack]:
    """The service, until the block ends."""
    fake, app = FakeSlack(), web.Application()
    app.router.add_post("/api/{method}", fake.call)
    app.router.add_get("/link", fake.link)
    async with serve_fake(app) as fake.url:
        yield fake
