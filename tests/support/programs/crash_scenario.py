"""One process with all that an orchestrator stores, which may die by SIGKILL at any write.

    python -m tests.support.programs.crash_scenario
        forks a child for each `Life` on its input, one after the other

The scenario has runs with a call, an approval, a sub-run, a question, a steering message and a
cancel; a deleted session, an expired one, a workflow, and what edges store. A child that dies is
followed by one that continues the same scenario to its end, and then checks what is stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
from msgspec import Struct

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import CallFinished, Replied, ReplyEvent, RunFinished, StopReason
from evoclaw.core.labels import Principal
from evoclaw.core.messages import Reply, ToolResult, UserMessage
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import ALLOW, Ask, Decision, Ports, Request, Verdict
from evoclaw.core.profile import Profile
from evoclaw.core.replay import Replay
from evoclaw.core.routes import Route
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer, ApprovalSettings
from evoclaw.governance.budget.settings import AccountLimits, BudgetSettings
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.receipts.signer import LocalReceiptSigner
from evoclaw.orchestrator.runs.runs import RunRequest, Runs, RunSettings
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import calls, says
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.receipts import ReceiptStore
from evoclaw.store.databases import sqlite
from evoclaw.store.databases.database import Connection, Database, open_blob, seal_blob
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.databases.postgres_connection import PostgresConnection
from evoclaw.store.databases.postgres_functions import FunctionRunner
from evoclaw.store.databases.postgres_steps import StepSender
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.steps import Step
from evoclaw.store.governance.approvals import ApprovalStore, StoredApproval
from evoclaw.store.governance.devices import DeviceStore
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.governance.ledger_rows import verify_rows
from evoclaw.store.governance.rates import RateStore
from evoclaw.store.memory import EventType, MemoryStore, Observation
from evoclaw.store.sessions import expired_sessions
from evoclaw.store.sessions.delete_steps import delete_all_hidden
from evoclaw.store.sessions.expired_sessions import ExpiredSessions
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.store.workflows.workflows import WorkflowStore
from evoclaw.tools.define import tool
from evoclaw.tools.question import UserAnswer, question
from evoclaw.trust.receipts import DeviceKey
from evoclaw.wiring.store import all_schemas
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.definition import AgentStep, ApprovalStep, ToolStep, Workflow, WorkflowStep
from evoclaw.workflows.events import StepDecision
from evoclaw.workflows.ports import ToolOutcome, ToolRequest
from evoclaw.workflows.scripted import ScriptedAgents, ScriptedTools, text_result
from evoclaw.workflows.workflows import Workflows, WorkflowSettings
from tests.support.tool_calls import call_of, session_tools

T = TypeVar("T")
ANN = Principal("local", "ann")
PERSON = Answerer("person", "ann", "local", frozenset({HUMAN_SCOPE}))
LIFE_TIMEOUT_S = 40.0
PUT_ENDED_RUN = (
    "INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background, began_at, "
    "stop, ended_at) VALUES ('local', 'l', 'long', ?, '', 'l', 0, 1.0, 'completed', 1.0) "
    "ON CONFLICT (tenant, id) DO NOTHING"
)
_VALUE = re.compile(r"['0-9]")
TENANT_TURNS = 60
"""The budget of all runs together: twice what they need."""
REPLIES: Mapping[str, Sequence[Reply]] = {
    "a": (
        calls(("work", {"what": "a"})),
        calls(("danger", {"what": "approved"})),
        calls(("task", {"prompt": "sub", "agent": "help"})),
        says("done a"),
    ),
    "sub": (calls(("work", {"what": "sub"})), says("done sub")),
    "b": (calls(("question", {"question": "Which?"})), says("done b")),
    "c": (calls(("hang", {})), says("done c")),
    "d": (calls(("pause", {})), says("done d"), says("done d")),
    "e": (says("done e"),),
    "g": (calls(("hang", {})), says("done g")),
    "f": (calls(("work", {"what": "f"})), says("done f")),
}
"""What the model replies, by the first message and the number of replies before."""
INNER = Workflow("inner", (ToolStep("write", tool="write", arguments={"to": "inner"}),))
OUTER = Workflow(
    "outer",
    (
        AgentStep("ask", agent="writer", message="Write."),
        ApprovalStep("ok", message="Continue?"),
        ToolStep("write", tool="write", arguments={"to": "outer"}),
        WorkflowStep("sub", workflow="inner"),
    ),
)
EFFECTS = ("a", "approved", "sub", "f", "outer", "inner")


class Life(Struct, frozen=True, omit_defaults=True):
    """One process."""

    database: str
    """The path of a file, or the address of a PostgreSQL."""
    folder: str
    """Where it records what it did."""
    kill_at: int = 0
    """How often it reaches `kill_place` before it dies there; 0 is never."""
    kill_place: str = ""
    """A point, as `procedure: moment`; empty is any."""
    schema: str = "evoclaw"
    loses_answers: bool = False
    """Whether every third answer of PostgreSQL to a batch of steps is lost, once."""
    check: bool = False
    """Whether to check what is stored, at the end."""


class Points:
    """Counts the points at which this process could die, and dies at one of them."""

    def __init__(self, life: Life) -> None:
        self._log, self._life = Path(life.folder, "killed_at"), life
        self._lock, self._left = threading.Lock(), life.kill_at
        self.procedure = ""
        """The procedure that is being executed."""
        self.procedures: set[str] = set()
        self.places: list[str] = []
        """What was reached, in order."""

    def reach(self, procedures: Iterable[str], moment: str) -> None:
        """Note a point; die if it is the last one."""
        here = [f"{procedure}: {moment}" for procedure in procedures]
        with self._lock:
            self.places += here
            if not self._life.kill_place or self._life.kill_place in here:
                self._left -= 1
                if self._left == 0:
                    self._log.write_text("\n".join(here))
                    os.kill(os.getpid(), signal.SIGKILL)

    def arm_sqlite(self) -> None:
        """Every statement of a transaction is a point; it is reached before its execution."""
        open_file, step_work = sqlite.open_file, SqliteDatabase._step_work  # pyright: ignore

        def opened(*arguments: Any) -> Any:
            connection, aside = open_file(*arguments)

            def trace(statement: str) -> None:
                if connection.in_transaction or statement.startswith("BEGIN"):
                    self.reach([self.procedure], _without_values(statement))

            connection.set_trace_callback(trace)
            return connection, aside

        def named_work(database: SqliteDatabase, step: Step) -> Any:
            work = step_work(database, step)

            def named(connection: Connection) -> Any:
                self.procedure = step.procedure.name
                self.procedures.add(self.procedure)
                try:
                    return work(connection)
                finally:
                    self.procedure = ""

            return named

        sqlite.open_file = opened
        SqliteDatabase._step_work = named_work  # pyright: ignore

    def arm_postgres(self, *, loses_answers: bool) -> None:
        """Points: before a batch is sent, after that, and after its answer; around a COMMIT."""
        send, transaction = StepSender._send, FunctionRunner._transaction  # pyright: ignore
        lost: set[int] = set()

        async def counted_send(sender: StepSender, batch: list[Any]) -> Any:
            names = sorted({entry.step.procedure.name for entry in batch})
            self.procedures |= set(names)
            self.reach(names, "before it is sent")
            sending = asyncio.ensure_future(send(sender, batch))
            await asyncio.sleep(0)
            self.reach(names, "sent")
            answer = await sending
            self.reach(names, "answered")
            number = sender._number  # pyright: ignore
            if loses_answers and number % 3 == 0 and number not in lost:
                lost.add(number)
                await sender._disconnect()  # pyright: ignore
                raise psycopg.OperationalError("the answer was lost")
            return answer

        def counted_transaction(
            runner: FunctionRunner, connection: PostgresConnection, work: Callable[..., Any]
        ) -> Any:
            def before_commit(inner: Connection) -> Any:
                result = work(inner)
                self.reach([""], "function before its commit")
                return result

            result = transaction(runner, connection, before_commit)
            self.reach([""], "function after its commit")
            return result

        StepSender._send = counted_send  # pyright: ignore
        FunctionRunner._transaction = counted_transaction  # pyright: ignore


def _without_values(statement: str) -> str:
    """The beginning of a statement, up to its first value."""
    return " ".join(_VALUE.split(statement, maxsplit=1)[0].split())[:80]


class Notebook:
    """What happened outside the database, in files that survive the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, page: str, line: str) -> None:
        """Append a line."""
        descriptor = os.open(self._folder / page, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def lines(self, page: str) -> Counter[str]:
        """How often each line was appended."""
        path = self._folder / page
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()


class AskForDanger:
    """A person must approve the tool `danger`."""

    async def judge(self, call: Call) -> Verdict:
        return Ask("danger", "It is dangerous.") if call.name == "danger" else ALLOW

    async def admit(self, turn: int) -> Verdict:
        return ALLOW


class ScriptedModel:
    """Replies as `REPLIES` says, and notes each request."""

    model, profile = "scripted/model", Profile()

    def __init__(self, notebook: Notebook, life: int) -> None:
        self._notebook, self._life = notebook, life

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        messages = request.history.to_tuple()
        name = next(message.text for message in messages if isinstance(message, UserMessage))
        turn = sum(isinstance(message, Reply) for message in messages)
        self._notebook.add("requests", f"{self._life} {name} {turn}")
        yield Replied(REPLIES[name][turn])


class Orchestrator:
    """The parts of an orchestrator that store something, over one database."""

    def __init__(self, database: Database, folder: Path, life: int) -> None:
        self.database, self.folder, self.notebook = database, folder, Notebook(folder)
        self.store, approvals = SessionStore(database), ApprovalStore(database)
        self.approval_store = approvals
        self.approvals = CallApprovals(approvals, ApprovalSettings(nobody="wait"))
        self.questions = Questions(self.store.questions, suspends_runs=True)
        self.ledger = StoredLedger(database, database.time, wait=False)
        self.model = ScriptedModel(self.notebook, life)
        self.hanging, self.pausing = asyncio.Event(), asyncio.Event()
        self.resumed = asyncio.Event()
        """Ends the tool `pause`."""
        agents = [
            Agent(name, "scripted/model", "", frozenset({"*"}), LoopSettings(max_turns=10))
            for name in ("lead", "help")
        ]
        budget = BudgetSettings(tenant=AccountLimits(turns=TENANT_TURNS))
        self.conversations = Conversations(
            self.store,
            {agent.name: agent for agent in agents},
            self._ports,
            questions=self.questions,
            approvals=approvals,
            ledger=self.ledger,
            limits=RunLimits(budget=budget),
            defer_commits=True,
        )
        self.runs = self._new_runs()
        tools = ScriptedTools({"write": self._write})
        self.workflows = Workflows(
            WorkflowStore(database),
            Catalogue(workflows=(OUTER, INNER)),
            ScriptedAgents({"writer": "fine"}),
            tools,
            settings=WorkflowSettings(lease_s=1.0, poll_s=0.02),
        )
        self.commands = CommandStore(database)
        self.receipts = ReceiptStore(database)
        key = DeviceKey.load_or_create(folder / "device.key")
        shared = database.dialect == "postgres"
        self.signer = LocalReceiptSigner(key, self.receipts, "boot", shared=shared, wait=False)

    def _new_runs(self) -> Runs:
        settings = RunSettings(look_s=0.02, lease_s=5.0)
        return Runs(self.conversations, agent="lead", settings=settings)

    def _ports(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        notebook, hanging, pausing, resumed = (
            self.notebook,
            self.hanging,
            self.pausing,
            self.resumed,
        )

        @tool("shell", resources=(), timeout=60)
        async def work(what: str = "") -> str:
            """Work."""
            notebook.add("effects", what)
            return "worked"

        @tool("shell", resources=(), timeout=60)
        async def danger(what: str = "") -> str:
            """Work dangerously."""
            notebook.add("effects", what)
            return "worked"

        @tool("shell", resources=(), timeout=60)
        async def hang() -> str:
            """Never return."""
            hanging.set()
            await asyncio.Event().wait()
            return ""

        @tool("shell", resources=(), timeout=60, idempotent=True)
        async def pause() -> str:
            """Return when the run was steered."""
            pausing.set()
            await resumed.wait()
            return "paused"

        offered = (work, danger, hang, pause, question, *session_tools())
        route = Route(LocalExecutor(offered, given=given), ready=self.database.flush)
        approver = self.approvals.approver(session.id)
        return Ports(self.model, Pipeline([route]), AskForDanger(), approver)

    async def _write(self, asked: ToolRequest) -> ToolOutcome:
        self.notebook.add("effects", str(asked.arguments["to"]))
        return text_result(asked, "written")

    def acknowledge(self, what: str) -> None:
        """Note that a caller was told."""
        self.notebook.add("acknowledged", what)

    def is_acknowledged(self, what: str) -> bool:
        """Whether a caller was told, in this life or before."""
        return what in self.notebook.lines("acknowledged")

    async def live(self) -> None:
        """Run the scenario to its end; what was acknowledged before is not repeated."""
        await self.ledger.start()
        await self._store_small_things()
        await self._stop_during_g()
        async with self.runs.serving(), self.workflows.serving(alone=True):
            await self._use_edge()
            for name in ("g", "a", "b", "f"):
                await self._start(name)
                await self._finish(name)
            await self._cancel_c()
            await self._steer_d()
            await self._delete_e()
            await self._run_workflow()
        await self.ledger.flush()

    async def _store_small_things(self) -> None:
        rates, devices = RateStore(self.database), DeviceStore(self.database)
        memory, approvals = MemoryStore(self.database), self.approval_store
        for number in range(2):
            await rates.take([("ann", 100, 100)])
            self.acknowledge("rate")
            await devices.change("pi", lambda old: str(int(old or b"0") + 1).encode())
            self.acknowledge("device")
            seen = Observation(
                f"seen{number}", "s", "lead", EventType.DECISION, f"observed {number}"
            )
            await memory.add([seen])
            self.acknowledge(f"observation {seen.id}")
        expires = time.time() + 3_600
        standing = StoredApproval("standing", "local", "q", "", "scope", b"{}", expires)
        await approvals.add_standing(msgspec.structs.replace(standing, answer=b"{}"))
        await approvals.use_standing("scope", "local")
        self.acknowledge("standing approval")
        old = SessionStore(self.database, lambda: 1.0)
        if not self.is_acknowledged("expired"):
            await delete_all_hidden(self.database)  # as the service does when it starts
            await old.create(Session("old", "lead", "ann"))
            await old.create(Session("long", "lead", "ann"))
            asked = seal_blob(self.database, b"hi")
            await self.database.write(lambda c: c.execute(PUT_ENDED_RUN, (asked,)))
            expired_sessions.MAX_RUNS_AT_ONCE = 0  # as if it had very many runs
            await ExpiredSessions(self.database).delete(2.0)
            self.acknowledge("expired")

    async def _stop_during_g(self) -> None:
        """Stop the service in an orderly way while a run is active."""
        if self.is_acknowledged("stopped"):
            return
        async with self.runs.serving():
            await self._start("g")
            ended = asyncio.create_task(self.runs.result("local", "g"))
            hanging = asyncio.create_task(self.hanging.wait())
            await asyncio.wait([ended, hanging], return_when=asyncio.FIRST_COMPLETED)
            for task in (ended, hanging):
                task.cancel()
        self.acknowledge("stopped")
        self.hanging.clear()
        self.runs = self._new_runs()

    async def _use_edge(self) -> None:
        """What the orchestrator stores for a call on an edge, and for one on its own machine."""
        commands = self.commands
        await commands.put("edge.1.0.1", "pi", "a", b"payload", None, sent=True)
        self.acknowledge("command")
        await commands.mark("edge.1.0.1", "accepted")
        await commands.settle("edge.1.0.1", "pi", b"outcome")
        self.acknowledge("outcome")
        for number in range(2):
            made = call_of(question, question="Which?")
            made = msgspec.structs.replace(made, request_id=f"signed.{number}.0.1")
            await self.signer.sign(made, ToolResult("c1", "question", ()), 1.0, 2.0)
            await self.database.flush()
            self.acknowledge(f"receipt {made.request_id}")

    async def _start(self, name: str) -> str:
        view, _ = await self.runs.start(ANN, RunRequest(name), run_id=name)
        self.acknowledge(f"run {name}")
        return view.session_id

    async def _finish(self, name: str) -> StopReason:
        while True:
            result = await self.runs.result("local", name)
            if result.stop is not StopReason.WAITING:
                self.acknowledge(f"end {name} {result.stop}")
                return result.stop
            for case in await self.approvals.waiting():
                await self.approvals.answer(case.request.id, Decision.ONCE, PERSON)
                self.acknowledge("approved")
            for stored in await self.store.questions.waiting():
                await self.questions.answer(stored.id, UserAnswer(text="this"))
                self.acknowledge("answered")
            await self.runs.resume("local", name)

    async def _cancel_c(self) -> None:
        await self._start("c")
        ended = asyncio.create_task(self.runs.result("local", "c"))
        hanging = asyncio.create_task(self.hanging.wait())
        await asyncio.wait([ended, hanging], return_when=asyncio.FIRST_COMPLETED)
        hanging.cancel()
        if await self.runs.cancel("local", "c"):
            self.acknowledge("cancel c")
        await ended
        await self._finish("c")

    async def _steer_d(self) -> None:
        await self._start("d")
        ended = asyncio.create_task(self.runs.result("local", "d"))
        pausing = asyncio.create_task(self.pausing.wait())
        await asyncio.wait([ended, pausing], return_when=asyncio.FIRST_COMPLETED)
        pausing.cancel()
        if not ended.done() and not self.is_acknowledged("steer d"):
            await self.runs.steer("local", "d", "more for d")
            self.acknowledge("steer d")
        self.resumed.set()
        await ended
        await self._finish("d")

    async def _delete_e(self) -> None:
        if self.is_acknowledged("deleted e"):
            return
        session = await self._start("e")
        await self._finish("e")
        await self.conversations.delete(session)
        self.acknowledge("deleted e")

    async def _run_workflow(self) -> None:
        started = await self.workflows.start(ANN, "outer", {}, key="flow")
        self.acknowledge("workflow")
        await self.workflows.wake("local", started.id)
        await WorkflowStore(self.database).renew("another process", 1.0, [("local", started.id)])
        while True:
            for listed in await self.workflows.list("local"):
                view = await self.workflows.get("local", listed.id)
                assert view is not None
                for step in view.steps:
                    if StepDecision.APPROVE in step.answers:
                        await self.workflows.answer(
                            PERSON, view.id, step.name, StepDecision.APPROVE
                        )
                    elif step.answers:
                        done = self.notebook.lines("effects")[view.name]
                        decision = StepDecision.SKIP if done else StepDecision.RETRY
                        await self.workflows.answer(PERSON, view.id, step.name, decision)
            view = await self.workflows.get("local", started.id)
            assert view is not None
            if view.state in ("succeeded", "failed", "cancelled"):
                self.acknowledge(f"workflow {view.state}")
                return
            await asyncio.sleep(0.005)


class Inspection:
    """Checks what is stored at the end, against what happened outside."""

    def __init__(self, made: Orchestrator, replies_before: Mapping[str, int]) -> None:
        self._made, self._before = made, replies_before
        self._told = made.notebook.lines("acknowledged")
        self.problems: list[str] = []

    def _expect(self, is_right: bool, problem: str) -> None:
        if not is_right:
            self.problems.append(problem)

    async def check(self) -> list[str]:
        """Everything that is wrong."""
        await self._check_runs()
        await self._check_ledger()
        await self._check_small_things()
        await self._check_receipts()
        await self._check_deleted()
        self._check_outside()
        return self.problems

    async def _check_runs(self) -> None:
        store = self._made.store
        for stored in await store.runs(limit=100):
            name, records = stored.message, await store.records(stored.id)
            self._expect(not stored.is_open, f"run {name} is open: {stored}")
            ends = sum(
                isinstance(record.event, RunFinished)
                and record.event.stop is not StopReason.WAITING
                for record in records
            )
            self._expect(ends == 1, f"run {name} ended {ends} times")
            numbers = [record.seq for record in records]
            rising = all(one < other for one, other in zip(numbers, numbers[1:], strict=False))
            self._expect(rising, f"records of {name}: {numbers}")
            replayed = [record async for record in Replay(records).records()]
            self._expect(replayed == records, f"run {name} does not replay")
            if stored.stop is StopReason.COMPLETED:
                end = records[-1].event
                said = end.text if isinstance(end, RunFinished) else ""
                self._expect(said == f"done {name}", f"run {name} said {said!r}")
            self._check_calls(name, [record.event for record in records])
            await store.messages(stored.session_id)
            self._expect(
                await store.summary(stored.session_id) is not None, f"session of {name} is gone"
            )
        for line in self._told:
            kind, _, name = line.partition(" ")
            if kind == "run" and name != "e":
                self._expect(await store.run(name) is not None, f"run {name} is lost")
        for name, stops in (("a", {"completed"}), ("c", {"cancelled", "completed"})):
            stored = await store.run(name)
            found = None if stored is None else stored.stop
            self._expect(found in stops, f"run {name} ended with {found}")
            if name == "c" and "cancel c" in self._told:
                self._expect(found == "cancelled", "the cancel of c is lost")

    def _check_calls(self, name: str, events: Sequence[Any]) -> None:
        """A call that succeeded had its effect once."""
        for event in events:
            if isinstance(event, CallFinished) and event.result.name == "work":
                done = self._made.notebook.lines("effects")[name]
                succeeded = event.result.error is None
                self._expect(done == 1 or not succeeded, f"work of {name} was done {done} times")

    async def _check_ledger(self) -> None:
        holds_of = "SELECT path, amounts FROM ledger_holds WHERE open = 1"

        def work(connection: Connection) -> list[Any]:
            verify_rows(connection)
            return connection.execute(holds_of).fetchall()

        held: dict[str, Counter[str]] = {}
        for path, amounts in await self._made.database.read(work):
            for account in json.loads(path):
                held.setdefault(account, Counter()).update(json.loads(amounts))
        for account in await self._made.ledger.accounts():
            kept = {kind: amount for kind, amount in account.held.items() if amount}
            expected = {k: v for k, v in held.get(account.name, Counter[str]()).items() if v}
            self._expect(kept == expected, f"{account.name} holds {kept}, its holds {expected}")
            self._expect(not kept, f"{account.name} still holds {kept}")
            for kind, limit in account.limits.items():
                used = account.used(kind, time.time())
                self._expect(used <= limit.most, f"{account.name} spent {used} {kind}")

    async def _check_small_things(self) -> None:
        made, lives = self._made, 2

        def count(statement: str) -> Any:
            return made.database.read(lambda c: c.execute(statement).fetchone()[0])

        # One more than was acknowledged, at most, for each process that died.
        for what, statement in (
            ("rate", "SELECT count(*) FROM rate_calls"),
            ("standing approval", "SELECT uses FROM approvals WHERE id = 'standing'"),
        ):
            found, told = await count(statement), self._told[what]
            self._expect(told <= found < told + lives, f"{what}: {found}, {told} acknowledged")
        _, devices = await DeviceStore(made.database).since(0)
        found, told = int(devices["pi"]), self._told["device"]
        self._expect(told <= found < told + lives, f"device: {found}, {told} acknowledged")
        seen = [await MemoryStore(made.database).get(f"seen{number}") for number in range(2)]
        self._expect(None not in seen, f"observations: {seen}")
        self._expect(await count("SELECT count(*) FROM memory_observations") == 2, "observed twice")
        command = await made.commands.get("edge.1.0.1")
        outcome = None if command is None else command.outcome
        self._expect(outcome == b"outcome", f"the command is {command}")
        late = await made.commands.late_outcomes("edge.1.0.1")
        self._expect({row.outcome for row in late} <= {b"outcome"}, f"late outcomes: {late}")

    async def _check_receipts(self) -> None:
        chains: dict[str, list[Any]] = {}
        for receipt in await self._made.receipts.list_receipts():
            chains.setdefault(receipt.chain, []).append(receipt)
        for chain, receipts in chains.items():
            before = ""
            for number, receipt in enumerate(sorted(receipts, key=lambda r: r.counter), 1):
                self._expect(receipt.counter == number, f"chain {chain} has a gap at {number}")
                self._expect(receipt.prev == before, f"chain {chain} is broken at {number}")
                before = receipt.hash
        signed = Counter(receipt.request_id for chain in chains.values() for receipt in chain)
        for line in self._told:
            kind, _, request_id = line.partition(" ")
            if kind == "receipt":
                self._expect(signed[request_id] > 0, f"the receipt of {request_id} is lost")

    async def _check_deleted(self) -> None:
        """No row is left of a deleted session or run."""
        store = self._made.store
        known_sessions = {row.session.id for row in await store.sessions("ann")}
        for expired in ("old", "long"):
            self._expect(expired not in known_sessions, "an expired session is left")
        self._expect(await store.run("e") is None, "the run of the deleted session is left")

        def work(connection: Connection) -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            for table, column, of in (
                ("runs", "session_id", "sessions"),
                ("messages", "session_id", "sessions"),
                ("questions", "session_id", "sessions"),
                ("records", "run_id", "runs"),
                ("queue_inbox", "run_id", "runs"),
                ("queue_cancels", "run_id", "runs"),
                ("queue_keys", "run_id", "runs"),
            ):
                orphans = (
                    f"SELECT count(*) FROM {table} t WHERE NOT EXISTS "
                    f"(SELECT 1 FROM {of} o WHERE o.tenant = t.tenant AND o.id = t.{column})"
                )
                found.append((table, connection.execute(orphans).fetchone()[0]))
            return found

        for table, count in await self._made.database.read(work):
            self._expect(count == 0, f"{count} rows of {table} belong to nothing")

        def read_blobs(connection: Connection) -> None:
            for (blob,) in connection.execute("SELECT message FROM messages").fetchall():
                open_blob(self._made.database, blob)

        await self._made.database.read(read_blobs)

    def _check_outside(self) -> None:
        effects = self._made.notebook.lines("effects")
        for name in EFFECTS:
            self._expect(effects[name] <= 1, f"{name} was done {effects[name]} times")
        for name in ("outer", "inner"):
            self._expect(effects[name] == 1, f"the workflow wrote {name} {effects[name]} times")
        for line, times in self._made.notebook.lines("requests").items():
            life, name, turn = line.split()
            paid_before = life == "2" and int(turn) < self._before.get(name, 0)
            self._expect(not paid_before, f"reply {turn} of {name} was stored, and paid again")
            self._expect(times == 1, f"reply {turn} of {name} was requested {times} times at once")
        for name in "abcdefg":
            ends = [line for line in self._told if line.startswith(f"end {name} ")]
            self._expect(len(ends) <= 1, f"callers were told different ends: {ends}")


async def _replies_stored(store: SessionStore) -> dict[str, int]:
    found: dict[str, int] = {}
    for stored in await store.runs(limit=100):
        events = [record.event for record in await store.records(stored.id)]
        found[stored.message] = sum(isinstance(event, Replied) for event in events)
    return found


@asynccontextmanager
async def _opened(life: Life) -> AsyncGenerator[Database]:
    location = life.database if "://" in life.database else Path(life.database)
    database = await open_database(location, all_schemas(), schema=life.schema, durable=False)
    try:
        yield database
    finally:
        await database.close()


async def _live(life: Life, points: Points) -> list[str]:
    folder = Path(life.folder)
    async with asyncio.timeout(LIFE_TIMEOUT_S), _opened(life) as database:
        made = Orchestrator(database, folder, 2 if life.check else 1)
        before = await _replies_stored(made.store) if life.check else {}
        await made.live()
        (folder / "procedures").write_text("\n".join(sorted(points.procedures)))
        return await Inspection(made, before).check() if life.check else []


def run(life: Life) -> int:
    """Live one life; the number of problems that were found at its end."""
    points = Points(life)
    if "://" in life.database:
        points.arm_postgres(loses_answers=life.loses_answers)
    else:
        points.arm_sqlite()
    try:
        problems = asyncio.run(_live(life, points))
    except (EvoClawError, TimeoutError, AssertionError) as problem:
        problems = [f"{type(problem).__name__}: {problem}"]
    Path(life.folder, "problems").write_text("\n".join(problems))
    Path(life.folder, "places").write_text("\n".join(points.places))
    return min(len(problems), 100)


def main() -> None:
    """Fork a child for each line of input, and print how it ended."""
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            code = 101
            try:
                code = run(msgspec.json.decode(line, type=Life))
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
