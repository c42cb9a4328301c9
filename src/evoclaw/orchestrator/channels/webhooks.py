"""The webhook channel: programs post signed messages, and answers are posted to a callback URL."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.callbacks import Callback
from evoclaw.orchestrator.channels.letters import Answer, Front, Letter, Refused, Taken, Undelivered
from evoclaw.orchestrator.channels.pointers import find, find_text
from evoclaw.orchestrator.channels.settings import ChannelSettings, WebhookSettings
from evoclaw.orchestrator.channels.signatures import SHORTEST_SECRET, Signatures

MAX_BODY = 256 * 1024
MAX_TEXT = 64 * 1024
"""Of the text of a message."""
LONGEST = 200
"""Of an id, a sender, a conversation; longer ones are replaced by their hash."""


class Pointers(Struct, frozen=True):
    """JSON pointers to the text, the sender, the conversation and the id in a body."""

    text: str
    sender: str
    conversation: str
    message_id: str


POINTERS: Mapping[str, Pointers] = {
    "evoclaw": Pointers("/message", "/sender", "/conversation", "/message_id"),
    "github": Pointers("/comment/body", "/sender/login", "/issue/html_url", "/comment/node_id"),
    "slack": Pointers("/event/text", "/event/user", "/event/channel", "/event_id"),
}


class Received(Struct, frozen=True, omit_defaults=True):
    """The response to a posted message."""

    state: str
    """`accepted`, `failed`, or `ignored` if the body has no text."""
    run_id: str = ""
    fresh: bool = True
    reason: str = ""
    text: str = ""
    challenge: str = ""
    """What Slack expects back when a webhook is set up."""


class Webhook:
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
        if len(secret) < SHORTEST_SECRET:
            raise ConfigError(
                f"the secret of the channel {settings.name!r} is too short; it needs at least "
                f"{SHORTEST_SECRET} bytes, for example from `openssl rand -hex 32`"
            )
        webhook = settings.webhook
        self.name, self._settings, self._clock = settings.name, settings, clock
        self._signatures = Signatures(webhook, secret)
        self._pointers = _pointers(webhook)
        if callback is None and webhook.callback_url:
            callback = Callback(webhook.callback_url, webhook.allow)
        self._callback = callback
        self._front: Front | None = None
        self.counts: Counter[str] = Counter()
        """Requests that were refused or ignored, by reason."""

    @property
    def repeats(self) -> bool:
        """True without a signed timestamp: anybody who saw a request can post it again."""
        return not self._signatures.timed

    async def serve(self, front: Front) -> None:
        """Accept posted messages until cancelled."""
        self._front = front
        try:
            await asyncio.Event().wait()
        finally:
            self._front = None

    async def post(self, headers: Mapping[str, str], body: bytes) -> Received:
        """Accept a posted message; raise `MessageRefused` if it is refused.

        Args:
            headers: Of the request; their names in lower case.
            body: The exact bytes of the body.
        """
        try:
            return await self._post(headers, body)
        except Refused as problem:
            self.counts[f"refused: {problem.reason}"] += 1
            raise

    async def _post(self, headers: Mapping[str, str], body: bytes) -> Received:
        if len(body) > MAX_BODY:
            raise Refused("too_large", f"the body has more than {MAX_BODY:,} bytes")
        self._signatures.check(headers, body, self._clock())
        try:
            document: JSON = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise Refused("unreadable", f"the body is not JSON: {problem}") from None
        if self._settings.webhook.scheme == "slack" and (
            find(document, "/type") == "url_verification"
        ):
            return Received("ignored", challenge=find_text(document, "/challenge")[:LONGEST])
        if not find_text(document, self._pointers.text).strip():
            self.counts["ignored"] += 1
            why = f"the body has no text at {self._pointers.text}"
            return Received("ignored", reason="no_text", text=why)
        message = self._letter(document, body)
        if self._front is None:
            raise Refused(
                "not_serving", "this process does not accept messages now; try again later"
            )
        return _received(await self._front.take(message))

    async def send(self, letter: Letter, answer: Answer) -> None:
        """Post an answer, signed like requests."""
        if self._callback is None:
            raise Undelivered("the channel has no callback_url", final=True)
        fields: dict[str, JSON] = msgspec.to_builtins(answer)
        body = msgspec.json.encode(
            {"channel": self.name, "sender": letter.sender, "conversation": letter.conversation}
            | fields
        )
        await self._callback.post(body, self._signatures.headers(body, self._clock()))

    def _letter(self, document: JSON, body: bytes) -> Letter:
        pointers, settings = self._pointers, self._settings
        sender = _short(find_text(document, pointers.sender))
        user = settings.user_of(sender) if sender else None
        if user is None:
            raise Refused(
                "unknown_sender",
                "this sender may not use the channel; add it to the channel's senders",
            )
        text = find_text(document, pointers.text)
        if len(text) > MAX_TEXT:
            raise Refused("too_large", f"the text has more than {MAX_TEXT:,} characters")
        return Letter(
            self.name,
            _short(find_text(document, pointers.message_id)) or f"body-{sha256(body).hexdigest()}",
            sender,
            text,
            settings.tenant,
            user,
            settings.agent,
            _short(find_text(document, pointers.conversation)),
            settings.is_untrusted(sender),
        )


def _pointers(webhook: WebhookSettings) -> Pointers:
    defaults = POINTERS[webhook.scheme]
    return Pointers(
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


def _received(taken: Taken) -> Received:
    return Received(str(taken.state), taken.run_id, taken.fresh, taken.reason, taken.text)


def _short(text: str) -> str:
    """A text as a key: a long or unprintable one is replaced by its hash."""
    if len(text) <= LONGEST and text.isprintable():
        return text
    return f"sha256-{sha256(text.encode()).hexdigest()}"
