"""The settings of channels that reach agents through a chat service or a mailbox."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.service_credentials import check_secret, check_url

_Port = Annotated[int, Meta(ge=0, le=65_535)]
MailSecurity = Literal["starttls", "tls", "none"]


class TelegramBotSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Telegram bot; senders are the numbers of Telegram users."""

    token_env: str = ""
    """The environment variable with the token of the bot; or set `token_file`."""
    token_file: Path | None = None
    """The file with the token of the bot; or set `token_env`."""
    url: str = "https://api.telegram.org"
    """The server of the Bot API."""


class SlackAppSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Slack app in Socket Mode; senders are member ids such as `U012AB3CD`."""

    token_env: str = ""
    """The environment variable with the bot token (`xoxb-`); or set `token_file`."""
    token_file: Path | None = None
    """The file with the bot token (`xoxb-`); or set `token_env`."""
    app_token_env: str = ""
    """The environment variable with the app-level token (`xapp-`); or set `app_token_file`."""
    app_token_file: Path | None = None
    """The file with the app-level token (`xapp-`); or set `app_token_env`."""
    url: str = "https://slack.com/api"
    """The server of the Web API."""


class DiscordBotSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Discord bot; senders are the numbers of Discord users."""

    token_env: str = ""
    """The environment variable with the token of the bot; or set `token_file`."""
    token_file: Path | None = None
    """The file with the token of the bot; or set `token_env`."""
    url: str = "https://discord.com/api/v10"
    """The server of the API."""


class MatrixAccountSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at a Matrix homeserver; senders are user ids such as `@ann:example.org`."""

    url: str = ""
    """The homeserver."""
    token_env: str = ""
    """The environment variable with the access token of the account; or set `token_file`."""
    token_file: Path | None = None
    """The file with the access token of the account; or set `token_env`."""


class MailboxSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mailbox of the agent's own; senders are mail addresses in lower case."""

    address: str = ""
    """The address of the mailbox; answers come from it."""
    imap_server: str = ""
    """The host name of the server that mails are read from."""
    imap_port: _Port = 0
    """0 is 993, or 143 for `starttls`."""
    imap_security: MailSecurity = "tls"
    """How the connection is encrypted; `none` only for a server on this machine."""
    smtp_server: str = ""
    """The host name of the server that mails are sent with."""
    smtp_port: _Port = 0
    """0 is 587, or 465 for `tls`."""
    smtp_security: MailSecurity = "starttls"
    """How the connection is encrypted; `none` only for a server on this machine."""
    ca_file: Path | None = None
    """The CA of the servers' certificates; default: the CAs that the system trusts."""
    user: str = ""
    """The user name at both servers; default: the address."""
    password_env: str = ""
    """The environment variable with the password; or set `password_file`."""
    password_file: Path | None = None
    """The file with the password; or set `password_env`."""
    folder: str = "INBOX"
    """The folder that is read."""
    poll_s: Annotated[float, Meta(ge=0.05, le=3_600)] = 15.0
    """Seconds between two checks for new mails."""
    authserv_id: str = ""
    """The name with which your mail server signs its `Authentication-Results`. If set, only mails
    with `dmarc=pass` are answered; if not, every mail is untrusted, because a sender can be
    forged."""


class ChatTables(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table of each kind of chat channel."""

    telegram: TelegramBotSettings = TelegramBotSettings()
    slack: SlackAppSettings = SlackAppSettings()
    discord: DiscordBotSettings = DiscordBotSettings()
    matrix: MatrixAccountSettings = MatrixAccountSettings()
    email: MailboxSettings = MailboxSettings()


CHAT_KINDS = ("telegram", "slack", "discord", "matrix", "email")


def check_chat(where: str, kind: str, tables: ChatTables) -> None:
    """Raise `ConfigError` for settings that cannot work.

    Args:
        where: The setting, for error messages.
        kind: One of `CHAT_KINDS`.
        tables: The tables of the channel.
    """
    if kind == "email":
        _check_mailbox(f"{where}.email", tables.email)
        return
    table = getattr(tables, kind)
    check_service_url(f"{where}.{kind}: url", table.url)
    check_secret(f"{where}.{kind}", "token", table)
    if kind == "slack":
        check_secret(f"{where}.slack", "app_token", table)


def _check_mailbox(where: str, mailbox: MailboxSettings) -> None:
    if mailbox.address.count("@") != 1 or not mailbox.address.isprintable():
        raise ConfigError(f"{where}: address: {mailbox.address!r} is not a mail address")
    for key in ("imap", "smtp"):
        server: str = getattr(mailbox, f"{key}_server")
        if not server:
            raise ConfigError(f"{where}: {key}_server is empty; name your mail server")
        if getattr(mailbox, f"{key}_security") == "none" and not _is_loopback(server):
            raise ConfigError(
                f"{where}: {key}_security = 'none' would send the password unencrypted; "
                "use starttls or tls"
            )
    check_secret(where, "password", mailbox)


def check_service_url(where: str, url: str) -> None:
    """Raise `ConfigError` for a URL that a token may not be sent to."""
    parts = check_url(where, url)
    if parts.scheme == "http" and not _is_private(parts.hostname or ""):
        raise ConfigError(
            f"{where} must use https: http would send the token unencrypted; it is allowed only "
            "for localhost and for private addresses"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_private(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_private
