"""What the tests of the audit share: a clock to turn, drafts, and ways to look at the files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evoclaw.core.labels import Principal
from evoclaw.observe.audit.checkpoints import AuditKey, Checkpoint
from evoclaw.observe.audit.cold_databases import SqliteColdDatabase, Value
from evoclaw.observe.audit.reader import ColdLines, audit_files
from evoclaw.observe.audit.records import Fields, stamp
from evoclaw.observe.audit.settings import DEFAULT_SETTINGS, AuditError, AuditSettings
from evoclaw.observe.audit.sink import AuditContext, AuditDraft
from evoclaw.observe.audit.verify import VerifyReport, verify
from evoclaw.observe.audit.warm import WarmTier, day_files, read_lines
from evoclaw.observe.audit.writer import Audit, open_audit

NOON = 1_793_016_000.0
"""2026-10-26, 12:00 UTC."""
DAY = 86_400.0
ANN = AuditContext(principal=Principal("acme", "ann"), agent_id="desktop-agent")


@dataclass
class Clock:
    """A clock that stands still until it is turned."""

    now: float = NOON
    steady: float = 1_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.steady

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds


def audit_in(
    data: Path, clock: Clock, settings: AuditSettings = DEFAULT_SETTINGS, **more: Any
) -> Audit:
    return open_audit(data, settings, clock=clock.wall, monotonic=clock.monotonic, **more)


def draft(clock: Clock, number: int = 0, **parameters: Any) -> AuditDraft:
    fields: Fields = {**ANN.fields, "run_id": "run", "tool": "bash", "result": "success"}
    given = {"command": f"echo {number}", **parameters}
    return AuditDraft("call", clock.now, clock.steady, fields, given)


def fields(number: int, at: float = NOON) -> Fields:
    return {
        "kind": "call", "at": at, "timestamp": stamp(at), "tool": "bash", "result": "success",
        "parameters": {"command": f"echo {number}"}, "user": "ann", "tenant": "acme",
        "agent_id": "desktop-agent", "run_id": f"run{number % 3}", "verdict": "allow",
    }  # fmt: skip


def warm_in(data: Path, every: int = 1000) -> WarmTier:
    key = AuditKey.load_or_create(data / "audit.key")
    return WarmTier(data / "audit", key, checkpoint_every=every)


def public_key_of(data: Path) -> str:
    return AuditKey.load_or_create(data / "audit.key").public


def check(
    data: Path,
    at_least: Checkpoint | None = None,
    cold: list[tuple[int, bytes]] | None = None,
    tier: str = "",
    delivered: int = 0,
) -> VerifyReport:
    stored = None if cold is None else ColdLines(cold, tier, delivered)
    return verify(
        audit_files(data / "audit"), [public_key_of(data)], cold=stored, at_least=at_least
    )


def lines_in(data: Path) -> list[bytes]:
    return [line for file in day_files(data / "audit") for line in read_lines(file.path)]


class FlakyColdDatabase(SqliteColdDatabase):
    """A real database that can be away, or lose its answer after the work was done."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = False
        self.mute_after: int | None = None
        """Statements after which the answers get lost, though the work is done."""
        self.ran = 0

    async def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        if self.away:
            raise AuditError("it is away")
        found = await super().run(sql, *values)
        self.ran += 1
        if self.mute_after is not None and self.ran > self.mute_after:
            raise AuditError("the answer got lost")
        return found
