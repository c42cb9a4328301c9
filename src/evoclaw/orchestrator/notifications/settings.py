"""The settings of notifiers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.service_credentials import check_secret, check_url
from evoclaw.transport.address import parse_url
from evoclaw.transport.topics import ID_RULE, is_agent_id

NotifierKind = Literal[
    "desktop", "ntfy", "webhook", "telegram", "slack", "discord", "email", "mqtt", "webpush"
]
NotificationReason = Literal["approval", "question", "failed", "long_run"]
_PRIVATE_CHAT = re.compile(r"[1-9][0-9]{0,19}")
_CHAT = re.compile(r"-?[0-9]{1,20}|@[A-Za-z][A-Za-z0-9_]{3,63}")
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")
WITHOUT_ANSWERS = ("desktop",)
"""Kinds that show no links."""


class NtfySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic of an ntfy server."""

    url: str = "https://ntfy.sh"
    """The server."""
    topic: str = ""
    """The topic; on a public server everyone who guesses it can read it."""
    token_env: str = ""
    """The environment variable with the access token; or set `token_file`."""
    token_file: Path | None = None
    """The file with the access token, for a topic that only you may read."""


class NotifyWebhookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL of your own; requests are signed like those of channels."""

    url: str = ""
    """Where notifications are posted as JSON."""
    secret_env: str = ""
    """The environment variable with the secret that signs requests; or set `secret_file`."""
    secret_file: Path | None = None
    """The file with the secret; or set `secret_env`."""


class TelegramSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat with a Telegram bot."""

    chat_id: str = ""
    """The chat: a number, or `@` and the name of a channel; groups have negative numbers."""
    token_env: str = ""
    """The environment variable with the token of the bot; or set `token_file`."""
    token_file: Path | None = None
    """The file with the token of the bot; or set `token_env`."""
    url: str = "https://api.telegram.org"
    """The server of the Bot API."""


class SlackSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An incoming webhook of Slack; its URL is a secret."""

    url_env: str = ""
    """The environment variable with the URL of the webhook; or set `url_file`."""
    url_file: Path | None = None
    """The file with the URL of the webhook; or set `url_env`."""


class DiscordSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook of a Discord channel; its URL is a secret."""

    url_env: str = ""
    """The environment variable with the URL of the webhook; or set `url_file`."""
    url_file: Path | None = None
    """The file with the URL of the webhook; or set `url_env`."""


class EmailSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mail server, and the addresses of the mails."""

    server: str = ""
    """The host name of the mail server (SMTP)."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """0 is 587, or 465 for `tls`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted; `none` only for a mail server on this machine."""
    ca_file: Path | None = None
    """The CA of the server's certificate; default: the CAs that the system trusts."""
    user: str = ""
    """The user name at the mail server; empty: no login."""
    password_env: str = ""
    """The environment variable with the password; or set `password_file`."""
    password_file: Path | None = None
    """The file with the password; or set `password_env`."""
    sender: str = ""
    """The address that mails come from."""
    to: tuple[str, ...] = ()
    """The addresses that mails go to."""


class NotifyMqttSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic of an MQTT broker of your own."""

    url: str = ""
    """The broker: `mqtt://user@host:1883` or `mqtts://host`."""
    topic: str = "evoclaw/notifications"
    """Notifications are published here as JSON, with QoS 1, not retained."""
    password_env: str = ""
    """The environment variable with the password; or set `password_file`."""
    password_file: Path | None = None
    """The file with the password; or set `password_env`."""
    ca_file: Path | None = None
    """The CA of the broker's certificate; default: the CAs that the system trusts."""


class WebPushSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Web Push to the browsers that were added in the dashboard."""

    contact: str = ""
    """How the push services of browsers reach you: `mailto:` and an address, or an https URL."""
    allow: tuple[str, ...] = ()
    """Non-public addresses or networks of push services that may be reached."""


class NotifySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[notify]]`."""

    name: str
    """A name of your choice."""
    kind: NotifierKind
    """How messages are sent; the table of this name has its settings."""
    tenant: str = "local"
    """Whose approvals, questions and runs it reports."""
    users: tuple[str, ...] = ()
    """Report only what concerns these users; empty: every user of the tenant."""
    on: tuple[NotificationReason, ...] = ("approval", "question", "failed", "long_run")
    """What it reports: a call waits for an approval, a question waits for an answer, a run failed,
    a run ended after at least `long_run_s`."""
    long_run_s: Annotated[float, Meta(ge=1, le=30 * 86_400)] = 300.0
    """Seconds after which a run counts as long."""
    max_per_hour: Annotated[int, Meta(ge=1, le=1_000)] = 20
    """Messages in an hour; one summary replaces further ones."""
    answers: bool | None = None
    """Whether messages have links that approve or deny. By default yes if the message reaches one
    person: a private Telegram chat, an ntfy topic with a token, one mail address, Web Push."""
    answer_s: Annotated[int, Meta(ge=60, le=86_400)] = 900
    """Seconds for which these links are valid."""
    ntfy: NtfySettings = NtfySettings()
    webhook: NotifyWebhookSettings = NotifyWebhookSettings()
    telegram: TelegramSettings = TelegramSettings()
    slack: SlackSettings = SlackSettings()
    discord: DiscordSettings = DiscordSettings()
    email: EmailSettings = EmailSettings()
    mqtt: NotifyMqttSettings = NotifyMqttSettings()
    webpush: WebPushSettings = WebPushSettings()

    @property
    def reaches_one_person(self) -> bool:
        """Whether the settings say that only one person sees the messages."""
        match self.kind:
            case "telegram":
                return _PRIVATE_CHAT.fullmatch(self.telegram.chat_id) is not None
            case "ntfy":
                return bool(self.ntfy.token_env or self.ntfy.token_file)
            case "email":
                return len(self.email.to) == 1
            case "webpush":
                return True
            case _:
                return False

    @property
    def sends_answers(self) -> bool:
        """Whether messages have links that approve or deny."""
        return self.reaches_one_person if self.answers is None else self.answers


def check_notify(notifiers: Sequence[NotifySettings], public_url: str) -> None:
    """Raise `ConfigError` for invalid notifiers, before anything runs.

    Args:
        notifiers: The `[[notify]]` tables.
        public_url: The address that links start with; empty if there is none.
    """
    names: set[str] = set()
    for notifier in notifiers:
        where = f"notify.{notifier.name}"
        if not is_agent_id(notifier.name):
            raise ConfigError(f"invalid notifier name {notifier.name!r}: {ID_RULE}")
        if notifier.name in names:
            raise ConfigError(f"two notifiers are named {notifier.name!r}; rename one")
        names.add(notifier.name)
        if not notifier.on:
            raise ConfigError(f"{where}: on is empty, so it reports nothing; remove the notifier")
        _check_tables(where, notifier)
        if notifier.answers:
            _check_answers(where, notifier, public_url)
        if (check := _CHECKS.get(notifier.kind)) is not None:
            check(where, notifier)
    if sum(notifier.kind == "webpush" for notifier in notifiers) > len(
        {notifier.tenant for notifier in notifiers if notifier.kind == "webpush"}
    ):
        raise ConfigError("a tenant has two notifiers of kind 'webpush'; remove one")


def _check_tables(where: str, notifier: NotifySettings) -> None:
    """Refuse the table of another kind: it would have no effect."""
    defaults = NotifySettings(name="", kind="ntfy")
    for table in _CHECKS:
        if table != notifier.kind and getattr(notifier, table) != getattr(defaults, table):
            raise ConfigError(
                f"{where}: [notify.{table}] has no effect for kind {notifier.kind!r}; remove the "
                "table, or change the kind"
            )


def _check_answers(where: str, notifier: NotifySettings, public_url: str) -> None:
    if notifier.kind in WITHOUT_ANSWERS:
        raise ConfigError(f"{where}: answers: a {notifier.kind} notice has no links; remove it")
    if not public_url:
        raise ConfigError(
            f"{where}: answers needs an address for its links: set public_url in [server] to the "
            "URL under which your phone reaches this service"
        )


