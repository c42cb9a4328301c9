"""What can be chosen about channels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.transport.topics import ID_RULE, is_agent_id

Scheme = Literal["evoclaw", "github", "slack"]
Pointer = Annotated[str, Meta(pattern="^(/.*)?$", max_length=200)]
ANYBODY = "*"


class WebhookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a webhook's letters are signed and read, and where the answers go."""

    scheme: Scheme = "evoclaw"
    """Whose way of signing; it also says which headers and pointers hold if none are given."""
    secret_env: str = ""
    """The environment variable that holds the secret …"""
    secret_file: Path | None = None
    """… or the file: one of the two."""
    signature_header: str = ""
    timestamp_header: str = ""
    window_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    """Seconds that a signed time may be off; older letters may be replays."""
    text: Pointer | None = None
    """A JSON pointer to what was said …"""
    sender: Pointer | None = None
    """… who said it …"""
    conversation: Pointer | None = None
    """… where, so that it goes on there …"""
    message_id: Pointer | None = None
    """… and to what tells it from any other; the body's hash if it is empty."""
    callback_url: str = ""
    """Where answers are posted; without, they can only be looked up by the run's id."""
    allow: tuple[str, ...] = ()
    """Addresses or networks that the callback may reach though they are not public."""


class ChannelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[channels]]`."""

    name: str
    kind: Literal["mqtt", "webhook"]
    tenant: str = "local"
    agent: str = ""
    """Who answers: the default agent if not given; on MQTT the one whose inbox it is, and with
    this no other."""
    senders: dict[str, str] | tuple[str, ...] = ()
    """Who may use it: names as the channel knows them, or a table of those and our users' names.
    `*` is everybody; what they say is then untrusted, as anybody may have written it."""
    patience_s: Annotated[float, Meta(ge=1, le=30 * 86_400)] = 86_400.0
    """Seconds after which an answer that cannot be delivered is given up."""
    webhook: WebhookSettings = WebhookSettings()

    def user_of(self, sender: str) -> str | None:
        """Our name for a sender; None if they may not use the channel.

        A name that is not in the table is made one that no user of ours has.
        """
        if not self.is_untrusted(sender):
            known = self.senders[sender] if isinstance(self.senders, dict) else ""
            return known or f"{self.name}:{sender}"
        return f"{self.name}:{sender}" if self.is_open else None

    @property
    def is_open(self) -> bool:
        """Whether everybody may use it."""
        return ANYBODY in self.senders

    def is_untrusted(self, sender: str) -> bool:
        """Whether nobody vouched for a sender by name; to be called as everybody is no name."""
        return sender == ANYBODY or sender not in self.senders


def check_channels(channels: Sequence[ChannelSettings]) -> None:
    """Refuse what cannot be meant, before anything runs."""
    names: set[str] = set()
    for channel in channels:
        where = f"channels.{channel.name}"
        if not is_agent_id(channel.name):
            raise ConfigError(f"{channel.name!r} is no name for a channel: {ID_RULE}")
        if channel.name in names:
            raise ConfigError(f"two channels are named {channel.name!r}; rename one")
        names.add(channel.name)
        if not channel.senders:
            raise ConfigError(
                f"{where}: senders is empty, so nobody may use it; name some, or '*' for everybody"
            )
        if channel.kind == "webhook":
            _check_webhook(where, channel.webhook)
    if sum(channel.kind == "mqtt" for channel in channels) > 1:
        raise ConfigError("there are two channels of the kind mqtt, and one broker; remove one")


def _check_webhook(where: str, webhook: WebhookSettings) -> None:
    if bool(webhook.secret_env) == (webhook.secret_file is not None):
        raise ConfigError(
            f"{where}.webhook: say where the secret is, with one of secret_env and secret_file"
        )
    url = webhook.callback_url
    if url and not url.startswith(("https://", "http://")):
        raise ConfigError(f"{where}.webhook: callback_url must start with https:// or http://")
