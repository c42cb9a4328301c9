"""Faults inside the server functions of PostgreSQL: each statement of a step can fail, once."""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg

SCHEMA = "evoclaw"
_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|\w+|;|\(|\)", re.DOTALL)
_NO_STATEMENT = {"END", "ELSE", "ELSIF", "EXCEPTION", "WHEN"}
"""Words that may follow a semicolon and start no statement."""
_TABLE = f"CREATE TABLE {SCHEMA}.faults (place bigint PRIMARY KEY, kind text NOT NULL)"
# A sequence keeps its value when the transaction is rolled back: so a fault happens once.
_POINT = f"""
CREATE FUNCTION {SCHEMA}.fault_point(in_place bigint) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    v_kind text;
BEGIN
    SELECT kind INTO v_kind FROM {SCHEMA}.faults WHERE place = in_place;
    IF v_kind IS NULL OR nextval('{SCHEMA}.fault_' || in_place) > 1 THEN
        RETURN false;
    END IF;
    IF v_kind = 'connection_lost' THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    ELSE
        RAISE EXCEPTION 'fault %', in_place USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN false;
END
$body$
"""


def add_fault_points(body: str, first: int) -> tuple[str, int]:
    """The body of a PL/pgSQL function with a point before its statements; the next number."""
    parts, done, number, depth, inside, due = list[str](), 0, first, 0, False, False
    for token in _TOKEN.finditer(body):
        word = token[0].upper()
        if word.startswith("--"):
            continue
        if due and word not in _NO_STATEMENT:
            # An IF changes neither FOUND nor the row count.
            parts += [body[done : token.start()], f"IF fault_point({number}) THEN NULL; END IF; "]
            done, number = token.start(), number + 1
        due = False
        depth += (word == "(") - (word == ")")
        if word == "BEGIN" and not inside:
            inside = due = True
        elif word == ";" and inside and not depth:
            due = True
    return "".join([*parts, body[done:]]), number


async def install_fault_points(url: str) -> dict[int, str]:
    """Change all step functions of a database; the name of the function of each point."""
    find = (
        "SELECT p.oid::regprocedure::text, p.proname, p.prosrc, pg_get_functiondef(p.oid) "
        "FROM pg_proc p WHERE p.proname LIKE 'step\\_%%' AND p.pronamespace = "
        f"'{SCHEMA}'::regnamespace ORDER BY p.proname"
    )
    places: dict[int, str] = {}
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(_TABLE.encode())
        await connection.execute(_POINT.encode())
        rows = await (await connection.execute(find.encode())).fetchall()
        await connection.execute(f"SET search_path TO {SCHEMA}".encode())
        for _, name, source, definition in rows:
            first = len(places) + 1
            changed, after = add_fault_points(source, first)
            plain = str(name).rpartition("_")[0].removeprefix("step_")
            places |= dict.fromkeys(range(first, after), plain)
            await connection.execute(definition.replace(source, changed).encode())
    return places


async def arm_faults(url: str, places: Sequence[int]) -> None:
    """Have these points fail once: with every other one the server also ends the connection."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for number, place in enumerate(places):
            kind = "connection_lost" if number % 2 else "conflict"
            await connection.execute(f"CREATE SEQUENCE {SCHEMA}.fault_{place}".encode())
            put = f"INSERT INTO {SCHEMA}.faults VALUES ({place}, '{kind}')"
            await connection.execute(put.encode())


async def reached_faults(url: str, places: Sequence[int]) -> set[int]:
    """The points that were reached."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        reached: set[int] = set()
        for place in places:
            find = f"SELECT is_called FROM {SCHEMA}.fault_{place}"
            row = await (await connection.execute(find.encode())).fetchone()
            if row is not None and row[0]:
                reached.add(place)
        return reached
