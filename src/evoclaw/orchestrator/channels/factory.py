"""Builds the configured channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.dispatcher import Channel
from evoclaw.orchestrator.channels.mqtt import MqttChannel
from evoclaw.orchestrator.channels.settings import ChannelSettings, check_channels
from evoclaw.orchestrator.channels.webhooks import WebhookChannel
from evoclaw.transport.link import Link


def build_channels(
    settings: Sequence[ChannelSettings], env: Mapping[str, str], link: Callable[[], Link]
) -> Sequence[Channel]:
    """Build all channels; raise `ConfigError` for one that cannot work.

    Args:
        settings: The `[[channels]]`.
        env: The environment variables, which may hold secrets.
        link: Makes a new connection to the broker, for one channel.
    """
    check_channels(settings)
    return [
        MqttChannel(channel, link())
        if channel.kind == "mqtt"
        else WebhookChannel(channel, read_secret(channel, env))
        for channel in settings
    ]


def read_secret(settings: ChannelSettings, env: Mapping[str, str]) -> bytes:
    """The secret of a webhook, from its environment variable or its file."""
    webhook = settings.webhook
    if webhook.secret_file is None:
        found = env.get(webhook.secret_env, "")
        where = f"the environment variable {webhook.secret_env}"
    else:
        where = str(webhook.secret_file)
        try:
            found = webhook.secret_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(
                f"cannot read the secret of the channel {settings.name!r} in {where}: {problem}"
            ) from None
    if not found:
        raise ConfigError(
            f"{where} is empty; it must hold the secret of the channel {settings.name!r}"
        )
    return found.encode()
