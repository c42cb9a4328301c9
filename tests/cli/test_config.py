"""`evoclaw config`: what is set, and changing it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from evoclaw.config import read_evoclaw_toml
from evoclaw.core.errors import ConfigError
from evoclaw.wiring.settings_file import SettingsFile
from tests.support.programs.governed_commands import typed

FILE = """\
# Mine.
[server]
port = 9000  # not the usual one

[[agents]]
id = "helper"
model = "test/one"

[[agents]]
id = "other"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    monkeypatch.delenv("EVOCLAW_URL", raising=False)
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "evoclaw.toml"
    path.write_text(FILE)
    return path


def settings(file: Path) -> msgspec.Struct:
    return read_evoclaw_toml(file, {"EVOCLAW_HOME": str(file.parent)})


def test_show_prints_what_differs_from_the_defaults_and_can_be_read_again(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("config") == 0
    shown = capsys.readouterr().out
    assert "port = 9000" in shown and "burst" not in shown
    before = settings(file)
    file.write_text(shown)
    assert settings(file) == before


def test_show_includes_what_the_environment_sets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOCLAW_SERVER_PORT", "9123")
    typed("config", "--json")
    assert msgspec.json.decode(capsys.readouterr().out) == {"server": {"port": 9123}}


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("server.port", "9000"),
        ("agents.helper.model", "test/one"),
        ("agents.1.id", "other"),
        ("network.ports", "[80, 443]"),
        ("orchestrator.evidence", "false"),
    ],
)
def test_get_prints_a_value(
    file: Path, capsys: pytest.CaptureFixture[str], key: str, printed: str
) -> None:
    assert file.exists()
    typed("config", "get", key)
    assert capsys.readouterr().out == f"{printed}\n"


def test_get_suggests_a_similar_setting(file: Path) -> None:
    assert file.exists()
    with pytest.raises(ConfigError, match="did you mean 'port'"):
        typed("config", "get", "server.prot")


def test_get_says_if_there_is_no_entry_at_all() -> None:
    with pytest.raises(ConfigError, match="unknown entry 'x' in 'agents.x.model'; there are none"):
        typed("config", "get", "agents.x.model")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("server.port", "9001", "port = 9001  # not the usual one"),
        ("server.host", "::1", 'host = "::1"'),
        ("agents.helper.model", "ollama/qwen3:8b", 'model = "ollama/qwen3:8b"'),
        ("agents.other.name", "7", 'name = "7"'),
        ("agents.other.budget.dollars", "0.5", "dollars = 0.5"),
        ("network.ports", "[443]", "ports = [443]"),
        ("orchestrator.evidence", "true", "evidence = true"),
        ("budget.user.per", "1d", 'per = "1d"'),
    ],
)
def test_set_changes_one_value_and_keeps_the_rest_of_the_file(
    file: Path, capsys: pytest.CaptureFixture[str], key: str, value: str, line: str
) -> None:
    typed("config", "set", key, value)
    text = file.read_text()
    assert line in text and text.startswith("# Mine.\n[server]\nport = 900")
    capsys.readouterr()
    typed("config", "get", key)
    assert capsys.readouterr().out.strip() == value


def test_set_writes_the_first_setting_to_a_new_file(home: Path) -> None:
    typed("config", "set", "server.port", "9001")
    assert (home / "evoclaw.toml").read_text() == "[server]\nport = 9001\n"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("server.port", "many", "server.port"),
        ("server.prot", "9001", "did you mean 'port'"),
        ("agents.nobody.model", "a/b", "no agents named 'nobody'"),
        ("server.", "1", "is not a setting"),
        ("broker.password", "secret", "may not be in this file"),
    ],
)
def test_a_setting_that_would_be_wrong_is_refused_and_the_file_is_not_changed(
    file: Path, key: str, value: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        typed("config", "set", key, value)
    assert file.read_text() == FILE
    assert [path.name for path in file.parent.iterdir() if "toml" in path.name] == [file.name]


def test_set_follows_a_symbolic_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "evoclaw.toml"
    real.parent.mkdir()
    file.rename(real)
    file.symlink_to(real)
    typed("config", "set", "server.port", "9001")
    assert file.is_symlink() and "port = 9001" in real.read_text()


def test_unset_removes_a_value(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("config", "unset", "agents.helper.model")
    typed("config", "unset", "server.burst")
    assert "does not set server.burst" in capsys.readouterr().err
    assert file.read_text() == FILE.replace('model = "test/one"\n', "")


def test_set_says_if_a_variable_overrides_the_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOCLAW_SERVER_PORT", "9123")
    typed("config", "set", "server.port", "9001")
    assert "EVOCLAW_SERVER_PORT overrides it" in capsys.readouterr().err
    assert "9001" in file.read_text()


def test_reference_explains_every_setting_or_one_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed("config", "reference")
    whole = capsys.readouterr().out
    typed("config", "reference", "server")
    part = capsys.readouterr().out
    assert "#port = 8433" in part and part in whole
    assert "[server.jwt]" in part and "[budget]" not in part
    with pytest.raises(ConfigError, match="did you mean 'server'"):
        typed("config", "reference", "servr")


def test_path_prints_where_the_file_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("config", "path")
    found = capsys.readouterr()
    assert found.out.strip() == str(home / "evoclaw.toml")
    assert "does not exist" in found.err


def test_settings_that_are_changed_at_the_same_time_are_all_kept(file: Path) -> None:
    """Each change reads and writes the file; without a lock, the last writer wins."""
    env = {"EVOCLAW_HOME": str(file.parent)}
    names = [f"helper{number}" for number in range(12)]
    file.write_text("".join(f'[[agents]]\nid = "{name}"\n' for name in names))
    with ThreadPoolExecutor(len(names)) as threads:
        changes = [
            threads.submit(SettingsFile(env).set, f"agents.{name}.model", f"test/{name}")
            for name in names
        ]
        for change in changes:
            change.result(timeout=60)
    models = [agent.model for agent in read_evoclaw_toml(file, env).agents]
    assert models == [f"test/{name}" for name in names]


class SavingEnvironment(dict[str, str]):
    """An environment in which an editor saves the file while the new settings are checked."""

    def __init__(self, file: Path) -> None:
        super().__init__({"EVOCLAW_HOME": str(file.parent)})
        self.file: Path | None = None

    def get(self, key: str, default: str = "") -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.file is not None:
            self.file.write_text(FILE.replace("9000", "9999"))
        return super().get(key, default)


@pytest.mark.parametrize("change", ["set", "unset"])
def test_what_an_editor_saved_meanwhile_is_not_overwritten(file: Path, change: str) -> None:
    env = SavingEnvironment(file)
    settings_file = SettingsFile(env)
    env.file = file
    with pytest.raises(ConfigError, match="another program changed .* try again"):
        if change == "set":
            settings_file.set("server.host", "::1")
        else:
            settings_file.unset("agents.helper.model")
    assert file.read_text() == FILE.replace("9000", "9999")


def test_a_changed_file_keeps_its_mode_and_its_link(file: Path, home: Path) -> None:
    real = home / "elsewhere.toml"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to(real)
    assert typed("config", "set", "server.port", "9001") == 0
    assert file.is_symlink() and "port = 9001" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640
    real.unlink()
    file.unlink()
    assert typed("config", "set", "server.port", "9001") == 0
    assert file.stat().st_mode & 0o777 == 0o600
