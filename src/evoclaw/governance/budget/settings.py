"""What a budget is made of, as it is written down."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.ledgers import (
    ACTION,
    BYTES,
    CALLS,
    DOLLARS,
    FILES,
    LINES,
    PARTS,
    SECONDS,
    TOKENS,
    TURNS,
    Limit,
)
from evoclaw.core.messages import JSON

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class ActionLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often something may be done in the world, within any stretch of time."""

    tools: tuple[str, ...]
    """Names of tools; `*` and `?` stand for anything."""
    arguments: dict[str, JSON] = {}
    """Arguments that a call must have to count, `a.b` for one inside another; texts may hold `*`
    and are compared without regard to capitals and outer spaces."""
    most: Count
    per: str = "1h"
    """Such as `30s`, `10m`, `1h`, `7d`."""
    times: str = ""
    """The argument that says how often one call does it; once if not given."""


class Kinds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Amounts of each kind; what is not given is not bounded here."""

    turns: Count | None = None
    """Replies of the model."""
    minutes: Amount | None = None
    """Of time that runs take."""
    calls: Count | None = None
    """Calls of tools."""
    files: Count | None = None
    """Files that are changed."""
    lines: Count | None = None
    """Lines that are changed."""
    bytes: Count | None = None
    """Bytes that are written."""
    tokens: Count | None = None
    """In and out, together."""
    dollars: Amount | None = None
    """What replies cost."""
    per: str = ""
    """Within any stretch of this length; for ever if not given."""


class Allowed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run may go; None is anywhere that the other rules let it."""

    read: tuple[str, ...] | None = None
    """Paths below the workspace; `*` is within a folder, `**` any number of folders."""
    write: tuple[str, ...] | None = None
    domains: tuple[str, ...] | None = None
    """Host names; `*.example.org` is all below."""


class BudgetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budget of a run; with nothing said, the usual one, and never none."""

    turns: Count = 100
    minutes: Amount = 60.0
    calls: Count = 200
    files: Count = 50
    lines: Count = 5_000
    bytes: Count | None = None
    tokens: Count | None = None
    dollars: Amount | None = None
    warn_at: Share = 0.8
    """Of a limit: a person is asked once when so much is used …"""
    ask_at: Share = 0.95
    """… and once more here."""
    unattended: Literal["go_on", "refuse"] = "go_on"
    """What to do there if nobody can be asked. The limit itself holds in any case."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """Whether a model without a known price may be asked though money is bounded."""
    tell_at: Share = 0.2
    """The model is told when less than this is left of a kind."""
    actions: dict[str, ActionLimit] = {}
    allowed: Allowed = Allowed()
    tenant: Kinds = Kinds()
    """For all runs of a tenant together; give `per`, or it is for ever."""
    user: Kinds = Kinds()
    agent: Kinds = Kinds()

    def of_run(self) -> dict[str, Limit]:
        """The limits of a run and its sub-runs together."""
        return _limits(self, 0.0)

    def of_actions(self) -> dict[str, Limit]:
        """The limits of physical actions."""
        return {
            ACTION + name: Limit(one.most, seconds_of(one.per))
            for name, one in self.actions.items()
        }


def limits_of(kinds: Kinds) -> dict[str, Limit]:
    """The limits of an account above runs."""
    return _limits(kinds, seconds_of(kinds.per) if kinds.per else 0.0)


def check_budget(settings: BudgetSettings) -> None:
    """Refuse what cannot be meant, before anything runs."""
    for name, action in settings.actions.items():
        where = f"budget.actions.{name}"
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(f"{where}: a name is letters, digits, _ and -, at most 64")
        if not action.tools:
            raise ConfigError(f"{where}: tools is empty, so it would bound nothing; name some")
        seconds_of(action.per, where)
    for where in ("tenant", "user", "agent"):
        kinds: Kinds = getattr(settings, where)
        if kinds.per:
            seconds_of(kinds.per, f"budget.{where}")
    if settings.ask_at < settings.warn_at:
        raise ConfigError("budget: ask_at comes before warn_at; make it the larger one")


def seconds_of(text: str, where: str = "budget") -> float:
    """A length of time as it is written."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise ConfigError(f"{where}: {text[:40]!r} is no length of time; write 30s, 10m, 1h or 7d")
    return seconds


def _limits(given: Kinds | BudgetSettings, per: float) -> dict[str, Limit]:
    found: dict[str, float | None] = {
        TURNS: given.turns,
        CALLS: given.calls,
        FILES: given.files,
        LINES: given.lines,
        BYTES: given.bytes,
        TOKENS: given.tokens,
        DOLLARS: given.dollars,
        SECONDS: None if given.minutes is None else given.minutes * 60,
    }
    return {
        kind: Limit(round(most * PARTS.get(kind, 1)), per)
        for kind, most in found.items()
        if most is not None
    }
