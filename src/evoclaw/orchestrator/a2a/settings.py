"""The settings of `[a2a]`."""

from __future__ import annotations

import re

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.transport.topics import A2A_PREFIX

_LEVEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PREFIX = re.compile(r"\$?[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64}){0,3}")


class A2aSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A2A over MQTT. Over HTTP, A2A needs no setting: the service always speaks it."""

    mqtt: bool = False
    """Publish the card of each agent on the broker, and take requests there; each request needs an
    API token. The broker must speak MQTT 5."""
    prefix: str = A2A_PREFIX
    """What the topics start with: for a broker that permits none that begin with `$`."""
    org: str = "evoclaw"
    """The level of the topics that names your organisation."""
    unit: str = "default"
    """The level of the topics that names the part of your organisation."""


def check_a2a(settings: A2aSettings) -> None:
    """Raise `ConfigError` for names that do not fit into a topic."""
    for name in ("org", "unit"):
        if not is_level(getattr(settings, name)):
            raise ConfigError(
                f"a2a.{name}: {getattr(settings, name)[:80]!r} does not fit into a topic: use 1 to "
                "64 letters, digits, '_', '.' and '-'"
            )
    if _PREFIX.fullmatch(settings.prefix) is None:
        raise ConfigError(
            f"a2a.prefix: {settings.prefix[:80]!r} is not the start of a topic, such as "
            f"{A2A_PREFIX!r} or 'a2a'"
        )


def is_level(text: str) -> bool:
    """Whether a name fits into a topic of A2A."""
    return _LEVEL.fullmatch(text) is not None
