"""A key of a settings file changes something that can be observed, or it is refused.

A new key needs a row in `service_rows.py` or `edge_rows.py`.
"""

from __future__ import annotations

import re
import socket
from functools import cache
from pathlib import Path

import pytest

from evoclaw.config.agent_toml import EdgeConfig, read_agent_toml
from evoclaw.config.evoclaw_toml import EvoClawConfig, read_evoclaw_toml
from evoclaw.core.errors import ConfigError
from evoclaw.wiring.http import serving_http
from tests.settings.edge_rows import EDGE_ROWS
from tests.settings.rows import ROOT, Elsewhere, Refused, Row, Rows, built, keys_of, seen
from tests.settings.service_rows import SERVICE_ROWS

HERE = Path(__file__).parent
FILES: dict[str, Rows] = {"evoclaw.toml": SERVICE_ROWS, "agent.toml": EDGE_ROWS}
SHAPES = {"evoclaw.toml": EvoClawConfig, "agent.toml": EdgeConfig}


def rows_of(kind: type) -> list[tuple[str, str]]:
    """The files and keys whose rows are of a kind."""
    return [
        (file, key) for file, rows in FILES.items() for key in rows if isinstance(rows[key], kind)
    ]


@pytest.mark.parametrize("file", FILES)
def test_every_key_has_a_row(file: str) -> None:
    assert sorted(FILES[file]) == sorted(keys_of(SHAPES[file]))


def rows_by_settings() -> dict[tuple[str, str, str], list[str]]:
    """The keys that are set by the same text, beside the same other text."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for file, key in rows_of(Row):
        row = FILES[file][key]
        assert isinstance(row, Row)
        found.setdefault((file, row.base, row.toml), []).append(key)
    return found


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "base", "toml", "keys"),
    [
        pytest.param(*how, keys, id=f"{how[0]}:{keys[0]}")
        for how, keys in rows_by_settings().items()
    ],
)
async def test_a_setting_has_an_effect(
    file: str, base: str, toml: str, keys: list[str], tmp_path: Path
) -> None:
    rows = [row for key in keys if isinstance(row := FILES[file][key], Row)]
    without = await seen(tmp_path / "without", file, base, rows)
    changed = await seen(tmp_path / "with", file, toml, rows)
    same = [key for key, one, other in zip(keys, without, changed, strict=True) if one == other]
    assert not same, f"these change nothing: {same}: {changed}"


@pytest.mark.process
async def test_the_service_listens_on_the_port_of_its_settings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    text = f"[server]\nport = {port}\n"
    async with built(tmp_path / "home", "evoclaw.toml", text) as here:
        made = await here.service()
        async with serving_http(made, made.settings.server, here.env) as url:
            assert url == f"http://127.0.0.1:{port}"
            with socket.create_connection(("127.0.0.1", port), timeout=10):
                pass


@pytest.mark.parametrize(("file", "key"), rows_of(Refused))
async def test_a_setting_that_could_have_no_effect_is_refused(
    file: str, key: str, tmp_path: Path
) -> None:
    row = FILES[file][key]
    assert isinstance(row, Refused)
    read = read_evoclaw_toml if file == "evoclaw.toml" else read_agent_toml
    async with built(tmp_path / "home", file, row.toml) as here:
        with pytest.raises(ConfigError, match=re.escape(row.text)):
            read(here.folder / file, here.env)


def test_the_tests_that_rows_name_are_about_their_keys() -> None:
    for file, key in [*rows_of(Row), *rows_of(Elsewhere)]:
        row = FILES[file][key]
        if isinstance(row, Elsewhere):
            path, _, name = row.test.partition("::")
            assert f"def {name}(" in texts(path), key
        elif isinstance(row, Row) and row.shown:
            shown, _, name = row.shown.partition("::")
            name = name or key.rpartition(".")[2]
            assert re.search(rf"\b{name}\b", texts(shown)), f"{key}: not in {shown}"


@cache
def texts(path: str) -> str:
    """The text of a test file, or of all those in a folder but these here."""
    place = ROOT / path
    files = [one for one in sorted(place.rglob("test_*.py")) if one.parent != HERE]
    return "\n".join(one.read_text() for one in (files if place.is_dir() else [place]))
