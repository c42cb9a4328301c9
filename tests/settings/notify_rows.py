"""`[[notify]]` of `evoclaw.toml`: what each key changes in the notifiers of `evoclaw up`."""

from __future__ import annotations

from typing import Any

from evoclaw.orchestrator.notifications.settings import NotifySettings
from tests.settings.rows import Built, Row, Rows, inside

SHOWN = "tests/orchestrator/notifications"
URL = '[server]\npublic_url = "https://evo.test"\n'
NTFY = '[[notify]]\nname = "phone"\nkind = "ntfy"\n{more}[notify.ntfy]\ntopic = "t"\n'
TABLES = {
    "ntfy": 'topic = "t"\n',
    "webhook": 'url = "https://a.test/"\nsecret_env = "SECRET"\n',
    "telegram": 'chat_id = "1"\ntoken_env = "SECRET"\n',
    "slack": 'url_file = "FOLDER/slack.url"\n',
    "discord": 'url_file = "FOLDER/slack.url"\n',
    "email": 'server = "mail.test"\nsender = "a@b.c"\nto = ["d@e.f"]\n',
    "mqtt": 'url = "mqtt://ann@a.test"\n',
    "webpush": 'contact = "mailto:a@b.c"\n',
}
"""The settings that each kind needs."""
VALUES = {
    "ntfy": {"url": '"https://n.test"', "topic": '"u"', "token_env": '"SECRET"'},
    "webhook": {"url": '"https://b.test/"', "secret_env": '"OTHER"'},
    "telegram": {"chat_id": '"2"', "token_env": '"OTHER"', "url": '"https://t.test"'},
    "slack": {"url_file": '"FOLDER/other.url"'},
    "discord": {"url_file": '"FOLDER/other.url"'},
    "email": {
        "server": '"other.test"', "port": "2525", "security": '"tls"', "sender": '"x@b.c"',
        "to": '["y@e.f"]', "ca_file": '"FOLDER/server.pem"',
    },
    "mqtt": {
        "url": '"mqtts://b.test"', "topic": '"home"', "password_env": '"SECRET"',
        "password_file": '"FOLDER/password"',
    },
    "webpush": {"contact": '"https://b.test"', "allow": '["10.0.0.1"]'},
}  # fmt: skip
"""Another value of each key."""


async def _notifiers(here: Built) -> tuple[NotifySettings, ...]:
    return inside(await here.service(), "notifications", "_notifiers")


async def _seen(here: Built) -> Any:
    """The settings of the notifiers, and what sends their messages."""
    made = await here.service()
    senders = inside(made, "notifications", "_senders")
    return repr(await _notifiers(here)), {
        name: (type(sender).__name__, {key: repr(value) for key, value in _plain(sender).items()})
        for name, sender in senders.items()
    }


def _plain(sender: object) -> dict[str, object]:
    return {key: value for key, value in vars(sender).items() if isinstance(value, str | int)}


def _table(kind: str, lines: str) -> str:
    return f'[[notify]]\nname = "one"\nkind = "{kind}"\n[notify.{kind}]\n{lines}'


def _changed(kind: str, key: str, value: str) -> str:
    """The settings of a kind, with another value of a key."""
    stem = key.removesuffix("_env").removesuffix("_file")
    kept = [
        line
        for line in TABLES[kind].splitlines()
        if line.partition(" = ")[0].removesuffix("_env").removesuffix("_file") != stem
    ]
    return _table(kind, "\n".join([*kept, f"{key} = {value}"]) + "\n")


def _kind_rows() -> dict[str, Row]:
    rows = {
        f"notify.{kind}.{key}": Row(
            _changed(kind, key, value), _seen, _table(kind, TABLES[kind]), SHOWN
        )
        for kind, values in VALUES.items()
        for key, value in values.items()
    }
    more = {
        "ntfy.token_file": ("ntfy", 'topic = "t"\ntoken_file = "FOLDER/token"\n'),
        "webhook.secret_file": (
            "webhook", 'url = "https://a.test/"\nsecret_file = "FOLDER/token"\n',
        ),
        "telegram.token_file": ("telegram", 'chat_id = "1"\ntoken_file = "FOLDER/token"\n'),
        "slack.url_env": ("slack", 'url_env = "HOOK_URL"\n'),
        "discord.url_env": ("discord", 'url_env = "HOOK_URL"\n'),
        "email.user": ("email", f'{TABLES["email"]}user = "ann"\npassword_env = "SECRET"\n'),
        "email.password_env": (
            "email", f'{TABLES["email"]}user = "ann"\npassword_env = "SECRET"\n',
        ),
        "email.password_file": (
            "email", f'{TABLES["email"]}user = "ann"\npassword_file = "FOLDER/password"\n',
        ),
        "mqtt.ca_file": ("mqtt", 'url = "mqtts://a.test"\nca_file = "FOLDER/server.pem"\n'),
    }  # fmt: skip
    for key, (kind, lines) in more.items():
        rows[f"notify.{key}"] = Row(_table(kind, lines), _seen, _table(kind, TABLES[kind]), SHOWN)
    return rows


def _row(more: str, shown: str = SHOWN) -> Row:
    return Row(URL + NTFY.format(more=more), _seen, URL + NTFY.format(more=""), shown)


NOTIFY_ROWS: Rows = {
    "notify.name": Row(
        NTFY.format(more="").replace('"phone"', '"other"'), _seen, NTFY.format(more="")
    ),
    "notify.kind": Row(_table("webhook", TABLES["webhook"]), _seen, _table("ntfy", TABLES["ntfy"])),
    "notify.tenant": _row('tenant = "acme"\n'),
    "notify.users": _row('users = ["ann"]\n'),
    "notify.on": _row('on = ["failed"]\n'),
    "notify.long_run_s": _row("long_run_s = 7\n"),
    "notify.max_per_hour": _row("max_per_hour = 3\n"),
    "notify.answers": _row("answers = true\n"),
    "notify.answer_s": _row("answer_s = 120\n", "tests/api/test_answers.py"),
    **_kind_rows(),
}
