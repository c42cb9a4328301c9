"""The settings of budgets: limits of runs, accounts and physical actions."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.ledgers import (
    ACTION_PREFIX,
    BYTES,
    CALLS,
    DOLLARS,
    FILES,
    LINES,
    SECONDS,
    TOKENS,
    TURNS,
    UNITS_PER_KIND,
    Limit,
)
from evoclaw.core.messages import JSON

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class ActionLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a physical action may be done within a sliding window."""

    tools: tuple[str, ...]
    """Names of tools; `*` and `?` are wildcards."""
    arguments: dict[str, JSON] = {}
    """Arguments that a call must have to count; `a.b` names a nested one. Texts may contain `*`,
    and are compared without case and outer spaces."""
    most: Count
    per: str = "1h"
    """Such as `30s`, `10m`, `1h`, `7d`."""
    times: str = ""
    """The argument that says how often one call does the action [once]."""


class AccountLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an account above runs; a kind that is not given has no limit here."""

    turns: Count | None = None
    """Replies of the model."""
    minutes: Amount | None = None
    """Minutes that runs take."""
    calls: Count | None = None
    """Calls of tools."""
    files: Count | None = None
    """Files that are changed."""
    lines: Count | None = None
    """Lines that are changed."""
    bytes: Count | None = None
    """Bytes that are written."""
    tokens: Count | None = None
    """Input and output tokens together."""
    dollars: Amount | None = None
    """Cost of replies in US dollars."""
    per: str = ""
    """The sliding window of the limits, such as `1h` or `7d`; without it they never reset."""


class AllowedLocations(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paths and hosts that a run may use; None leaves that to the other policies."""

    read: tuple[str, ...] | None = None
    """Paths below the workspace; `*` matches within a folder, `**` any number of folders."""
    write: tuple[str, ...] | None = None
    domains: tuple[str, ...] | None = None
    """Host names; `*.example.org` matches all subdomains."""


class BudgetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budget of a run; every run has one, by default with these values."""

    turns: Count = 100
    """Replies of the model."""
    minutes: Amount = 60.0
    """Minutes that the run takes."""
    calls: Count = 200
    """Calls of tools."""
    files: Count = 50
    """Files that are changed."""
    lines: Count = 5_000
    """Lines that are changed."""
    bytes: Count | None = None
    """Bytes that are written."""
    tokens: Count | None = None
    """Input and output tokens together."""
    dollars: Amount | None = None
    """Cost of replies in US dollars."""
    warn_at: Share = 0.8
    """The used share of a limit at which a person is asked whether to continue."""
    ask_at: Share = 0.95
    """The used share at which a person is asked once more."""
    unattended: Literal["go_on", "refuse"] = "go_on"
    """What to do at these shares if no person can be asked. The limit itself always holds."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """Whether a model without a known price may be used although dollars are limited."""
    tell_at: Share = 0.2
    """The model gets a notice when less than this share of a limit is left."""
    actions: dict[str, ActionLimit] = {}
    """Limits of physical actions, by a name of your choice."""
    allowed: AllowedLocations = AllowedLocations()
    """The paths and hosts that runs may use."""
    tenant: AccountLimits = AccountLimits()
    """For all runs of a tenant together; without `per` the limits never reset."""
    user: AccountLimits = AccountLimits()
    """For all runs of a user together."""
    agent: AccountLimits = AccountLimits()
    """For all runs of an agent together."""

    def run_limits(self) -> dict[str, Limit]:
        """The limits of a run and its sub-runs together."""
        return _limits(self, 0.0)

    def action_limits(self) -> dict[str, Limit]:
        """The limits of physical actions."""
        return {
            ACTION_PREFIX + name: Limit(action.most, parse_duration(action.per))
            for name, action in self.actions.items()
        }


def limits_of(kinds: AccountLimits) -> dict[str, Limit]:
    """The limits of an account above runs."""
    return _limits(kinds, parse_duration(kinds.per) if kinds.per else 0.0)


def check_budget(settings: BudgetSettings) -> None:
    """Raise `ConfigError` for settings that make no sense."""
    for name, action in settings.actions.items():
        where = f"budget.actions.{name}"
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(f"{where}: a name has only letters, digits, _ and -, at most 64")
        if not action.tools:
            raise ConfigError(f"{where}: tools is empty, so nothing is limited; name a tool")
        parse_duration(action.per, where)
    for where in ("tenant", "user", "agent"):
        kinds: AccountLimits = getattr(settings, where)
        if kinds.per:
            parse_duration(kinds.per, f"budget.{where}")
    if settings.ask_at < settings.warn_at:
        raise ConfigError(
            "budget: ask_at is below warn_at; set ask_at to the same share or a larger one"
        )


def parse_duration(text: str, where: str = "budget") -> float:
    """The seconds of a duration such as `30s`, `10m`, `1h` or `7d`."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise ConfigError(f"{where}: {text[:40]!r} is not a duration; write 30s, 10m, 1h or 7d")
    return seconds


def _limits(given: AccountLimits | BudgetSettings, per: float) -> dict[str, Limit]:
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
        kind: Limit(round(most * UNITS_PER_KIND.get(kind, 1)), per)
        for kind, most in found.items()
        if most is not None
    }
