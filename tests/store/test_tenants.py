"""Tenants: whatever one of them does or guesses, it is as if the others were not there."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.core.events import Record, Replied, StopReason
from evoclaw.core.labels import Principal
from evoclaw.core.ledgers import Limit
from evoclaw.core.messages import Reply, user
from evoclaw.governance.budget.options import account_path
from evoclaw.observe.audit.cold import AuditQuery
from evoclaw.observe.audit.reader import search
from evoclaw.orchestrator.sessions.run_ids import tenant_run_id
from evoclaw.store.calls import command_tables, receipts
from evoclaw.store.calls.commands import CommandStore, QueueFull, StoreError
from evoclaw.store.calls.receipts import ReceiptStore, StoredReceipt
from evoclaw.store.databases.database import Connection, Database, Schema
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.governance import approvals, ledger
from evoclaw.store.governance.approvals import ApprovalClaim, ApprovalStore, StoredApproval
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from tests.support.audit import NOON, fields, warm_in
from tests.support.databases import Place
from tests.support.properties import examples

A, B = "acme", "local"
IDS = ("one", "two")
GUESSES = ("one", "never")
"""An id that the other tenant has, and one that nobody has."""
INDEXED = re.compile(r"SEARCH .*\((tenant|id|request_id|rowid)=\?")
"""By the tenant, or by an id that all tenants together have once."""


def connected(schema: Schema) -> sqlite3.Connection:
    """The tables of a store, in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for step in schema.migrations:
        for statement in step:
            connection.execute(statement)
    return connection


@dataclass
class World:
    """All stores, shared by whoever is there."""

    sessions: SessionStore
    approvals: ApprovalStore
    receipts: ReceiptStore
    commands: CommandStore
    ledger: StoredLedger


@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    modules = (session_tables, approvals, receipts, command_tables, ledger)
    databases = [
        SqliteDatabase(Path("memory"), connected(module.SCHEMA), durable=False)
        for module in modules
    ]
    first, second, third, fourth, fifth = databases

    def clock() -> float:
        return 1_000.0

    try:
        # A ledger that is left writes what it is behind with: nothing outlives the databases.
        async with StoredLedger(fifth, clock) as accounts:
            yield World(
                SessionStore(first, clock),
                ApprovalStore(second, clock),
                ReceiptStore(third, clock),
                CommandStore(fourth, clock),
                accounts,
            )
    finally:
        for database in databases:
            await database.close()


@dataclass(frozen=True)
class Step:
    """One thing that a tenant does, with ids that the other one may have too."""

    tenant: str
    what: str
    id: str
    other: str
    guess: str
    """Whose ids it tries where ids bear a tenant's mark."""
    n: int


Act = Callable[[World, Step], Awaitable[object]]


def run_of(step: Step, *, own: bool = False) -> str:
    """A run's id as devices and ledgers know it."""
    return tenant_run_id(step.tenant if own else step.guess, step.id)


async def append(at: World, step: Step) -> object:
    store = at.sessions.of(step.tenant)
    run = await store.create_run(step.id, step.other, "hi")
    record = Record(step.id, step.n, 1.0, Replied(Reply(f"{step.tenant} {step.n}")))
    stop = StopReason.COMPLETED if step.n == 3 else None
    message = (step.n, user(f"{step.tenant} said {step.n}"))
    return await store.append(run, [record], [message], RunUsage(step.n, 1, 2, 3, 0.5), stop)


async def begin(at: World, step: Step) -> object:
    store, background = at.sessions.of(step.tenant), bool(step.n % 2)
    asked = f"{step.tenant} {step.n}"
    return await store.create_run(
        step.id, step.other, asked, parent_run=step.other, root_run=step.other,
        background=background,
    )  # fmt: skip


async def create(at: World, step: Step) -> object:
    parent = step.other if step.n == 0 else ""
    made = Session(step.id, "agent", f"u{step.n % 2}", f"{step.tenant}'s", parent)
    return await at.sessions.of(step.tenant).create(made)


async def claim(at: World, step: Step) -> object:
    key = f"{step.id}{step.n}"
    row = StoredApproval(
        f"{step.tenant}.{key}", step.tenant, step.id, key, step.other, b"?", 2_000.0
    )
    return await at.approvals.claim(ApprovalClaim(row, step.n, "holder", max_waiting=2))


async def keep_receipt(at: World, step: Step) -> object:
    name = f"{step.tenant} {step.id} {step.n}"
    kept = StoredReceipt(
        "pi", "chain", step.n + 1, sha256(name.encode()).hexdigest(), "",
        f"{run_of(step, own=True)}.{step.n}", run_of(step, own=True), step.tenant, 1.0, name, "s",
    )  # fmt: skip
    return await at.receipts.add(kept)


