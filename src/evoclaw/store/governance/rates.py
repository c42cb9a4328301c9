"""Call rates, counted by all processes that share a database: one row per call.

The calls of a key are counted one after the other, by the clock of the database, so neither the
number of processes nor a wrong clock matters. A row is looked up by its number, never a whole
minute of rows, and is deleted after a minute.

A process that has seen that more than half of a limit is left need not wait for the database: the
call is counted with the next commit. If the limit was reached after all, the write scope fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from evoclaw.store.databases.database import Connection, Database, Schema, StoreUnavailable
from evoclaw.store.databases.steps import Procedure, ServerFunction
from evoclaw.store.databases.write_requests import current_write_scope
from evoclaw.store.governance.gathered_step import GatheredStep, Operation

MINUTE_S, SECOND_S = 60.0, 1.0
PRUNE_INTERVAL_CALLS = 64
"""Calls after which old rows are deleted."""
MAX_PRUNED_ROWS = 1_000
"""Rows that are deleted at once."""
MAX_SEEN_AGE_S = 10.0
"""Seconds for which an earlier answer is believed."""
MAX_SEEN_KEYS = 10_000
"""Keys whose last answer is kept in memory."""

CallRateLimit: TypeAlias = tuple[str, int, int]
"""The key that is counted, calls per minute, and calls per second; 0 is no limit."""

_WINDOWS_SQL = """
SELECT last.number, last.at, minute.at, second.at FROM (SELECT 1) AS always
LEFT JOIN (
    SELECT number, at FROM rate_calls WHERE who = ?1 ORDER BY number DESC LIMIT 1
) AS last ON true
LEFT JOIN rate_calls AS minute ON minute.who = ?1 AND minute.number = last.number - ?2
LEFT JOIN rate_calls AS second ON second.who = ?1 AND second.number = last.number - ?3
"""
_COUNT_SQL = "SELECT count(*) FROM rate_calls WHERE who = ? AND number > ? AND at > ?"


def _take_all(
    connection: Connection,
    calls: Sequence[Sequence[CallRateLimit]],
    now: float | None,
    prune: bool,
) -> list[list[Any]]:
    """For each call: the seconds to wait and the index of the limit, or what is left of each."""
    now = time.time() if now is None else now
    found = [_take(connection, limits, now) for limits in calls]
    if prune:
        connection.execute("DELETE FROM rate_calls WHERE at <= ?", (now - MINUTE_S,))
    return found


def _take(connection: Connection, limits: Sequence[CallRateLimit], now: float) -> list[Any]:
    rows: list[tuple[str, int, float]] = []
    left: list[tuple[int, int]] = []
    for number, (who, per_minute, burst) in enumerate(limits):
        # Without a limit this looks for the call after the last, which does not exist.
        values = (who, per_minute - 1, burst - 1)
        last, at, minute, second = connection.execute(_WINDOWS_SQL, values).fetchone()
        if last is not None and at > now:
            # The clock was set back: calls in the future count as made now.
            statement = "UPDATE rate_calls SET at = ? WHERE who = ? AND at > ?"
            connection.execute(statement, (now, who, now))
            minute, second = (made and min(made, now) for made in (minute, second))
        wait = 0.0 if minute is None else minute + MINUTE_S - now
        wait = wait if second is None else max(wait, second + SECOND_S - now)
        if wait > 0:
            return [wait, number, []]
        last = last or 0
        rows.append((who, last + 1, now))
        left.append(
            (
                _left(connection, who, last, per_minute, now - MINUTE_S),
                _left(connection, who, last, burst, now - SECOND_S),
            )
        )
    connection.executemany("INSERT INTO rate_calls VALUES (?, ?, ?)", rows)
    return [0.0, -1, left]


def _left(connection: Connection, who: str, last: int, limit: int, since: float) -> int:
    """How many calls are left after this one, if that is half of the limit at least; else 0."""
    half = limit // 2
    if not half:
        return 0
    used = connection.execute(_COUNT_SQL, (who, last - half, since)).fetchone()[0]
    return limit - used - 1 if used < half else 0


_LEFT = ServerFunction(
    "step_rate_left",
    "key text, last bigint, max_calls bigint, since float8",
    "bigint",
    """
