"""Steps: writes as values, which a database takes whole, many of them in one commit.

A function that runs in a transaction talks to the database statement by statement: over a network
each of them is a round trip. A step names a procedure and carries its arguments, so that PostgreSQL
runs the steps of many runs in one statement, and SQLite in one transaction.

A procedure is written twice: in Python for SQLite, in PL/pgSQL for PostgreSQL. For what a caller
expects, such as a higher epoch or an empty account, it does not raise: it returns that, and changes
nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

COMMON_PROCEDURES = (
    *("append", "ledger", "take_rate", "enqueue", "end_run", "add_receipt", "put_observations"),
    *("put_command", "mark_command", "settle_command"),
)
"""The procedures of most commits: PostgreSQL compares the name of a step with theirs first, and
each name that it compares costs microseconds in each commit."""
_FUNCTION_NAME = re.compile(r"\bstep_[a-z0-9_]+\b")

OnResult: TypeAlias = Callable[[Any], None]
"""Gets the result of a deferred step. What it raises, the next `flush` of the scope raises."""
OnFailure: TypeAlias = Callable[[BaseException], None]
"""Gets the error of a deferred step, of which nothing is stored."""


class ServerFunction(Struct, frozen=True):
    """A PL/pgSQL function; procedures call each other by these names."""

    name: str
    """Starts with `step_`."""
    arguments: str
    """As declared, such as `tenant text, amounts jsonb`."""
    returns: str
    body: str
    """From DECLARE or BEGIN to END."""


class Procedure(Struct, frozen=True, eq=False, kw_only=True):
    """A write that a database executes by itself."""

    name: str
    sqlite: Callable[..., Any]
    """Called with the connection and the arguments, in a transaction."""
    postgres: str
    """The body of a PL/pgSQL function from DECLARE or BEGIN to END. `a` is the array of the
    arguments, as jsonb; bytes are base64. It returns jsonb."""
    takes_many: bool = False
    """Whether the body runs all steps of a commit at once: `a` is the array of their arguments, and
    it returns the array of their results. They run where the first of them would, so none of them
    may depend on another procedure's step of the same commit that comes before it."""
    functions: tuple[ServerFunction, ...] = ()
    """Functions that the body calls."""
    changes_once: bool = False
    """Whether at most one of its SQLite statements changes something, and nothing can fail after
    that one: then SQLite itself undoes a step that fails, without a savepoint."""
    rank: int = 0
    """The steps of one commit run in the order of their ranks, on PostgreSQL. Those that change
    rows of many runs come last: all processes lock these rows in the same order, so that they do
    not wait for each other in a circle."""


class Step(Struct, frozen=True):
    """One call of a procedure."""

    procedure: Procedure
    arguments: Sequence[Any] | Callable[[], Sequence[Any]]
    """Values that JSON can hold, and bytes. A function is called when the step is sent: the step is
    shared by all that are deferred before, of the same procedure."""
    lock: str = ""
    """The name of a lock that the step holds until its commit, on PostgreSQL. The locks of all
    steps of a commit are taken first, in order, so that processes do not wait in a circle."""

    @property
    def is_shared(self) -> bool:
        """Whether others may join it until it is sent."""
        return callable(self.arguments)

    def values(self) -> Sequence[Any]:
        """The arguments, as they are now."""
        return self.arguments() if callable(self.arguments) else self.arguments