async def find_receipt(at: World, step: Step) -> object:
    name = f"{step.guess} {step.id} {step.n}"
    return await at.receipts.of(step.tenant).find(sha256(name.encode()).hexdigest()[:12])


async def put(at: World, step: Step) -> object:
    run = run_of(step, own=True)
    payload = f"{step.tenant} {step.n}".encode()
    return await at.commands.put(
        f"{run}.{step.n}", step.other, run, payload, 2_000.0, tenant=step.tenant, cap=3
    )


async def settle(at: World, step: Step) -> object:
    """An edge tells how a command ended."""
    request_id = f"{run_of(step, own=True)}.{step.n}"
    return await at.commands.settle(request_id, step.other, f"{step.tenant} {step.n}".encode())


def path(step: Step) -> tuple[str, ...]:
    return account_path(Principal(step.tenant, step.other), run_of(step, own=True))


async def reserve(at: World, step: Step) -> object:
    account = f"tenant:{step.tenant}"
    await at.ledger.open(account, {"calls": Limit(5)}, {})
    wanted = {"calls": 1 + step.n % 2}
    return await at.ledger.reserve(path(step), wanted, f"{run_of(step, own=True)}#{step.n}")


async def spend(at: World, step: Step) -> object:
    at.ledger.settle(f"{run_of(step, own=True)}#{step.n}", {"calls": 1})
    accounts = await at.ledger.accounts()
    return [one for one in accounts if one.name.startswith(f"tenant:{step.tenant}")]


ACTS: Mapping[str, Act] = {
    "create": create,
    "session": lambda at, s: at.sessions.of(s.tenant).session(s.id),
    "sessions": lambda at, s: at.sessions.of(s.tenant).sessions(
        f"u{s.n % 2}", within=s.id if s.n > 1 else ""
    ),
    "look": lambda at, s: at.sessions.of(s.tenant).summary(s.id),
    "begin": begin,
    "append": append,
    "run": lambda at, s: at.sessions.of(s.tenant).run(s.id),
    "left_behind": lambda at, s: at.sessions.of(s.tenant).open_background_runs(s.id),
    "spent": lambda at, s: at.sessions.of(s.tenant).usage(s.id),
    "records": lambda at, s: at.sessions.of(s.tenant).records(s.id),
    "last_record": lambda at, s: at.sessions.of(s.tenant).last_record(s.id),
    "messages": lambda at, s: at.sessions.of(s.tenant).messages(s.id),
    "put_todos": lambda at, s: at.sessions.of(s.tenant).put_todos(s.id, s.tenant.encode()),
    "todos": lambda at, s: at.sessions.of(s.tenant).todos(s.id),
    "ask": lambda at, s: at.sessions.of(s.tenant).questions.ask(
        f"{s.id}.{s.n}", s.other, s.tenant.encode()
    ),
    "answer": lambda at, s: at.sessions.of(s.tenant).questions.answer(
        f"{s.id}.{s.n}", s.tenant.encode()
    ),
    "question": lambda at, s: at.sessions.of(s.tenant).questions.get(f"{s.id}.{s.n}"),
    "questions": lambda at, s: at.sessions.of(s.tenant).questions.waiting(s.id if s.n else ""),
    "give_up": lambda at, s: at.sessions.of(s.tenant).questions.close_waiting(s.id),
    "claim": claim,
    "approve": lambda at, s: at.approvals.answer(
        f"{s.guess}.{s.id}{s.n}", s.tenant, "session" if s.n % 2 else "once", b"yes"
    ),
    "withdraw": lambda at, s: at.approvals.close(f"{s.guess}.{s.id}{s.n}", s.tenant),
    "approval": lambda at, s: at.approvals.get(f"{s.guess}.{s.id}{s.n}", s.tenant),
    "approvals": lambda at, s: at.approvals.waiting(s.tenant),
    "in_force": lambda at, s: at.approvals.session_approvals(s.tenant),
    "keep_receipt": keep_receipt,
    "receipts": lambda at, s: at.receipts.of(s.tenant).list_receipts(
        run_id=run_of(s) if s.n else ""
    ),
    "find_receipt": find_receipt,
    "put": put,
    "settle": settle,
    "command": lambda at, s: at.commands.of(s.tenant).get(f"{run_of(s)}.{s.n}"),
    "commands": lambda at, s: at.commands.of(s.tenant).waiting(s.other if s.n else ""),
    "known": lambda at, s: at.commands.of(s.tenant).known(
        [f"{tenant_run_id(t, s.id)}.{s.n}" for t in (A, B)]
    ),
    "notes": lambda at, s: at.commands.of(s.tenant).late_outcomes(f"{run_of(s)}.{s.n}"),
    "reserve": reserve,
    "spend": spend,
}
GROUPS = {
    "sessions": "create session sessions look begin append messages put_todos todos",
    "runs": "create look begin append run left_behind spent records last_record",
    "questions": "ask answer question questions give_up",
    "approvals": "claim approve withdraw approval approvals in_force",
    "receipts": "keep_receipt receipts find_receipt",
    "commands": "put settle command commands known notes",
    "ledger": "reserve spend",
    "all": " ".join(ACTS),
}


