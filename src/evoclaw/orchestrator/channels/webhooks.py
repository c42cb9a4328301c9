"""The webhook channel: programs post signed messages, and answers are posted to a callback URL."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.orchestrator.channels.callbacks import Callback
from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher
from evoclaw.orchestrator.channels.inbound import (
    AcceptResult,
    ChannelAnswer,
    InboundMessage,
    MessageRefused,
    Undelivered,
)
from evoclaw.orchestrator.channels.settings import ChannelSettings, WebhookSettings
from evoclaw.orchestrator.channels.signatures import MIN_SECRET_BYTES, WebhookSignatures
from evoclaw.orchestrator.channels.status import ChannelStatus

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
MAX_BODY_BYTES = 256 * 1024
MAX_TEXT_CHARS = 64 * 1024
"""Of the text of a message."""
MAX_ID_CHARS = 200
"""Of an id, a sender, a conversation; longer ones are replaced by their hash."""


class BodyPointers(Struct, frozen=True):
    """JSON pointers to the text, the sender, the conversation and the id in a body."""

    text: str
    sender: str
    conversation: str
    message_id: str


DEFAULT_POINTERS: Mapping[str, BodyPointers] = {
    "evoclaw": BodyPointers("/message", "/sender", "/conversation", "/message_id"),
    "github": BodyPointers("/comment/body", "/sender/login", "/issue/html_url", "/comment/node_id"),
    "slack": BodyPointers("/event/text", "/event/user", "/event/channel", "/event_id"),
}


class WebhookResponse(Struct, frozen=True, omit_defaults=True):
    """The response to a posted message."""

    state: str
    """`accepted`, `failed`, or `ignored` if the body has no text."""
    run_id: str = ""
    """The run that answers the message."""
    fresh: bool = True
    """False: the same message arrived before, and this is its run."""
    reason: str = ""
    """Why the message was not answered, as a short code."""
    text: str = ""
    """The answer, or what went wrong."""
    challenge: str = ""
    """What Slack expects back when a webhook is set up."""


class WebhookChannel:
    """One webhook; the API passes it what was posted."""

    def __init__(
        self,
        settings: ChannelSettings,
        secret: bytes,
        *,
        callback: Callback | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare to receive messages.

        Args:
            settings: Who may use the channel, and how requests are read.
            secret: The secret that requests are signed with.
            callback: Where answers are posted; by default the callback URL of the settings.
            clock: Unix seconds.
        """
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the secret of the channel {settings.name!r} is too short; it needs at least "
                f"{MIN_SECRET_BYTES} bytes, for example from `openssl rand -hex 32`"
            )
        webhook = settings.webhook
        self.name, self.settings, self._clock = settings.name, settings, clock
        self.status = ChannelStatus("connecting", changed_at=clock())
        self._signatures = WebhookSignatures(webhook, secret)
        self._pointers = _pointers(webhook)
        if callback is None and webhook.callback_url:
            callback = Callback(webhook.callback_url, webhook.allow)
        self._callback = callback
        self._handler: ChannelDispatcher | None = None
        self.counts: Counter[str] = Counter()
        """Requests that were refused or ignored, by reason."""

    @property
    def replayable(self) -> bool:
        """True without a signed timestamp: anybody who saw a request can post it again."""
        return not self._signatures.has_timestamp

    async def serve(self, handler: ChannelDispatcher) -> None:
        """Accept posted messages until cancelled."""
        self._handler = handler
        self.status = self.status.changed("listening", self._clock())
        try:
            await asyncio.Event().wait()
        finally:
            self._handler = None

    async def post(self, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        """Accept a posted message; raise `MessageRefused` if it is refused.

        Args:
            headers: Of the request; their names in lower case.
            body: The exact bytes of the body.
        """
        try:
            return await self._post(headers, body)
        except MessageRefused as problem:
            self.counts[f"refused: {problem.reason}"] += 1
            self.status = self.status.noted(str(problem), self._clock())
            raise

    async def _post(self, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        if len(body) > MAX_BODY_BYTES:
            raise MessageRefused("too_large", f"the body has more than {MAX_BODY_BYTES:,} bytes")
        self._signatures.check(headers, body, self._clock())
        try:
            document: JSON = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise MessageRefused("unreadable", f"the body is not JSON: {problem}") from None
        if self.settings.webhook.scheme == "slack" and (
            resolve(document, "/type") == "url_verification"
        ):
            return WebhookResponse(
                "ignored", challenge=resolve_text(document, "/challenge")[:MAX_ID_CHARS]
            )
        if not resolve_text(document, self._pointers.text).strip():
            self.counts["ignored"] += 1
            why = f"the body has no text at {self._pointers.text}"
            return WebhookResponse("ignored", reason="no_text", text=why)
        message = self._inbound(document, body)
        if self._handler is None:
            raise MessageRefused(
                "not_serving", "this process does not accept messages now; try again later"
            )
        return _response(await self._handler.accept(message))

    async def send(self, message: InboundMessage, answer: ChannelAnswer) -> None:
        """Post an answer, signed like requests."""
        if self._callback is None:
            raise Undelivered("the channel has no callback_url", final=True)
        fields: dict[str, JSON] = msgspec.to_builtins(answer)
        body = msgspec.json.encode(
            {"channel": self.name, "sender": message.sender, "conversation": message.conversation}
            | fields
        )
        await self._callback.post(body, self._signatures.headers(body, self._clock()))

    def _inbound(self, document: JSON, body: bytes) -> InboundMessage:
        pointers, settings = self._pointers, self.settings
        sender = _as_key(resolve_text(document, pointers.sender))
        user = settings.user_of(sender) if sender else None
        if user is None:
            raise MessageRefused(
                "unknown_sender",
                "this sender may not use the channel; add it to the channel's senders",
            )
        text = resolve_text(document, pointers.text)
        if len(text) > MAX_TEXT_CHARS:
            raise MessageRefused(
                "too_large", f"the text has more than {MAX_TEXT_CHARS:,} characters"
            )
        return InboundMessage(
            self.name,
            _as_key(resolve_text(document, pointers.message_id))
            or f"body-{sha256(body).hexdigest()}",
            sender,
            text,
            settings.tenant,
            user,
            settings.agent,
            _as_key(resolve_text(document, pointers.conversation)),
            settings.is_untrusted(sender),
        )


def _pointers(webhook: WebhookSettings) -> BodyPointers:
    defaults = DEFAULT_POINTERS[webhook.scheme]
    return BodyPointers(
        *(
            default if configured is None else configured
            for configured, default in (
                (webhook.text, defaults.text),
                (webhook.sender, defaults.sender),
                (webhook.conversation, defaults.conversation),
                (webhook.message_id, defaults.message_id),
            )
        )
    )


def _response(result: AcceptResult) -> WebhookResponse:
    return WebhookResponse(
        str(result.state), result.run_id, result.fresh, result.reason, result.text
    )


def _as_key(text: str) -> str:
    """A text as a key: a long or unprintable one is replaced by its hash."""
    if len(text) <= MAX_ID_CHARS and text.isprintable():
        return text
    return f"sha256-{sha256(text.encode()).hexdigest()}"


def resolve(document: JSON, pointer: str) -> JSON:
    """The value that a pointer refers to; None if there is none."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if is_object(document):
            document = document.get(key)
        elif is_array(document) and _INDEX.fullmatch(key) and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def resolve_text(document: JSON, pointer: str) -> str:
    """The string or the integer that a pointer refers to, as text; empty if there is none."""
    found = resolve(document, pointer)
    if isinstance(found, bool) or not isinstance(found, str | int):
        return ""
    return str(found)
