from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evoclaw.core.ledgers import MAX_WINDOW_ENTRIES, InsufficientFunds, Limit, Reservation
from tests.support.budgets import KINDS, Clock, account, open_ledger, passed, refused

RUN = ("tenant", "run")
CHILD = ("tenant", "run", "child")
ONE = {"calls": 1}

both = pytest.mark.parametrize("kind", KINDS)


@both
async def test_fault_50_of_fifty_calls_racing_a_budget_of_one_exactly_one_passes(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"calls": Limit(1)}, {})
        racing = [ledger.reserve(RUN, ONE, f"call {number}") for number in range(50)]
        found = await asyncio.gather(*racing)
        assert sum(isinstance(one, Reservation) for one in found) == 1
        assert (await account(ledger, "run")).held == {"calls": 1}


@both
async def test_an_amount_counts_against_every_account_above_and_is_taken_from_all_or_none(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("tenant", {"tokens": Limit(100)}, {})
        await ledger.open("run", {"calls": Limit(5), "tokens": Limit(80)}, {})
        assert await passed(ledger, CHILD, {"calls": 1, "tokens": 70}, "a")
        short = await refused(ledger, CHILD, {"calls": 1, "tokens": 11}, "b")
        assert short == InsufficientFunds("tokens", "run", 10, 11)
        other = await refused(ledger, ("tenant", "other"), {"tokens": 31}, "c")
        assert (other.account, other.left) == ("tenant", 30)
        for name in CHILD:
            assert (await account(ledger, name)).held == {"calls": 1, "tokens": 70}


@both
async def test_the_same_id_is_set_aside_once_and_spent_once(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"calls": Limit(1)}, {})
        for fresh in (True, False, False):
            found = await ledger.reserve(RUN, ONE, "a")
            assert isinstance(found, Reservation) and found.is_new is fresh
            assert [left.left for left in found.remaining_before] == [1]
        ledger.settle("a", ONE)
        ledger.settle("a", {"calls": 5})
        again = await ledger.reserve(RUN, ONE, "a")
        assert isinstance(again, Reservation) and not again.is_new
        assert (await account(ledger, "tenant")).spent == {"calls": 1}
        assert (await account(ledger, "run")).held == {}


@both
async def test_what_was_really_spent_counts_and_more_than_was_there_ends_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"tokens": Limit(100)}, {})
        assert await passed(ledger, RUN, {"tokens": 90}, "a")
        ledger.settle("a", {"tokens": 20})
        assert ledger.remaining(RUN).keys() == {"tokens"}
        assert await passed(ledger, RUN, {"tokens": 80}, "b")
        ledger.settle("b", {"tokens": 130})
        assert (await refused(ledger, RUN, {"tokens": 1}, "c")).left == 0
        assert (await account(ledger, "run")).spent == {"tokens": 150}
        assert ledger.remaining(RUN)["tokens"].left == 0


@both
async def test_what_is_released_is_there_again_and_may_be_taken_anew(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"calls": Limit(1)}, {})
        assert await passed(ledger, RUN, ONE, "a")
        ledger.release("a")
        ledger.release("a")
        assert await passed(ledger, RUN, ONE, "b")
        ledger.settle("b", ONE)
        ledger.release("b")
        assert not await passed(ledger, RUN, ONE, "a")


@both
async def test_a_window_slides_and_holds_what_is_still_under_way(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with open_ledger(kind, tmp_path, clock) as ledger:
        await ledger.open("tenant", {"action.relay": Limit(3, 3_600.0)}, {})
        began = clock.now
        for number in range(3):
            clock.now = began + 600 * number
            assert await passed(ledger, RUN, {"action.relay": 1}, f"a{number}")
            ledger.settle(f"a{number}", {"action.relay": 1})
        assert (await refused(ledger, RUN, {"action.relay": 1}, "b")).per == 3_600.0
        clock.now = began + 3_599.9
        assert not await passed(ledger, RUN, {"action.relay": 1}, "b")
        clock.now = began + 3_600
        assert await passed(ledger, RUN, {"action.relay": 1}, "b")
        clock.now = began + 9_999_999
        assert await passed(ledger, RUN, {"action.relay": 2}, "c")
        assert not await passed(ledger, RUN, {"action.relay": 1}, "d"), "one never ended"


@both
async def test_a_full_window_puts_times_together_and_never_forgets_too_early(
    kind: str, tmp_path: Path
) -> None:
    clock, many = Clock(), MAX_WINDOW_ENTRIES + 50
    async with open_ledger(kind, tmp_path, clock) as ledger:
        await ledger.open("tenant", {"tokens": Limit(10_000, 100.0)}, {})
        for number in range(many):
            assert await passed(ledger, ("tenant",), {"tokens": 1}, str(number))
            ledger.settle(str(number), {"tokens": 1})
            clock.now += 0.1
        kept = await account(ledger, "tenant")
        assert kept.used("tokens", clock.now) == many
        assert len(kept.recent["tokens"]) < many
        assert kept.used("tokens", clock.now + 99.8) >= 1
        assert kept.used("tokens", clock.now + 100) == 0


@both
async def test_closing_a_run_spends_what_it_left_open_and_only_that(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("tenant", {"tokens": Limit(100)}, {})
        assert await passed(ledger, RUN, {"tokens": 60}, "open")
        assert await passed(ledger, RUN, {"tokens": 20}, "done")
        ledger.settle("done", {"tokens": 5})
        ledger.close("run")
        above = await account(ledger, "tenant")
        assert (above.spent, above.held) == ({"tokens": 65}, {})


@both
async def test_more_ids_at_once_are_all_set_aside_or_none(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"calls": Limit(9), "files": Limit(2)}, {})
        files = {name: (RUN, {"files": 1}) for name in ("x", "y", "z")}
        found = await ledger.reserve(RUN, ONE, "a", also=files)
        assert isinstance(found, InsufficientFunds) and found.kind == "files"
        assert (await account(ledger, "run")).held == {}
        found = await ledger.reserve(RUN, ONE, "b", also={"x": files["x"], "y": files["y"]})
        assert isinstance(found, Reservation) and set(found.also) == {"x", "y"}
        found = await ledger.reserve(RUN, ONE, "c", also={"x": files["x"]})
        assert isinstance(found, Reservation) and found.also == ()
        assert (await account(ledger, "run")).held == {"calls": 2, "files": 2}


@both
async def test_something_is_left_over_where_it_must_be(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"turns": Limit(3)}, {})
        for id, leaving, there in (("a", 1, True), ("b", 1, True), ("c", 1, False), ("d", 0, True)):
            found = await ledger.reserve(RUN, {"turns": 1}, id, leaving={"turns": leaving})
            assert isinstance(found, Reservation) is there


@both
async def test_what_is_known_to_be_spent_counts_when_the_account_is_new_and_only_then(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        for _ in range(2):
            await ledger.open("run", {"turns": Limit(3)}, {"turns": 2})
        assert (await account(ledger, "run")).spent == {"turns": 2}


@both
async def test_less_than_nothing_is_never_set_aside(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        with pytest.raises(ValueError, match="below nothing|is negative"):
            await ledger.reserve(RUN, {"calls": -1}, "a")