def programs(group: str) -> st.SearchStrategy[list[Step]]:
    """What two tenants do in turn."""
    tenants, ids = st.sampled_from((A, B)), st.sampled_from(IDS)
    acts = st.sampled_from(GROUPS[group].split())
    step = st.builds(Step, tenants, acts, ids, ids, tenants, st.integers(0, 3))
    return st.lists(step, min_size=10, max_size=60)


async def tried(at: World, step: Step) -> object:
    """What came of it; an error is an answer too, and its text must not tell more."""
    try:
        return await ACTS[step.what](at, step)
    except (sqlite3.IntegrityError, QueueFull, StoreError) as problem:
        return type(problem), str(problem)


async def done(program: Sequence[Step]) -> list[object]:
    async with world() as at:
        return [await tried(at, step) for step in program]


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_fault_56_a_tenant_sees_the_same_as_if_it_were_the_only_one(
    group: str, data: st.DataObject
) -> None:
    program = data.draw(programs(group))
    together = list(zip(program, asyncio.run(done(program)), strict=True))
    for tenant in (A, B):
        mine = [step for step in program if step.tenant == tenant]
        found = [result for step, result in together if step.tenant == tenant]
        assert found == asyncio.run(done(mine))


async def busy(at: World, tenant: str) -> None:
    """Have a tenant do a bit of everything."""
    for what in ("create", "begin", "append", "put_todos", "ask", "claim", "keep_receipt", "put"):
        for id_ in IDS:
            await ACTS[what](at, Step(tenant, what, id_, id_, tenant, 1))
    one = Step(tenant, "", IDS[0], IDS[0], tenant, 1)
    await ACTS["approve"](at, one)
    await ACTS["settle"](at, one)
    await at.commands.settle(f"{run_of(one)}.1", IDS[0], b"too late")


READS = (
    "session", "look", "run", "left_behind", "spent", "records", "last_record", "messages",
    "todos", "answer", "question", "questions", "give_up", "approve", "withdraw", "approval",
    "approvals", "in_force", "receipts", "find_receipt", "command", "commands", "notes",
)  # fmt: skip


@pytest.mark.parametrize("what", READS)
async def test_fault_56_an_id_of_another_tenant_is_answered_like_an_unknown_id(
    what: str,
) -> None:
    async with world() as at:
        await busy(at, B)
        guessed, unknown = [await tried(at, Step(A, what, id_, IDS[1], B, 1)) for id_ in GUESSES]
        assert guessed == unknown
        own = await tried(at, Step(B, what, IDS[0], IDS[1], B, 1))
        assert own != guessed or what == "give_up", "whose it is sees it"


@pytest.mark.parametrize("what", READS)
async def test_fault_56_a_guessed_id_costs_the_same_whether_it_exists_or_not(what: str) -> None:
    async with world() as at:
        await busy(at, B)
        databases = [one.database for one in (at.sessions, at.approvals, at.receipts, at.commands)]
        counts: list[int] = []
        for id_ in GUESSES:
            said = await traced(
                databases, lambda one=id_: tried(at, Step(A, what, one, IDS[1], B, 1))
            )
            counts.append(len(said))
            for database in databases:
                plans = await database.read(lambda c, said=said: explained(c, said))
                assert all(INDEXED.search(plan) for plan in plans), plans
        assert counts[0] == counts[1] > 0


async def traced(databases: Sequence[Database], act: Callable[[], Awaitable[object]]) -> list[str]:
    """The statements that something takes."""
    said: list[str] = []
    for database in databases:
        await database.read(lambda c: cast("Any", c).set_trace_callback(said.append))
    await act()
    for database in databases:
        await database.read(lambda c: cast("Any", c).set_trace_callback(None))
    return said


def explained(connection: Connection, statements: list[str]) -> list[str]:
    """How each of some statements would find its rows; those of other stores are left out."""
    found: list[str] = []
    for statement in statements:
        try:
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        except sqlite3.OperationalError:
            continue  # another store's table
        found += [row[3] for row in plan if "SEARCH" in row[3] or "SCAN" in row[3]]
    return found


