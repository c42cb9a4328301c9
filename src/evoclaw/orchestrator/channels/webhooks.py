"""The channel over HTTP: others' programs post signed letters, and answers are posted back."""

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
"""Characters of what was said."""
LONGEST = 200
"""Characters of an id, a sender, a conversation; longer ones are told apart by their hash."""


class Pointers(Struct, frozen=True):
    """Where in the body it stands what was said, by whom, where, and under which id."""

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
    """What a program that posted something is answered."""

    state: str
    """`accepted`, `failed`, or `ignored` if it says nothing to anybody."""
    run_id: str = ""
    fresh: bool = True
    reason: str = ""
    text: str = ""
    challenge: str = ""
    """What whoever sets a webhook up wants to hear back."""


class Webhook:
    """One channel; the API hands it what was posted to it."""

    def __init__(
        self,
        settings: ChannelSettings,
        secret: bytes,
        *,
        callback: Callback | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            settings: Who may use it, and how it is read.
            secret: Shared with whoever posts.
            callback: Where answers are posted; as the settings say if not given.
            clock: Unix seconds.
        """
        if len(secret) < SHORTEST_SECRET:
            raise ConfigError(
                f"the secret of the channel {settings.name!r} is too short; make one of at least "
                f"{SHORTEST_SECRET} bytes, such as `openssl rand -hex 32` gives"
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
        """What was refused or ignored, by reason."""

    @property
    def repeats(self) -> bool:
        """Where no time is signed, a letter of any age can be posted again by who has seen it."""
        return not self._signatures.timed

    async def serve(self, front: Front) -> None:
        """Take what is posted until cancelled."""
        self._front = front
        try:
            await asyncio.Event().wait()
        finally:
            self._front = None

    async def post(self, headers: Mapping[str, str], body: bytes) -> Received:
        """Take what was posted; raise `Refused` for what is not to be taken.

        Args:
            headers: Of the request; their names in lower case.
            body: As it came, to the byte.
        """
        try:
            return await self._post(headers, body)
        except Refused as problem:
            self.counts[f"refused: {problem.reason}"] += 1
            raise

    async def _post(self, headers: Mapping[str, str], body: bytes) -> Received:
        if len(body) > MAX_BODY:
            raise Refused("too_large", f"a letter has at most {MAX_BODY:,} bytes")
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
            why = f"there is no text at {self._pointers.text}"
            return Received("ignored", reason="no_text", text=why)
        letter = self._letter(document, body)
        if self._front is None:
            raise Refused("not_serving", "this process is not taking letters now; try again later")
        return _received(await self._front.take(letter))

    async def send(self, letter: Letter, answer: Answer) -> None:
        """Post an answer, signed as letters are."""
        if self._callback is None:
            raise Undelivered("the channel has no callback_url", final=True)
        told: dict[str, JSON] = msgspec.to_builtins(answer)
        body = msgspec.json.encode(
            {"channel": self.name, "sender": letter.sender, "conversation": letter.conversation}
            | told
        )
        await self._callback.post(body, self._signatures.headers(body, self._clock()))

    def _letter(self, document: JSON, body: bytes) -> Letter:
        at, settings = self._pointers, self._settings
        sender = _short(find_text(document, at.sender))
        user = settings.user_of(sender) if sender else None
        if user is None:
            raise Refused("unknown_sender", "whoever said this may not use the channel")
        text = find_text(document, at.text)
        if len(text) > MAX_TEXT:
            raise Refused("too_large", f"the text has more than {MAX_TEXT:,} characters")
        return Letter(
            self.name,
            _short(find_text(document, at.message_id)) or f"body-{sha256(body).hexdigest()}",
            sender,
            text,
            settings.tenant,
            user,
            settings.agent,
            _short(find_text(document, at.conversation)),
            settings.is_untrusted(sender),
        )


def _pointers(webhook: WebhookSettings) -> Pointers:
    usual = POINTERS[webhook.scheme]
    return Pointers(
        *(
            preset if said is None else said
            for said, preset in (
                (webhook.text, usual.text),
                (webhook.sender, usual.sender),
                (webhook.conversation, usual.conversation),
                (webhook.message_id, usual.message_id),
            )
        )
    )


def _received(taken: Taken) -> Received:
    return Received(str(taken.state), taken.run_id, taken.fresh, taken.reason, taken.text)


def _short(text: str) -> str:
    """A text as a key: one that is long, or not for every store, by its hash."""
    if len(text) <= LONGEST and text.isprintable():
        return text
    return f"sha256-{sha256(text.encode()).hexdigest()}"
