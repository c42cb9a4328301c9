"""Value types and checks that both settings files share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta

from evoclaw.config.toml_document import KeyPath, TomlDocument, closest_match
from evoclaw.core.tools import ALL_PERMISSIONS
from evoclaw.transport.topics import ID_RULE, is_agent_id

Milliseconds: TypeAlias = Annotated[int, Meta(ge=1, le=3_600_000)]
NonEmptyText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]

PERMISSIONS = (
    "file_read", "file_write", "shell", "network", "git", "session", "interact", "ui", "device",
)  # fmt: skip
"""The permissions of the built-in tools; tools of skills may need others."""


class Engine(StrEnum):
    """The sandbox engines."""

    BUBBLEWRAP = "bubblewrap"
    FIREJAIL = "firejail"
    PODMAN = "podman"
    NATIVE = "native"
    NONE = "none"


def check_id(document: TomlDocument, keys: KeyPath, given: object) -> None:
    """Refuse an id that cannot be part of an MQTT topic."""
    if isinstance(given, str) and not is_agent_id(given):
        problem = f"{document.original_key(keys)}: {given[:80]!r} is not a valid id: {ID_RULE}"
        raise document.error(keys, problem)


def check_capabilities(document: TomlDocument, keys: KeyPath, held: frozenset[str]) -> None:
    """Refuse misspelt permissions, which would silently allow nothing."""
    for name in sorted(held.difference(PERMISSIONS, (ALL_PERMISSIONS,))):
        if meant := closest_match(name, PERMISSIONS, 0.8):
            problem = f"unknown capability {name!r}; did you mean {meant!r}?"
            raise document.error(keys, problem)
