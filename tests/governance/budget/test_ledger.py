from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evoclaw.core.ledgers import MAX_WINDOW_ENTRIES, InsufficientFunds, Limit, Reservation
from tests.support.budgets import KINDS, Clock, account, is_reserved, open_ledger, refusal_of

RUN = ("tenant", "run")
CHILD = ("tenant", "run", "child")
ONE = {"calls": 1}

both = pytest.mark.parametrize("kind", KINDS)


@both
async def test_fault_50_of_fifty_concurrent_calls_a_budget_of_one_allows_one(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"calls": Limit(1)}, {})
        racing = [ledger.reserve(RUN, ONE, f"call {number}") for number in range(50)]
        found = await asyncio.gather(*racing)
        assert sum(isinstance(one, Reservation) for one in found) == 1
        assert (await account(ledger, "run")).held == {"calls": 1}


@both
async def test_an_amount_is_reserved_in_every_parent_account_or_in_none(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("tenant", {"tokens": Limit(100)}, {})
        await ledger.open("run", {"calls": Limit(5), "tokens": Limit(80)}, {})
        assert await is_reserved(ledger, CHILD, {"calls": 1, "tokens": 70}, "a")
        short = await refusal_of(ledger, CHILD, {"calls": 1, "tokens": 11}, "b")
        assert short == InsufficientFunds("tokens", "run", 10, 11)
        other = await refusal_of(ledger, ("tenant", "other"), {"tokens": 31}, "c")
        assert (other.account, other.left) == ("tenant", 30)
        for name in CHILD:
            assert (await account(ledger, name)).held == {"calls": 1, "tokens": 70}


@both
async def test_one_reservation_id_is_reserved_once_and_settled_once(
    kind: str, tmp_path: Path
) -> None:
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
async def test_the_settled_amount_counts_and_overspending_leaves_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"tokens": Limit(100)}, {})
        assert await is_reserved(ledger, RUN, {"tokens": 90}, "a")
        ledger.settle("a", {"tokens": 20})
        assert ledger.remaining(RUN).keys() == {"tokens"}
        assert await is_reserved(ledger, RUN, {"tokens": 80}, "b")
        ledger.settle("b", {"tokens": 130})
        assert (await refusal_of(ledger, RUN, {"tokens": 1}, "c")).left == 0
        assert (await account(ledger, "run")).spent == {"tokens": 150}
        assert ledger.remaining(RUN)["tokens"].left == 0


@both
async def test_a_released_reservation_is_available_again(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"calls": Limit(1)}, {})
        assert await is_reserved(ledger, RUN, ONE, "a")
        ledger.release("a")
        ledger.release("a")
        assert await is_reserved(ledger, RUN, ONE, "b")
        ledger.settle("b", ONE)
        ledger.release("b")
        assert not await is_reserved(ledger, RUN, ONE, "a")


@both
async def test_a_window_slides_and_keeps_open_reservations(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with open_ledger(kind, tmp_path, clock) as ledger:
        await ledger.open("tenant", {"action.relay": Limit(3, 3_600.0)}, {})
        began = clock.now
        for number in range(3):
            clock.now = began + 600 * number
            assert await is_reserved(ledger, RUN, {"action.relay": 1}, f"a{number}")
            ledger.settle(f"a{number}", {"action.relay": 1})
        assert (await refusal_of(ledger, RUN, {"action.relay": 1}, "b")).per == 3_600.0
        clock.now = began + 3_599.9
        assert not await is_reserved(ledger, RUN, {"action.relay": 1}, "b")
        clock.now = began + 3_600
        assert await is_reserved(ledger, RUN, {"action.relay": 1}, "b")
        clock.now = began + 9_999_999
        assert await is_reserved(ledger, RUN, {"action.relay": 2}, "c")
        assert not await is_reserved(ledger, RUN, {"action.relay": 1}, "d"), "one never ended"


@both
async def test_a_full_window_merges_entries_and_never_expires_them_early(
    kind: str, tmp_path: Path
) -> None:
    clock, many = Clock(), MAX_WINDOW_ENTRIES + 50
    async with open_ledger(kind, tmp_path, clock) as ledger:
        await ledger.open("tenant", {"tokens": Limit(10_000, 100.0)}, {})
        for number in range(many):
            assert await is_reserved(ledger, ("tenant",), {"tokens": 1}, str(number))
            ledger.settle(str(number), {"tokens": 1})
            clock.now += 0.1
        kept = await account(ledger, "tenant")
        assert kept.used("tokens", clock.now) == many
        assert len(kept.recent["tokens"]) < many
        assert kept.used("tokens", clock.now + 99.8) >= 1
        assert kept.used("tokens", clock.now + 100) == 0


@both
async def test_closing_a_run_spends_only_its_open_reservations(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("tenant", {"tokens": Limit(100)}, {})
        assert await is_reserved(ledger, RUN, {"tokens": 60}, "open")
        assert await is_reserved(ledger, RUN, {"tokens": 20}, "done")
        ledger.settle("done", {"tokens": 5})
        ledger.close("run")
        above = await account(ledger, "tenant")
        assert (above.spent, above.held) == ({"tokens": 65}, {})


@both
async def test_several_reservations_are_made_together_or_not_at_all(
    kind: str, tmp_path: Path
) -> None:
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
async def test_a_reservation_can_require_a_remaining_amount(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        await ledger.open("run", {"turns": Limit(3)}, {})
        for id, leaving, there in (("a", 1, True), ("b", 1, True), ("c", 1, False), ("d", 0, True)):
            found = await ledger.reserve(RUN, {"turns": 1}, id, leaving={"turns": leaving})
            assert isinstance(found, Reservation) is there


@both
async def test_known_spending_is_applied_only_when_an_account_is_created(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        for _ in range(2):
            await ledger.open("run", {"turns": Limit(3)}, {"turns": 2})
        assert (await account(ledger, "run")).spent == {"turns": 2}


@both
async def test_a_negative_amount_is_never_reserved(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        with pytest.raises(ValueError, match="below nothing|is negative"):
            await ledger.reserve(RUN, {"calls": -1}, "a")