DECLARE
    half bigint := max_calls / 2;
    used bigint;
BEGIN
    IF half = 0 THEN
        RETURN 0;
    END IF;
    SELECT count(*) INTO used FROM rate_calls AS t
    WHERE t.who = key AND t.number > last - half AND t.at > since;
    RETURN CASE WHEN used < half THEN max_calls - used - 1 ELSE 0 END;
END
""",
)
TAKE_RATE = Procedure(
    name="take_rate",
    rank=60,
    sqlite=_take_all,
    functions=(_LEFT,),
    postgres="""
DECLARE
    calls jsonb := a->0;
    given float8 := (a->>1)::float8;
    moment float8;
    limits jsonb;
    key text;
    per_minute bigint;
    burst bigint;
    last bigint;
    last_at float8;
    made float8;
    pause float8;
    refused int;
    keys text[];
    numbers bigint[];
    rests jsonb;
    results jsonb := '[]';
BEGIN
    -- The keys of all calls, in one order: no two processes wait for each other.
    PERFORM pg_advisory_xact_lock(k.hash) FROM (
        SELECT DISTINCT hashtextextended(l->>0, 60) AS hash
        FROM jsonb_array_elements(calls) AS c, jsonb_array_elements(c) AS l ORDER BY hash
    ) AS k;
    moment := coalesce(given, extract(epoch FROM clock_timestamp())::float8);
    FOR i IN 0 .. jsonb_array_length(calls) - 1 LOOP
        limits := calls->i;
        refused := -1;
        keys := '{}';
        numbers := '{}';
        rests := '[]';
        FOR j IN 0 .. jsonb_array_length(limits) - 1 LOOP
            key := limits->j->>0;
            per_minute := (limits->j->>1)::bigint;
            burst := (limits->j->>2)::bigint;
            last := NULL;
            SELECT t.number, t.at INTO last, last_at FROM rate_calls AS t
            WHERE t.who = key ORDER BY t.number DESC LIMIT 1;
            IF last_at > moment THEN
                -- The clock was set back: calls in the future count as made now.
                UPDATE rate_calls AS t SET at = moment WHERE t.who = key AND t.at > moment;
            END IF;
            pause := 0;
            IF last IS NOT NULL AND per_minute > 0 THEN
                SELECT t.at INTO made FROM rate_calls AS t
                WHERE t.who = key AND t.number = last - per_minute + 1;
                pause := greatest(pause, coalesce(made + 60 - moment, 0));
            END IF;
            IF last IS NOT NULL AND burst > 0 THEN
                SELECT t.at INTO made FROM rate_calls AS t
                WHERE t.who = key AND t.number = last - burst + 1;
                pause := greatest(pause, coalesce(made + 1 - moment, 0));
            END IF;
            IF pause > 0 THEN
                refused := j;
                EXIT;
            END IF;
            last := coalesce(last, 0);
            keys := keys || key;
            numbers := numbers || (last + 1);
            rests := rests || jsonb_build_array(jsonb_build_array(
                step_rate_left(key, last, per_minute, moment - 60),
                step_rate_left(key, last, burst, moment - 1)));
        END LOOP;
        IF refused < 0 THEN
            INSERT INTO rate_calls SELECT u.who, u.number, moment
            FROM unnest(keys, numbers) AS u (who, number);
            results := results || jsonb_build_array(jsonb_build_array(0, -1, rests));
        ELSE
            results := results
                || jsonb_build_array(jsonb_build_array(pause, refused, '[]'::jsonb));
        END IF;
    END LOOP;
    IF (a->>2)::boolean THEN
        DELETE FROM rate_calls AS t WHERE (t.who, t.number) IN (
            SELECT o.who, o.number FROM rate_calls AS o WHERE o.at <= moment - 60
            ORDER BY o.at LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN results;
END
""",
)
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
    procedures=(TAKE_RATE,),
)


class _SeenRate(Struct):
    """What was left of a limit, by the last answer and the calls of this process since."""

    minute: int
    second: int
    answered_at: float


class _CallOperation(Operation):
    """A call that is counted, with or without waiting."""

    def __init__(self, limits: Sequence[CallRateLimit]) -> None:
        super().__init__(limits)
        self.limits = limits


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
            wait: Whether `take` always waits for its commit. If not, it answers from memory where
                it can in a write scope: the caller must wait for `Database.flush` before it makes
                the call.
            clock: Unix seconds; None is the clock of the server, or of this machine for a file.
        """
        self._database, self._wait, self._clock = database, wait, clock
        self._steps = GatheredStep(
            database, TAKE_RATE, self._encode, self._receive, lambda operations, problem: None
        )
        self._seen: dict[str, _SeenRate] = {}
        self._taken = 0

    async def take(self, limits: Sequence[CallRateLimit]) -> tuple[float, int] | None:
        """Count a call for each of these limits, or for none if one of them is reached.

        Then the result is the seconds until the call may be made, and the index of that limit.
        """
        operation, in_scope = _CallOperation(limits), current_write_scope() is not None
        if not self._wait and in_scope and all(map(self._has_enough, limits)):
            for who, _, _ in limits:
                self._seen[who].minute -= 1
                self._seen[who].second -= 1
            self._steps.add(operation)
            return None
        pause, index = await self._steps.ask(operation, commit=self._wait or not in_scope)
        return None if index < 0 else (pause, index)

    def _has_enough(self, limit: CallRateLimit) -> bool:
        """Whether more than half of a limit is left."""
        who, per_minute, burst = limit
        seen = self._seen.get(who)
        return (
            seen is not None
            and time.monotonic() - seen.answered_at < MAX_SEEN_AGE_S
            and (not per_minute or 2 * seen.minute > per_minute)
            and (not burst or 2 * seen.second > burst)
        )

    def _encode(self, operations: Sequence[Operation]) -> Sequence[Any]:
        before, self._taken = self._taken, self._taken + len(operations)
        prune = not before or before // PRUNE_INTERVAL_CALLS != self._taken // PRUNE_INTERVAL_CALLS
        now = None if self._clock is None else self._clock()
        return [operation.values for operation in operations], now, prune

    def _receive(self, operations: Sequence[Operation], result: Any) -> None:
        for operation, answer in zip(operations, result, strict=True):
            assert isinstance(operation, _CallOperation)
            self._receive_answer(operation, *answer)
        # What was asked since is not in the answers.
        for operation in self._steps.unanswered:
            assert isinstance(operation, _CallOperation)
            for who, _, _ in operation.limits:
                if operation.answer is None and (seen := self._seen.get(who)) is not None:
                    seen.minute -= 1
                    seen.second -= 1
        while len(self._seen) > MAX_SEEN_KEYS:
            del self._seen[next(iter(self._seen))]

    def _receive_answer(
        self, operation: _CallOperation, pause: float, index: int, left: Sequence[tuple[int, int]]
    ) -> None:
        for (who, _, _), (minute, second) in zip(operation.limits, left, strict=False):
            self._seen.pop(who, None)
            self._seen[who] = _SeenRate(minute, second, time.monotonic())
        if index >= 0:
            self._seen.pop(operation.limits[index][0], None)
        if operation.answer is not None:
            if not operation.answer.done():
                operation.answer.set_result((pause, index))
        elif index >= 0:
            operation.fail(
                StoreUnavailable(
                    f"{self._database.name}: other processes have made too many calls in "
                    "the meantime; the run is suspended and tries again when it resumes"
                )
            )
