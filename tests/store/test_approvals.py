"""Askings and answers on the disk: used once, in time, and by nobody else."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.store.databases.database import DamagedStore
from evoclaw.store.governance.approvals import (
    APPROVAL_RETENTION_S,
    SCHEMA,
    ApprovalClaim,
    ApprovalStatus,
    ApprovalStore,
    StoredApproval,
)
from tests.support.databases import Place

DAY = 86_400.0
ROOT = Path(__file__).parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(place: Place, clock: Clock | None = None) -> AsyncGenerator[ApprovalStore]:
    async with ApprovalStore(await place.open(SCHEMA), clock or Clock()) as store:
        await store.prune()
        yield store


def claim(
    number: int = 1,
    *,
    sha: str = "digest",
    tenant: str = "local",
    scope: str = "scope",
    epoch: int = 1,
    holder: str = "us",
    resumed: bool = False,
    keep: bool = True,
    most: int = 1_000,
) -> ApprovalClaim:
    row = StoredApproval(
        f"{tenant}-{number}-{sha}",
        tenant,
        f"run.{number}.0.1",
        sha,
        scope,
        b"asked",
        1_000_000.0 + DAY,
    )
    return ApprovalClaim(row, epoch, holder, resumed, keep, most)


async def approve(store: ApprovalStore, one: ApprovalClaim, decision: str = "once") -> bool:
    return (await store.answer(one.row.id, one.row.tenant, decision, b"said"))[1]


async def standing(store: ApprovalStore, one: ApprovalClaim) -> ApprovalStatus:
    return (await store.claim(one))[0]


async def test_an_approval_request_waits_for_an_answer_and_the_first_answer_counts(
    place: Place,
) -> None:
    async with opened(place) as store:
        assert await standing(store, claim()) is ApprovalStatus.WAITING
        assert await standing(store, claim()) is ApprovalStatus.WAITING
        assert [row.id for row in await store.waiting("local")] == [claim().row.id]
        assert await approve(store, claim())
        assert await store.answer(claim().row.id, "local", "deny", b"no") == (
            ApprovalStatus.ONCE,
            False,
        )
        assert await store.waiting("local") == []
        assert await standing(store, claim()) is ApprovalStatus.ONCE


async def test_an_answered_approval_survives_a_restart(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim())
    async with opened(place) as store:
        assert await approve(store, claim())
    async with opened(place) as store:
        found, row = await store.claim(claim(epoch=2))
        assert found is ApprovalStatus.ONCE
        assert row is not None
        assert row.answer == b"said"


async def test_fault_54_only_one_of_fifty_concurrent_claims_gets_an_approval(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim())
        await approve(store, claim())
        each = [claim(holder=f"holder {number}") for number in range(50)]
        found = await asyncio.gather(*(standing(store, one) for one in each))
    assert found.count(ApprovalStatus.ONCE) == 1
    assert found.count(ApprovalStatus.USED) == 49


async def test_a_resumed_call_does_not_use_its_approval_twice(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim())
        await approve(store, claim())
        assert await standing(store, claim()) is ApprovalStatus.ONCE
        assert await standing(store, claim()) is ApprovalStatus.ONCE
        assert (
            await standing(store, claim(epoch=2, holder="after a restart")) is ApprovalStatus.ONCE
        )
        # Two that take the run up at the same time: the second is out, as is who had it before.
        assert await standing(store, claim(epoch=2, holder="a twin")) is ApprovalStatus.USED
        assert await standing(store, claim(epoch=1)) is ApprovalStatus.USED
        row = await store.get(claim().row.id, "local")
        assert row is not None
        assert row.uses == 1


async def test_fault_54_a_call_with_other_arguments_needs_a_new_approval(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim(sha="one"))
        await approve(store, claim(sha="one"))
        assert await standing(store, claim(sha="two")) is ApprovalStatus.WAITING
        assert await standing(store, claim(sha="one")) is ApprovalStatus.CLOSED


async def test_fault_54_an_expired_approval_is_neither_granted_nor_used(place: Place) -> None:
    clock = Clock()
    async with opened(place, clock) as store:
        for number in (1, 2, 3):
            await store.claim(claim(number))
        await approve(store, claim(1))
        await approve(store, claim(3))
        assert await standing(store, claim(3)) is ApprovalStatus.ONCE
        clock.now += DAY
        assert await store.answer(claim(2).row.id, "local", "once", b"") == (
            ApprovalStatus.EXPIRED,
            False,
        )
        assert await standing(store, claim(2)) is ApprovalStatus.EXPIRED
        assert await standing(store, claim(1)) is ApprovalStatus.EXPIRED
        # Approved in time but never begun: too late. Begun in time: its end is another matter.
        assert await standing(store, claim(3, epoch=2)) is ApprovalStatus.EXPIRED
        assert await standing(store, claim(3, epoch=2, resumed=True)) is ApprovalStatus.ONCE
        assert await store.waiting("local") == []


async def test_a_session_approval_covers_its_scope_until_it_expires(
    place: Place,
) -> None:
    clock = Clock()
    async with opened(place, clock) as store:
        await store.claim(claim(1))
        await store.claim(claim(2))
        await approve(store, claim(1), "session")
        assert await standing(store, claim(2)) is ApprovalStatus.SESSION
        assert await store.waiting("local") == []
        assert await standing(store, claim(3, sha="other")) is ApprovalStatus.SESSION
        assert await standing(store, claim(4, scope="other")) is ApprovalStatus.WAITING
        assert await standing(store, claim(5, tenant="other")) is ApprovalStatus.WAITING
        assert [row.uses for row in await store.session_approvals("local")] == [2]
        clock.now += DAY
        assert await standing(store, claim(6)) is ApprovalStatus.WAITING
        assert await store.session_approvals("local") == []


async def test_a_denied_call_stays_denied_after_a_session_approval(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim(1))
        await store.claim(claim(2))
        await approve(store, claim(1), "deny")
        await approve(store, claim(2), "session")
        assert await standing(store, claim(1)) is ApprovalStatus.DENIED


async def test_a_withdrawn_approval_covers_nothing(place: Place) -> None:
    async with opened(place) as store:
        for number in (1, 2, 3):
            await store.claim(claim(number, scope=str(number)))
        await approve(store, claim(1), "session")
        await approve(store, claim(2))
        await approve(store, claim(3))
        await store.claim(claim(3, scope="3"))
        assert await store.close(claim(1).row.id, "local")
        assert await store.close(claim(2).row.id, "local")
        assert not await store.close(claim(3).row.id, "local")  # it runs already
        assert not await store.close(claim(2).row.id, "other")
        assert await standing(store, claim(4, scope="1")) is ApprovalStatus.WAITING
        assert await standing(store, claim(2, scope="2")) is ApprovalStatus.CLOSED


async def test_a_tenant_neither_sees_nor_answers_approvals_of_another_tenant(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim())
        id_ = claim().row.id
        assert await store.answer(id_, "other", "once", b"") == (ApprovalStatus.UNKNOWN, False)
        assert await store.get(id_, "other") is None
        assert await store.waiting("other") == []
        assert not await store.close(id_, "other")


async def test_waiting_approvals_are_limited_per_tenant(place: Place) -> None:
    async with opened(place) as store:
        found = [await standing(store, claim(n, most=3)) for n in range(5)]
        assert found == [*[ApprovalStatus.WAITING] * 3, ApprovalStatus.FULL, ApprovalStatus.FULL]
        assert await standing(store, claim(9, tenant="other", most=3)) is ApprovalStatus.WAITING


async def test_a_claim_that_cannot_be_answered_is_not_stored(place: Place) -> None:
    async with opened(place) as store:
        assert await store.claim(claim(keep=False)) == (ApprovalStatus.UNKNOWN, None)
        assert await store.waiting("local") == []


async def test_approvals_of_an_ended_run_are_closed(place: Place) -> None:
    async with opened(place) as store:
        await store.claim(claim())
        await store.close_waiting("ru", "local")
        assert await store.waiting("local") != []
        await store.close_waiting("run", "local")
        assert await store.waiting("local") == []
        assert not await approve(store, claim())


async def test_expired_approvals_are_deleted_after_the_retention_period(place: Place) -> None:
    clock = Clock()
    async with opened(place, clock) as store:
        await store.claim(claim())
    clock.now += DAY + APPROVAL_RETENTION_S - 1
    async with opened(place, clock) as store:
        assert await store.get(claim().row.id, "local") is not None
    clock.now += 2
    async with opened(place, clock) as store:
        assert await store.get(claim().row.id, "local") is None


async def test_a_tampered_answer_is_reported_as_damage(tmp_path: Path) -> None:
    async with opened(Place(tmp_path / "evoclaw.db")) as store:
        await store.claim(claim())
        await approve(store, claim())
    connection = sqlite3.connect(tmp_path / "evoclaw.db")
    connection.execute("UPDATE approvals SET answer = ?", (b"sai_" + b"1234",))
    connection.commit()
    connection.close()
    with pytest.raises(DamagedStore):
        await Place(tmp_path / "evoclaw.db").open(SCHEMA)


@pytest.mark.process
async def test_two_processes_answering_and_claiming_use_each_approval_once(place: Place) -> None:
    script = """
import asyncio, sys
from tests.support.databases import Place
from tests.store.test_approvals import approve, claim, opened, standing

async def main():
    async with opened(Place.of(sys.argv[1], sys.argv[2])) as store:
        for number in range(40):
            one = claim(number, holder=sys.argv[3])
            while not await approve(store, one):
                row = await store.get(one.row.id, "local")
                if row is not None and row.decision is not None:
                    break
                await asyncio.sleep(0.001)
            print(number, await standing(store, one))

asyncio.run(main())
"""
    async with opened(place) as store:
        command = [sys.executable, "-c", script, str(place.at), place.schema]
        children = [
            await asyncio.create_subprocess_exec(
                *command, name, stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            for name in ("one", "two")
        ]
        for number in range(40):
            await store.claim(claim(number, scope=str(number)))
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            said = [(await child.communicate())[0].decode().splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    for number in range(40):
        assert sorted((said[0][number], said[1][number])) == [f"{number} once", f"{number} used"]
