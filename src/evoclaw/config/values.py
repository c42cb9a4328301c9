"""Kinds of values that both files know."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta

from evoclaw.config.documents import Document, Keys, near
from evoclaw.core.tools import ALL
from evoclaw.transport.topics import ID_RULE, is_agent_id

Milliseconds: TypeAlias = Annotated[int, Meta(ge=1, le=3_600_000)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]

PERMISSIONS = (
    "file_read", "file_write", "shell", "network", "git", "session", "interact", "ui", "device",
)  # fmt: skip
"""Those of the built-in tools; a skill's tool may need others."""


class Engine(StrEnum):
    """What sandboxes a tool."""

    BUBBLEWRAP = "bubblewrap"
    FIREJAIL = "firejail"
    PODMAN = "podman"
    NATIVE = "native"
    NONE = "none"


def check_id(document: Document, keys: Keys, given: object) -> None:
    """Refuse what cannot be part of a topic."""
    if isinstance(given, str) and not is_agent_id(given):
        problem = f"{document.spelled(keys)}: {given[:80]!r} will not do: {ID_RULE}"
        raise document.error(keys, problem)


def check_capabilities(document: Document, keys: Keys, held: frozenset[str]) -> None:
    """Refuse what is all but a known permission: it would quietly allow nothing."""
    for name in sorted(held.difference(PERMISSIONS, (ALL,))):
        if meant := near(name, PERMISSIONS, 0.8):
            problem = f"unknown capability {name!r}; did you mean {meant!r}?"
            raise document.error(keys, problem)
