"""Tools that the caller runs himself: the run waits, is given the results, and goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.events import CallFinished, CallStarted, Record, RunFinished, StopReason
from evoclaw.core.labels import Label
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Block, TextBlock, label_of, user
from evoclaw.core.ports import (
    ALLOW,
    AllowAll,
    Approval,
    Ask,
    Decision,
    Deny,
    Policy,
    Ports,
    Verdict,
)
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import fold, new_run
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.sessions.caller_tools import (
    CALLER_ASK_CODE,
    CallerCallStore,
    CallPosition,
    DeliveredResults,
    ResultsMissing,
    ResultsUnknown,
    caller_tool,
    check_caller_tools,
    parse_call_id,
    with_caller_tools,
    with_free_names,
)
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import SessionStore
from evoclaw.tools.define import tool

RUN = "0123456789abcdef0123456789abcdef"
WEATHER = caller_tool(
    "weather",
    "The weather in a town.",
    {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
)
CLOCK = caller_tool("clock", "The time.")


async def anybody(session_id: str) -> bool:
    return True


def text(words: str) -> tuple[Block, ...]:
    return (TextBlock(words),)


def shown(turn: int, index: int, run_id: str = RUN) -> str:
    return CallPosition(run_id, turn, index).call_id()


class Desk:
    """A run with a caller's tools, driven by hand; its records are all that is kept of it."""

    def __init__(self, store: SessionStore, model: Scripted) -> None:
        self.callers, self.model = CallerCallStore(store.questions), model
        self.policy: Policy = AllowAll()
        self.counted: Policy = AllowAll()
        self.records: list[Record] = []
        self.ran: list[str] = []

    def ports(self) -> Ports:
        @tool("shell", resources=(), idempotent=True)
        async def work(what: str = "") -> str:
            """Work."""
            self.ran.append(what)
            return f"worked on {what}"

        ports = Ports(self.model, LocalExecutor((work,)), self.policy, _Pending())
        return with_caller_tools(ports, (WEATHER, CLOCK), self.callers, "s1", self.counted)

    async def go(self, asked: str = "How is it in Bern?") -> RunFinished:
        """Begin, or go on; as a new process would, from the records alone."""
        state = fold(self.records) if self.records else new_run([user(asked)], RUN)
        events = run_loop(state, self.ports(), LoopSettings())
        bus = Bus(RUN, seq=len(self.records))
        self.records += [record async for record in recorded(events, bus)]
        end = self.records[-1].event
        assert isinstance(end, RunFinished)
        return end

    def results(self) -> list[str]:
        found = [record.event for record in self.records]
        return [event.result.text for event in found if isinstance(event, CallFinished)]


class _Pending:
    async def approve(self, call: Call, ask: Ask) -> Approval:
        return Approval(Decision.PENDING, "a person is asked")


class Denies(Policy):
    """Denies everything that is no caller's."""

    def __init__(self, verdict: Verdict) -> None:
        self.judged: list[str] = []
        self._verdict = verdict

    async def judge(self, call: Call) -> Verdict:
        self.judged.append(call.name)
        return self._verdict


@asynccontextmanager
async def desk(folder: Path, *steps: object) -> AsyncGenerator[Desk]:
    async with await SessionStore.open(folder / "sessions.db", durable=False) as store:
        yield Desk(store, Scripted(*steps))  # pyright: ignore[reportArgumentType]


async def test_a_run_waits_for_the_callers_tool_result_and_continues_with_it(
    tmp_path: Path,
) -> None:
    script = (calls(("weather", {"town": "Bern"})), says("It rains."))
    async with desk(tmp_path, *script) as one:
        parked = await one.go()
        assert parked.stop is StopReason.WAITING
        assert "weather is to be run by the caller" in parked.reason
        assert not [r for r in one.records if isinstance(r.event, CallStarted)]

        taken = await one.callers.deliver({shown(1, 0): text("rain, 9 °C")}, anybody)
        assert taken == DeliveredResults(RUN, "s1", frozenset({CallPosition(RUN, 1, 0)}))
        end = await one.go()
        assert (end.stop, end.text) == (StopReason.COMPLETED, "It rains.")
        assert one.results() == ["rain, 9 °C"]
        assert len(one.model.requests) == 2


async def test_results_of_caller_tools_are_labelled_untrusted(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {})), says("noon")) as one:
        await one.go()
        await one.callers.deliver({shown(1, 0): text("12:00")}, anybody)
        await one.go()
        (result,) = [r.event.result for r in one.records if isinstance(r.event, CallFinished)]
        assert label_of(result) == Label(untrusted=True, sources=("clock",))


async def test_server_side_calls_of_the_same_turn_run_once(tmp_path: Path) -> None:
    mixed = calls(("work", {"what": "a"}), ("weather", {"town": "Bern"}), ("work", {"what": "b"}))
    async with desk(tmp_path, mixed, says("done")) as one:
        parked = await one.go()
        assert parked.stop is StopReason.WAITING
        assert one.ran == ["a", "b"]
        await one.callers.deliver({shown(1, 1): text("rain")}, anybody)
        assert (await one.go()).text == "done"
        assert one.ran == ["a", "b"]
        asked = one.model.requests[1].messages
        assert [getattr(m, "text", "") for m in asked[-3:]] == [
            "worked on a",
            "rain",
            "worked on b",
        ]


async def test_a_run_resumed_before_the_callers_result_waits_again(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {})), says("noon")) as one:
        await one.go()
        assert (await one.go()).stop is StopReason.WAITING
        assert len(one.model.requests) == 1


