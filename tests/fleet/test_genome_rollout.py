"""Roll-outs of genomes: stages, bounds, sleeping edges, kills, and one driver at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
from evoclaw.orchestrator.fleet.rollout_driver import (
    EdgeGenomeChange,
    RolloutParts,
    RolloutTimings,
)
from evoclaw.orchestrator.fleet.rollout_state import (
    NoEdgeSelected,
    Rollout,
    RolloutBounds,
    RolloutConflict,
    RolloutEdge,
    RolloutEdgeState,
    RolloutNotFound,
    RolloutState,
)
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.genome_rollouts import SCHEMA, RolloutLeaseLost, RolloutStore, RolloutWrites
from tests.support.fleet import Fault, FleetHarness, open_fleet
from tests.support.waiting import until

EDGES = ("a", "b", "c", "d", "e")
QUICK_TIMINGS = RolloutTimings(round_s=0.02, idle_s=0.05, query_s=0.5, retry_s=0.05, lease_s=60)
AT_ONCE = RolloutBounds(soak_s=0, min_evidence=0)
WATCHED = RolloutBounds(soak_s=0, min_evidence=5)
BAD: dict[str, JSON] = {"call_seconds": 0.05}


class HaltingStore(RolloutStore):
    """A store whose driver never comes back from one of its writes, as after a kill."""

    def __init__(self, database: Database, writes: int, *, before: bool) -> None:
        super().__init__(database)
        self._left, self._before = writes, before
        self.halted = asyncio.Event()

    async def advance(self, owner: str, work: Callable[[RolloutWrites], None]) -> int:
        self._left -= 1
        if self._left == 0 and self._before:
            await self._never()
        number = await super().advance(owner, work)
        if self._left <= 0:
            await self._never()
        return number

    async def _never(self) -> None:
        self.halted.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def opened(folder: Path, *agents: str) -> AsyncGenerator[tuple[FleetHarness, Database]]:
    async with open_fleet(folder, *(agents or EDGES)) as here:
        database = await open_database(folder / "rollouts.db", schemas=[SCHEMA], durable=False)
        try:
            yield here, database
        finally:
            await database.close()


def rollouts_of(here: FleetHarness, store: RolloutStore | Database, **parts: Any) -> GenomeRollouts:
    kept = store if isinstance(store, RolloutStore) else RolloutStore(store)
    return GenomeRollouts(kept, here.orchestrator, RolloutParts(timings=QUICK_TIMINGS, **parts))


async def until_state(rollouts: GenomeRollouts, rollout: Rollout, state: RolloutState) -> None:
    async def reached() -> bool:
        return (await rollouts.find(rollout.id))[0].state is state

    await until(reached, say=f"the roll-out is {state}")


async def edges_of(rollouts: GenomeRollouts, rollout: Rollout) -> dict[str, RolloutEdge]:
    return {edge.agent_id: edge for edge in (await rollouts.find(rollout.id))[1]}


async def until_edges(
    rollouts: GenomeRollouts, rollout: Rollout, state: RolloutEdgeState, number: int
) -> list[str]:
    """Wait until so many edges are in a state; their names."""
    found: list[str] = []

    async def reached() -> bool:
        edges = await edges_of(rollouts, rollout)
        found[:] = [name for name, edge in edges.items() if edge.state is state]
        return len(found) == number

    await until(reached, say=f"{number} edges are {state}")
    return found


def limits(here: FleetHarness) -> dict[str, float | None]:
    """What the genome of each running edge sets."""
    return {
        name: device.edge.parts.genomes.current().call_seconds
        for name, device in here.devices.items()
        if device.edge is not None
    }


async def test_a_genome_reaches_all_edges_in_stages(tmp_path: Path) -> None:
    reported: list[str] = []

    def report(rollout: Rollout, what: str, by: str) -> None:
        reported.append(what)

    async with opened(tmp_path) as (here, database):
        rollouts = rollouts_of(here, database, report=report)
        async with rollouts.serving():
            rollout = await rollouts.start(
                "type:sensor", {"call_seconds": 7.0}, by="ann", stages=(20, 60, 100), bounds=WATCHED
            )
            for share in (1, 3, 5):
                names = await until_edges(rollouts, rollout, RolloutEdgeState.APPLIED, share)
                assert sum(value == 7.0 for value in limits(here).values()) == share
                for name in names:
                    for _ in range(5):
                        await here.run_tool("mark", name, text="x")
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
    assert limits(here) == {}
    assert reported == ["started", "stage 2 of 3", "stage 3 of 3", "completed"]


async def test_a_stage_without_evidence_does_not_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as (here, database):
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("*", {"call_seconds": 7.0}, by="ann", bounds=WATCHED)

            async def is_full() -> bool:
                return (await rollouts.find(rollout.id))[0].stage_filled_at is not None

            await until(is_full)
            (name,) = await until_edges(rollouts, rollout, RolloutEdgeState.APPLIED, 1)
            for _ in range(4):
                await here.run_tool("mark", name, text="x")
            found, edges = await rollouts.find(rollout.id)
            assert (found.stage, found.state) == (0, RolloutState.RUNNING)
            assert sum(edge.state is RolloutEdgeState.APPLIED for edge in edges) == 1


async def test_one_edge_that_refuses_rolls_all_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (here, database):
        before = limits(here)

        def spoiled(topic: str, payload: bytes) -> bytes:
            return (
                payload.replace(b'"call_seconds":7', b'"call_seconds":-7')
                if "/c/" in topic
                else payload
            )

        here.link.rewrite = spoiled
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("*", {"call_seconds": 7}, by="ann", bounds=AT_ONCE)
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            found, edges = await rollouts.find(rollout.id)
        assert "edge 'c' refused the genome: 'call_seconds' must be" in found.problem
        assert limits(here) == before
        assert not {edge.state for edge in edges} & {
            RolloutEdgeState.APPLIED, RolloutEdgeState.APPLYING, RolloutEdgeState.PLANNED,
        }  # fmt: skip


async def test_calls_that_fail_since_the_change_roll_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (here, database):
        rollouts = rollouts_of(here, database)
        for name in EDGES:
            for _ in range(6):
                await here.run_tool("mark", name, text="x")
        async with rollouts.serving():
            rollout = await rollouts.start("*", BAD, by="ann", stages=(40, 100), bounds=WATCHED)
            names = await until_edges(rollouts, rollout, RolloutEdgeState.APPLIED, 2)
            for _ in range(3):
                await here.run_tool("hold", names[0], text="x")
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            found, edges = await rollouts.find(rollout.id)
        assert f"on edge {names[0]!r}, 0% (expected: 100%) of the calls" in found.problem
        assert sum(edge.digest != "" for edge in edges) == 2
        assert set(limits(here).values()) == {None}
        bad = next(edge for edge in edges if edge.agent_id == names[0])
        assert bad.baseline is not None
        assert (bad.baseline.calls, bad.after.calls, bad.after.succeeded) == (6, 3, 0)


async def test_an_edge_that_stops_answering_rolls_back_the_others_and_itself_later(
    tmp_path: Path,
) -> None:
    bounds = RolloutBounds(soak_s=0, min_evidence=1000, answer_s=1)
    async with opened(tmp_path) as (here, database):
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start(
                "*", {"call_seconds": 7.0}, by="ann", stages=(60, 100), bounds=bounds
            )
            names = await until_edges(rollouts, rollout, RolloutEdgeState.APPLIED, 3)
            await here.devices[names[0]].crash()
            await until_state(rollouts, rollout, RolloutState.ROLLING_BACK)
            await until_edges(rollouts, rollout, RolloutEdgeState.RESTORED, 2)
            assert set(limits(here).values()) == {None}
            await here.devices[names[0]].start()
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            assert set(limits(here).values()) == {None}
            assert len(limits(here)) == len(EDGES)


async def test_an_edge_that_was_asleep_gets_the_genome_when_it_wakes(tmp_path: Path) -> None:
    async with opened(tmp_path) as (here, database):
        await here.devices["b"].stop()
        await until(lambda: not here.orchestrator.fleet.is_online("b"))
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("*", {"call_seconds": 7.0}, by="ann", bounds=AT_ONCE)
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            assert (await edges_of(rollouts, rollout))["b"].state is RolloutEdgeState.PLANNED
            await here.devices["b"].start()
            await until_edges(rollouts, rollout, RolloutEdgeState.APPLIED, 5)
            assert set(limits(here).values()) == {7.0}


async def test_an_edge_that_was_asleep_never_gets_a_genome_that_was_rolled_back(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (here, database):
        await here.devices["b"].stop()
        await until(lambda: not here.orchestrator.fleet.is_online("b"))
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("*", BAD, by="ann", bounds=AT_ONCE)
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            await rollouts.halt(rollout.id, by="ben", reason="calls fail")
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            await here.devices["b"].start()
            await here.wait_online("b")
            later = await rollouts.start("b", {"call_seconds": 9.0}, by="ann", bounds=AT_ONCE)
            await until_state(rollouts, later, RolloutState.COMPLETED)
        edge = here.devices["b"].edge
        assert edge is not None
        assert [g.call_seconds for g in await edge.parts.genomes.history()] == [None, 9.0]
        found, _ = await rollouts.find(rollout.id)
        assert (found.problem, found.halted_by) == ("calls fail", "ben")


async def test_a_command_that_arrives_after_the_rollback_changes_nothing(tmp_path: Path) -> None:
    held: list[tuple[str, bytes]] = []

    def hold(topic: str, payload: bytes) -> Fault:
        if b"update_genome" not in payload:
            return Fault.NONE
        held.append((topic, payload))
        return Fault.DROP

    bounds = RolloutBounds(soak_s=0, min_evidence=0, answer_s=0.5)
    async with opened(tmp_path, "a") as (here, database):
        here.link.fault = hold
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("a", BAD, by="ann", bounds=bounds)
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            here.link.fault = lambda topic, payload: Fault.NONE
            for topic, payload in held:
                here.broker.publish(topic, payload, retain=False)
            await here.orchestrator.query("a", "ping")
        assert held
        edge = here.devices["a"].edge
        assert edge is not None
        with pytest.raises(ToolFailure, match="order number"):
            await edge.parts.genomes.check_order_number(1)
        await edge.parts.genomes.update({})
        assert [genome.call_seconds for genome in await edge.parts.genomes.history()] == [None]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("writes", range(1, 22))
async def test_a_kill_at_any_write_leaves_no_edge_on_the_bad_genome(
    tmp_path: Path, writes: int, before: bool
) -> None:
    def spoiled(topic: str, payload: bytes) -> bytes:
        return (
            payload.replace(b'"call_seconds":7', b'"call_seconds":-7')
            if "/c/" in topic
            else payload
        )

    async with opened(tmp_path) as (here, database):
        here.link.rewrite = spoiled
        store = HaltingStore(database, writes, before=before)
        first = rollouts_of(here, store)
        async with first.serving(alone=True):
            rollout = await first.start("*", {"call_seconds": 7}, by="ann", bounds=AT_ONCE)

            async def is_over() -> bool:
                state = (await first.find(rollout.id))[0].state
                return store.halted.is_set() or state is RolloutState.ROLLED_BACK

            await until(is_over)
        second = rollouts_of(here, database)
        async with second.serving(alone=True):
            await until_state(second, rollout, RolloutState.ROLLED_BACK)
        assert set(limits(here).values()) == {None}
        for device in here.devices.values():
            assert device.edge is not None
            history = await device.edge.parts.genomes.history()
            assert [genome.call_seconds for genome in history].count(7) <= 1


async def test_only_the_owner_of_the_lease_changes_edges(tmp_path: Path) -> None:
    async with opened(tmp_path) as (here, database):
        store = RolloutStore(database)
        assert await store.claim("another process", 3600)
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("*", {"call_seconds": 7.0}, by="ann", bounds=AT_ONCE)
            with pytest.raises(RolloutLeaseLost):
                await store.advance("this process", lambda writes: None)
            assert set(limits(here).values()) == {None}
            await store.release("another process")
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            first = await store.advance(_owner(rollouts), lambda writes: None)
            assert first < await store.advance(_owner(rollouts), lambda writes: None)


def _owner(rollouts: GenomeRollouts) -> str:
    return rollouts._owner  # pyright: ignore[reportPrivateUsage]


async def test_a_stop_of_everything_holds_a_roll_out_but_not_its_rollback(tmp_path: Path) -> None:
    stopped = ["everything is stopped"]
    async with opened(tmp_path) as (here, database):
        rollouts = rollouts_of(here, database, stopped=lambda: stopped[0])
        async with rollouts.serving():
            rollout = await rollouts.start("*", {"call_seconds": 7.0}, by="ann", bounds=AT_ONCE)

            async def is_measured() -> bool:
                edges = await edges_of(rollouts, rollout)
                return all(edge.measured is not None for edge in edges.values())

            await until(is_measured)
            assert set(limits(here).values()) == {None}
            stopped[0] = ""
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            stopped[0] = "everything is stopped"
            await rollouts.halt(rollout.id, by="ann")
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            assert set(limits(here).values()) == {None}


async def test_an_edge_that_lost_its_versions_gets_their_content_back(tmp_path: Path) -> None:
    async with opened(tmp_path, "a") as (here, database):
        await here.orchestrator.query("a", "update_genome", {"genome": {"call_seconds": 3.0}})
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("a", {"call_seconds": 7.0}, by="ann", bounds=AT_ONCE)
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            await here.devices["a"].stop()
            here.devices["a"].lose_journal()
            await here.devices["a"].start()
            await here.wait_online("a")
            await rollouts.halt(rollout.id, by="ann")
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            assert limits(here) == {"a": 3.0}


async def test_an_edge_of_an_older_release_is_sent_no_tunable_that_it_does_not_know(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "a") as (here, database):
        here.link.rewrite = lambda topic, payload: payload.replace(b"tool_prompt", b"tool_prom")
        await here.orchestrator.query("a", "update_genome", {"genome": {"call_seconds": 3.0}})
        rollouts = rollouts_of(here, database)
        async with rollouts.serving():
            rollout = await rollouts.start("a", {"notes": ["x"]}, by="ann", bounds=AT_ONCE)
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            await here.devices["a"].stop()
            here.devices["a"].lose_journal()
            await here.devices["a"].start()
            await here.wait_online("a")
            await rollouts.halt(rollout.id, by="ann")
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
            assert limits(here) == {"a": 3.0}


async def test_every_change_of_an_edge_is_recorded_once(tmp_path: Path) -> None:
    changes: list[EdgeGenomeChange] = []

    async def record(change: EdgeGenomeChange) -> None:
        changes.append(change)

    async with opened(tmp_path, "a") as (here, database):
        rollouts = rollouts_of(here, database, record=record)
        async with rollouts.serving():
            rollout = await rollouts.start(
                "a", {"call_seconds": 7.0}, by="ann", reason="slow tools", bounds=AT_ONCE
            )
            await until_state(rollouts, rollout, RolloutState.COMPLETED)
            await rollouts.halt(rollout.id, by="ben", reason="no")
            await until_state(rollouts, rollout, RolloutState.ROLLED_BACK)
    found = [(c.genome.call_seconds, c.by, c.restored, "attempts" in c.scores) for c in changes]
    assert found == [
        (7.0, "ann", False, False), (7.0, "ann", False, True), (None, "ben", True, True),
    ]  # fmt: skip
    assert changes[0].reason == f"roll-out {rollout.id}: slow tools"


async def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, "a", "b") as (here, database):
        rollouts = rollouts_of(here, database)
        for selector, patch, stages, words in (
            ("*", {"budget": 3}, (100,), "is not part of the genome"),
            ("*", {}, (100,), "is empty"),
            ("*", BAD, (50, 25, 100), "growing shares"),
            ("*", BAD, (50,), "the last one 100"),
        ):
            with pytest.raises(ToolFailure, match=words):
                await rollouts.start(selector, patch, by="ann", stages=stages)
        with pytest.raises(NoEdgeSelected, match="no known edge matches 'type:oven'"):
            await rollouts.start("type:oven", BAD, by="ann")
        first = await rollouts.start("a", BAD, by="ann")
        with pytest.raises(RolloutConflict, match=first.id):
            await rollouts.start("b, a", BAD, by="ann")
        with pytest.raises(RolloutConflict):
            await rollouts.check_free("a")
        await rollouts.check_free("b")
        with pytest.raises(RolloutNotFound):
            await rollouts.halt("rollout-0", by="ann")
