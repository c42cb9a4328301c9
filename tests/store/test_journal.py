"""The edge's journal: nothing begins twice, the first end is final, and a crash forgets nothing."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evoclaw.core.errors import ConfigError
from evoclaw.store.calls import wal_sync
from evoclaw.store.calls.journal import CallState, Journal, JournalEntry, JournalRow, ReceiveKind
from evoclaw.store.calls.receipts import ChainPosition
from evoclaw.store.databases.sqlite import DamagedStore, StoreFull
from tests.support.properties import examples
from tests.support.stores import fill, flip, killed_after, small_disk

T = TypeVar("T")
TERMINAL = [state for state in CallState if state.terminal]


def entry(
    request_id: str = "run.1.1.1", *, run_id: str = "run", epoch: int = 1, digest: str = "d"
) -> JournalEntry:
    return JournalEntry(request_id, run_id, epoch, digest, f"command {request_id}".encode())


async def opened(folder: Path, now: float = 1000.0) -> Journal:
    return await Journal.open(folder / "journal.db", clock=lambda: now)


def ids(rows: list[JournalRow]) -> list[str]:
    return [row.request_id for row in rows]


async def test_a_call_is_recorded_from_receipt_to_acknowledgement(tmp_path: Path) -> None:
    async with await opened(tmp_path) as journal:
        assert (await journal.receive(entry())).kind is ReceiveKind.NEW
        row = await journal.get("run.1.1.1")
        assert row == JournalRow(
            "run.1.1.1", "run", 1, "d", b"command run.1.1.1", CallState.RECEIVED, "", 1000.0,
            None, None, None, False,
        )  # fmt: skip
        assert await journal.start("run.1.1.1", "boot 1")
        assert not await journal.start("run.1.1.1", "boot 2")
        assert await journal.finish("run.1.1.1", CallState.FAILED, b"report")
        row = await journal.get("run.1.1.1")
        assert row is not None
        assert (row.state, row.boot_id, row.report) == (CallState.FAILED, "boot 1", b"report")
        await journal.acknowledge(["run.1.1.1", "never seen"])
        row = await journal.get("run.1.1.1")
        assert row is not None
        assert (row.acked, row.report, row.command, row.digest) == (True, None, b"", "d")
        assert await journal.get("never seen") is None


async def test_receiving_and_starting_a_call_is_one_commit(tmp_path: Path) -> None:
    async with await opened(tmp_path) as journal:
        before = journal.database.commits
        assert (await journal.receive(entry(), start="boot")).kind is ReceiveKind.NEW
        assert journal.database.commits == before + 1
        row = await journal.get("run.1.1.1")
        assert row is not None
        assert (row.state, row.boot_id, row.started_at) == (CallState.RUNNING, "boot", 1000.0)


async def test_fault_01_a_repeated_command_is_answered_with_its_recorded_outcome(
    tmp_path: Path,
) -> None:
    async with await opened(tmp_path) as journal:
        both = await asyncio.gather(
            journal.receive(entry(), start="boot"), journal.receive(entry(), start="boot")
        )
        assert sorted(one.kind for one in both) == [ReceiveKind.KNOWN, ReceiveKind.NEW]
        await journal.finish("run.1.1.1", CallState.SUCCEEDED, b"report")
        again = await journal.receive(entry(), start="other boot")
        assert again.kind is ReceiveKind.KNOWN and again.row is not None
        assert (again.row.state, again.row.report) == (CallState.SUCCEEDED, b"report")
        assert again.row.boot_id == "boot"


@pytest.mark.parametrize("other", [entry(digest="other"), entry(run_id="other")])
async def test_fault_02_a_request_id_with_other_arguments_is_a_conflict(
    tmp_path: Path, other: JournalEntry
) -> None:
    async with await opened(tmp_path) as journal:
        await journal.receive(entry())
        answer = await journal.receive(other, start="boot")
        assert answer.kind is ReceiveKind.CONFLICT
        assert ids(await journal.open_calls()) == ["run.1.1.1"]
        row = await journal.get("run.1.1.1")
        assert row is not None and row.state is CallState.RECEIVED


async def test_fault_10_a_command_with_a_lower_epoch_is_fenced(tmp_path: Path) -> None:
    async with await opened(tmp_path) as journal:
        await journal.receive(entry("run.1.1.1", epoch=1))
        await journal.receive(entry("run.1.1.2", epoch=3))
        assert (await journal.receive(entry("run.1.1.3", epoch=2))).kind is ReceiveKind.FENCED
        assert (await journal.receive(entry("run.1.1.4", epoch=3))).kind is ReceiveKind.NEW
        other = entry("other.1.1.1", run_id="other", epoch=1)
        assert (await journal.receive(other)).kind is ReceiveKind.NEW
        assert await journal.get("run.1.1.3") is None
    async with await opened(tmp_path) as journal:
        assert (await journal.receive(entry("run.1.1.5", epoch=2))).kind is ReceiveKind.FENCED


async def test_fault_10_repeating_a_known_call_with_a_higher_epoch_fences_the_lower_one(
    tmp_path: Path,
) -> None:
    async with await opened(tmp_path) as journal:
        await journal.receive(entry("run.1.1.1", epoch=1))
        assert (await journal.receive(entry("run.1.1.1", epoch=2))).kind is ReceiveKind.KNOWN
        assert (await journal.receive(entry("run.1.1.2", epoch=1))).kind is ReceiveKind.FENCED
        # What it knows it tells anyone: nothing begins by that.
        assert (await journal.receive(entry("run.1.1.1", epoch=1))).kind is ReceiveKind.KNOWN


async def test_the_first_terminal_state_of_a_call_is_final(tmp_path: Path) -> None:
    async with await opened(tmp_path) as journal:
        await journal.receive(entry(), start="boot")
        ends = await asyncio.gather(
            *(journal.finish("run.1.1.1", state, state.encode()) for state in TERMINAL)
        )
        assert ends == [True] + [False] * 6
        row = await journal.get("run.1.1.1")
        assert row is not None
        assert (row.state, row.report) == (CallState.SUCCEEDED, b"succeeded")
        assert not await journal.finish("never seen", CallState.FAILED, b"")
        with pytest.raises(ValueError, match="not a final state"):
            await journal.finish("run.1.1.1", CallState.RUNNING, b"")


async def test_fault_19_a_call_cancelled_while_queued_never_starts(tmp_path: Path) -> None:
    async with await opened(tmp_path) as journal:
        await journal.receive(entry())
        assert await journal.finish("run.1.1.1", CallState.CANCELLED, b"")
        assert not await journal.start("run.1.1.1", "boot")


async def test_open_calls_are_listed_by_arrival_and_ended_calls_by_end(tmp_path: Path) -> None:
    # The clock stands still: order is not taken from it.
    async with await opened(tmp_path) as journal:
        for name in ("c", "a", "d", "b"):
            await journal.receive(entry(name))
        await journal.start("a", "boot")
        assert ids(await journal.open_calls()) == ["c", "a", "d", "b"]
        for name in ("d", "c", "a"):
            await journal.finish(name, CallState.SUCCEEDED, b"")
        assert ids(await journal.open_calls()) == ["b"]
        assert ids(await journal.unacknowledged(2)) == ["d", "c"]
        assert await journal.unacknowledged_ids(2) == ["c", "a"]
        await journal.acknowledge(["d", "a", "b"])
        await journal.finish("b", CallState.SUCCEEDED, b"")
        assert ids(await journal.unacknowledged()) == ["c", "b"]


async def test_only_ended_and_acknowledged_calls_are_pruned(tmp_path: Path) -> None:
    async with await opened(tmp_path, now=0.0) as journal:
        for name in ("open", "unacknowledged", "old"):
            await journal.receive(entry(name))
        for name in ("unacknowledged", "old"):
            await journal.finish(name, CallState.SUCCEEDED, b"")
        await journal.acknowledge(["open", "old"])
        assert await journal.prune(86_399.0, min_calls=0) == 0
        assert await journal.prune(86_401.0) == 0, "so few are kept whatever the clock says"
        assert await journal.prune(86_401.0, min_calls=0) == 1
        assert await journal.get("old") is None
        assert ids(await journal.open_calls()) == ["open"]
        assert ids(await journal.unacknowledged()) == ["unacknowledged"]


async def test_pruning_limits_the_number_of_ids_and_drops_the_oldest(tmp_path: Path) -> None:
    now = 0.0
    async with await Journal.open(tmp_path / "journal.db", clock=lambda: now) as journal:
        names = [f"run.{number}" for number in range(1200)]
        await asyncio.gather(*(journal.receive(entry(name)) for name in names))
        for name in names:
            now += 1.0
            await journal.finish(name, CallState.SUCCEEDED, b"")
        await journal.acknowledge(names)
        assert await journal.prune(now, max_calls=10) == 1190
        kept = [name for name in names if await journal.get(name) is not None]
        assert kept == names[-10:]


async def test_values_and_their_versions_survive_a_restart(tmp_path: Path) -> None:
    async with await opened(tmp_path) as journal:
        assert await journal.recall("boots") is None
        await journal.remember("boots", b"1")
        await journal.remember("boots", b"2")
        assert await journal.versions("genome") == []
        numbers = [await journal.remember_version("genome", value) for value in (b"a", b"b", b"c")]
        assert numbers == [1, 2, 3]
        assert await journal.remember_version("genome", b"a") == 4
    async with await opened(tmp_path) as journal:
        assert await journal.recall("boots") == b"2"
        found = [(version.n, version.value) for version in await journal.versions("genome")]
        assert found == [(4, b"a"), (3, b"c"), (2, b"b"), (1, b"a")]
        assert await journal.remember_version("genome", b"d", keep=2) == 5
        assert [version.n for version in await journal.versions("genome")] == [5, 4]


async def test_writes_of_one_moment_share_a_commit_and_one_that_fails_fails_alone(
    tmp_path: Path,
) -> None:
    async with await opened(tmp_path) as journal:
        before = journal.database.commits
        await asyncio.gather(*(journal.receive(entry(f"run.{n}"), start="b") for n in range(20)))
        assert journal.database.commits == before + 1
        results = await asyncio.gather(
            journal.finish("run.0", CallState.SUCCEEDED, b"a"),
            journal.finish("run.1", CallState.SUCCEEDED, BadReport()),
            journal.finish("run.2", CallState.SUCCEEDED, b"c"),
            journal.remember("key", b"value"),
            return_exceptions=True,
        )
        assert results[0] is True and results[2] is True and results[3] is None
        assert isinstance(results[1], ValueError)
        assert ids(await journal.unacknowledged()) == ["run.0", "run.2"]
        row = await journal.get("run.1")
        assert row is not None and row.state is CallState.RUNNING


async def test_calls_that_start_at_one_moment_share_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(wal_sync, "_sync_file", synced.append)
    monkeypatch.setattr(wal_sync, "MAX_UNSYNCED_S", 1000.0)
    async with await opened(tmp_path) as journal:
        synced.clear()
        await asyncio.gather(*(journal.receive(entry(f"run.{n}"), start="b") for n in range(20)))
        assert len(synced) == 1


class BadReport:
    """A report that cannot be signed."""

    def signed_after(self, place: ChainPosition) -> tuple[bytes, ChainPosition]:
        raise ValueError("no key")


@pytest.mark.parametrize("fast", [True, False])
async def test_a_call_is_synced_by_the_thread_only_on_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(wal_sync, "FAST_SYNC_S", 60.0 if fast else 0.0)
    threads: list[bool] = []
    sync = vars(wal_sync)["_sync_file"]

    def noted(file: int) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        sync(file)

    monkeypatch.setattr(wal_sync, "_sync_file", noted)
    async with await opened(tmp_path) as journal:
        first = len(threads)
        assert not any(threads)  # how long a sync takes was not known
        for number in range(3):
            await journal.receive(entry(f"run.{number}.1.1"), start="boot")
        assert threads[first:] == [fast] * 3


async def test_closing_a_journal_finishes_what_was_requested(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "journal.db", durable=False)
    requested = asyncio.ensure_future(journal.receive(entry(), start="boot"))
    await asyncio.sleep(0)
    await journal.close()
    assert (await requested).kind is ReceiveKind.NEW
    async with await opened(tmp_path) as again:
        assert ids(await again.open_calls()) == ["run.1.1.1"]


@pytest.mark.process
@pytest.mark.parametrize("count", [1, 50, 200])
def test_after_kill_9_every_acknowledged_step_is_in_the_journal(tmp_path: Path, count: int) -> None:
    said = killed_after("calls", count, tmp_path / "journal.db")
    told = {line.split()[0]: CallState(line.split()[1]) for line in said}
    order = list(CallState)

    async def check() -> None:
        async with await opened(tmp_path) as journal:
            for name, state in told.items():
                row = await journal.get(name)
                assert row is not None, f"{name} was {state} and is forgotten"
                assert order.index(row.state) >= order.index(state)
                if row.state is CallState.SUCCEEDED:
                    assert row.report == name.encode()

    asyncio.run(check())


@pytest.mark.process
async def test_fault_26_a_full_disk_refuses_new_calls_and_loses_none(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with await opened(disk) as journal:
            await journal.receive(entry("before"), start="boot")
            ballast = fill(disk)
            taken = ["before"]
            with pytest.raises(StoreFull):
                for number in range(1000):
                    await journal.receive(entry(f"run.{number}"))
                    taken.append(f"run.{number}")
            assert ids(await journal.open_calls()) == taken
            ballast.unlink()
            assert await journal.finish("before", CallState.SUCCEEDED, b"report")
        async with await opened(disk) as journal:
            assert ids(await journal.unacknowledged()) == ["before"]


async def rows_of(journal: Journal, names: list[str]) -> list[JournalRow | None]:
    return [await journal.get(name) for name in names]


def essence(row: JournalRow | None) -> object:
    """What decides whether a call begins, and what is told of it."""
    assert row is not None
    return row.request_id, row.run_id, row.digest, row.state, row.command, row.report


async def test_fault_27_a_flipped_bit_is_detected_or_changes_no_journal_entry(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    names = [f"run.{number}" for number in range(40)]
    async with await opened(tmp_path) as journal:
        for name in names:
            await journal.receive(entry(name), start="boot")
        for name in names[10:]:
            await journal.finish(name, CallState.SUCCEEDED, b"report " * 100)
        await journal.acknowledge(names[30:])
        written = [essence(row) for row in await rows_of(journal, names)]
    whole = path.read_bytes()
    chance = random.Random(27)
    detected = 0
    for _ in range(150):
        path.write_bytes(whole)
        flip(path, chance.randrange(8 * len(whole)))
        try:
            async with await opened(tmp_path) as journal:
                found = [essence(row) for row in await rows_of(journal, names)]
        except (DamagedStore, ConfigError):
            detected += 1
        else:
            assert found == written
    assert detected > 20, "most of such a small file is empty, but not all of it"


class JournalMachine(RuleBasedStateMachine):
    """The journal against a plain dictionary, with restarts in between."""

    names = st.sampled_from([f"{run}.{call}" for run in "ab" for call in range(4)])

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.now = 0.0
        self.rows: dict[str, dict[str, Any]] = {}
        self.ended: list[str] = []
        self.fences: dict[str, tuple[int, float]] = {}
        self.journal = self.run(self.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def open(self) -> Journal:
        path = Path(self.folder.name) / "journal.db"
        return await Journal.open(path, durable=False, clock=lambda: self.now)

    def teardown(self) -> None:
        self.run(self.journal.close())
        self.runner.close()
        self.folder.cleanup()

    @rule(
        name=names,
        epoch=st.integers(1, 3),
        digest=st.sampled_from("xy"),
        start=st.sampled_from([None, "boot"]),
    )
    def receive(self, name: str, epoch: int, digest: str, start: str | None) -> None:
        run_id = name[0]
        got = self.run(
            self.journal.receive(JournalEntry(name, run_id, epoch, digest, b"c"), start=start)
        )
        row = self.rows.get(name)
        if row is not None and row["digest"] != digest:
            assert got.kind is ReceiveKind.CONFLICT
        elif row is not None:
            assert got.kind is ReceiveKind.KNOWN and got.row is not None
            assert (got.row.state, got.row.report) == (row["state"], row["report"])
        elif self.fences.get(run_id, (0, 0.0))[0] > epoch:
            assert got.kind is ReceiveKind.FENCED
        else:
            assert got.kind is ReceiveKind.NEW
            state = CallState.RECEIVED if start is None else CallState.RUNNING
            self.rows[name] = {
                "digest": digest,
                "state": state,
                "report": None,
                "acked": False,
                "at": 0.0,
            }
        if got.kind in (ReceiveKind.NEW, ReceiveKind.KNOWN):
            highest, _ = self.fences.get(run_id, (0, 0.0))
            if epoch > highest:
                self.fences[run_id] = epoch, self.now

    @rule(name=names)
    def start(self, name: str) -> None:
        row = self.rows.get(name)
        may = row is not None and row["state"] is CallState.RECEIVED
        assert self.run(self.journal.start(name, "boot")) is may
        if row is not None and may:
            row["state"] = CallState.RUNNING

    @rule(name=names, state=st.sampled_from(TERMINAL), report=st.binary(max_size=3))
    def finish(self, name: str, state: CallState, report: bytes) -> None:
        row = self.rows.get(name)
        may = row is not None and not row["state"].terminal
        assert self.run(self.journal.finish(name, state, report)) is may
        if row is not None and may:
            row.update(state=state, report=report, at=self.now)
            self.ended.append(name)

    @rule(chosen=st.lists(names, max_size=3))
    def acknowledge(self, chosen: list[str]) -> None:
        self.run(self.journal.acknowledge(chosen))
        for name in set(chosen) & set(self.ended):
            self.rows[name].update(acked=True, report=None)
            self.ended.remove(name)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(window=st.integers(0, 20))
    def prune(self, window: int) -> None:
        old = [
            name
            for name, row in self.rows.items()
            if row["acked"] and row["at"] < self.now - window
        ]
        pruned = self.run(self.journal.prune(self.now, window_seconds=window, min_calls=0))
        assert pruned == len(old)
        for name in old:
            del self.rows[name]
        before = self.now - window
        self.fences = {run: fence for run, fence in self.fences.items() if fence[1] >= before}

    @rule()
    def restart(self) -> None:
        self.run(self.journal.close())
        self.journal = self.run(self.open())

    @invariant()
    def they_agree(self) -> None:
        waiting = [name for name, row in self.rows.items() if not row["state"].terminal]
        assert ids(self.run(self.journal.open_calls())) == waiting
        assert ids(self.run(self.journal.unacknowledged())) == self.ended
        for name, row in self.rows.items():
            found = self.run(self.journal.get(name))
            assert found is not None
            assert found.state is row["state"] and found.acked is row["acked"]
            assert found.report == row["report"]


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(
    max_examples=examples(25), stateful_step_count=25, deadline=None
)
