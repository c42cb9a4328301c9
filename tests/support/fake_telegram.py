"""A local server that speaks the Bot API of Telegram: https://core.telegram.org/bots/api."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from evoclaw.core.messages import JSON
from tests.support.chat_fakes import (
    PNG,
    ChatFake,
    SentMessage,
    json_response,
    serve_fake,
    utf16_units,
)

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw4"
ANN, EVE = 7, 666
MAX_CALLBACK_BYTES = 64


@dataclass
class FakeTelegram(ChatFake):
    """One bot and its updates, which are kept until a later offset confirms them."""

    updates: list[JSON] = field(default_factory=list[JSON])
    polls: int = 0
    """Answered requests for updates."""
    conflicts: int = 0
    """Requests for updates that ended an older one: two processes poll the bot."""
    cleared_buttons: list[int] = field(default_factory=list[int])
    answered_presses: list[str] = field(default_factory=list[str])
    _next_id: int = 1000
    _poll: asyncio.Task[object] | None = None

    async def write(
        self, text: str, sender: int = ANN, *, chat: int | None = None, **more: JSON
    ) -> JSON:
        """A person writes to the bot; the update."""
        self._next_id += 1
        chat_id = sender if chat is None else chat
        message: JSON = {
            "message_id": self._next_id,
            "from": {"id": sender, "is_bot": False, "first_name": "Ann"},
            "chat": {"id": chat_id, "type": "private" if chat_id > 0 else "supergroup"},
            "date": 1793016000,
            **({"text": text} if text else {}),
            **more,
        }
        return await self._arrive({"message": message})

    async def press(self, sent: SentMessage, label: str, sender: int = ANN) -> None:
        """A person presses a button below a message of the bot."""
        (row,) = sent.body["reply_markup"]["inline_keyboard"]
        (data,) = [button["callback_data"] for button in row if button["text"] == label]
        await self.press_data(data, sender, int(sent.conversation))

    async def press_data(self, data: str, sender: int, chat: int) -> None:
        """A person sends the data of a button."""
        message = {"message_id": 5, "chat": {"id": chat, "type": "private"}, "date": 1}
        query = {"id": f"q{self._next_id}", "from": {"id": sender, "is_bot": False}}
        await self._arrive({"callback_query": {**query, "message": message, "data": data}})

    async def _arrive(self, update: JSON) -> JSON:
        self._next_id += 1
        arrived = {"update_id": self._next_id, **update}
        self.updates.append(arrived)
        await self.notify()
        return arrived

    async def handle(self, request: web.Request) -> web.Response:
        """`POST /botTOKEN/METHOD`."""
        if request.match_info["token"] != TOKEN:
            return _error(401, "Unauthorized")
        body: JSON = msgspec.json.decode(await request.read() or b"{}")
        match request.match_info["method"]:
            case "getMe":
                self.logins += 1
                return _result({"id": 1, "is_bot": True, "username": "cook_bot"})
            case "getUpdates":
                return await self._get_updates(body)
            case "sendMessage":
                return await self._send(body)
            case "sendChatAction":
                assert body["action"] == "typing"
                self.typed.append(str(body["chat_id"]))
                return _result(True)
            case "answerCallbackQuery":
                self.answered_presses.append(body["callback_query_id"])
                return _result(True)
            case "editMessageReplyMarkup":
                self.cleared_buttons.append(body["message_id"])
                return _result({"message_id": body["message_id"]})
            case "getFile":
                return _result({"file_id": body["file_id"], "file_path": "photos/file_0.png"})
            case _:
                return _error(404, "Not Found")

    async def _get_updates(self, body: JSON) -> web.Response:
        if self._poll is not None:
            self._poll.cancel()  # Telegram ends the older of two requests
            self.conflicts += 1
        self._poll = asyncio.current_task()
        try:
            self.updates = [one for one in self.updates if one["update_id"] >= body["offset"]]
            await self.notify()
            async with asyncio.timeout(body["timeout"]), self.changed:
                await self.changed.wait_for(lambda: self.updates)
        except TimeoutError:
            pass
        self._poll, self.polls = None, self.polls + 1
        found = self.updates[: body["limit"]]
        await self.notify()
        return _result(found)

    async def _send(self, body: JSON) -> web.Response:
        text = body.get("text", "")
        if not text or not isinstance(body.get("chat_id"), int):
            return _error(400, "Bad Request: message text is empty")
        if utf16_units(text) > 4096:
            return _error(400, "Bad Request: message is too long")
        for row in body.get("reply_markup", {}).get("inline_keyboard", ()):
            for button in row:
                if not 1 <= len(button["callback_data"].encode()) <= MAX_CALLBACK_BYTES:
                    return _error(400, "Bad Request: BUTTON_DATA_INVALID")
        refusal = await self.accept(str(body["chat_id"]), text, body)
        return refusal or _result({"message_id": len(self.sent)})

    async def file(self, request: web.Request) -> web.Response:
        """`GET /file/botTOKEN/PATH`."""
        return web.Response(body=PNG, status=200 if request.match_info["token"] == TOKEN else 404)


def too_many(seconds: int) -> web.Response:
    """The answer to a bot that sends too much."""
    text = f"Too Many Requests: retry after {seconds}"
    body = {"ok": False, "error_code": 429, "description": text}
    return json_response(body | {"parameters": {"retry_after": seconds}}, 429)


def _result(result: JSON) -> web.Response:
    return json_response({"ok": True, "result": result})


def _error(status: int, description: str) -> web.Response:
    return json_response({"ok": False, "error_code": status, "description": description}, status)


@asynccontextmanager
async def fake_telegram() -> AsyncGenerator[FakeTelegram]:
    """The service, until the block ends."""
    fake, app = FakeTelegram(), web.Application()
    app.router.add_post("/bot{token}/{method}", fake.handle)
    app.router.add_get("/file/bot{token}/{path:.*}", fake.file)
    async with serve_fake(app) as fake.url:
        yield fake
