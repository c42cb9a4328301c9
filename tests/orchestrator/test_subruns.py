from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evoclaw.core.agent import intersect_capabilities
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import CallFinished, RunFinished
from evoclaw.core.messages import ErrorKind, Reply, SystemMessage, ToolResult, UserMessage
from evoclaw.core.ports import ALLOW, Approval, Ask, Decision, Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.orchestrator.sessions.conversations import SessionBusy, SessionNotFound
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from evoclaw.store.databases.database import Connection
from evoclaw.tools.question import UserAnswer
from evoclaw.tools.sessions import task
from tests.support.conversations import agent, end_of, open_session_harness, results
from tests.support.tool_calls import call_of


def ask(prompt: str = "do it", **more: object) -> Reply:
    return calls(("task", {"prompt": prompt, "agent": "help", **more}))


def work(what: str = "it") -> Reply:
    return calls(("work", {"what": what}))


async def test_a_task_call_starts_a_sub_run_and_returns_its_answer(tmp_path: Path) -> None:
    help_ = Scripted(work(), says("It is done."))
    async with open_session_harness(
        tmp_path, lead=Scripted(ask(), says("Thanks.")), help=help_
    ) as home:
        records = await home.send("go")

        (result,) = results(records)
        session_id = result.details["session_id"]
        assert result.text == f"It is done.\n[session {session_id}: completed]"
        assert result.details["turns"] == 2 and result.details["calls"] == 1
        assert result.details["tokens"] == 30
        assert home.ran == [(session_id, "it")]
        first = help_.requests[0].messages
        assert isinstance(first[0], SystemMessage) and first[0].text == "You help."
        assert isinstance(first[1], UserMessage) and first[1].text == "do it"
        assert len(first) == 2, "it knows nothing of the conversation above"
        below = await home.store.summary(session_id)
        assert below is not None and below.last is not None
        assert (below.session.parent, below.session.depth) == ("main", 1)
        assert below.last.stop == "completed" and below.messages == 5
        assert isinstance((await home.store.records(below.last.id))[-1].event, RunFinished)


async def test_tasks_of_one_reply_run_concurrently_up_to_the_limit(tmp_path: Path) -> None:
    inside, peak, full = 0, 0, asyncio.Event()

    async def body(what: str) -> str:
        nonlocal inside, peak
        inside += 1
        peak = max(peak, inside)
        if inside == 2:
            full.set()
        await full.wait()
        inside -= 1
        return what

    three = calls(*[("task", {"prompt": str(n), "agent": "help"}) for n in range(3)])

    def speak(asked: ScriptedRequest) -> Reply:
        return work() if len(asked.messages) == 2 else says("ok")

    lead, help_ = Scripted(three, says("all done")), Scripted(*[speak] * 6)
    limits = RunLimits(max_concurrent_per_run=2)
    async with open_session_harness(tmp_path, limits=limits, lead=lead, help=help_) as home:
        home.body = body
        records = await home.send("go")
        assert end_of(records).text == "all done"
        assert [result.error for result in results(records)] == [None] * 3
        assert peak == 2


async def test_a_sub_run_never_has_more_capabilities_than_its_parent(tmp_path: Path) -> None:
    lead, help_ = agent("lead", "session", "interact"), agent("help")
    model = Scripted(work(), says("I may not."))
    async with open_session_harness(
        tmp_path, agents=(lead, help_), lead=Scripted(ask(), says("ok")), help=model
    ) as home:
        await home.send("go")
        offered = model.requests[0].tools
        assert "question" in offered and "task" in offered
        assert not {"work", "todowrite", "todoread"} & set(offered)
        assert home.ran == []


async def test_a_sub_run_gets_only_requested_tools_that_its_parent_has(
    tmp_path: Path,
) -> None:
    replies = (
        ask(tools=["work"]),
        ask(tools=["work", "rm"]),
        says("ok"),
    )
    help_ = Scripted(calls(("task", {"prompt": "deeper"})), says("no"))
    async with open_session_harness(tmp_path, lead=Scripted(*replies), help=help_) as home:
        first, second = results(await home.send("go"))
        assert help_.requests[0].tools == ("work",)
        assert first.text.startswith("no\n")
        assert second.error is ErrorKind.NOT_FOUND and "'rm'" in second.text
        assert len(help_.requests) == 2


