"""The orchestrator's outbox: capped, shared, and settled once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from evoclaw.core.commands import (
    CommandPutKind,
    CommandPutResult,
    CommandRow,
    CommandState,
    SettleResult,
)
from evoclaw.store.calls.command_tables import SCHEMA
from evoclaw.store.calls.commands import CommandStore, QueueFull
from evoclaw.store.databases.sqlite import SqliteDatabase, StoreError, StoreFull
from tests.support.databases import Place
from tests.support.stores import child, fill, output, small_disk

LATER = 2000.0


async def opened(place: Place) -> CommandStore:
    return CommandStore(await place.open(SCHEMA), clock=lambda: 1000.0)


async def put(
    store: CommandStore,
    request_id: str,
    *,
    agent: str = "pi",
    payload: bytes = b"payload",
    expires_at: float | None = LATER,
    cap: int = 10_000,
) -> CommandPutResult:
    return await store.put(request_id, agent, "run", payload, expires_at, cap=cap)


def ids(rows: list[CommandRow]) -> list[str]:
    return [row.request_id for row in rows]


async def test_a_command_is_stored_until_it_is_settled(place: Place) -> None:
    async with await opened(place) as store:
        assert await put(store, "run.1") == CommandPutResult(CommandPutKind.NEW)
        waiting = await put(store, "run.1")
        assert waiting.kind is CommandPutKind.KNOWN and waiting.row is not None
        assert (waiting.row.state, waiting.row.outcome) == (CommandState.QUEUED, None)
    async with await opened(place) as store:
        assert ids(await store.wanted("pi", 1000.0)) == ["run.1"]
        assert await store.settle("run.1", "pi", b"outcome") is SettleResult.FIRST
        known = await put(store, "run.1", payload=b"other")
        row = CommandRow(
            "run.1", "pi", "run", b"payload", LATER, CommandState.SETTLED, b"outcome", 1000.0
        )
        assert known == CommandPutResult(CommandPutKind.KNOWN, row)
        assert await store.get("run.1") == row
        assert await store.wanted("pi", 1000.0) == []
        assert await store.get("run.2") is None


async def test_a_command_put_again_under_a_new_epoch_replaces_the_payload(place: Place) -> None:
    async with await opened(place) as store:
        await put(store, "run.1", payload=b"epoch 1")
        await put(store, "run.1", payload=b"epoch 2", expires_at=3000.0)
        (row,) = await store.wanted("pi", 1000.0)
        assert (row.payload, row.expires_at) == (b"epoch 2", 3000.0)


async def test_a_request_id_belongs_to_one_agent(place: Place) -> None:
    async with await opened(place) as store:
        await put(store, "run.1")
        with pytest.raises(StoreError, match="is for agent 'pi'"):
            await put(store, "run.1", agent="desktop", payload=b"other")
        (row,) = await store.wanted("pi", 1000.0)
        assert row.payload == b"payload"


async def test_commands_are_sent_in_order_until_they_expire_or_are_cancelled(
    place: Place,
) -> None:
    async with await opened(place) as store:
        for name in ("d", "a", "c", "e", "b"):
            await put(store, name, expires_at=None if name == "b" else LATER)
        await put(store, "elsewhere", agent="desktop")
        await store.mark("d", CommandState.SENT)
        await store.mark("a", CommandState.ACCEPTED)
        await store.mark("c", CommandState.CANCELLING)
        assert ids(await store.wanted("pi", 1000.0)) == ["d", "a", "e", "b"]
        assert ids(await store.wanted("pi", 1000.0, 2)) == ["d", "a"]
        assert ids(await store.cancelling("pi")) == ["c"]
        assert ids(await store.wanted("pi", LATER)) == ["d", "a", "b"], "what was sent is asked for"
        await store.settle("c", "pi", b"")
        assert await store.cancelling("pi") == []


async def test_a_command_never_returns_to_an_earlier_state(place: Place) -> None:
    async with await opened(place) as store:
        await put(store, "run.1")
        assert await store.mark("run.1", CommandState.ACCEPTED)
        assert not await store.mark("run.1", CommandState.SENT)
        assert await store.mark("run.1", CommandState.CANCELLING)
        assert not await store.mark("run.1", CommandState.ACCEPTED)
        await store.settle("run.1", "pi", b"outcome")
        assert not await store.mark("run.1", CommandState.CANCELLING)
        assert await store.known(["run.1", "never"]) == {"run.1": CommandState.SETTLED}
        for state in (CommandState.QUEUED, CommandState.SETTLED, CommandState.EXPIRED):
            with pytest.raises(ValueError, match="cannot mark a command"):
                await store.mark("run.1", state)
        with pytest.raises(ValueError, match="does not close"):
            await store.settle("run.1", "pi", b"", CommandState.SENT)


async def test_fault_07_a_repeated_outcome_settles_the_command_once(place: Place) -> None:
    async with await opened(place) as store:
        await put(store, "run.1")
        answers = await asyncio.gather(*(store.settle("run.1", "pi", b"done") for _ in range(5)))
        assert sorted(answers) == [SettleResult.AGAIN] * 4 + [SettleResult.FIRST]
        assert await store.late_outcomes("run.1") == []


@pytest.mark.parametrize("deferred", [False, True])
async def test_a_deferred_outcome_is_known_at_once_and_committed_by_flush(
    tmp_path: Path, deferred: bool
) -> None:
    database = await SqliteDatabase.open(tmp_path / "commands.db", SCHEMA)
    async with CommandStore(database, defer_outcomes=deferred) as store:
        await put(store, "run.1")
        commits = database.commits
        assert await store.settle("run.1", "pi", b"outcome") is SettleResult.FIRST
        assert database.commits == commits + (not deferred)
        assert await store.settle("run.1", "pi", b"outcome") is SettleResult.AGAIN
        await store.flush()
        assert database.commits > commits
        row = await store.get("run.1")
        assert row is not None and row.outcome == b"outcome"


async def test_an_outcome_is_settled_without_a_wait_only_where_outcomes_are_deferred(
    tmp_path: Path,
) -> None:
    results: list[SettleResult] = []
    failures: list[BaseException] = []

    def settle_soon(store: CommandStore, request_id: str, agent_id: str, outcome: bytes) -> bool:
        return store.settle_soon(
            request_id, agent_id, outcome, on_result=results.append, on_failure=failures.append
        )

    database = await SqliteDatabase.open(tmp_path / "commands.db", SCHEMA)
    await put(waiting := CommandStore(database), "run.1")
    assert not settle_soon(waiting, "run.1", "pi", b"outcome")
    async with CommandStore(database, defer_outcomes=True) as store:
        assert settle_soon(store, "run.1", "desktop", b"forged")
        assert settle_soon(store, "run.1", "pi", b"outcome")
        assert settle_soon(store, "run.1", "pi", b"outcome")
        await store.flush()
        assert results == [SettleResult.FOREIGN, SettleResult.FIRST, SettleResult.AGAIN]
        row = await store.get("run.1")
        assert row is not None and row.outcome == b"outcome"
    assert failures == []


async def test_fault_17_a_late_outcome_is_stored_as_a_note_and_changes_nothing(
    place: Place,
) -> None:
    async with await opened(place) as store:
        await put(store, "run.1")
        await store.settle("run.1", "pi", b"unknown")
        for outcome in (b"succeeded", b"succeeded", b"failed"):
            assert await store.settle("run.1", "pi", outcome) is SettleResult.AGAIN
        row = await store.get("run.1")
        assert row is not None and row.outcome == b"unknown"
        assert [note.outcome for note in await store.late_outcomes("run.1")] == [
            b"succeeded",
            b"failed",
        ]
        for number in range(100):
            await store.settle("run.1", "pi", b"%d" % number)
        assert len(await store.late_outcomes("run.1")) == 20


async def test_fault_18_an_outcome_from_another_agent_is_refused_as_foreign(place: Place) -> None:
    async with await opened(place) as store:
        await put(store, "run.1")
        assert await store.settle("run.1", "desktop", b"forged") is SettleResult.FOREIGN
        assert await store.settle("never", "pi", b"forged") is SettleResult.FOREIGN
        assert await store.settle("run.1", "pi", b"real") is SettleResult.FIRST
        assert await store.settle("run.1", "desktop", b"forged") is SettleResult.FOREIGN
        assert await store.late_outcomes("run.1") == []


async def test_fault_16_an_unsent_command_expires_and_a_sent_one_does_not(
    place: Place,
) -> None:
    async with await opened(place) as store:
        for name in ("queued", "sent", "accepted", "cancelling"):
            await put(store, name)
        await put(store, "later", expires_at=LATER + 1)
        await put(store, "never", expires_at=None)
        for state in (CommandState.SENT, CommandState.ACCEPTED, CommandState.CANCELLING):
            await store.mark(state.value, state)
        assert await store.expire(LATER - 1) == []
        assert await store.expire(LATER) == ["queued"]
        assert await store.expire(LATER) == []
        assert ids(await store.wanted("pi", LATER)) == ["sent", "accepted", "later", "never"]
        assert ids(await store.overdue(LATER)) == ["sent", "accepted", "cancelling"]
        assert await store.overdue(LATER - 1) == []
        assert await store.settle("queued", "pi", b"late") is SettleResult.AGAIN
        row = await store.get("queued")
        assert row is not None
        assert (row.state, row.outcome) == (CommandState.EXPIRED, None)
        assert len(await store.late_outcomes("queued")) == 1


@pytest.mark.slow
async def test_fault_15_ten_thousand_commands_queue_and_the_next_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path / "evoclaw.db")  # a server would count as well, and take its time
    async with await opened(place) as store:
        names = [f"run.{number}" for number in range(10_000)]
        await asyncio.gather(*(put(store, name) for name in names))
        with pytest.raises(QueueFull, match="has 10,000 commands waiting") as refused:
            await put(store, "one more")
        assert (refused.value.agent_id, refused.value.cap) == ("pi", 10_000)
        assert (await put(store, names[0])).kind is CommandPutKind.KNOWN, "it is in already"
        assert (await put(store, "elsewhere", agent="desktop")).kind is CommandPutKind.NEW
        await store.settle(names[0], "pi", b"outcome")
        assert (await put(store, "one more")).kind is CommandPutKind.NEW
        with pytest.raises(QueueFull):
            await put(store, "and another")
    async with await opened(place) as store:
        assert ids(await store.wanted("pi", 1000.0)) == [*names[1:], "one more"]
        assert len(await store.expire(LATER)) == 10_001
        assert await store.wanted("pi", 1000.0) == []
        assert (await put(store, "again", cap=1)).kind is CommandPutKind.NEW


async def test_closed_commands_are_pruned_with_their_notes(place: Place) -> None:
    async with await opened(place) as store:
        for name in ("waits", "settled", "expired"):
            await put(store, name, expires_at=500.0 if name == "expired" else None)
        await store.settle("settled", "pi", b"outcome")
        await store.settle("settled", "pi", b"late")
        await store.expire(1000.0)
        assert await store.prune(1000.0) == 0
        assert await store.prune(1001.0) == 2
        assert await store.known(["waits", "settled", "expired"]) == {"waits": CommandState.QUEUED}
        assert await store.late_outcomes("settled") == []
        with pytest.raises(QueueFull):
            await put(store, "more", cap=1)


@pytest.mark.process
async def test_fault_26_a_full_disk_refuses_commands_and_keeps_stored_ones(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with await CommandStore.open(disk / "commands.db") as store:
            ballast = fill(disk)
            kept: list[str] = []
            with pytest.raises(StoreFull):
                for number in range(1000):
                    await put(store, f"run.{number}", payload=b"p" * 1000)
                    kept.append(f"run.{number}")
            assert ids(await store.wanted("pi", 1000.0)) == kept
            ballast.unlink()
            assert (await put(store, "after")).kind is CommandPutKind.NEW


@pytest.mark.process
def test_two_processes_sharing_a_store_accept_each_command_once(tmp_path: Path) -> None:
    path = tmp_path / "commands.db"
    with child("commands", path, 200, 150) as one, child("commands", path, 200, 150) as other:
        said = output(one).read().decode().split("\n") + output(other).read().decode().split("\n")
    answers = Counter(line.split()[1] for line in said if line)
    assert answers["new"] == 150
    assert answers.total() == 400
    new = [line.split()[0] for line in said if line.endswith("new")]
    assert len(set(new)) == 150

    async def stored() -> list[str]:
        async with await CommandStore.open(path) as store:
            return ids(await store.wanted("pi", 0.0))

    assert sorted(asyncio.run(stored())) == sorted(new)
