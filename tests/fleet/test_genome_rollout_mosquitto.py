"""A roll-out over a real broker, which is killed in the middle of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
from evoclaw.orchestrator.fleet.rollout_driver import RolloutParts, RolloutTimings
from evoclaw.orchestrator.fleet.rollout_state import RolloutBounds, RolloutState
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.genome_rollouts import SCHEMA, RolloutStore
from evoclaw.transport.mqtt import MqttLink
from tests.support.brokers import mosquitto
from tests.support.light_edges import light_edge
from tests.support.waiting import until

EDGES = ("a", "b", "c", "d")
TIMINGS = RolloutTimings(round_s=0.1, query_s=2, retry_s=0.2)


@pytest.mark.process
async def test_a_broker_that_restarts_neither_breaks_a_bound_nor_loses_a_rollback(
    tmp_path: Path,
) -> None:
    bounds = RolloutBounds(soak_s=0, min_evidence=1_000, answer_s=60)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(mosquitto())
        commands = await CommandStore.open(tmp_path / "orchestrator.db", durable=False)
        await stack.enter_async_context(commands)
        database = await open_database(tmp_path / "rollouts.db", schemas=[SCHEMA], durable=False)
        stack.push_async_callback(database.close)
        orchestrator = Orchestrator(MqttLink(broker.address), commands)
        await stack.enter_async_context(orchestrator.connected())
        edges = [
            await stack.enter_async_context(light_edge(name, broker.address, tmp_path))
            for name in EDGES
        ]

        def limits() -> list[float | None]:
            return [edge.parts.genomes.current().call_seconds for edge in edges]

        await orchestrator.wait_for_all(EDGES, 60)
        parts = RolloutParts(timings=TIMINGS)
        rollouts = GenomeRollouts(RolloutStore(database), orchestrator, parts)
        await stack.enter_async_context(rollouts.serving(alone=True))
        rollout = await rollouts.start(
            "type:sensor", {"call_seconds": 7.0}, by="ann", stages=(50, 100), bounds=bounds
        )
        await until(lambda: limits().count(7.0) == 2)
        broker.kill()
        await until(lambda: not orchestrator.report_receiver.is_connected)
        await rollouts.halt(rollout.id, by="ann", reason="not today")
        await broker.start()

        async def is_back() -> bool:
            return (await rollouts.find(rollout.id))[0].state is RolloutState.ROLLED_BACK

        await until(is_back)
        assert limits() == [None] * len(EDGES)
        digests = {edge.parts.genomes.current().digest for edge in edges}
        await until(lambda: {m.genome for m in orchestrator.fleet.members()} == digests)
