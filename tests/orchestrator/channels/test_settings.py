from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.factory import build_channels
from evoclaw.orchestrator.channels.mqtt import MqttChannel
from evoclaw.orchestrator.channels.settings import ChannelSettings, WebhookSettings, check_channels
from evoclaw.orchestrator.channels.webhooks import WebhookChannel
from evoclaw.orchestrator.service_credentials import read_secret
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from tests.support.channels import open_channel_harness

SIGNED = WebhookSettings(secret_env="HOOK_SECRET")
HOOK = ChannelSettings(name="hook", kind="webhook", senders=("ann",), webhook=SIGNED)
BOXES = ChannelSettings(name="boxes", kind="mqtt", senders=("ann",))
ENV = {"HOOK_SECRET": "0123456789abcdef"}


def test_a_sender_maps_to_a_user_name_or_a_channel_scoped_name() -> None:
    table = ChannelSettings(name="hook", kind="mqtt", senders={"U1": "ann", "U2": ""})
    assert [table.user_of(one) for one in ("U1", "U2", "U3")] == ["ann", "hook:U2", None]
    assert not table.is_untrusted("U1")


def test_wildcard_senders_are_accepted_but_untrusted() -> None:
    every = ChannelSettings(name="hook", kind="mqtt", senders={"*": "boss", "U1": "ann"})
    assert [every.user_of(one) for one in ("U1", "U3", "*")] == ["ann", "hook:U3", "hook:*"]
    assert [every.is_untrusted(one) for one in ("U1", "U3", "*")] == [False, True, True]


@pytest.mark.parametrize(
    ("channels", "problem"),
    [
        ([HOOK, HOOK], "two channels are named 'hook'"),
        ([ChannelSettings(name="a b", kind="mqtt", senders=("*",))], "invalid channel name"),
        ([ChannelSettings(name="a", kind="mqtt")], "no one may use it"),
        ([BOXES, ChannelSettings(name="b", kind="mqtt", senders=("*",))], "one broker"),
        ([ChannelSettings(name="a", kind="webhook", senders=("*",))], "one of secret_env and"),
    ],
)
def test_invalid_channel_settings_are_refused(
    channels: list[ChannelSettings], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_channels(channels)


def test_a_callback_url_must_be_an_http_url() -> None:
    wrong = WebhookSettings(secret_env="X", callback_url="ftp://example.org")
    with pytest.raises(ConfigError, match="https://"):
        check_channels([ChannelSettings(name="a", kind="webhook", senders=("*",), webhook=wrong)])


async def test_channels_are_built_as_configured(tmp_path: Path) -> None:
    def link() -> MemoryLink:
        return MemoryLink(MemoryBroker())

    async with open_channel_harness(tmp_path) as made:
        hook, boxes = build_channels([HOOK, BOXES], ENV, link, made.letters, made.asking)
    assert isinstance(hook, WebhookChannel)
    assert isinstance(boxes, MqttChannel)


def test_a_webhook_secret_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    place.write_text("from the file, long\n")
    filed = WebhookSettings(secret_file=place)
    assert read_secret("hook", "secret", HOOK.webhook, ENV) == "0123456789abcdef"
    assert read_secret("a", "secret", filed, {}) == "from the file, long"

    with pytest.raises(ConfigError, match="HOOK_SECRET is empty"):
        read_secret("hook", "secret", HOOK.webhook, {})
    place.unlink()
    with pytest.raises(ConfigError, match="cannot read the secret"):
        read_secret("a", "secret", filed, {})


def test_a_webhook_secret_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="too short"):
        WebhookChannel(HOOK, b"secret")
