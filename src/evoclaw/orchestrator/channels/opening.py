"""Builds the channels that are configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.letters import Channel
from evoclaw.orchestrator.channels.mqtt import MqttChannel
from evoclaw.orchestrator.channels.settings import ChannelSettings, check_channels
from evoclaw.orchestrator.channels.webhooks import Webhook
from evoclaw.transport.link import Link


def open_channels(
    settings: Sequence[ChannelSettings], env: Mapping[str, str], link: Callable[[], Link]
) -> Sequence[Channel]:
    """All channels, ready to be served; raise `ConfigError` for one that cannot work.

    Args:
        settings: The `[[channels]]`.
        env: Where secrets may be.
        link: Makes a new link to the broker, for one channel alone.
    """
    check_channels(settings)
    return [
        MqttChannel(one, link()) if one.kind == "mqtt" else Webhook(one, read_secret(one, env))
        for one in settings
    ]


def read_secret(settings: ChannelSettings, env: Mapping[str, str]) -> bytes:
    """The secret of a webhook, from the environment or its file and nowhere else."""
    webhook = settings.webhook
    if webhook.secret_file is None:
        found = env.get(webhook.secret_env, "")
        where = f"the variable {webhook.secret_env}"
    else:
        where = str(webhook.secret_file)
        try:
            found = webhook.secret_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"cannot read the secret in {where}: {problem}") from None
    if not found:
        raise ConfigError(f"{where} holds no secret for the channel {settings.name!r}; put one in")
    return found.encode()
