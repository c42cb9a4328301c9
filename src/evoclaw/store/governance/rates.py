"""Call rates, counted by all processes that share a database: one row per call.

Transactions are serialised and use the clock of the database, so neither the number of processes
nor a wrong clock matters. A row is looked up by its number, never a whole minute of rows, and is
deleted after a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from evoclaw.store.databases.database import Connection, Database, Schema, StoreError

MINUTE_S, SECOND_S = 60.0, 1.0
PRUNE_INTERVAL_CALLS = 64
"""Calls after which old rows are deleted."""
SCHEMA = Schema(
    "rates",
    (
        (
            """CREATE TABLE rate_calls (
                who TEXT NOT NULL,
                number INTEGER NOT NULL,
                at REAL NOT NULL,
                PRIMARY KEY (who, number)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX rate_calls_at ON rate_calls (at)",
        ),
    ),
    # Of use for a minute only: not exported.
    derived_tables=(("rate_calls", ()),),
)
SERVER_CLOCK_SQL = "extract(epoch FROM clock_timestamp())::double precision"
_WINDOWS_SQL = """
SELECT clock.now, last.number, last.at, minute.at, second.at FROM (SELECT {now} AS now) AS clock
LEFT JOIN (
    SELECT number, at FROM rate_calls WHERE who = ?1 ORDER BY number DESC LIMIT 1
) AS last ON true
LEFT JOIN rate_calls AS minute ON minute.who = ?1 AND minute.number = last.number - ?2
LEFT JOIN rate_calls AS second ON second.who = ?1 AND second.number = last.number - ?3
"""

CallRateLimit: TypeAlias = tuple[str, int, int]
"""The key that is counted, calls per minute, and calls per second; 0 is no limit."""


class RateStore:
    """The call rates of all processes that share a database."""

    def __init__(
        self,
        database: Database,
        *,
        wait: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Count in a database.

        Args:
            database: The database.
            wait: Whether `take` waits for the commit. If not, it is deferred to the next write that
                waits: the caller must have waited for one before it makes the call.
            clock: Unix seconds; None is the clock of the server, which SQLite does not have.
        """
        self._database, self._wait, self._clock = database, wait, clock
        self._windows_sql = _WINDOWS_SQL.format(now=SERVER_CLOCK_SQL if clock is None else "?4")
        self._taken = 0

    async def take(self, limits: Sequence[CallRateLimit]) -> tuple[float, int] | None:
        """Count a call for each of these limits, or for none if one of them is reached.

        Then the result is the seconds until the call may be made, and the index of that limit.
        """
        prune, self._taken = self._taken % PRUNE_INTERVAL_CALLS == 0, self._taken + 1
        passed = False

        def work(connection: Connection) -> tuple[float, int] | None:
            nonlocal passed
            rows: list[tuple[str, int, float]] = []
            for number, limit in enumerate(limits):
                now, last, wait = self._wait_for(connection, limit)
                if wait > 0:
                    if passed:
                        # The deferred commit was lost, and another process made calls since.
                        raise StoreError(f"{self._database.name}: a counted call was lost; retry")
                    return wait, number
                rows.append((limit[0], last + 1, now))
            passed = True
            connection.executemany("INSERT INTO rate_calls VALUES (?, ?, ?)", rows)
            if prune and rows:
                oldest = rows[0][2] - MINUTE_S
                connection.execute("DELETE FROM rate_calls WHERE at <= ?", (oldest,))
            return None

        return await self._database.write(work, wait=self._wait)

    def _wait_for(self, connection: Connection, limit: CallRateLimit) -> tuple[float, int, float]:
        """The time, the number of the last call, and the seconds until the next one."""
        who, per_minute, burst = limit
        # Without a limit this looks for the call after the last, which does not exist.
        values: list[str | float] = [who, per_minute - 1, burst - 1]
        if self._clock is not None:
            values.append(self._clock())
        now, last, at, minute, second = connection.execute(self._windows_sql, values).fetchone()
        if last is not None and at > now:
            # The clock was set back: calls in the future count as made now.
            statement = "UPDATE rate_calls SET at = ? WHERE who = ? AND at > ?"
            connection.execute(statement, (now, who, now))
            minute, second = (made and min(made, now) for made in (minute, second))
        wait = 0.0 if minute is None else minute + MINUTE_S - now
        return now, last or 0, wait if second is None else max(wait, second + SECOND_S - now)
