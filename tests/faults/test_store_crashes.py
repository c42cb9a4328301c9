"""A process with all stores, killed at every write; and server functions that fail anywhere."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import pytest

from evoclaw.wiring.store import all_schemas
from tests.support.crash_sweep import (
    PostgresCopies,
    SqliteCopies,
    kill_points,
    open_crash_sweep,
)
from tests.support.step_faults import install_fault_points

PROCEDURES = {p.name for schema in all_schemas() for p in schema.procedures}
FOR_SERVERS_ONLY = {"add_receipt", "claim_of_job", "offer_job", "release_run", "resume_run"}
"""Procedures that only a shared database uses."""
FAULT_GROUPS = 16


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_fault_08_after_a_kill_at_any_statement_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        copies, expected = SqliteCopies(tmp_path), PROCEDURES - FOR_SERVERS_ONLY
    else:
        url = request.getfixturevalue("postgres_url")
        copies, expected = PostgresCopies(url, f"crash_{token_hex(4)}"), PROCEDURES
    async with open_crash_sweep(tmp_path, copies) as sweep:
        places, procedures = await sweep.whole_life()
        assert procedures == expected, "the scenario uses every procedure"
        # A transaction of SQLite is lost as a whole, wherever in it the process dies.
        await sweep.kill_at_each(kill_points(places, 1 if kind == "sqlite" else 2))
    assert sweep.problems == []
    assert sweep.killed_procedures == expected


async def test_fault_08_steps_whose_server_function_fails_anywhere_are_stored_once(
    tmp_path: Path, postgres_url: str
) -> None:
    names: dict[int, str] = {}

    async def change(url: str) -> None:
        names.update(await install_fault_points(url))

    copies = PostgresCopies(postgres_url, f"faults_{token_hex(4)}", change)
    async with open_crash_sweep(tmp_path, copies) as sweep:
        assert set(names.values()) >= PROCEDURES
        places = sorted(names)
        reached = await sweep.fail_at_each(places[n::FAULT_GROUPS] for n in range(FAULT_GROUPS))
    assert sweep.problems == []
    assert {names[place] for place in reached} >= PROCEDURES
