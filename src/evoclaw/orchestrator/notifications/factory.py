"""Builds what sends the messages of the configured notifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evoclaw.orchestrator.notifications.desktop import DesktopSender
from evoclaw.orchestrator.notifications.discord import DiscordSender
from evoclaw.orchestrator.notifications.messages import NotificationSender
from evoclaw.orchestrator.notifications.mqtt import MqttSender
from evoclaw.orchestrator.notifications.ntfy import NtfySender
from evoclaw.orchestrator.notifications.push_subscriptions import PushSubscriptions
from evoclaw.orchestrator.notifications.settings import NotifierKind, NotifySettings
from evoclaw.orchestrator.notifications.slack import SlackSender
from evoclaw.orchestrator.notifications.smtp import EmailSender
from evoclaw.orchestrator.notifications.telegram import TelegramSender
from evoclaw.orchestrator.notifications.webhook import WebhookSender
from evoclaw.orchestrator.notifications.webpush import WebPushSender
from evoclaw.orchestrator.service_credentials import check_url, read_secret


def build_senders(
    notifiers: Sequence[NotifySettings],
    env: Mapping[str, str],
    subscriptions: PushSubscriptions,
) -> Mapping[str, NotificationSender]:
    """Build all senders, by name; raise `ConfigError` for one that cannot work.

    Args:
        notifiers: The `[[notify]]` tables, which were checked.
        env: The environment variables, which may hold secrets.
        subscriptions: The browsers that receive Web Push.
    """
    return {notifier.name: _sender(notifier, env, subscriptions) for notifier in notifiers}


def check_senders(notifiers: Sequence[NotifySettings], env: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a notifier whose secret or program is missing."""
    for notifier in notifiers:
        if notifier.kind != "webpush":  # its key and its browsers are in the store
            _sender(notifier, env, None)


def _sender(
    notifier: NotifySettings, env: Mapping[str, str], subscriptions: PushSubscriptions | None
) -> NotificationSender:
    def secret(key: str) -> str:
        table = getattr(notifier, notifier.kind)
        return read_secret(f"the notifier {notifier.name!r}", key, table, env)

    def secret_url() -> str:
        url = secret("url")
        check_url(f"the URL of the notifier {notifier.name!r}", url)
        return url

    def web_push() -> WebPushSender:
        assert subscriptions is not None
        return WebPushSender(notifier, subscriptions)

    builders: Mapping[NotifierKind, Callable[[], NotificationSender]] = {
        "ntfy": lambda: NtfySender(notifier.ntfy, secret("token")),
        "webhook": lambda: WebhookSender(notifier.name, notifier.webhook, secret("secret")),
        "telegram": lambda: TelegramSender(notifier.telegram, secret("token")),
        "slack": lambda: SlackSender(secret_url()),
        "discord": lambda: DiscordSender(secret_url()),
        "email": lambda: EmailSender(notifier.email, secret("password")),
        "mqtt": lambda: MqttSender(notifier.mqtt, secret("password")),
        "desktop": DesktopSender,
        "webpush": web_push,
    }
    return builders[notifier.kind]()
