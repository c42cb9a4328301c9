from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.config import read_evoclaw_toml
from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.notifications.factory import build_senders
from evoclaw.orchestrator.notifications.push_subscriptions import PushSubscriptions
from evoclaw.orchestrator.notifications.settings import NotifySettings
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.notifications import SCHEMA, NotificationStore

URL = '[server]\npublic_url = "https://evo.test"\n'
BASE = {
    "ntfy": 'topic = "t"',
    "webhook": 'url = "https://a.test"\nsecret_env = "S"',
    "telegram": 'chat_id = "1"\ntoken_env = "S"',
    "slack": 'url_env = "S"',
    "discord": 'url_env = "S"',
    "email": 'server = "s"\nsender = "a@b.c"\nto = ["d@e.f"]',
    "mqtt": 'url = "mqtt://a.test"',
    "webpush": 'contact = "mailto:a@b.c"',
}


def read(folder: Path, text: str) -> tuple[NotifySettings, ...]:
    """The notifiers of a settings file."""
    file = folder / "evoclaw.toml"
    file.write_text(text)
    return read_evoclaw_toml(file, {"EVOCLAW_HOME": str(folder)}).notify


def notifier(kind: str, table: str | None = None, more: str = "") -> str:
    lines = BASE[kind] if table is None else table
    return f'[[notify]]\nname = "one"\nkind = "{kind}"\n{more}[notify.{kind}]\n{lines}\n'


@pytest.mark.parametrize("kind", BASE)
def test_a_notifier_of_each_kind_is_read(tmp_path: Path, kind: str) -> None:
    (found,) = read(tmp_path, notifier(kind))
    assert found.kind == kind
    assert found.on == ("approval", "question", "failed", "long_run")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (notifier("ntfy", ""), "topic must have"),
        (notifier("ntfy", 'topic = "a/b"'), "topic must have"),
        (notifier("ntfy", 'topic = "t"\nurl = "ftp://x"'), "url must start with https://"),
        (notifier("ntfy", 'topic = "t"\nurl = "https://a:b@x"'), "may not contain a password"),
        (notifier("ntfy", 'topic = "t"\ntoken_env = "A"\ntoken_file = "b"'), "set exactly one of"),
        (
            notifier("webhook", 'url = "https://a.test"'),
            "exactly one of secret_env and secret_file",
        ),
        (notifier("webhook", 'secret_env = "S"'), "url must start with"),
        (notifier("telegram", 'token_env = "S"'), "chat_id must be"),
        (notifier("telegram", 'chat_id = "1"'), "exactly one of token_env and token_file"),
        (notifier("slack", ""), "exactly one of url_env and url_file"),
        (notifier("discord", ""), "exactly one of url_env and url_file"),
        (notifier("email", 'sender = "a@b.c"\nto = ["d@e.f"]'), "name your mail server"),
        (notifier("email", 'server = "s"\nsender = "a@b.c"'), "to is empty"),
        (notifier("email", 'server = "s"\nsender = "a"\nto = ["d@e.f"]'), "not a mail address"),
        (notifier("email", BASE["email"] + '\nuser = "u"'), "password_env and password_file"),
        (notifier("email", BASE["email"] + '\npassword_env = "S"'), "needs a user"),
        (
            notifier(
                "email", BASE["email"] + '\nuser = "u"\npassword_env = "S"\nsecurity = "none"'
            ),
            "unencrypted",
        ),
        (notifier("mqtt", ""), "address must have the form mqtt://"),
        (notifier("mqtt", 'url = "mqtt://a"\ntopic = "a/#"'), "without + and #"),
        (notifier("mqtt", 'url = "mqtt://a"\nca_file = "x"'), "ca_file is for mqtts"),
        (notifier("webpush", ""), "contact must be mailto"),
        (notifier("webpush", BASE["webpush"] + '\nallow = ["x"]'), "not an address"),
        (notifier("ntfy", more="on = []\n"), "on is empty"),
        (notifier("ntfy", more='on = ["lunch"]\n'), "on"),
        (notifier("ntfy") * 2, "two notifiers are named 'one'"),
        (notifier("ntfy").replace('"one"', '"a b"'), "invalid notifier name"),
        (notifier("ntfy", more="answers = true\n"), "set public_url in [server]"),
        (notifier("ntfy") + '[notify.mqtt]\nurl = "mqtt://a"\n', "has no effect for kind 'ntfy'"),
        (
            URL + '[[notify]]\nname = "d"\nkind = "desktop"\nanswers = true\n',
            "a desktop notice has no links",
        ),
        (
            notifier("webpush") + notifier("webpush").replace('"one"', '"two"'),
            "two notifiers of kind 'webpush'",
        ),
        ('[server]\npublic_url = "evo.test"\n', "is not a URL like"),
        ('[server]\npublic_url = "https://evo.test/path"\n', "without a path"),
    ],
)
def test_wrong_settings_are_refused_with_advice(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "table", "answers"),
    [
        ("ntfy", 'topic = "t"', False),
        ("ntfy", 'topic = "t"\ntoken_env = "S"', True),
        ("ntfy", 'topic = "t"\ntoken_file = "s"', True),
        ("telegram", 'chat_id = "1"\ntoken_env = "S"', True),
        ("telegram", 'chat_id = "-1"\ntoken_env = "S"', False),
        ("telegram", 'chat_id = "@all_of_us"\ntoken_env = "S"', False),
        ("email", BASE["email"], True),
        ("email", BASE["email"].replace('["d@e.f"]', '["d@e.f", "g@e.f"]'), False),
        ("webpush", BASE["webpush"], True),
        ("slack", BASE["slack"], False),
        ("discord", BASE["discord"], False),
        ("webhook", BASE["webhook"], False),
        ("mqtt", BASE["mqtt"], False),
    ],
)
def test_links_that_answer_are_sent_by_default_only_to_one_person(
    tmp_path: Path, kind: str, table: str, answers: bool
) -> None:
    (found,) = read(tmp_path, URL + notifier(kind, table))
    assert found.sends_answers is answers
    (denied,) = read(tmp_path, URL + notifier(kind, table, "answers = false\n"))
    assert not denied.sends_answers


