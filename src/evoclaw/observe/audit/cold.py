"""The cold tier: all audit records, permanently, in a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.observe.audit.checkpoints import Checkpoint, decode, encode
from evoclaw.observe.audit.cold_databases import (
    ColdDatabase,
    LibsqlColdDatabase,
    PostgresColdDatabase,
    SqliteColdDatabase,
    Value,
)
from evoclaw.observe.audit.records import SealedRecord, canonical
from evoclaw.observe.audit.settings import AuditError, AuditSettings

INSERT_BATCH_ROWS = 100
"""Records in one INSERT statement, which is atomic."""
TOKEN_VARIABLE = "EVOCLAW_AUDIT_TOKEN"
PAGE_ROWS = 200
"""Records in one SELECT."""

_TABLES = (
    """CREATE TABLE IF NOT EXISTS evoclaw_audit (
        chain TEXT NOT NULL, seq BIGINT NOT NULL, hash TEXT NOT NULL, at DOUBLE PRECISION,
        kind TEXT, tenant TEXT, person TEXT, agent TEXT, run TEXT, tool TEXT, verdict TEXT,
        line TEXT NOT NULL, PRIMARY KEY (chain, seq))""",
    "CREATE INDEX IF NOT EXISTS evoclaw_audit_run ON evoclaw_audit (chain, run)",
    "CREATE INDEX IF NOT EXISTS evoclaw_audit_at ON evoclaw_audit (chain, at)",
    """CREATE TABLE IF NOT EXISTS evoclaw_audit_checkpoints (
        chain TEXT NOT NULL, n BIGINT NOT NULL, line TEXT NOT NULL, PRIMARY KEY (chain, n))""",
)
_COLUMNS = "chain, seq, hash, at, kind, tenant, person, agent, run, tool, verdict, line"
_NAMES = ("kind", "tenant", "user", "agent_id", "run_id", "tool", "verdict")


class AuditQuery(Struct, frozen=True, kw_only=True):
    """Which records to find; an empty field matches everything."""

    kind: str = ""
    tenant: str = ""
    user: str = ""
    agent_id: str = ""
    run_id: str = ""
    tool: str = ""
    verdict: str = ""
    since: float | None = None
    """Unix seconds."""
    until: float | None = None
    text: str = ""
    """Anywhere in the record, ignoring case."""
    limit: int = 100
    """At most this many, the newest."""


class ColdTier(Protocol):
    """Where audit records are kept permanently."""

    @property
    def name(self) -> str:
        """Which database it is, without secrets."""
        ...

    async def prepare(self) -> None:
        """Create the tables if they are missing."""
        ...

    async def put(self, chain: str, records: Sequence[SealedRecord]) -> None:
        """Store records; existing ones are not changed."""
        ...

    async def lines(self, chain: str, first: int, last: int) -> list[tuple[int, bytes]]:
        """The records of a span, in order, as they are stored; at most `PAGE_ROWS`."""
        ...

    async def put_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Store checkpoints; existing ones are not changed."""
        ...

    async def checkpoints(self, chain: str) -> list[Checkpoint]:
        """The stored checkpoints, in order."""
        ...

    async def find(self, chain: str, query: AuditQuery) -> list[bytes]:
        """The newest records that match, the newest first."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class SqlColdTier:
    """A cold tier in a database."""

    def __init__(self, database: ColdDatabase) -> None:
        self._database = database
        self._ready = False

    @property
    def name(self) -> str:
        """Which database it is, without secrets."""
        return self._database.name

    async def prepare(self) -> None:
        """Create the tables if they are missing."""
        if not self._ready:
            for table in _TABLES:
                await self._database.run(table)
            self._ready = True

    async def put(self, chain: str, records: Sequence[SealedRecord]) -> None:
        """Store records; existing ones are not changed."""
        for start in range(0, len(records), INSERT_BATCH_ROWS):
            batch = records[start : start + INSERT_BATCH_ROWS]
            rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(batch))
            await self._database.run(
                f"INSERT INTO evoclaw_audit ({_COLUMNS}) VALUES {rows} "
                "ON CONFLICT (chain, seq) DO NOTHING",
                *(value for record in batch for value in _row(chain, record)),
            )

    async def lines(self, chain: str, first: int, last: int) -> list[tuple[int, bytes]]:
        """The records of a span, in order, as they are stored; at most `PAGE_ROWS`."""
        rows = await self._database.run(
            "SELECT seq, line FROM evoclaw_audit WHERE chain = ? AND seq >= ? AND seq <= ? "
            f"ORDER BY seq LIMIT {PAGE_ROWS}",
            chain,
            first,
            last,
        )
        return [(int(seq or 0), str(line).encode()) for seq, line in rows]

    async def put_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Store checkpoints; existing ones are not changed."""
        for start in range(0, len(checkpoints), INSERT_BATCH_ROWS):
            batch = checkpoints[start : start + INSERT_BATCH_ROWS]
            rows = ", ".join(["(?, ?, ?)"] * len(batch))
            await self._database.run(
                f"INSERT INTO evoclaw_audit_checkpoints (chain, n, line) VALUES {rows} "
                "ON CONFLICT (chain, n) DO NOTHING",
                *(value for cp in batch for value in (cp.chain, cp.n, encode(cp).decode())),
            )

    async def checkpoints(self, chain: str) -> list[Checkpoint]:
        """The stored checkpoints, in order."""
        found: list[Checkpoint] = []
        while True:
            rows = await self._database.run(
                "SELECT line FROM evoclaw_audit_checkpoints WHERE chain = ? AND n > ? "
                f"ORDER BY n LIMIT {PAGE_ROWS}",
                chain,
                found[-1].n if found else 0,
            )
            for (line,) in rows:
                checkpoint = decode(str(line).encode())
                if checkpoint is None:
                    raise AuditError(f"{self.name} contains a checkpoint that cannot be read")
                found.append(checkpoint)
            if len(rows) < PAGE_ROWS:
                return found

    async def find(self, chain: str, query: AuditQuery) -> list[bytes]:
        """The newest records that match, the newest first."""
        where, values = ["chain = ?"], list[Value]([chain])
        for condition, value in _conditions(query):
            where.append(condition)
            values.append(value)
        rows = await self._database.run(
            f"SELECT line FROM evoclaw_audit WHERE {' AND '.join(where)} "
            f"ORDER BY seq DESC LIMIT {int(query.limit)}",
            *values,
        )
        return [str(line).encode() for (line,) in rows]

    async def close(self) -> None:
        """Close the connection."""
        await self._database.close()


