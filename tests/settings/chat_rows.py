"""The chat channels of `evoclaw.toml`: what each key changes in the client of the service."""

from __future__ import annotations

from typing import Any

from evoclaw.orchestrator.channels.chat.channel import ChatChannel
from tests.settings.rows import Built, Row, Rows, inside

SHOWN = "tests/orchestrator/channels/chat"
HTTP = 'token_env = "SECRET"\nurl = "http://127.0.0.1:9/"\n'
MAIL = (
    'address = "a@b.c"\nimap_server = "127.0.0.1"\nimap_port = 9\nsmtp_server = "127.0.0.1"\n'
    'password_env = "SECRET"\n'
)
TABLES = {
    "telegram": HTTP,
    "slack": f'{HTTP}app_token_env = "SECRET"\n',
    "discord": HTTP,
    "matrix": HTTP,
    "email": MAIL,
}
"""The settings that each kind needs; nothing answers at these addresses."""
SECRET = {"token_env": '"OTHER"', "token_file": '"FOLDER/token"', "url": '"http://127.0.0.1:8/"'}
VALUES = {
    "telegram": SECRET,
    "slack": SECRET | {"app_token_env": '"OTHER"', "app_token_file": '"FOLDER/token"'},
    "discord": SECRET,
    "matrix": SECRET,
    "email": {
        "address": '"x@b.c"', "imap_server": '"localhost"', "imap_port": "8",
        "imap_security": '"starttls"', "smtp_server": '"localhost"', "smtp_port": "8",
        "smtp_security": '"tls"', "ca_file": '"FOLDER/server.pem"', "user": '"ann"',
        "password_env": '"OTHER"', "password_file": '"FOLDER/password"', "folder": '"Eggs"',
        "poll_s": "7", "authserv_id": '"mx.b.c"',
    },
}  # fmt: skip
"""Another value of each key."""


def _table(kind: str, lines: str) -> str:
    return f'[[channels]]\nname = "one"\nkind = "{kind}"\n[channels.{kind}]\n{lines}'


def _changed(kind: str, key: str, value: str) -> str:
    """The settings of a kind, with another value of a key."""
    stem = key.removesuffix("_env").removesuffix("_file")
    is_secret = key != stem
    kept = [
        line
        for line in TABLES[kind].splitlines()
        if (name := line.partition(" = ")[0]) != key
        and not (is_secret and name in (f"{stem}_env", f"{stem}_file"))
    ]
    return _table(kind, "\n".join([*kept, f"{key} = {value}"]) + "\n")


async def _seen(here: Built) -> Any:
    """The settings of the channel, and what its client was built with."""
    (channel,) = [c for c in (await here.service()).channels if isinstance(c, ChatChannel)]
    client = inside(channel, "_service")
    if channel.settings.kind == "email":
        return repr(channel.settings), inside(client, "_password"), inside(client, "_user")
    headers = [repr(getattr(client, name, "")) for name in ("_bot", "_app")]
    http = inside(client, "_http")
    return repr(channel.settings), inside(http, "_url"), repr(inside(http, "_headers")), headers


CHAT_ROWS: Rows = {
    f"channels.{kind}.{key}": Row(
        _changed(kind, key, value), _seen, _table(kind, TABLES[kind]), SHOWN
    )
    for kind, values in VALUES.items()
    for key, value in values.items()
}