async def test_the_parents_policy_judges_calls_of_its_sub_run(tmp_path: Path) -> None:
    class NoWork(Policy):
        async def judge(self, call: Call) -> Verdict:
            return Deny("no", "work is forbidden") if call.name == "work" else ALLOW

    help_ = Scripted(work(), says("forbidden"))
    async with open_session_harness(tmp_path, lead=Scripted(ask(), says("ok")), help=help_) as home:
        home.policy = NoWork()
        await home.send("go")
        assert home.ran == []
        assert "work is forbidden" in str(help_.requests[1].messages[-1])


async def test_sub_runs_share_one_budget_of_turns_and_calls(tmp_path: Path) -> None:
    for limits, why in (
        (RunLimits(budget=BudgetSettings(turns=3)), "turns"),
        (RunLimits(budget=BudgetSettings(calls=2)), "calls"),
    ):
        lead = Scripted(ask(), says("so be it"))
        help_ = Scripted(work("1"), work("2"), work("3"), says("done"))
        folder = tmp_path / why
        async with open_session_harness(folder, limits=limits, lead=lead, help=help_) as home:
            records = await home.send("go")
            spent = await home.store.usage(records[0].run_id)
            if why == "calls":
                assert len(home.ran) == 1, "the task itself was the first call"
                continue
            (result,) = results(records)
            assert result.error is ErrorKind.EXECUTION_FAILED
            assert f"used all of their {why}" in result.text
            assert spent.turns == 3
            # A turn is kept for the run above, to answer with.
            assert end_of(records).stop == "completed"


async def test_a_sub_run_that_exceeds_its_calls_timeout_returns_a_timeout_error(
    tmp_path: Path,
) -> None:
    async def never(what: str) -> str:
        await asyncio.Event().wait()
        return what

    replies = (ask(timeout_ms=1000), says("too slow"))
    async with open_session_harness(
        tmp_path, lead=Scripted(*replies), help=Scripted(work())
    ) as home:
        home.body = never
        records = await home.send("go")
        (result,) = results(records)
        assert result.error is ErrorKind.TIMEOUT
        assert result.details["stop"] == "duration_exceeded"
        assert end_of(records).text == "too slow"


async def test_sub_runs_at_the_depth_limit_are_not_offered_the_task_tool(
    tmp_path: Path,
) -> None:
    def speak(asked: ScriptedRequest) -> Reply:
        if len(asked.messages) > 2 or "task" not in asked.tools:
            return says("bottom" if "task" not in asked.tools else "up")
        return calls(("task", {"prompt": "deeper"}))

    help_ = Scripted(*[speak] * 9)
    limits = RunLimits(max_depth=2)
    async with open_session_harness(
        tmp_path, limits=limits, lead=Scripted(ask(), says("ok")), help=help_
    ) as home:
        await home.send("go")
        assert ["task" in asked.tools for asked in help_.requests] == [True, False, True]
        assert [one.session.depth for one in await home.store.sessions("")] == [2, 1, 0]


async def test_cancelling_a_run_cancels_and_records_its_sub_run(
    tmp_path: Path,
) -> None:
    deadline, stopped = Deadline(), list[str]()

    async def body(what: str) -> str:
        deadline.cancel()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(what)
        return what

    async with open_session_harness(tmp_path, lead=Scripted(ask()), help=Scripted(work())) as home:
        home.body = body
        records = await home.send("go", deadline=deadline)
        assert end_of(records).stop == "cancelled"
        below = (await home.store.sessions(""))[0]
        assert below.last is not None and below.last.stop == "cancelled"
        assert stopped == ["it"] and not home.talks.subruns and not home.talks.running


