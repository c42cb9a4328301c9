"""The settings of channels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.chat.settings import CHAT_KINDS, ChatTables, check_chat
from evoclaw.orchestrator.service_credentials import check_secret
from evoclaw.transport.topics import ID_RULE, is_agent_id

SignatureScheme = Literal["evoclaw", "github", "slack"]
JsonPointer = Annotated[str, Meta(pattern="^(/.*)?$", max_length=200)]
ChannelKind = Literal["mqtt", "webhook", "telegram", "slack", "discord", "matrix", "email"]
ANY_SENDER = "*"


class WebhookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a webhook's requests are signed and read, and where answers are posted."""

    scheme: SignatureScheme = "evoclaw"
    """How requests are signed; it also sets the default headers and pointers."""
    secret_env: str = ""
    """The environment variable with the secret; or set `secret_file`."""
    secret_file: Path | None = None
    """The file with the secret; or set `secret_env`."""
    signature_header: str = ""
    """The header with the signature; empty: that of the scheme."""
    timestamp_header: str = ""
    """The header with the signed time; empty: that of the scheme."""
    window_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    """Seconds by which the signed time may differ from the clock; an older request may be a
    replay."""
    text: JsonPointer | None = None
    """The JSON pointer to the text of the message."""
    sender: JsonPointer | None = None
    """The JSON pointer to the name of its sender."""
    conversation: JsonPointer | None = None
    """The JSON pointer to the name of its conversation."""
    message_id: JsonPointer | None = None
    """The JSON pointer to its unique id; if empty, the hash of the body is the id."""
    callback_url: str = ""
    """Where answers are posted; without it, you can only read them by the id of the run."""
    allow: tuple[str, ...] = ()
    """Non-public addresses or networks that the callback may reach."""


class ChannelSettings(ChatTables, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[channels]]`."""

    name: str
    """A name of your choice."""
    kind: ChannelKind
    """How messages arrive; the table of this name has the settings of the kind."""
    tenant: str = "local"
    """The tenant whose agents answer."""
    agent: str = ""
    """The agent that answers. If empty, the default agent, and on MQTT the agent of the inbox. If
    set, MQTT users reach only this agent."""
    senders: dict[str, str] | tuple[str, ...] = ()
    """Who may use the channel: a list of sender names, or a table that maps them to users. `*`
    allows everyone; messages of senders that are not listed by name are untrusted. A chat channel
    may have none: add people with `evoclaw channels pair`."""
    patience_s: Annotated[float, Meta(ge=1, le=30 * 86_400)] = 86_400.0
    """Seconds after which the orchestrator stops trying to deliver an answer."""
    webhook: WebhookSettings = WebhookSettings()

    def user_of(self, sender: str) -> str | None:
        """The user of a sender; None if the sender may not use the channel.

        A sender without a user in the table gets `CHANNEL:SENDER`, which no other user has.
        """
        if not self.is_untrusted(sender):
            known = self.senders[sender] if isinstance(self.senders, dict) else ""
            return known or f"{self.name}:{sender}"
        return f"{self.name}:{sender}" if self.is_open else None

    @property
    def is_open(self) -> bool:
        """Whether everybody may use the channel."""
        return ANY_SENDER in self.senders

    def is_untrusted(self, sender: str) -> bool:
        """Whether a sender is not listed by name; `*` is no name."""
        return sender == ANY_SENDER or sender not in self.senders


def check_channels(channels: Sequence[ChannelSettings]) -> None:
    """Raise `ConfigError` for invalid channels, before anything runs."""
    names: set[str] = set()
    for channel in channels:
        where = f"channels.{channel.name}"
        if not is_agent_id(channel.name):
            raise ConfigError(f"invalid channel name {channel.name!r}: {ID_RULE}")
        if channel.name in names:
            raise ConfigError(f"two channels are named {channel.name!r}; rename one")
        names.add(channel.name)
        is_chat = channel.kind in CHAT_KINDS
        if not channel.senders and not is_chat:
            raise ConfigError(
                f"{where}: senders is empty, so no one may use it; list senders, or '*' "
                "for everyone"
            )
        _check_tables(where, channel)
        if channel.kind == "webhook":
            _check_webhook(where, channel.webhook)
        elif is_chat:
            check_chat(where, channel.kind, channel)
        if channel.kind == "email" and channel.is_open:
            raise ConfigError(
                f"{where}: senders: '*' would answer forged mails and mailing lists; list addresses"
            )
    if sum(channel.kind == "mqtt" for channel in channels) > 1:
        raise ConfigError("there are two channels of kind 'mqtt', but only one broker; remove one")


def _check_tables(where: str, channel: ChannelSettings) -> None:
    """Refuse the table of another kind: it would have no effect."""
    defaults = ChannelSettings(name="", kind="mqtt")
    for table in ("webhook", *CHAT_KINDS):
        if table != channel.kind and getattr(channel, table) != getattr(defaults, table):
            raise ConfigError(
                f"{where}: [channels.{table}] has no effect for kind {channel.kind!r}; remove the "
                "table, or change the kind"
            )


def _check_webhook(where: str, webhook: WebhookSettings) -> None:
    check_secret(f"{where}.webhook", "secret", webhook)
    url = webhook.callback_url
    if url and not url.startswith(("https://", "http://")):
        raise ConfigError(f"{where}.webhook: callback_url must start with https:// or http://")
