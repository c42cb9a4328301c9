"""Talks to a Telegram bot: https://core.telegram.org/bots/api."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

import msgspec

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.orchestrator.channels.chat.attachments import AttachedFile, read_attachments
from evoclaw.orchestrator.channels.chat.http import (
    HTTP_UNAUTHORIZED,
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
from evoclaw.orchestrator.channels.chat.settings import TelegramBotSettings

LONG_POLL_S = 30
"""For which Telegram keeps a request open until something arrives."""
MAX_UPDATES = 100
HTTP_NOT_FOUND = 404


class TelegramBot:
    """One bot; updates are polled, so it needs no address that the Internet reaches."""

    max_chars, has_buttons, answers_strangers, typing_interval_s = 4_096, True, True, 4.0

    def __init__(self, settings: TelegramBotSettings, token: str) -> None:
        base = settings.url.rstrip("/")
        self._files_url = f"{base}/file/bot{token}/"
        self._http = ServiceHttp(
            "Telegram",
            f"{base}/bot{token}",
            secrets=(token,),
            describe=lambda body: text_at(body, "description"),
        )

    async def check(self) -> str:
        """The name of the bot."""
        return f"@{text_at(await self._call('getMe'), 'result', 'username')}"

    async def receive(self, cursor: str) -> AsyncGenerator[ChatBatch, None]:
        """Poll for updates; asking for the next ones confirms those before."""
        offset, wait_s = int(cursor or 0), 0
        while True:
            found = await self._call(
                "getUpdates",
                {
                    "offset": offset,
                    "limit": MAX_UPDATES,
                    "timeout": wait_s,
                    "allowed_updates": ["message", "callback_query"],
                },
                timeout_s=wait_s + REQUEST_TIMEOUT_S,
            )
            updates = found.get("result")
            events: list[ChatEvent] = []
            for update in updates if is_array(updates) else ():
                event = await self._event(update)
                if event is not None:
                    events.append(event)
                offset = max(offset, int(text_at(update, "update_id") or 0) + 1)
            yield ChatBatch(tuple(events), str(offset))
            wait_s = LONG_POLL_S

    async def post(self, message: OutgoingMessage) -> None:
        """Send a message, with a row of buttons."""
        body = _target(message.conversation) | {
            "text": message.text,
            "link_preview_options": {"is_disabled": True},
        }
        if message.buttons:
            row = [
                {"text": button.label, "callback_data": button.token} for button in message.buttons
            ]
            body["reply_markup"] = {"inline_keyboard": [row]}
        await self._call("sendMessage", body)

    async def show_typing(self, conversation: str) -> None:
        """Shown for five seconds."""
        await self._call("sendChatAction", _target(conversation) | {"action": "typing"})

    async def acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        """Stop the progress bar of a button, and remove the buttons."""
        if not isinstance(event, ButtonPress):
            return
        press = msgspec.json.decode(event.reply_to, type=dict[str, str])
        await self._call("answerCallbackQuery", {"callback_query_id": press["id"]})
        if press["message"]:
            await self._call(
                "editMessageReplyMarkup",
                {
                    "chat_id": int(press["chat"]),
                    "message_id": int(press["message"]),
                    "reply_markup": {"inline_keyboard": []},
                },
            )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        body: Mapping[str, JSON] | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, JSON]:
        try:
            return await self._http.call("POST", f"/{method}", body or {}, timeout_s=timeout_s)
        except ServiceError as problem:
            raise _explained(problem) from None

    async def _event(self, update: JSON) -> ChatEvent | None:
        if press := object_at(update, "callback_query"):
            return _press(press)
        message = object_at(update, "message")
        sender, chat = object_at(message, "from"), object_at(message, "chat")
        if not sender or sender.get("is_bot") or not chat:
            return None
        thread = text_at(message, "message_thread_id") if message.get("is_topic_message") else ""
        text, images = await read_attachments(
            text_at(message, "text") or text_at(message, "caption"), self._files(message)
        )
        if not text and not images:
            return None
        chat_id = text_at(chat, "id")
        return ConversationMessage(
            f"{chat_id}/{text_at(message, 'message_id')}",
            text_at(sender, "id"),
            f"{chat_id}/{thread}" if thread else chat_id,
            text,
            images,
            is_private=text_at(chat, "type") == "private",
        )

    def _files(self, message: Mapping[str, JSON]) -> Sequence[AttachedFile]:
        found: list[AttachedFile] = []
        sizes = message.get("photo")
        if is_array(sizes) and sizes and is_object(photo := sizes[-1]):  # the largest is the last
            found.append(self._file(photo, "photo", "image/jpeg"))
        found += [
            self._file(file, kind, text_at(file, "mime_type"))
            for kind in ("document", "voice", "audio", "video", "video_note")
            if (file := object_at(message, kind))
        ]
        return found

    def _file(self, file: Mapping[str, JSON], kind: str, media_type: str) -> AttachedFile:
        return AttachedFile(
            text_at(file, "file_name") or kind,
            media_type,
            int(text_at(file, "file_size") or 0),
            partial(self._download, text_at(file, "file_id")),
        )

    async def _download(self, file_id: str, limit: int) -> bytes:
        found = await self._call("getFile", {"file_id": file_id})
        path = text_at(found, "result", "file_path")
        return await self._http.download(self._files_url + path, limit)


def _press(press: Mapping[str, JSON]) -> ButtonPress:
    message = object_at(press, "message")
    chat, id_ = text_at(message, "chat", "id"), text_at(press, "id")
    thread = text_at(message, "message_thread_id") if message.get("is_topic_message") else ""
    shown = {"id": id_, "chat": chat, "message": text_at(message, "message_id")}
    return ButtonPress(
        f"press-{id_}",
        text_at(press, "from", "id"),
        f"{chat}/{thread}" if thread else chat,
        text_at(press, "data"),
        msgspec.json.encode(shown).decode(),
    )


def _target(conversation: str) -> dict[str, JSON]:
    chat, _, thread = conversation.partition("/")
    target: dict[str, JSON] = {"chat_id": int(chat)}
    if thread:
        target["message_thread_id"] = int(thread)
    return target


def _explained(problem: ServiceError) -> ServiceError:
    """The same error with what Telegram says about the token and the next attempt."""
    wait = text_at(problem.body, "parameters", "retry_after")
    # Telegram answers 404 to a token that does not have the form of one.
    is_login = problem.status in (HTTP_UNAUTHORIZED, HTTP_NOT_FOUND)
    text = (
        f"Telegram refused the token (status {problem.status}); copy it again from @BotFather"
        if is_login
        else str(problem)
    )
    return ServiceError(
        text,
        is_login=is_login,
        final=problem.final and not is_login,
        retry_after=float(wait) if wait else problem.retry_after,
        status=problem.status,
        body=problem.body,
    )
