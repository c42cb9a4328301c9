"""Random scripts, failures, interruptions: whatever happens, the invariants of a run hold."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, ToolFailure
from evoclaw.core.events import CallFinished, CallStarted, Record, Replied, RunFinished, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ErrorKind, Finish, Reply, ToolCall, ToolResult, user
from evoclaw.core.ports import ALLOW, Approval, Ask, Decision, Deny, Ports, Progress, Verdict
from evoclaw.core.profile import Profile
from evoclaw.core.replay import Replay
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.core.tools import Call, Effect
from evoclaw.executors.processes import LocalProcesses
from evoclaw.providers.scripted import Scripted, says
from tests.support.loop import Table, echo, tool
from tests.support.properties import examples

BEHAVIOURS = ("ok", "fail", "crash", "hang", "talk", "slow", "quit", "process")
MARK = "311.125"
"""How long our own `sleep` would sleep: how it is known among all processes."""
ids = st.sampled_from(["", "a", "b", "c"])
names = st.sampled_from([*BEHAVIOURS, "denied", "asked", "missing"])
arguments = st.sampled_from(["{}", '{"path":"x"}', '{"path":"y"}', "{", "[]", '{"path":1}', ""])
a_call = st.builds(ToolCall, ids, names, arguments)
replies = st.builds(
    Reply,
    st.sampled_from(["", "text", "COMPLETED: yes", "CONTINUE: more"]),
    st.lists(a_call, max_size=8).map(tuple),
    st.sampled_from([Finish.STOP, Finish.CALLS, Finish.LENGTH]),
)
errors = st.sampled_from(list(ProviderErrorKind)).map(lambda kind: ProviderError(kind, "no"))


async def behave(call: Call, progress: Progress) -> str:
    match call.name:
        case "fail":
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, "failed")
        case "crash":
            raise RuntimeError("crashed")
        case "quit":
            raise asyncio.CancelledError
        case "hang":
            await asyncio.Event().wait()
        case "process":
            done = await LocalProcesses(".").run(("sleep", MARK), on_output=progress)
            return f"exit {done.exit_code}"
        case "talk":
            progress("hello")
            await asyncio.sleep(0)
        case "slow":
            for _ in range(5):
                await asyncio.sleep(0)
        case _:
            pass
    return await echo(call, progress)


def executor() -> Table:
    entries = [
        (tool(name, timeout=0.01, streams=name == "talk", resources=("path",)), behave)
        for name in (*BEHAVIOURS, "denied", "asked")
    ]
    reading = [(tool("reading", effect=Effect.READ, resources=()), behave)]
    return Table(*entries, *reading)


@dataclass
class Rules:
    decisions: list[Decision] = field(default_factory=list[Decision])

    async def judge(self, call: Call) -> Verdict:
        if call.name == "denied":
            return Deny("no", "no")
        return Ask("ask", "may it?") if call.name == "asked" else ALLOW

    async def admit(self, turn: int) -> Verdict:
        return ALLOW

    async def approve(self, call: Call, ask: Ask) -> Approval:
        return Approval(self.decisions.pop() if self.decisions else Decision.ONCE)


def sleeping() -> bool:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # gone meanwhile
            if MARK.encode() in place.read_bytes().split(b"\0"):
                return True
    return False


async def replayed(records: list[Record]) -> list[bytes]:
    async with asyncio.timeout(20):
        return [msgspec.json.encode(record) async for record in Replay(records).records()]


class LoopMachine(RuleBasedStateMachine):
    """Write a script step by step; each check runs it whole, under the interruptions chosen."""

    script: list[Reply | ProviderError]
    decisions: list[Decision]

    @initialize(
        turns=st.integers(1, 6),
        confirm=st.booleans(),
        parallel=st.integers(1, 4),
        context=st.sampled_from([60, 500, 128_000]),
    )
    def choose_limits(self, turns: int, confirm: bool, parallel: int, context: int) -> None:
        self.settings = LoopSettings(
            max_turns=turns, confirm=confirm, max_parallel=parallel, max_calls_per_turn=4
        )
        self.profile = Profile(context_tokens=context, max_output_tokens=20)
        self.script, self.decisions = [], []
        self.changed = False

    @rule(reply=replies)
    def reply(self, reply: Reply) -> None:
        self.script.append(reply)
        self.changed = True

    @rule(error=errors)
    def provider_fails(self, error: ProviderError) -> None:
        self.script.append(error)
        self.changed = True

    @rule(decision=st.sampled_from(list(Decision)))
    def person_decides(self, decision: Decision) -> None:
        self.decisions.append(decision)

    @rule(after=st.integers(0, 40))
    def run_and_cancel(self, after: int) -> None:
        records, _ = asyncio.run(self.drive(cancel_after=after))
        self.check(records)

    @rule(after=st.integers(1, 40))
    def run_cut_off_and_go_on(self, after: int) -> None:
        records, left = asyncio.run(self.drive(close_after=after))
        if isinstance(records[-1].event, RunFinished):
            return
        wire = [msgspec.json.decode(msgspec.json.encode(r), type=Record) for r in records]
        more, _ = asyncio.run(self.drive(state=fold(wire), script=left, seq=len(wire)))
        self.check([*wire, *more])

    @invariant()
    def a_whole_run_is_sound(self) -> None:
        if getattr(self, "changed", False):
            self.changed = False
            records, _ = asyncio.run(self.drive())
            self.check(records)

    async def drive(
        self,
        *,
        state: RunState | None = None,
        script: list[Reply | ProviderError] | None = None,
        seq: int = 0,
        cancel_after: int | None = None,
        close_after: int | None = None,
    ) -> tuple[list[Record], list[Reply | ProviderError]]:
        steps = self.script if script is None else script
        rules = Rules(list(self.decisions))
        provider = Scripted(*steps, *[says("the end")] * 3, profile=self.profile)
        ports = Ports(provider, executor(), rules, rules)
        state = state or new_run([user("task")], "run")
        deadline = Deadline(20)
        records: list[Record] = []
        before = asyncio.all_tasks()
        async with asyncio.timeout(20):
            bus = Bus(state.run_id, seq=seq)
            run = recorded(run_loop(state, ports, self.settings, deadline), bus)
            async with aclosing(run):
                async for record in run:
                    records.append(record)
                    if len(records) == cancel_after:
                        deadline.cancel()
                    if len(records) == close_after:
                        break
        assert asyncio.all_tasks() == before, "a task was left behind"
        if any(isinstance(r.event, CallStarted) and r.event.name == "process" for r in records):
            assert not sleeping(), "a process was left behind"
        return records, steps[len(provider.requests) :]

    def check(self, records: list[Record]) -> None:
        end = records[-1].event
        assert isinstance(end, RunFinished)
        assert end.text.strip(), "the user always gets an answer"
        state = fold(records)
        closing = sum(isinstance(r.event, Replied) for r in records)
        assert closing <= self.settings.max_turns + 1
        self.check_answers(state, end)
        started = [r.event.request_id for r in records if isinstance(r.event, CallStarted)]
        finished = [r.event.result.call_id for r in records if isinstance(r.event, CallFinished)]
        assert len(finished) == len(set(finished)), "a call was answered twice"
        if not any(r.event.__class__.__name__ == "RunResumed" for r in records):
            assert len(started) == len(set(started)), "a call ran twice"
        assert asyncio.run(replayed(records)) == [msgspec.json.encode(r) for r in records]

    def check_answers(self, state: RunState, end: RunFinished) -> None:
        """Every call id is answered once and in order; only a waiting run has open calls."""
        expected: list[str] = []
        for message in state.history:
            if isinstance(message, ToolResult):
                assert expected
                assert expected.pop(0) == message.call_id
            else:
                assert not expected
                if isinstance(message, Reply):
                    expected = [call.id for call in message.calls]
        if end.stop is not StopReason.WAITING:
            assert not expected
            assert state.open_reply is None


LoopMachine.TestCase.settings = hypothesis_settings(
    max_examples=examples(150), stateful_step_count=12
)
TestLoopMachine = pytest.mark.process(LoopMachine.TestCase)
