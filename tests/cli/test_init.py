"""`evoclaw init`, and that what it writes is what holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from evoclaw.config import read_evoclaw_toml
from evoclaw.config.template import template
from evoclaw.core.errors import ConfigError
from tests.support.programs.governed_commands import typed

_TLS = 'url = "mqtts://example.org"'
NEEDED = {
    "[[channels]]": ['senders = ["*"]'],
    "[agents.evolution]": ['proposers = ["numbers"]'],
    "broker.ca_file": [_TLS],
    "broker.cert_file": [_TLS],
    "broker.key_file": [_TLS, 'cert_file = "example"'],
    "[notify.ntfy]": ['topic = "t"'],
    "[notify.webhook]": ['url = "https://example.org"', 'secret_env = "S"'],
    "[notify.telegram]": ['chat_id = "1"', 'token_env = "S"'],
    "[notify.slack]": ['url_env = "S"'],
    "[notify.discord]": ['url_env = "S"'],
    "[notify.email]": ['server = "s"', 'sender = "a@b.c"', 'to = ["a@b.c"]'],
    "notify.email.password_file": ['user = "ann"'],
    "[notify.mqtt]": [_TLS],
    "[notify.webpush]": ['contact = "mailto:a@b.c"'],
}
"""What another setting, or table, needs beside it."""
NOTHING = {
    "[[channels]].senders",
    "[[notify]].answers",
    *(f"[notify.{key}" for key in (
        "ntfy].topic", "webhook].url", "webhook].secret_env", "telegram].chat_id",
        "telegram].token_env", "slack].url_env", "discord].url_env", "email].server",
        "email].sender", "email].to", "mqtt].url", "webpush].contact",
    )),
}  # fmt: skip
"""What holds if it is left out, but is refused as such: it must be said."""


def initialise(*words: str) -> int:
    return typed("init", *words)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def test_the_generated_file_is_short_and_has_the_defaults_and_the_default_agent(
    home: Path,
) -> None:
    assert initialise() == 0
    env = {"EVOCLAW_HOME": str(home)}
    found = read_evoclaw_toml(home / "evoclaw.toml", env)
    assert replace(found, agents=()) == read_evoclaw_toml(None, env)
    assert [(agent.id, agent.model) for agent in found.agents] == [("evoclaw", "")]
    assert len((home / "evoclaw.toml").read_text().splitlines()) <= 40
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "evoclaw.toml").stat().st_mode & 0o777 == 0o600


def test_init_makes_the_data_folder_private(home: Path) -> None:
    home.mkdir(mode=0o755)
    initialise()
    assert home.stat().st_mode & 0o777 == 0o700


def test_init_never_overwrites_a_file_and_force_makes_a_backup(home: Path) -> None:
    home.mkdir()
    (home / "evoclaw.toml").write_text("# mine\n")
    with pytest.raises(ConfigError, match="--force"):
        initialise()
    assert (home / "evoclaw.toml").read_text() == "# mine\n"
    initialise("--force")
    initialise("--force")
    assert (home / "evoclaw.toml.1").read_text() == "# mine\n"
    assert (home / "evoclaw.toml.2").exists()


def test_init_with_a_model_configures_the_default_agent(home: Path) -> None:
    initialise("--model", 'odd/"model"')
    env = {"EVOCLAW_HOME": str(home)}
    found = read_evoclaw_toml(home / "evoclaw.toml", env)
    (agent,) = found.agents
    assert (agent.id, agent.model) == ("evoclaw", 'odd/"model"')
    assert replace(found, agents=()) == read_evoclaw_toml(None, env)


def settings(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Each setting: its table, its key, its line, and what must stand with it."""
    needed: dict[str, list[str]] = {}
    found: list[tuple[str, str, str]] = []
    table = ""
    for line in text.splitlines():
        bare = line.removeprefix("#")
        if re.fullmatch(r"\[+[\w.-]+\]+", bare):
            table = bare
            # A table of an entry stands below that entry, with what the entry must have.
            entry = f"[[{table.strip('[]').partition('.')[0]}]]"
            above = needed.get(entry, []) if entry != table else []
            needed[table] = [*above, table, *NEEDED.get(table, [])]
        elif line.startswith("#") and not line.startswith("# "):
            found.append((table, bare.partition(" = ")[0], bare))
            if "# required" in bare:
                needed[table].append(bare)
    for table, key, line in found:
        above = [one for one in needed.get(table, []) if _stem(one) != _stem(line)]
        if table.startswith("[notify."):
            # The table of a kind has an effect for notifiers of this kind only.
            kind = table.strip("[]").partition(".")[2]
            above = [re.sub(r'^kind = "\w+"', f'kind = "{kind}"', one) for one in above]
        yield table, key, line, above


def _stem(line: str) -> str:
    """The key of a line; a secret may be in a variable or in a file."""
    return re.sub(r"_(env|file)$", "", line.partition(" = ")[0])


def test_every_setting_of_the_generated_file_can_be_uncommented_alone(home: Path) -> None:
    env = {"EVOCLAW_HOME": str(home)}
    text = template(read_evoclaw_toml(None, env))
    (home).mkdir()
    (home / "example").write_text("hello\n")
    found = list(settings(text))
    assert len(found) > 100
    for table, key, line, above in found:
        if f"{table}.{key}" in NOTHING or table.startswith("[channels."):
            continue  # a table of a channel belongs to its kind: see `tests/settings/chat_rows.py`
        name = f"{table.strip('[]')}.{key}"
        file = home / "one.toml"
        file.write_text("\n".join([*above, *NEEDED.get(name, []), line]) + "\n")
        try:
            read_evoclaw_toml(file, env)
        except ConfigError as problem:
            raise AssertionError(f"{file.read_text()}\n{problem}") from None


def test_the_generated_file_has_every_table_and_key(home: Path) -> None:
    text = template(read_evoclaw_toml(None, {"EVOCLAW_HOME": str(home)}))
    keys = {f"{table.strip('[]')}.{key}".strip(".") for table, key, _, _ in settings(text)}
    assert {"data", "orchestrator.max_tool_iterations", "agents.id", "agents.limits.max_turns",
            "budget.actions.example.tools", "sandbox.engine", "mcp.command"} <= keys  # fmt: skip
    assert "broker.password" not in text


def test_init_writes_to_the_folder_of_evoclaw_home(home: Path) -> None:
    assert os.environ["EVOCLAW_HOME"] == str(home)
    assert initialise("--json") == 0
    assert (home / "evoclaw.toml").exists()
