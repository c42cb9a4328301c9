"""The campaign of `make evobench`, in small: what is planted is what the gate finds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.evolution.campaign import run_campaign
from bench.evolution.edits import make_edits
from bench.evolution.rollback import measure
from bench.evolution.world import (
    HARD_TOPICS,
    LARGE,
    RIGHT,
    SMALL,
    WRONG,
    advice,
    make_cases,
    read_rules,
)


@pytest.fixture
def threads() -> Iterator[None]:
    """A campaign has a process to itself, and replaces threads in it."""
    before = asyncio.to_thread
    yield
    asyncio.to_thread = before


def test_the_planted_model_is_better_only_where_it_reads_a_right_rule() -> None:
    cases = make_cases(1)
    hard = [case for case in cases if HARD_TOPICS[0] in case.case.message]
    question, code = hard[0].case.message, "XYZ-12345"
    assert read_rules("").chance(question, SMALL, code) == 0.05
    assert read_rules(advice(HARD_TOPICS[0], RIGHT)).chance(question, SMALL, code) == 0.9
    assert read_rules(advice(HARD_TOPICS[0], WRONG)).chance(question, SMALL, code) == 0.02
    assert read_rules("").chance(question, LARGE, code) == 0.9
    assert read_rules(f"Say {code}.").chance(question, SMALL, code) == 1.0


def test_a_campaign_has_the_edits_that_were_asked_for() -> None:
    edits = make_edits(3, make_cases(3), null=30, good=20, traps=14)
    truths = [edit.truth for edit in edits]
    assert {truth: truths.count(truth) for truth in sorted(set(truths))} == {
        "good": 20, "null": 30, "trap": 14,
    }  # fmt: skip
    assert len({edit.kind for edit in edits if edit.truth == "trap"}) == 7
    assert edits == make_edits(3, make_cases(3), null=30, good=20, traps=14)
    assert truths != sorted(truths)


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_a_small_campaign_promotes_the_good_edit_and_no_trap() -> None:
    done = run_campaign(5, null=1, good=1, traps=7)
    assert done.unexpected == []
    assert done.promoted == {"null": 0, "good": 1, "trap": 0}


@pytest.mark.slow
@pytest.mark.process
async def test_a_broken_bound_of_a_real_service_is_measured(tmp_path: Path) -> None:
    found = await measure(tmp_path, "", repetitions=1, kills=0)
    assert len(found["rolled_back"]) == len(found["restored"]) == 3
    assert all(seconds > 0 for seconds in (*found["rolled_back"], *found["restored"]))
    assert (found["lost"], found["repeated"], found["killed"]) == (0, 0, [])