async def test_submitting_the_same_caller_results_twice_is_idempotent(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {})), says("noon")) as one:
        await one.go()
        first = await one.callers.deliver({shown(1, 0): text("12:00")}, anybody)
        assert await one.callers.deliver({shown(1, 0): text("12:00")}, anybody) == first
        assert await one.callers.deliver({shown(1, 0): text("13:00")}, anybody) is None
        await one.go()
        assert one.results() == ["12:00"]


async def test_missing_and_unknown_caller_results_are_listed_in_the_error(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {}), ("weather", {"town": "Bern"}))) as one:
        await one.go()
        with pytest.raises(ResultsMissing) as missing:
            await one.callers.deliver({shown(1, 0): text("12:00")}, anybody)
        assert missing.value.ids == (shown(1, 1),)
        both = {shown(1, 0): text("12:00"), shown(1, 1): text("rain")}
        with pytest.raises(ResultsUnknown) as unknown:
            await one.callers.deliver(
                {**both, "call_x": text("?"), shown(7, 0): text("?")}, anybody
            )
        assert unknown.value.ids == ("call_x", shown(7, 0))
        assert (await one.go()).stop is StopReason.WAITING, "nothing may have been kept"


async def test_caller_results_for_unknown_or_foreign_calls_are_not_accepted(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {}))) as one:
        await one.go()
        for strange in ("call_abc", "", "call_1_2", shown(2, 0), shown(1, 0, "f" * 32)):
            assert await one.callers.deliver({strange: text("12:00")}, anybody) is None

        async def nobody(session_id: str) -> bool:
            assert session_id == "s1"
            return False

        assert await one.callers.deliver({shown(1, 0): text("12:00")}, nobody) is None
        others = one.callers.of("other")
        assert await others.deliver({shown(1, 0): text("12:00")}, anybody) is None
        assert (await one.go()).stop is StopReason.WAITING, "nothing may have been kept"


async def test_an_agent_without_capabilities_may_use_caller_tools(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {}), ("work", {})), says("noon")) as one:
        one.policy = Permissions(frozenset())
        await one.go()
        await one.callers.deliver({shown(1, 0): text("12:00")}, anybody)
        assert (await one.go()).text == "noon"
        assert one.ran == []


async def test_the_budget_policy_judges_a_caller_tool_when_its_result_arrives(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, calls(("clock", {})), says("no")) as one:
        one.counted = denies = Denies(Deny("budget_calls", "no calls are left"))
        await one.go()
        assert denies.judged == []
        await one.callers.deliver({shown(1, 0): text("12:00")}, anybody)
        await one.go()
        assert denies.judged == ["clock"]
        assert "no calls are left" in one.results()[0]


async def test_server_side_tools_still_require_approval_beside_caller_tools(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("clock", {}), ("work", {})), says("noon")) as one:
        one.policy = Denies(Ask("approval", "may it work?"))
        await one.go()
        await one.callers.deliver({shown(1, 0): text("12:00")}, anybody)
        waiting = await one.go()
        assert (waiting.stop, waiting.reason) == (StopReason.WAITING, "a person is asked")
        one.policy = Denies(ALLOW)
        assert (await one.go()).text == "noon"
        assert one.results() == ["12:00", "worked on "]


async def test_calls_with_invalid_arguments_never_reach_the_caller(tmp_path: Path) -> None:
    async with desk(tmp_path, calls(("weather", {"city": "Bern"})), says("sorry")) as one:
        end = await one.go()
        assert end.stop is StopReason.COMPLETED
        assert "missing 'town'" in one.results()[0]


async def test_a_server_side_tool_does_not_shadow_a_caller_tool_of_the_same_name(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:

        @tool("shell")
        async def clock() -> str:
            """Ours."""
            return "ours"

        ports = Ports(one.model, LocalExecutor((clock,)), AllowAll())
        both = with_caller_tools(ports, (CLOCK,), one.callers, "s1", AllowAll())
        assert list(both.executor.tools()) == [CLOCK]
        assert both.executor.tools() is both.executor.tools()
        assert with_caller_tools(ports, (), one.callers, "s1", AllowAll()) is ports


def test_caller_tools_are_validated_like_other_tools() -> None:
    check_caller_tools((WEATHER, CLOCK))
    with pytest.raises(DuplicateTool):
        check_caller_tools((CLOCK, CLOCK))
    for name, schema in (
        ("two words", {"type": "object"}),
        ("remote", {"type": "object", "properties": {"a": {"$ref": "http://example.org/x"}}}),
        ("array", {"type": "array"}),
    ):
        with pytest.raises(SchemaError):
            check_caller_tools((caller_tool(name, "", schema),))


def test_a_caller_tool_with_the_name_of_an_agents_tool_gets_another_name_in_records() -> None:
    free, names = with_free_names((WEATHER, CLOCK), ("clock", "agent_clock", "caller.clock"))
    assert [tool.name for tool in free] == ["weather", "caller.clock_2"]
    assert names == {"caller.clock_2": "clock", "clock": "agent_clock_2"}
    assert with_free_names((WEATHER,), ("clock",)) == ((WEATHER,), {})


def test_a_caller_call_id_is_parsed_back_within_its_tenant() -> None:
    place = CallPosition(RUN, 3, 2)
    assert parse_call_id("local", place.call_id()) == place
    theirs = parse_call_id("acme", place.call_id())
    assert theirs is not None
    assert theirs.run_id.endswith(f"-{RUN}")
    assert theirs.run_id != RUN
    assert parse_call_id("acme", theirs.call_id()) == theirs
    odd: Sequence[str] = (
        "",
        "call_",
        f"call_{RUN}",
        f"call_{RUN}_1_x",
        f"call_{RUN}_1_1\n",
        "a" * 300,
    )
    assert [parse_call_id("local", one) for one in odd] == [None] * len(odd)
    assert CALLER_ASK_CODE == "caller"