async def test_fault_56_two_tenants_use_the_same_ids_at_the_same_time(place: Place) -> None:
    async with SessionStore(await place.open(session_tables.SCHEMA)) as store:

        async def talk(tenant: str) -> list[object]:
            own = store.of(tenant)
            made = await own.create(Session("same", "agent", tenant))
            run = await own.create_run("run", "same", tenant)
            for number in range(20):
                record = Record("run", number + 1, 1.0, Replied(Reply(f"{tenant} {number}")))
                await own.append(run, [record], [(number, user(tenant))], RunUsage(number), None)
                await own.put_todos("same", f"{tenant} {number}".encode())
                await own.questions.ask(f"run.{number}", "same", tenant.encode())
            await own.questions.close_waiting("run")
            return [made, *await own.records("run"), await own.todos("same")]

        names = [f"tenant{n}" for n in range(8)]
        found = await asyncio.gather(*(talk(name) for name in names))
        for name, (made, *said, todos) in zip(names, found, strict=True):
            assert isinstance(made, Session) and (made.tenant, made.owner) == (name, name)
            assert [one.event.reply.text for one in _replied(said)] == [
                f"{name} {n}" for n in range(20)
            ]
            assert todos == f"{name} 19".encode()
        assert await store.sessions("tenant1") == []


def _replied(said: Sequence[object]) -> list[Any]:
    return [one for one in said if isinstance(one, Record) and isinstance(one.event, Replied)]


async def test_a_session_is_stored_for_the_tenant_of_the_store_not_its_own_field(
    tmp_path: Path,
) -> None:
    async with await SessionStore.open(tmp_path / "sessions.db", durable=False) as store:
        kept = await store.of(A).create(Session("s", "agent", tenant="another"))
        assert kept.tenant == A
        assert await store.session("s") is None and await store.of("another").session("s") is None


async def test_fault_56_child_sessions_of_another_tenant_are_not_listed(
    tmp_path: Path,
) -> None:
    async with await SessionStore.open(tmp_path / "sessions.db", durable=False) as store:
        own, other = store.of(A), store.of(B)
        for name in IDS:
            await own.create(Session(name, "agent"))
        await other.create(Session(IDS[1], "agent", parent=IDS[0], depth=1))
        assert [one.session.id for one in await own.sessions("", within=IDS[0])] == [IDS[0]]


async def test_another_tenant_cannot_read_or_reuse_the_id_of_a_command(
    tmp_path: Path,
) -> None:
    async with await CommandStore.open(tmp_path / "c.db", durable=False) as store:
        await store.put("r.1", "pi", "r", b"secret", None, tenant=A)
        for agent in ("pi", "desktop"):
            with pytest.raises(StoreError) as problem:
                await store.put("r.1", agent, "r", b"mine", 1.0, tenant=B)
            assert "pi" not in str(problem.value) and A not in str(problem.value)
        (row,) = await store.wanted("pi", 0.0)
        assert (row.payload, row.tenant) == (b"secret", A), "it is delivered as it was asked"
        await store.settle("r.1", "pi", b"result")
        await store.settle("r.1", "pi", b"too late")
        own, other = await store.of(A).get("r.1"), await store.of(B).get("r.1")
        assert own is not None and own.outcome == b"result" and other is None
        assert (
            len(await store.of(A).late_outcomes("r.1")) == 1
            and await store.of(B).late_outcomes("r.1") == []
        )


async def test_a_full_queue_of_one_tenant_does_not_block_another_tenant(tmp_path: Path) -> None:
    async with await CommandStore.open(tmp_path / "c.db", durable=False) as store:
        await store.put("a.1", "pi", "a", b"", None, tenant=A, cap=1)
        with pytest.raises(QueueFull):
            await store.put("a.2", "pi", "a", b"", None, tenant=A, cap=1)
        await store.put("b.1", "pi", "b", b"", None, tenant=B, cap=1)
        await store.settle("a.1", "pi", b"")
        await store.put("a.3", "pi", "a", b"", None, tenant=A, cap=1)


async def test_an_empty_tenant_means_the_local_tenant(tmp_path: Path) -> None:
    async with await CommandStore.open(tmp_path / "c.db", durable=False) as store:
        await store.put("a.1", "pi", "a", b"", None, tenant="")
        assert await store.of("local").get("a.1") is not None


async def test_fault_56_audit_search_returns_and_counts_only_the_own_tenant(
    tmp_path: Path,
) -> None:
    warm = warm_in(tmp_path)
    for number in range(12):
        tenant = A if number % 3 else "other"
        warm.append([fields(number) | {"tenant": tenant, "run_id": "same"}], NOON)
    found = await search(tmp_path / "audit", AuditQuery(tenant="other", run_id="same", limit=3))
    assert [one["tenant"] for one in found] == ["other"] * 3, "a limit counts own records alone"
    assert await search(tmp_path / "audit", AuditQuery(tenant="never", run_id="same")) == []
