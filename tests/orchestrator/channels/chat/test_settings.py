from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.chat.commands import command_of
from evoclaw.orchestrator.channels.chat.settings import (
    DiscordBotSettings,
    MailboxSettings,
    MatrixAccountSettings,
    SlackAppSettings,
    TelegramBotSettings,
)
from evoclaw.orchestrator.channels.factory import build_service
from evoclaw.orchestrator.channels.settings import ChannelKind, ChannelSettings, check_channels

MAIL = MailboxSettings(
    address="a@b.test", imap_server="b.test", smtp_server="b.test", password_env="P"
)


def chat(kind: ChannelKind, **more: JSON) -> ChannelSettings:
    return replace(ChannelSettings(name="one", kind=kind), **more)


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        (chat("telegram"), "exactly one of token_env and token_file"),
        (
            chat("telegram", telegram=TelegramBotSettings(token_env="A", token_file=Path("b"))),
            "exactly one of token_env and token_file",
        ),
        (
            chat("slack", slack=SlackAppSettings(token_env="A")),
            "exactly one of app_token_env and app_token_file",
        ),
        (
            chat("discord", discord=DiscordBotSettings(token_env="A", url="http://discord.test")),
            "http would send the token unencrypted",
        ),
        (chat("matrix", matrix=MatrixAccountSettings(token_env="A")), "must start with https://"),
        (
            chat("matrix", matrix=MatrixAccountSettings(token_env="A", url="https://u:p@m.test")),
            "may not contain a password",
        ),
        (
            chat("telegram", slack=SlackAppSettings(token_env="A")),
            r"\[channels.slack\] has no effect for kind 'telegram'",
        ),
        (chat("email", email=replace(MAIL, address="a")), "not a mail address"),
        (chat("email", email=replace(MAIL, smtp_server="")), "smtp_server is"),
        (
            chat("email", email=replace(MAIL, imap_security="none")),
            "imap_security = 'none' would send the password unencrypted",
        ),
        (
            chat("email", email=replace(MAIL, smtp_security="none")),
            "smtp_security = 'none' would send the password unencrypted",
        ),
        (
            chat("email", email=replace(MAIL, password_file=Path("p"))),
            "exactly one of password_env and password_file",
        ),
        (
            chat("email", email=MAIL, senders=("*",)),
            "would answer forged mails",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(channel: ChannelSettings, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_channels([channel])


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    from_file = TelegramBotSettings(token_file=tmp_path / "token")
    with pytest.raises(ConfigError, match="cannot read the token of the channel 'one'"):
        build_service(chat("telegram", telegram=from_file), {})
    slack = SlackAppSettings(token_env="BOT", app_token_env="APP")
    with pytest.raises(ConfigError, match="APP is empty; it must hold the app token"):
        build_service(chat("slack", slack=slack), {"BOT": "xoxb-1"})


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", "new"),
        ("/Stop@cook_bot", "stop"),
        ("!status\n\nSent from my phone", "status"),
        ("/start", "help"),
        ("approve abcd2345", "answer"),
        ("Deny ABCD2345.", "answer"),
        ("approve the plan", ""),
        ("/etc/passwd", ""),
        ("/unknown", ""),
        ("what does /new do?", ""),
    ],
)
def test_commands_are_recognised_by_the_first_line(text: str, command: str) -> None:
    assert command_of(text) == command
