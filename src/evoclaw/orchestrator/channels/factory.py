"""Builds the configured channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evoclaw.orchestrator.channels.chat.approvals import ChatApprovals
from evoclaw.orchestrator.channels.chat.channel import ChatChannel
from evoclaw.orchestrator.channels.chat.discord import DiscordBot
from evoclaw.orchestrator.channels.chat.mail import MailAccount
from evoclaw.orchestrator.channels.chat.matrix import MatrixAccount
from evoclaw.orchestrator.channels.chat.messages import ChatService
from evoclaw.orchestrator.channels.chat.pairing import ChannelPairing
from evoclaw.orchestrator.channels.chat.receiver_lease import ReceiverLease
from evoclaw.orchestrator.channels.chat.settings import CHAT_KINDS
from evoclaw.orchestrator.channels.chat.slack import SlackApp
from evoclaw.orchestrator.channels.chat.telegram import TelegramBot
from evoclaw.orchestrator.channels.dispatcher import Channel
from evoclaw.orchestrator.channels.mqtt import MqttChannel
from evoclaw.orchestrator.channels.settings import ChannelSettings, check_channels
from evoclaw.orchestrator.channels.webhooks import WebhookChannel
from evoclaw.orchestrator.service_credentials import read_secret
from evoclaw.store.channels import ChannelStore
from evoclaw.transport.link import Link


def build_channels(
    settings: Sequence[ChannelSettings],
    env: Mapping[str, str],
    link: Callable[[], Link],
    store: ChannelStore,
    approvals: ChatApprovals,
    lease_s: float | None = None,
) -> Sequence[Channel]:
    """Build all channels; raise `ConfigError` for one that cannot work.

    Args:
        settings: The `[[channels]]`.
        env: The environment variables, which may hold secrets.
        link: Makes a new connection to the broker, for one channel.
        store: Where chat channels store how far they have read.
        approvals: Asks for approvals in conversations.
        lease_s: Seconds after which another orchestrator receives the messages of a chat channel;
            None if no other orchestrator uses the store.
    """
    check_channels(settings)

    def build(channel: ChannelSettings) -> Channel:
        if channel.kind == "mqtt":
            return MqttChannel(channel, link())
        if channel.kind == "webhook":
            secret = read_secret(f"the channel {channel.name!r}", "secret", channel.webhook, env)
            return WebhookChannel(channel, secret.encode())
        pairing = ChannelPairing(channel.name, store)
        lease = None if lease_s is None else ReceiverLease(channel.name, store, lease_s)
        return ChatChannel(channel, build_service(channel, env), store, approvals, pairing, lease)

    return [build(channel) for channel in settings]


def build_service(channel: ChannelSettings, env: Mapping[str, str]) -> ChatService:
    """The client of a chat channel; raise `ConfigError` if its secret is missing."""
    assert channel.kind in CHAT_KINDS

    def secret(name: str) -> str:
        table = getattr(channel, channel.kind)
        return read_secret(f"the channel {channel.name!r}", name, table, env)

    builders: Mapping[str, Callable[[], ChatService]] = {
        "telegram": lambda: TelegramBot(channel.telegram, secret("token")),
        "slack": lambda: SlackApp(channel.slack, secret("token"), secret("app_token")),
        "discord": lambda: DiscordBot(channel.discord, secret("token")),
        "matrix": lambda: MatrixAccount(channel.matrix, secret("token")),
        "email": lambda: MailAccount(channel.email, secret("password")),
    }
    return builders[channel.kind]()