def _row(chain: str, record: SealedRecord) -> tuple[Value, ...]:
    at = record.fields.get("at")
    named = (record.fields.get(name) for name in _NAMES)
    texts = (value if isinstance(value, str) else None for value in named)
    return (
        chain,
        record.seq,
        record.hash,
        at if isinstance(at, float) else None,
        *texts,
        record.line.decode(),
    )


def _conditions(query: AuditQuery) -> list[tuple[str, Value]]:
    """The SQL conditions of a query, and their values."""
    pairs: list[tuple[str, Value]] = [
        ("kind = ?", query.kind),
        ("tenant = ?", query.tenant),
        ("person = ?", query.user),
        ("agent = ?", query.agent_id),
        ("run = ?", query.run_id),
        ("tool = ?", query.tool),
        ("verdict = ?", query.verdict),
    ]
    found = [pair for pair in pairs if pair[1]]
    if query.since is not None:
        found.append(("at >= ?", query.since))
    if query.until is not None:
        found.append(("at < ?", query.until))
    if query.text:
        escaped = "".join(f"!{c}" if c in "!%_" else c for c in json_text(query.text).lower())
        found.append(("lower(line) LIKE ? ESCAPE '!'", f"%{escaped}%"))
    return found


def json_text(text: str) -> str:
    """A text as it appears in a line of JSON."""
    return canonical({"": text}).decode()[5:-2]


def open_cold(data: Path, settings: AuditSettings, env: Mapping[str, str]) -> ColdTier | None:
    """The cold tier of the settings, not connected yet; None for `none`."""
    kind, _, rest = settings.cold.partition(":")
    match kind:
        case "none" if not rest:
            return None
        case "sqlite":
            return SqlColdTier(SqliteColdDatabase(data / (rest or "audit/cold.sqlite")))
        case "libsql" | "http" | "https":
            return SqlColdTier(LibsqlColdDatabase(settings.cold, _token(settings, env)))
        case "postgresql" | "postgres":
            return SqlColdTier(PostgresColdDatabase(settings.cold, _token(settings, env)))
        case _:
            raise ConfigError(
                f"unknown cold tier {settings.cold[:40]!r} in [audit]; use sqlite, sqlite:FILE, "
                "libsql://…, http://…, postgresql://… or none"
            )


def _token(settings: AuditSettings, env: Mapping[str, str]) -> str:
    if not settings.cold_token_file:
        return env.get(TOKEN_VARIABLE, "")
    try:
        return Path(settings.cold_token_file).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read cold_token_file in [audit]: {problem}") from None
