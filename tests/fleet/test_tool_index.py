"""The edges by their tools: the index finds what a look at all edges would find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from bench.growth.measure import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import Member, find_tool, load
from evoclaw.transport.wire import Heartbeat, Status
from tests.support.light_edges import do_nothing
from tests.support.properties import examples

BOOT = "boot-1"
EMPTY: dict[str, JSON] = {"type": "object", "properties": {}}
LOOK = replace(do_nothing.tool, name="look", description="One.", parameters=EMPTY)
WRITE = replace(LOOK, name="write")
TOOLS = [
    LOOK,
    replace(LOOK, parameters={**EMPTY, "title": "other"}),
    replace(LOOK, description="Two."),
    WRITE,
]
EDGES = ("a", "b", "c", "d")
edges, tools = st.sampled_from(EDGES), st.sampled_from(TOOLS)
Change: TypeAlias = Callable[[Fleet], Awaitable[None]]


def online(name: str, state: str = "online", counter: int = 1) -> Change:
    async def change(fleet: Fleet) -> None:
        fleet.on_status(Status(name, state, BOOT, counter), retained=False)

    return change


def silent(name: str) -> Change:
    async def change(fleet: Fleet) -> None:
        fleet.mark_offline(name)

    return change


def busy(name: str, calls: int) -> Change:
    async def change(fleet: Fleet) -> None:
        fleet.on_heartbeat(name, Heartbeat(BOOT, 3, in_flight=calls))

    return change


def offers(name: str, offered: list[Tool]) -> Change:
    async def change(fleet: Fleet) -> None:
        await fleet.set_tools(name, offered, {})

    return change


def quarantined(name: str) -> Change:
    async def change(fleet: Fleet) -> None:
        fleet.quarantine(name, "broken", {})

    return change


changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(online, edges, st.sampled_from(("online", "offline")), st.integers(1, 3)),
    st.builds(silent, edges),
    st.builds(busy, edges, st.integers(0, 3)),
    st.builds(offers, edges, st.lists(tools, max_size=2, unique_by=lambda tool: tool.name)),
    st.builds(quarantined, edges),
)


def with_tool(fleet: Fleet, tool: Tool) -> list[Member]:
    """Found by a look at all edges."""
    able = [member for member in fleet.online() if find_tool(member, tool.name) == tool]
    return sorted(able, key=load)


@settings(max_examples=examples(300))
@given(st.lists(changes, max_size=30))
async def test_the_index_finds_what_a_look_at_all_edges_finds(
    made: list[Change],
) -> None:
    fleet = Fleet()
    for change in (*map(online, EDGES), *(offers(name, [LOOK, WRITE]) for name in EDGES), *made):
        await change(fleet)
        for tool in TOOLS:
            here = [find_tool(member, tool.name) for member in fleet.members()]
            named = fleet.tools_named(tool.name)
            assert all(found in named for found in here if found is not None)
            assert all(found in here for found in named)
            able = [member.agent_id for member in with_tool(fleet, tool)]
            assert fleet.choose_edge(tool) == next(iter(able), "")
            for name in EDGES:
                assert fleet.choose_edge(tool, (name,)) == (
                    name if name in able else next(iter(able), "")
                )
        for excluded in ("", *EDGES):
            seen: set[str] = set()
            first: list[str] = []
            for member in fleet.online():
                if member.agent_id != excluded and not seen.issuperset(member.tools.names):
                    first.append(member.agent_id)
                    seen.update(member.tools.names)
            found = [member.agent_id for member in fleet.online_offering(excluded)]
            assert found == first
    names = [member.agent_id for member in fleet.members()]
    assert names == sorted(names)
    assert [member.agent_id for member in fleet.page("a", 2)] == [n for n in names if n > "a"][:2]


async def test_choosing_an_edge_does_not_look_at_all_of_them() -> None:
    fleet, tool, calls = Fleet(), LOOK, list[int]()
    for first, last in ((0, 20), (20, 400)):
        for number in range(first, last):
            await online(f"edge-{number}")(fleet)
            await offers(f"edge-{number}", [tool])(fleet)

        async def choose() -> None:
            assert fleet.choose_edge(tool, ("unknown",)) == "edge-0"
            assert [member.agent_id for member in fleet.online_offering()] == ["edge-0"]
            assert len(fleet.page("edge-1", 5)) == 5
            assert len(fleet.tools_named(tool.name)) == 1

        calls.append(await count_calls(choose))
    assert calls[1] <= calls[0] + 20, calls