async def test_a_resumed_parent_continues_its_sub_run_instead_of_starting_another(
    tmp_path: Path,
) -> None:
    reached, cut = asyncio.Event(), asyncio.Event()

    async def stuck(what: str) -> str:
        reached.set()
        await cut.wait()
        return what

    help_ = Scripted(work("half"))
    async with open_session_harness(tmp_path, lead=Scripted(ask()), help=help_) as home:
        home.body = stuck
        running = asyncio.create_task(home.send("go", run_id="run1"))
        async with asyncio.timeout(30):
            await reached.wait()
        running.cancel()  # as when the process is ended
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not home.talks.subruns
        (below,) = [one for one in await home.store.sessions("") if one.session.depth]
        assert below.last is not None and below.last.stop is None, "a resume point, not an end"
    lead, help_ = Scripted(says("ok")), Scripted(says("half done, now whole"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        records = [record async for record in home.talks.resume("main")]
        assert results(records)[0].text.startswith("half done, now whole\n")
        assert end_of(records).text == "ok"
        assert len(await home.store.sessions("")) == 2, "no second child"
        assert len(help_.requests) == 1, "no stored reply is paid for twice"
        assert [what for _, what in home.ran] == ["half"], "an idempotent call was run again"


async def test_a_sub_run_that_finished_before_a_crash_is_not_run_again(tmp_path: Path) -> None:
    lead, help_ = Scripted(ask(), says("first")), Scripted(says("done once"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        records = await home.send("go", run_id="run1")
        (finished,) = [r.seq for r in records if isinstance(r.event, CallFinished)]

        def lose(connection: Connection) -> None:
            connection.execute(
                "DELETE FROM records WHERE run_id = 'run1' AND seq >= ?", (finished,)
            )
            connection.execute("DELETE FROM messages WHERE session_id = 'main' AND number > 2")
            connection.execute("UPDATE runs SET stop = NULL WHERE id = 'run1'")

        # As if the process had died before the run above learnt of the answer.
        await home.store.database.write(lose)
    help_ = Scripted()
    async with open_session_harness(tmp_path, lead=Scripted(says("second")), help=help_) as home:
        records = [record async for record in home.talks.resume("main")]
        assert results(records)[0].text.startswith("done once\n")
        assert end_of(records).text == "second" and help_.requests == []
        with pytest.raises(SessionBusy, match="no unfinished run to resume"):
            _ = [record async for record in home.talks.resume("main")]


def known_session(asked: ScriptedRequest) -> str:
    """The session that the first result of a conversation speaks of."""
    found = [one for one in asked.messages if isinstance(one, ToolResult)]
    return found[0].details["session_id"]


async def test_a_spawned_sub_run_runs_in_background_and_its_answer_is_fetched(
    tmp_path: Path,
) -> None:
    def fetch(asked: ScriptedRequest) -> Reply:
        wanted = {"session_id": known_session(asked), "wait_seconds": 5}
        return calls(("session_status", wanted))

    spawn = calls(("sessions_spawn", {"task": "dig", "agent": "help", "label": "digging"}))
    lead, help_ = Scripted(spawn, fetch, says("dug")), Scripted(work(), says("a hole"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        spawned, status = results(await home.send("go"))
        assert "started with agent 'help'" in spawned.text
        assert spawned.details["state"] == "running"
        assert "'digging': help, ended (completed)" in status.text
        assert status.text.endswith("its last answer:\na hole")
        assert "left in the shared budget: turns 96, calls 197" in status.text


async def test_a_spawned_sub_run_is_cancelled_when_its_parent_ends(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def stuck(what: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return what

    spawn = calls(("sessions_spawn", {"task": "dig", "agent": "help"}))
    lead = Scripted(spawn, work("wait"), says("bye"))
    async with open_session_harness(tmp_path, lead=lead, help=Scripted(work("dig"))) as home:

        async def body(what: str) -> str:
            if what == "dig":
                return await stuck(what)
            await started.wait()
            return what

        home.body = body
        records = await home.send("go")
        assert end_of(records).text == "bye"
        below = (await home.store.sessions(""))[0]
        assert below.last is not None and below.last.stop == "cancelled"
        assert not home.talks.subruns


async def test_a_spawned_sub_run_resumes_with_its_interrupted_parent(
    tmp_path: Path,
) -> None:
    spawn = calls(("sessions_spawn", {"task": "dig", "agent": "help"}))
    both = asyncio.Event()

    async def stuck(what: str) -> str:
        if len(home.ran) == 2:
            both.set()
        await asyncio.Event().wait()
        return what

    async with open_session_harness(
        tmp_path, lead=Scripted(spawn, work("lead")), help=Scripted(work("dig"))
    ) as home:
        home.body = stuck
        running = asyncio.create_task(home.send("go"))
        async with asyncio.timeout(30):
            await both.wait()
        running.cancel()
        await asyncio.wait([running])
    finished = asyncio.Event()

    def done(asked: ScriptedRequest) -> Reply:
        finished.set()
        return says("dug")

    async with open_session_harness(
        tmp_path, lead=Scripted(says("ok")), help=Scripted(done)
    ) as home:

        async def body(what: str) -> str:
            if what == "lead":
                await finished.wait()
                while home.talks.subruns:
                    await asyncio.wait([c.task for c in home.talks.subruns.values()])
            return what

        home.body = body
        async with asyncio.timeout(30):
            records = [record async for record in home.talks.resume("main")]
        assert end_of(records).text == "ok"
        below = (await home.store.sessions(""))[0]
        assert below.last is not None and below.last.stop == "completed"


async def test_sessions_send_continues_the_conversation_of_a_sub_run(tmp_path: Path) -> None:
    def send(asked: ScriptedRequest) -> Reply:
        wanted = {"session_id": known_session(asked), "message": "and more?"}
        return calls(("sessions_send", wanted))

    lead = Scripted(ask("start"), send, says("ok"))
    help_ = Scripted(says("one"), says("two"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        first, second = results(await home.send("go"))
        assert second.text.startswith("two\n")
        assert second.details["session_id"] == first.details["session_id"]
        said = [getattr(message, "text", "") for message in help_.requests[1].messages]
        assert said == ["You help.", "start", "one", "and more?"]
        listed = await home.store.summary(first.details["session_id"])
        assert listed is not None and listed.messages == 5


async def test_a_sub_run_waiting_for_a_user_reports_it_and_resumes_on_sessions_send(
    tmp_path: Path,
) -> None:
    query = calls(("question", {"question": "Which way?"}))

    def send(asked: ScriptedRequest) -> Reply:
        wanted = {"session_id": known_session(asked), "message": "go on"}
        return calls(("sessions_send", wanted))

    lead = Scripted(ask(), says("It waits."), send, says("ok"))
    help_ = Scripted(query, says("left it is"), says("gone on"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        (result,) = results(await home.send("go"))
        assert "waits for a person: Which way?" in result.text
        ((_, asked),) = await home.questions.waiting(result.details["session_id"])
        assert await home.questions.answer(asked.id, UserAnswer(text="left")) == ""
        (sent,) = results(await home.send("now?"))
        assert sent.text.startswith("gone on\n")
        said = [getattr(message, "text", "") for message in help_.requests[2].messages]
        assert said[3:] == ["The user answered: left", "left it is", "go on"]


async def test_a_run_resumed_after_an_answer_continues_in_its_session(tmp_path: Path) -> None:
    query = calls(("question", {"question": "Sure?", "options": ["yes", "no"]}))
    async with open_session_harness(tmp_path, lead=Scripted(query)) as home:
        assert end_of(await home.send("go")).stop == "waiting"
        with pytest.raises(SessionBusy, match="has an unfinished run"):
            await home.send("hello?")
    async with open_session_harness(tmp_path, lead=Scripted(says("then I do it"))) as home:
        ((session_id, asked),) = await home.questions.waiting()
        assert (session_id, asked.options) == ("main", ("yes", "no"))
        await home.questions.answer(asked.id, UserAnswer(("yes",)))
        records = [record async for record in home.talks.resume("main")]
        assert results(records)[0].text == "The user answered: yes"
        assert end_of(records).text == "then I do it"
        assert await home.questions.waiting() == []


async def test_approvals_of_a_sub_run_are_requested_from_the_parents_approver(
    tmp_path: Path,
) -> None:
    class AskWork(Policy):
        async def judge(self, call: Call) -> Verdict:
            return Ask("ask", "may it?") if call.name == "work" else ALLOW

    class Yes:
        def __init__(self) -> None:
            self.asked: list[str] = []

        async def approve(self, call: Call, ask: Ask) -> Approval:
            self.asked.append(call.name)
            return Approval(Decision.ONCE)

    lead, help_ = Scripted(ask(), says("ok")), Scripted(work(), says("done"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        home.policy, home.approver = AskWork(), (person := Yes())
        await home.send("go")
        assert person.asked == ["work"] and len(home.ran) == 1


async def test_budget_spent_before_a_restart_still_counts(tmp_path: Path) -> None:
    query = calls(("question", {"question": "Sure?"}))
    limits = RunLimits(budget=BudgetSettings(turns=3))
    lead, help_ = Scripted(ask(), query), Scripted(says("done"))
    async with open_session_harness(tmp_path, limits=limits, lead=lead, help=help_) as home:
        assert end_of(await home.send("go")).stop == "waiting"
    async with open_session_harness(
        tmp_path, limits=limits, lead=Scripted(says("x")), help=Scripted()
    ) as home:
        ((_, asked),) = await home.questions.waiting()
        await home.questions.answer(asked.id, UserAnswer(text="yes"))
        records = [record async for record in home.talks.resume("main")]
        assert end_of(records).stop == "budget_exceeded"


async def test_sending_to_an_unknown_session_raises_no_session(tmp_path: Path) -> None:
    async with open_session_harness(tmp_path) as home:
        with pytest.raises(SessionNotFound, match="'nowhere'"):
            _ = [record async for record in home.talks.send("nowhere", "hi")]


@pytest.mark.parametrize(
    ("wanted", "held", "left"),
    [
        ("*", "*", "*"),
        ("*", "a b", "a b"),
        ("a c", "*", "a c"),
        ("a c", "a b", "a"),
        ("* a", "b", "b"),
        ("", "*", ""),
        ("*", "", ""),
    ],
)
def test_sub_run_capabilities_are_narrowed_to_those_of_the_parent(
    wanted: str, held: str, left: str
) -> None:
    assert intersect_capabilities(frozenset(wanted.split()), frozenset(held.split())) == set(
        left.split()
    )


async def test_cancelling_a_task_call_cancels_its_sub_run(tmp_path: Path) -> None:
    digging = asyncio.Event()

    async with open_session_harness(tmp_path) as home:

        async def body(what: str) -> str:
            if what == "dig":
                digging.set()
                await asyncio.Event().wait()
            executor = home.talks.running["local", "main"].ports.executor
            call = call_of(task, prompt="dig", agent="help")
            asking = asyncio.create_task(executor.execute(call, lambda _: None))
            await digging.wait()
            asking.cancel()
            await asyncio.wait([asking])
            return f"{len(home.talks.subruns)} left"

        home.body = body
        home.models["lead"] = Scripted(work("lead"), says("ok"))
        home.models["help"] = Scripted(work("dig"))
        assert results(await home.send("go"))[0].text == "0 left"


async def test_a_sub_run_beyond_the_concurrency_limit_is_refused(tmp_path: Path) -> None:
    two = [("sessions_spawn", {"task": str(n), "agent": "help"}) for n in range(2)]
    lead, help_ = Scripted(calls(*two), says("ok")), Scripted(work())

    async def stuck(what: str) -> str:
        await asyncio.Event().wait()
        return what

    async with open_session_harness(
        tmp_path, limits=RunLimits(max_active=1), lead=lead, help=help_
    ) as home:
        home.body = stuck
        errors = [result.error for result in results(await home.send("go"))]
        assert sorted(errors, key=str) == [None, ErrorKind.QUEUE_FULL]