RUN_ALL = ServerFunction(
    "step_run_all",
    "writer text, number bigint, locks text[], steps jsonb, "
    "OUT server_time float8, OUT answers text",
    "record",
    """
DECLARE
    lock text;
    step jsonb;
    answer jsonb;
    all_answers jsonb[] := '{{}}';
{variables}
BEGIN
    server_time := extract(epoch FROM clock_timestamp());
    -- ON CONFLICT is for the first batch alone: it writes one more record to the WAL.
    UPDATE step_writers AS w SET batch = number, at = server_time
    WHERE w.name = writer AND w.batch < number;
    IF NOT FOUND THEN
        INSERT INTO step_writers VALUES (writer, number, server_time) ON CONFLICT (name) DO NOTHING;
    END IF;
    IF NOT FOUND THEN
        -- It was committed before, and its answer was lost.
        SELECT r.answers INTO answers FROM step_answers r
        WHERE r.name = writer AND r.batch = number;
        RETURN;
    END IF;
    FOREACH lock IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('evoclaw ' || lock, 0));
    END LOOP;
    FOR step IN SELECT value FROM jsonb_array_elements(steps) LOOP
        CASE step->>0
{cases}
        END CASE;
        all_answers := array_append(all_answers, answer);
    END LOOP;
    answers := to_jsonb(all_answers)::text;
    INSERT INTO step_answers AS r VALUES (writer, number, answers)
    ON CONFLICT (name) DO UPDATE SET batch = excluded.batch, answers = excluded.answers;
END
""",
)
"""Runs the steps of a batch, once; `step_answers` is not logged, as it is needed for a moment."""
WRITER_TABLES = (
    "CREATE TABLE step_writers (name text PRIMARY KEY, batch bigint NOT NULL, at float8 NOT NULL) "
    "WITH (fillfactor = 50)",
    "CREATE UNLOGGED TABLE step_answers "
    "(name text PRIMARY KEY, batch bigint NOT NULL, answers text NOT NULL)",
)
"""For PostgreSQL: the last batch of each process, and its answers."""


def server_functions(procedures: Iterable[Procedure]) -> tuple[str, list[str]]:
    """A digest of all functions of these procedures, and the statements that create them.

    The digest is part of each name, so that processes of several versions can share a database.
    """
    found: dict[str, ServerFunction] = {}
    procedures = list(procedures)
    by_use = sorted(procedures, key=lambda each: each.name not in COMMON_PROCEDURES)
    cases = "\n".join(map(_case, by_use))
    variables = "\n".join(
        f"    {each.name}_answers jsonb;\n    {each.name}_count integer := 0;"
        for each in procedures
        if each.takes_many
    )
    for procedure in procedures:
        name = f"step_{procedure.name}"
        for function in (
            *procedure.functions,
            ServerFunction(name, "a jsonb", "jsonb", procedure.postgres),
        ):
            if found.setdefault(function.name, function) != function:
                raise ValueError(f"two functions are named {function.name}")
    if procedures:
        run_all = replace(RUN_ALL, body=RUN_ALL.body.format(cases=cases, variables=variables))
        found[RUN_ALL.name] = run_all
    text = "\n".join(repr(function) for function in found.values())
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return digest, [_create(function, digest, found) for function in found.values()]


def _case(procedure: Procedure) -> str:
    """The branch of `RUN_ALL` that runs a step."""
    name = procedure.name
    if not procedure.takes_many:
        return f"        WHEN '{name}' THEN answer := step_{name}(step->1);"
    return f"""        WHEN '{name}' THEN
            IF {name}_answers IS NULL THEN
                SELECT step_{name}(jsonb_agg(s.value->1 ORDER BY s.ordinality))
                INTO {name}_answers
                FROM jsonb_array_elements(steps) WITH ORDINALITY AS s
                WHERE s.value->>0 = '{name}';
            END IF;
            answer := {name}_answers->{name}_count;
            {name}_count := {name}_count + 1;"""


def _create(function: ServerFunction, digest: str, all_: dict[str, ServerFunction]) -> str:
    def suffixed(match: re.Match[str]) -> str:
        return f"{match[0]}_{digest}" if match[0] in all_ else match[0]

    body = _FUNCTION_NAME.sub(suffixed, function.body)
    return (
        f"CREATE OR REPLACE FUNCTION {function.name}_{digest}({function.arguments}) "
        f"RETURNS {function.returns} LANGUAGE plpgsql AS $body$\n{body}\n$body$"
    )
