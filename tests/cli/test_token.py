"""`evoclaw token` on the machine itself, with the service down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.wiring.http import open_access
from tests.support.programs.governed_commands import typed


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a service."""
    monkeypatch.delenv("EVOCLAW_URL", raising=False)
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    return tmp_path


async def scopes_of(home: Path, secret: str) -> frozenset[str] | None:
    async with open_access({"EVOCLAW_HOME": str(home)}) as access:
        caller = await access.authenticate(secret)
    return None if caller is None else caller.scopes


def test_a_token_is_created_listed_and_revoked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("token", "new", "--scope", "runs:read", "--scope", "human", "--name", "me", "--expires",
          "30d")  # fmt: skip
    said = capsys.readouterr()
    secret = said.out.strip()
    assert asyncio.run(scopes_of(home, secret)) == {"runs:read", "human"}
    assert secret not in said.err

    typed("token", "list", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "me" and "hash" not in row
    assert 29 * 86_400 < row["expires_at"] - row["made_at"] <= 30 * 86_400
    typed("token")
    assert "human runs:read" in capsys.readouterr().out

    typed("token", "revoke", row["id"])
    assert asyncio.run(scopes_of(home, secret)) is None
    with pytest.raises(ConfigError, match="no token 'none'"):
        typed("token", "revoke", "none")


def test_token_scopes_and_expiry_are_validated() -> None:
    with pytest.raises(ConfigError, match="no such scope: root"):
        typed("token", "new", "--scope", "root")
    with pytest.raises(ConfigError, match="--expires"):
        typed("token", "new", "--scope", "runs:read", "--expires", "soon")
