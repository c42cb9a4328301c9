"""Talks to a Slack app in Socket Mode: https://docs.slack.dev/apis/events-api/using-socket-mode."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

import msgspec

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
from evoclaw.orchestrator.channels.chat.settings import SlackAppSettings
from evoclaw.orchestrator.channels.chat.sockets import read_json
from evoclaw.orchestrator.sanitizing import one_line

MAX_SECTION_CHARS = 3_000
_LOGIN_CODES = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired",
     "not_allowed_token_type", "missing_scope"}
)  # fmt: skip
_TEMPORARY_CODES = frozenset({"ratelimited", "internal_error", "fatal_error", "service_unavailable",
                              "request_timeout"})  # fmt: skip
_MESSAGE_SUBTYPES = ("", "file_share", "thread_broadcast")
"""Of messages that a person wrote; others report edits, joins and the like."""


class SlackApp:
    """One app in one workspace; the socket is opened from here."""

    max_chars, has_buttons, answers_strangers, typing_interval_s = 3_500, True, True, 0.0

    def __init__(self, settings: SlackAppSettings, token: str, app_token: str) -> None:
        self._bot, self._app = (
            {"Authorization": f"Bearer {secret}"} for secret in (token, app_token)
        )
        self._http = ServiceHttp("Slack", settings.url, secrets=(token, app_token))
        self._user, self._host = "", urlsplit(settings.url).hostname

    async def check(self) -> str:
        """The names of the bot and the workspace; both tokens are tried."""
        found = await self._call("auth.test", {}, self._bot, "the bot token")
        self._user = text_at(found, "user_id")
        await self._open_url()
        return f"@{text_at(found, 'user')} in {text_at(found, 'team')}"

    async def receive(self, cursor: str) -> AsyncGenerator[ChatBatch, None]:
        """Receive envelopes; one is acknowledged once its events are stored.

        Slack sends an envelope again that is not acknowledged, also on another connection.
        """
        if not self._user:
            found = await self._call("auth.test", {}, self._bot, "the bot token")
            self._user = text_at(found, "user_id")
        async with self._http.websocket(await self._open_url()) as socket:
            while True:
                envelope = await read_json(socket, "Slack")
                match envelope.get("type"):
                    case "hello":
                        yield ChatBatch()
                    case "disconnect":
                        # Slack replaces connections every few hours.
                        reason = text_at(envelope, "reason")
                        if reason == "link_disabled":
                            raise ServiceError(
                                "Socket Mode of the Slack app is off; turn it on in its settings",
                                is_login=True,
                            )
                        return
                    case _:
                        event = await self._event(envelope)
                        yield ChatBatch(() if event is None else (event,))
                        if id_ := text_at(envelope, "envelope_id"):
                            await socket.send_bytes(msgspec.json.encode({"envelope_id": id_}))

    async def post(self, message: OutgoingMessage) -> None:
        """Post a message, in its thread if it has one."""
        channel, _, thread = message.conversation.partition("/")
        text = _escaped(message.text)
        body: dict[str, JSON] = {"channel": channel, "text": text, "unfurl_links": False}
        if thread:
            body["thread_ts"] = thread
        if message.buttons:
            body["blocks"] = [
                {
                    "type": "section",
                    "text": {"type": "mrkdwn", "text": text[:MAX_SECTION_CHARS]},
                },
                {
                    "type": "actions",
                    "elements": [
                        {
                            "type": "button",
                            "text": {"type": "plain_text", "text": button.label},
                            "action_id": f"answer-{number}",
                            "value": button.token,
                        }
                        for number, button in enumerate(message.buttons)
                    ],
                },
            ]
        await self._call("chat.postMessage", body, self._bot, "the bot token")

    async def show_typing(self, conversation: str) -> None:
        """Slack has no typing indicator for apps."""

    async def acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        """Remove the buttons of an answered message."""
        if not isinstance(event, ButtonPress):
            return
        shown = msgspec.json.decode(event.reply_to, type=dict[str, str])
        body: dict[str, JSON] = {
            "channel": shown["channel"],
            "ts": shown["ts"],
            "text": shown["text"],
            "blocks": [],
        }
        await self._call("chat.update", body, self._bot, "the bot token")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _open_url(self) -> str:
        found = await self._call("apps.connections.open", {}, self._app, "the app-level token")
        return text_at(found, "url")

    async def _call(
        self, method: str, body: Mapping[str, JSON], headers: Mapping[str, str], token: str
    ) -> dict[str, JSON]:
        found = await self._http.call("POST", f"/{method}", body, headers=headers)
        if found.get("ok") is True:
            return found
        code = text_at(found, "error")
        is_login = code in _LOGIN_CODES
        if code == "missing_scope":
            text = f"Slack refused {token}: it lacks the scope {text_at(found, 'needed')!r}"
            raise ServiceError(f"{text}; add it and reinstall the app", code=code, is_login=True)
        if is_login:
            text = f"Slack refused {token}: {code}; copy it again from the settings of the app"
            raise ServiceError(text, code=code, is_login=True)
        final = code not in _TEMPORARY_CODES
        raise ServiceError(f"Slack refused {method}: {one_line(code)}", code=code, final=final)

    async def _event(self, envelope: Mapping[str, JSON]) -> ChatEvent | None:
        payload = object_at(envelope, "payload")
        if envelope.get("type") == "interactive":
            return _press(payload)
        event = object_at(payload, "event")
        is_private = text_at(event, "channel_type") == "im"
        wanted = event.get("type") == "app_mention" or (
            event.get("type") == "message" and is_private
        )
        if not wanted or event.get("bot_id") or text_at(event, "user") in ("", self._user):
            return None
        if text_at(event, "subtype") not in _MESSAGE_SUBTYPES:
            return None
        text, images = await read_attachments(self._text(event), self._files(event))
        if not text and not images:
            return None
        channel, ts = text_at(event, "channel"), text_at(event, "ts")
        # In a channel of several people, the answers are a thread below the message.
        thread = text_at(event, "thread_ts") or ("" if is_private else ts)
        return ConversationMessage(
            f"{channel}/{ts}",
            text_at(event, "user"),
            f"{channel}/{thread}" if thread else channel,
            text,
            images,
            is_private=is_private,
        )

    def _text(self, event: Mapping[str, JSON]) -> str:
        text = text_at(event, "text").replace(f"<@{self._user}>", "")
        # A link is <URL> or <URL|label>.
        text = re.sub(r"<(https?://[^|>]+)(?:\|[^>]*)?>", r"\1", text)
        return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()

    def _files(self, event: Mapping[str, JSON]) -> Sequence[AttachedFile]:
        files = event.get("files")
        return [
            AttachedFile(
                text_at(file, "name"),
                text_at(file, "mimetype"),
                int(text_at(file, "size") or 0),
                partial(self._download, text_at(file, "url_private")),
            )
            for file in (files if is_array(files) else ())
            if is_object(file)
        ]

    async def _download(self, url: str, limit: int) -> bytes:
        host = urlsplit(url).hostname or ""
        if host != self._host and not host.endswith(".slack.com"):
            # The file is stored elsewhere; the token must not go there.
            raise ServiceError("it is not stored at Slack", final=True)
        return await self._http.download(url, limit, headers=self._bot)


def _press(payload: Mapping[str, JSON]) -> ButtonPress | None:
    actions = payload.get("actions")
    if payload.get("type") != "block_actions" or not is_array(actions) or not actions:
        return None
    channel, message = text_at(payload, "channel", "id"), object_at(payload, "message")
    thread, ts = text_at(message, "thread_ts"), text_at(message, "ts")
    user, action = text_at(payload, "user", "id"), actions[0]
    shown = {"channel": channel, "ts": ts, "text": text_at(message, "text")}
    return ButtonPress(
        f"press-{channel}/{ts}/{user}/{text_at(action, 'action_ts')}",
        user,
        f"{channel}/{thread}" if thread else channel,
        text_at(action, "value"),
        msgspec.json.encode(shown).decode(),
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