async def test_a_missing_secret_is_an_error_that_names_it(tmp_path: Path) -> None:
    database = await open_database(tmp_path / "evoclaw.db", (SCHEMA,), durable=False)
    subscriptions = PushSubscriptions(NotificationStore(database), (), _never)

    def build(text: str, **env: str) -> None:
        build_senders(read(tmp_path, text), env, subscriptions)

    try:
        with pytest.raises(ConfigError, match="variable S is empty.*token of the notifier 'one'"):
            build(notifier("telegram"))
        build(notifier("telegram"), S="1:abc")
        file = 'chat_id = "1"\ntoken_file = "the.token"'
        with pytest.raises(ConfigError, match="cannot read the token of the notifier 'one'"):
            build(notifier("telegram", file))
        (tmp_path / "the.token").write_text("1:abc\n")
        build(notifier("telegram", file))
        with pytest.raises(ConfigError, match="the URL of the notifier 'one' must start with"):
            build(notifier("slack"), S="hooks.slack.com/services/x")
        (tmp_path / "the.url").write_text("https://hooks.slack.test/services/x\n")
        build(notifier("slack", 'url_file = "the.url"'))
        build(notifier("discord", 'url_file = "the.url"'))
        build(notifier("email", BASE["email"] + '\nuser = "u"\npassword_file = "the.token"'))
        build(notifier("mqtt", 'url = "mqtt://u@a"\npassword_file = "the.token"'))
        with pytest.raises(ConfigError, match="a password needs a user"):
            build(notifier("mqtt", 'url = "mqtt://a"\npassword_env = "S"'), S="x")
        build(notifier("webhook", 'url = "https://a"\nsecret_file = "long"'.replace(
            "long", _long(tmp_path))))  # fmt: skip
        build(notifier("ntfy", 'topic = "t"\ntoken_file = "the.token"'))
    finally:
        await database.close()


async def _never(token: str) -> bool:
    return False


def _long(folder: Path) -> str:
    (folder / "long").write_text("0123456789abcdef0123456789abcdef")
    return "long"
