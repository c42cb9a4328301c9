"""Each kind of notifier, against a local server that speaks the documented API of its service."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from aiohttp import web

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.notifications.desktop import DesktopSender
from evoclaw.orchestrator.notifications.discord import DiscordSender
from evoclaw.orchestrator.notifications.messages import Notification, NotificationLink
from evoclaw.orchestrator.notifications.mqtt import MqttSender
from evoclaw.orchestrator.notifications.ntfy import NtfySender
from evoclaw.orchestrator.notifications.settings import (
    EmailSettings,
    NotifyMqttSettings,
    NotifyWebhookSettings,
    NtfySettings,
    TelegramSettings,
)
from evoclaw.orchestrator.notifications.slack import SlackSender
from evoclaw.orchestrator.notifications.smtp import EmailSender
from evoclaw.orchestrator.notifications.telegram import TelegramSender
from evoclaw.orchestrator.notifications.webhook import WebhookSender
from tests.support.brokers import mosquitto
from tests.support.certificates import make_certificates
from tests.support.mail_server import PASSWORD, USER, mail_server
from tests.support.mosquitto_clients import MosquittoClient, needs_mosquitto_clients
from tests.support.notification_services import (
    BOT_TOKEN,
    DISCORD_PATH,
    NTFY_TOKEN,
    SLACK_PATH,
    WEBHOOK_SECRET,
    notification_services,
)

APPROVE, DENY = "https://evo.test/v1/answers/one", "https://evo.test/v1/answers/two"
HOME = "https://evo.test/#/approvals"
NOTICE = Notification(
    "approval-1",
    "approval",
    "Approval needed",
    "helper wants to use bash on laptop: <it> acts & *changes* @everyone.",
    HOME,
    (NotificationLink("Approve", APPROVE), NotificationLink("Deny", DENY)),
)
PLAIN = Notification("run-1", "failed", "A run failed", "It failed.")


async def test_ntfy_gets_a_message_with_buttons() -> None:
    async with notification_services() as services:
        sender = NtfySender(NtfySettings(url=f"{services.url}/ntfy", topic="protected"), NTFY_TOKEN)
        assert await sender.send(NOTICE, "") == "the topic 'protected'"
        await sender.send(PLAIN, "")
        first, second = (found.body for found in services.of("ntfy"))
    assert (first["title"], first["message"]) == (NOTICE.title, NOTICE.text)
    assert (first["priority"], first["click"]) == (4, HOME)
    assert [(one["action"], one["label"], one["url"]) for one in first["actions"]] == [
        ("view", "Approve", APPROVE),
        ("view", "Deny", DENY),
        ("view", "Open", HOME),
    ]
    assert "actions" not in second
    assert "click" not in second


async def test_an_error_quotes_the_service_but_no_secret() -> None:
    async with notification_services() as services:
        wrong = "tk_wrong_and_secret_token_of_mine"
        sender = NtfySender(NtfySettings(url=f"{services.url}/ntfy", topic="protected"), wrong)
        with pytest.raises(Undelivered, match="status 403.*forbidden") as caught:
            await sender.send(PLAIN, "")
        assert not caught.value.final  # the operator may correct the token
        assert wrong not in str(caught.value)
        token = BOT_TOKEN.replace("AAH", "AAX")
        bot = TelegramSender(TelegramSettings(chat_id="1", url=services.url), token)
        with pytest.raises(Undelivered, match="Telegram answered with status 401.*Unauthorized"):
            await bot.send(PLAIN, "")
        closed = TelegramSender(TelegramSettings(chat_id="1", url="http://127.0.0.1:1"), token)
        with pytest.raises(Undelivered, match="Telegram cannot be reached") as caught:
            await closed.send(PLAIN, "")
        assert token not in str(caught.value)


async def test_a_service_that_is_busy_says_when_to_try_again() -> None:
    async with notification_services() as services:
        services.refusals.append(web.Response(status=429, headers={"Retry-After": "7"}))
        sender = SlackSender(services.url + SLACK_PATH)
        with pytest.raises(Undelivered) as caught:
            await sender.send(PLAIN, "")
    assert caught.value.retry_after == 7


async def test_plain_http_is_refused_outside_of_private_networks() -> None:
    sender = SlackSender("http://8.8.8.8/services/secret")
    with pytest.raises(Undelivered, match="must use https") as caught:
        await sender.send(PLAIN, "")
    assert caught.value.final
    assert "services/secret" not in str(caught.value)


async def test_a_webhook_gets_signed_json() -> None:
    async with notification_services() as services:
        settings = NotifyWebhookSettings(url=f"{services.url}/hook")
        await WebhookSender("hook", settings, WEBHOOK_SECRET).send(NOTICE, "")
        (found,) = services.of("webhook")
    assert found.body == {
        "notifier": "hook",
        "id": "approval-1",
        "reason": "approval",
        "title": NOTICE.title,
        "text": NOTICE.text,
        "link": HOME,
        "answers": {"approve": APPROVE, "deny": DENY},
    }
    with pytest.raises(ConfigError, match="too short"):
        WebhookSender("hook", settings, "short")


async def test_telegram_gets_a_message_with_link_buttons() -> None:
    async with notification_services() as services:
        settings = TelegramSettings(chat_id="4711", url=services.url)
        assert await TelegramSender(settings, BOT_TOKEN).send(NOTICE, "") == "the chat 4711"
        (found,) = services.of("telegram")
    assert found.body["chat_id"] == "4711"
    assert found.body["text"] == f"{NOTICE.title}\n{NOTICE.text}"
    assert "parse_mode" not in found.body  # what an agent wrote is not markup
    (row,) = found.body["reply_markup"]["inline_keyboard"]
    assert [(one["text"], one["url"]) for one in row] == [
        ("Approve", APPROVE),
        ("Deny", DENY),
        ("Open", HOME),
    ]


async def test_slack_gets_plain_text_with_link_buttons() -> None:
    async with notification_services() as services:
        await SlackSender(services.url + SLACK_PATH).send(NOTICE, "")
        (found,) = services.of("slack")
    section, actions = found.body["blocks"]
    assert section["text"]["type"] == "plain_text"
    assert section["text"]["text"].endswith(NOTICE.text)
    assert [one["url"] for one in actions["elements"]] == [APPROVE, DENY, HOME]
    assert found.body["text"] == NOTICE.title


async def test_discord_gets_escaped_text_without_mentions_and_link_buttons() -> None:
    async with notification_services() as services:
        await DiscordSender(services.url + DISCORD_PATH).send(NOTICE, "")
        await DiscordSender(services.url + DISCORD_PATH).send(PLAIN, "")
        found, plain = (one.body for one in services.of("discord"))
    assert found["allowed_mentions"] == {"parse": []}
    assert "\\*changes\\*" in found["content"]
    (row,) = found["components"]
    assert [(one["style"], one["url"]) for one in row["components"]] == [
        (5, APPROVE),
        (5, DENY),
        (5, HOME),
    ]
    assert "components" not in plain


async def test_mail_is_sent_encrypted_and_after_a_login(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with mail_server(certificates) as server:
        settings = EmailSettings(
            server="127.0.0.1",
            port=server.port,
            ca_file=certificates.ca,
            user=USER,
            sender="evoclaw@example.org",
            to=("ann@example.org", "bob@example.org"),
        )
        sender = EmailSender(settings, PASSWORD)
        assert await sender.send(NOTICE, "") == "ann@example.org, bob@example.org"
        await sender.send(NOTICE, "")
        with pytest.raises(Undelivered, match="did not take the mail.*wrong password") as caught:
            await EmailSender(settings, "wrong password of mine").send(NOTICE, "")
        assert "of mine" not in str(caught.value)
    mail, again = server.mails
    assert server.encrypted == [True, True]
    assert server.recipients[0] == ["ann@example.org", "bob@example.org"]
    assert mail["Subject"] == "EvoClaw: Approval needed"
    assert mail["Message-ID"] == again["Message-ID"]
    text = mail.get_content()
    assert NOTICE.text in text
    assert f"Approve: {APPROVE}" in text
    assert f"Deny: {DENY}" in text


async def test_mail_is_sent_over_a_connection_that_is_encrypted_from_the_start(
    tmp_path: Path,
) -> None:
    certificates = make_certificates(tmp_path)
    async with mail_server(certificates, encrypted=True) as server:
        settings = EmailSettings(
            server="127.0.0.1",
            port=server.port,
            security="tls",
            ca_file=certificates.ca,
            user=USER,
            sender="a@b.c",
            to=("d@e.f",),
        )
        await EmailSender(settings, PASSWORD).send(PLAIN, "")
    assert (len(server.mails), server.encrypted) == (1, [True])


async def test_mail_is_not_sent_to_a_server_that_cannot_prove_its_name(tmp_path: Path) -> None:
    async with mail_server(make_certificates(tmp_path)) as server:
        settings = EmailSettings(
            server="127.0.0.1", port=server.port, user=USER, sender="a@b.c", to=("d@e.f",)
        )
        with pytest.raises(Undelivered, match="certificate"):
            await EmailSender(settings, PASSWORD).send(NOTICE, "")
    assert not server.mails


@needs_mosquitto_clients
@pytest.mark.process
async def test_a_broker_gets_the_message_as_json() -> None:
    async with mosquitto(users={"ann": "secret"}) as broker:
        listener = MosquittoClient(f"mqtt://127.0.0.1:{broker.port}", "ann", "secret")
        url = f"mqtt://ann@127.0.0.1:{broker.port}"
        settings = NotifyMqttSettings(url=url, topic="home/evoclaw")
        async with listener.subscribed("home/evoclaw") as heard:
            sender = MqttSender(settings, "secret")
            assert await sender.send(NOTICE, "") == "the topic 'home/evoclaw'"
            await sender.send(PLAIN, "")
            await heard.wait_for(2)
        assert [body["title"] for body in heard.messages] == [NOTICE.title, PLAIN.title]
        assert heard.messages[0]["answers"] == {"approve": APPROVE, "deny": DENY}
        with pytest.raises(Undelivered, match="the broker cannot be used"):
            await MqttSender(settings, "wrong").send(NOTICE, "")


def _program(folder: Path, text: str) -> str:
    path = folder / "notify-send"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.process
async def test_the_desktop_shows_the_message_as_text(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    program = _program(tmp_path, f'printf "%s\\n" "$@" > {shown}')
    sender = DesktopSender(lambda name: program if name == "notify-send" else None)
    assert await sender.send(NOTICE, "") == "the desktop of this machine"
    assert shown.read_text().splitlines() == [
        "--app-name=EvoClaw",
        "--",
        NOTICE.title,
        "helper wants to use bash on laptop: &lt;it> acts &amp; *changes* @everyone.",
    ]
    broken = _program(tmp_path, "echo no session bus >&2; exit 1")
    with pytest.raises(Undelivered, match="no session bus"):
        await DesktopSender(lambda name: broken).send(NOTICE, "")


def test_a_desktop_notifier_without_its_program_is_an_error() -> None:
    with pytest.raises(ConfigError, match="install libnotify"):
        DesktopSender(lambda name: None)
