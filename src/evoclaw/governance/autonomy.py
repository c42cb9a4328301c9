"""Autonomy levels: what an agent may change without asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import ALL_PERMISSIONS, Call, Effect

SHOW_PERMISSIONS = frozenset({"ui"})
"""The permissions of a tool that only shows something to the user of the conversation."""


class Level(StrEnum):
    """What an agent may do without a person: only read, ask before writing, or anything."""

    READ_ONLY = "read_only"
    SUPERVISED = "supervised"
    FULL = "full"

    @classmethod
    def of_flags(cls, *, read_only: bool, yes: bool) -> Level:
        """The level that the options `--read-only` and `--yes` of a command choose."""
        if read_only:
            return cls.READ_ONLY
        return cls.FULL if yes else cls.SUPERVISED

    @property
    def capabilities(self) -> frozenset[str]:
        """What an agent holds that is defined by its level only."""
        return frozenset({"file_read" if self is Level.READ_ONLY else ALL_PERMISSIONS})


class WorkspaceWrites(StrEnum):
    """Whether a supervised run asks before it writes inside its own workspace."""

    ASK = "ask"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Autonomy(Policy):
    """Denies, asks about or allows what changes something, by the run's level; looking is free.

    A tool that acts (`Tool.presses`) has consequences beyond the conversation and the workspace.
    One that writes without acting changes the workspace alone: a supervised run asks before that
    too, unless `writes` allows it, or it only changes what its user is shown, as `canvas` does.
    """

    level: Level
    writes: WorkspaceWrites = WorkspaceWrites.ASK
    only_reads: Callable[[Call], bool] | None = None
    """Whether a call that another machine gets only reads there; None if no call is forwarded."""

    async def judge(self, call: Call) -> Verdict:
        """Judge by the level, and by whether the tool acts or writes."""
        tool = call.tool
        acts, changes = tool.has_side_effects, tool.effect is not Effect.READ
        if self.level is Level.FULL or not (acts or changes):
            return ALLOW
        if self.only_reads is not None and self.only_reads(call):
            return ALLOW
        if self.level is Level.READ_ONLY:
            reason = (
                "this run is read-only. Continue without it or tell the user what you would do."
            )
            return Deny("read_only", reason, "the run is read-only")
        if acts:
            what = "writes or executes" if changes else "sends or triggers something outside"
            return Ask("supervised", f"{call.name} {what}")
        if self.writes is WorkspaceWrites.ALLOW or tool.permissions == SHOW_PERMISSIONS:
            return ALLOW
        return Ask("supervised_write", f"{call.name} writes in the workspace")
