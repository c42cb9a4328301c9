"""How often calls were made, counted by all who share a database: a row for each of them.

Who writes takes turns, and the time is the database's own: so it does not matter how many count,
nor whose clock is wrong. A row is looked at by its number, never a whole minute of them, and is
gone when it is older than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from evoclaw.store.databases.database import Connection, Database, Schema, StoreError

MINUTE, SECOND = 60.0, 1.0
OFTEN = 64
"""Calls after which those that count no more are deleted."""
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
    # Of use for a minute: not worth taking along.
    derived=(("rate_calls", ()),),
)
SERVER = "extract(epoch FROM clock_timestamp())::double precision"
_LOOK = """
SELECT clock.now, last.number, last.at, minute.at, second.at FROM (SELECT {now} AS now) AS clock
LEFT JOIN (
    SELECT number, at FROM rate_calls WHERE who = ?1 ORDER BY number DESC LIMIT 1
) AS last ON true
LEFT JOIN rate_calls AS minute ON minute.who = ?1 AND minute.number = last.number - ?2
LEFT JOIN rate_calls AS second ON second.who = ?1 AND second.number = last.number - ?3
"""

Limit: TypeAlias = tuple[str, int, int]
"""Who is counted, how often a minute, and how often a second; 0 is without that limit."""


class RateCounts:
    """The calls of all who use one database."""

    def __init__(
        self,
        database: Database,
        *,
        wait: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Count there.

        Args:
            database: Where.
            wait: Whether a call is committed when `take` returns. If not, it is with the next
                write to the database that waits: whoever makes the call must have waited for one.
            clock: Unix seconds; None is the server's clock, which a file has not.
        """
        self._database, self._wait, self._clock = database, wait, clock
        self._look = _LOOK.format(now=SERVER if clock is None else "?4")
        self._taken = 0

    async def take(self, limits: Sequence[Limit]) -> tuple[float, int] | None:
        """Count a call for each of these limits; or for none, if one of them is met.

        Then the seconds until it may be made are given, and the number of that limit.
        """
        tidy, self._taken = self._taken % OFTEN == 0, self._taken + 1
        passed = False

        def work(connection: Connection) -> tuple[float, int] | None:
            nonlocal passed
            rows: list[tuple[str, int, float]] = []
            for number, limit in enumerate(limits):
                now, last, wait = self._wait_for(connection, limit)
                if wait > 0:
                    if passed:
                        # Said to be free, lost with its connection, and taken by another since.
                        raise StoreError(f"{self._database.name}: a call could not be counted")
                    return wait, number
                rows.append((limit[0], last + 1, now))
            passed = True
            connection.executemany("INSERT INTO rate_calls VALUES (?, ?, ?)", rows)
            if tidy and rows:
                gone = rows[0][2] - MINUTE
                connection.execute("DELETE FROM rate_calls WHERE at <= ?", (gone,))
            return None

        return await self._database.write(work, wait=self._wait)

    def _wait_for(self, connection: Connection, limit: Limit) -> tuple[float, int, float]:
        """What time it is, the number of the last call, and the seconds until the next one."""
        who, per_minute, burst = limit
        # Without a limit the one after the last is looked for, which is not there.
        values: list[str | float] = [who, per_minute - 1, burst - 1]
        if self._clock is not None:
            values.append(self._clock())
        now, last, at, minute, second = connection.execute(self._look, values).fetchone()
        if last is not None and at > now:
            # The clock was set back: what is ahead of it counts as made now.
            statement = "UPDATE rate_calls SET at = ? WHERE who = ? AND at > ?"
            connection.execute(statement, (now, who, now))
            minute, second = (one and min(one, now) for one in (minute, second))
        wait = 0.0 if minute is None else minute + MINUTE - now
        return now, last or 0, wait if second is None else max(wait, second + SECOND - now)
