"""Local servers that speak the documented APIs of notification services, and remember messages."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
from aiohttp import web

from evoclaw.core.messages import JSON

RECEIVE_TIMEOUT_S = 60.0
NTFY_TOKEN = "tk_AgQdq7mVBoFD37zQVN29RhuMzNIz2"
BOT_TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw4"
SLACK_PATH = "/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
DISCORD_PATH = "/api/webhooks/1089/secret-of-the-webhook"
WEBHOOK_SECRET = "a-secret-of-at-least-thirty-two-bytes"


@dataclass
class Received:
    """One request that a service accepted."""

    service: str
    body: JSON
    headers: dict[str, str]
    data: bytes = b""


@dataclass
class NotificationServices:
    """The services, below one address."""

    url: str = ""
    received: list[Received] = field(default_factory=list[Received])
    refusals: list[web.Response] = field(default_factory=list[web.Response])
    """Answers to the next requests, instead of what the service would answer."""
    is_held: bool = False
    """Whether requests are accepted, but not answered until `release`."""
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, service: str) -> list[Received]:
        """What one service accepted, in order."""
        return [request for request in self.received if request.service == service]

    async def wait_for(self, service: str, count: int = 1) -> list[Received]:
        """Wait until a service accepted so many messages."""
        async with asyncio.timeout(RECEIVE_TIMEOUT_S), self._arrived:
            await self._arrived.wait_for(lambda: len(self.of(service)) >= count)
        return self.of(service)

    async def release(self) -> None:
        """Answer requests again."""
        async with self._arrived:
            self.is_held = False
            self._arrived.notify_all()

    async def ntfy(self, request: web.Request) -> web.Response:
        """Publish as JSON: https://docs.ntfy.sh/publish/#publish-as-json."""
        body: JSON = msgspec.json.decode(await request.read())
        auth = request.headers.get("Authorization", "")
        if body.get("topic") == "protected" and auth != f"Bearer {NTFY_TOKEN}":
            return _json(403, {"code": 40301, "http": 403, "error": "forbidden"})
        known = {"topic", "message", "title", "tags", "priority", "actions", "click"}
        actions = body.get("actions", [])
        valid = (
            body.get("topic")
            and set(body) <= known
            and len(actions) <= 3
            and all(action["action"] in ("view", "http") and action["url"] for action in actions)
        )
        if not valid:
            return _json(400, {"code": 40001, "http": 400, "error": "invalid request"})
        return await self._accept("ntfy", request, {"id": "hwQ2YpKdmg", "event": "message"})

    async def telegram(self, request: web.Request) -> web.Response:
        """`sendMessage`: https://core.telegram.org/bots/api#sendmessage."""
        if request.match_info["token"] != BOT_TOKEN:
            return _json(401, {"ok": False, "error_code": 401, "description": "Unauthorized"})
        body: JSON = msgspec.json.decode(await request.read())
        if not body.get("chat_id") or not body.get("text"):
            return _json(400, {"ok": False, "error_code": 400, "description": "Bad Request"})
        for row in body.get("reply_markup", {}).get("inline_keyboard", []):
            assert all(set(button) == {"text", "url"} for button in row)
        return await self._accept("telegram", request, {"ok": True, "result": {"message_id": 1}})

    async def slack(self, request: web.Request) -> web.Response:
        """Incoming webhooks: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks."""
        body: JSON = msgspec.json.decode(await request.read())
        if not body.get("text"):
            return web.Response(status=400, text="invalid_payload")
        return await self._accept("slack", request, None)

    async def discord(self, request: web.Request) -> web.Response:
        """Execute webhook: https://docs.discord.com/developers/resources/webhook#execute-webhook."""
        body: JSON = msgspec.json.decode(await request.read())
        if not 0 < len(body.get("content", "")) <= 2_000:
            return _json(400, {"code": 50006, "message": "Cannot send an empty message"})
        if request.query.get("with_components") != "true":
            body.pop("components", None)
        return await self._accept("discord", request, None, body=body, status=204)

    async def webhook(self, request: web.Request) -> web.Response:
        """A URL of the operator: checks the signature."""
        data, stamp = await request.read(), request.headers["X-EvoClaw-Timestamp"]
        signed = hmac.new(WEBHOOK_SECRET.encode(), f"{stamp}.".encode() + data, sha256).hexdigest()
        if request.headers["X-EvoClaw-Signature"] != f"v1={signed}":
            return web.Response(status=401)
        return await self._accept("webhook", request, None)

    async def push(self, request: web.Request) -> web.Response:
        """A push service of a browser: RFC 8030."""
        if request.match_info["id"] == "gone":
            return web.Response(status=410)
        return await self._accept("push", request, None, body={}, status=201)

    async def _accept(
        self,
        service: str,
        request: web.Request,
        answer: JSON,
        *,
        body: JSON = None,
        status: int = 200,
    ) -> web.Response:
        if self.refusals:
            return self.refusals.pop(0)
        data = await request.read()
        found: JSON = msgspec.json.decode(data) if body is None else body
        headers = {name.lower(): value for name, value in request.headers.items()}
        async with self._arrived:
            self.received.append(Received(service, found, headers, data))
            self._arrived.notify_all()
            await self._arrived.wait_for(lambda: not self.is_held)
        return web.Response(status=status, text="ok") if answer is None else _json(status, answer)


def _json(status: int, body: JSON) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )


@asynccontextmanager
async def notification_services() -> AsyncGenerator[NotificationServices]:
    """All services on one port of this machine, until the block ends."""
    services, app = NotificationServices(), web.Application()
    app.router.add_post("/ntfy", services.ntfy)
    app.router.add_post("/bot{token}/sendMessage", services.telegram)
    app.router.add_post(SLACK_PATH, services.slack)
    app.router.add_post(DISCORD_PATH, services.discord)
    app.router.add_post("/hook", services.webhook)
    app.router.add_post("/push/{id}", services.push)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    services.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield services
    finally:
        await runner.cleanup()
