"""A process with all stores, killed at some of its writes; `tests/faults` has the whole sweep."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import pytest

from tests.support.crash_sweep import (
    PostgresCopies,
    SqliteCopies,
    kill_points,
    open_crash_sweep,
)
from tests.support.step_faults import add_fault_points

pytestmark = pytest.mark.process

SAMPLES = {"sqlite": 6, "postgres": 3}


@pytest.mark.parametrize("kind", SAMPLES)
async def test_a_process_killed_at_some_statements_loses_and_repeats_nothing(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        copies = SqliteCopies(tmp_path)
    else:
        url = request.getfixturevalue("postgres_url")
        copies = PostgresCopies(url, f"crash_{token_hex(4)}")
    async with open_crash_sweep(tmp_path, copies, concurrent=1) as sweep:
        places, _ = await sweep.whole_life()
        points = kill_points(places)
        step = len(points) // SAMPLES[kind]
        await sweep.kill_at_each(points[step // 2 :: step])
    assert sweep.problems == []
    assert len(sweep.killed_at) >= SAMPLES[kind]


async def test_batches_whose_answers_are_lost_are_applied_once(
    tmp_path: Path, postgres_url: str
) -> None:
    copies = PostgresCopies(postgres_url, f"lost_{token_hex(4)}")
    async with open_crash_sweep(tmp_path, copies, concurrent=1) as sweep:
        places, _ = await sweep.whole_life(loses_answers=True)
    assert sweep.problems == []
    assert len(places) > 100


def test_fault_points_are_added_before_statements_only() -> None:
    body = "DECLARE a int; BEGIN -- x;\nIF a = ';' THEN b(1); END IF; c := (SELECT 1); END"
    changed, after = add_fault_points(body, 7)
    point = "IF fault_point({}) THEN NULL; END IF; "
    assert changed == (
        f"DECLARE a int; BEGIN -- x;\n{point.format(7)}IF a = ';' THEN b(1); END IF; "
        f"{point.format(8)}c := (SELECT 1); END"
    )
    assert after == 9