def _check_ntfy(where: str, notifier: NotifySettings) -> None:
    check_url(f"{where}.ntfy: url", notifier.ntfy.url)
    if not _TOPIC.fullmatch(notifier.ntfy.topic):
        raise ConfigError(
            f"{where}.ntfy: topic must have 1 to 64 letters, digits, _ or -; choose one that "
            "cannot be guessed"
        )
    check_secret(f"{where}.ntfy", "token", notifier.ntfy, optional=True)


def _check_webhook(where: str, notifier: NotifySettings) -> None:
    check_url(f"{where}.webhook: url", notifier.webhook.url)
    check_secret(f"{where}.webhook", "secret", notifier.webhook)


def _check_telegram(where: str, notifier: NotifySettings) -> None:
    check_url(f"{where}.telegram: url", notifier.telegram.url)
    if not _CHAT.fullmatch(notifier.telegram.chat_id):
        raise ConfigError(
            f"{where}.telegram: chat_id must be the number of a chat, in quotes, or the @name of a "
            "channel; see the guide about notifications"
        )
    check_secret(f"{where}.telegram", "token", notifier.telegram)


def _check_slack(where: str, notifier: NotifySettings) -> None:
    check_secret(f"{where}.slack", "url", notifier.slack)


def _check_discord(where: str, notifier: NotifySettings) -> None:
    check_secret(f"{where}.discord", "url", notifier.discord)


def _check_webpush(where: str, notifier: NotifySettings) -> None:
    if not notifier.webpush.contact.startswith(("mailto:", "https://")):
        raise ConfigError(
            f"{where}.webpush: contact must be mailto: and your address, or an https URL; push "
            "services refuse messages without it"
        )
    for network in notifier.webpush.allow:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise ConfigError(
                f"{where}.webpush: allow: {network!r} is not an address or a network"
            ) from None


def _check_email(where: str, notifier: NotifySettings) -> None:
    email = notifier.email
    if not email.server:
        raise ConfigError(f"{where}.email: server is empty; name your mail server")
    for key, addresses in (("sender", (email.sender,)), ("to", email.to)):
        for address in addresses:
            if not _ADDRESS.fullmatch(address):
                raise ConfigError(f"{where}.email: {key}: {address!r} is not a mail address")
    if not email.to:
        raise ConfigError(f"{where}.email: to is empty; list the addresses that get the mails")
    check_secret(f"{where}.email", "password", email, optional=not email.user)
    if email.security == "none" and email.user:
        raise ConfigError(
            f"{where}.email: security = 'none' would send the password unencrypted; use starttls"
        )
    if not email.user and (email.password_env or email.password_file):
        raise ConfigError(f"{where}.email: the password needs a user; set user")


def _check_mqtt(where: str, notifier: NotifySettings) -> None:
    mqtt = notifier.mqtt
    try:
        address = parse_url(mqtt.url)
    except ConfigError as problem:
        raise ConfigError(f"{where}.mqtt: url: {problem}") from None
    if not mqtt.topic or re.search(r"[+#\x00-\x1f]", mqtt.topic):
        raise ConfigError(f"{where}.mqtt: topic must be a topic without + and #")
    check_secret(f"{where}.mqtt", "password", mqtt, optional=True)
    if mqtt.ca_file is not None and address.tls is None:
        raise ConfigError(f"{where}.mqtt: ca_file is for mqtts:// addresses; change url")


_CHECKS: Mapping[str, Callable[[str, NotifySettings], None]] = {
    "ntfy": _check_ntfy,
    "webhook": _check_webhook,
    "telegram": _check_telegram,
    "slack": _check_slack,
    "discord": _check_discord,
    "email": _check_email,
    "mqtt": _check_mqtt,
    "webpush": _check_webpush,
}
"""By kind; those that are not here have no settings."""
