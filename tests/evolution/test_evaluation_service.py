"""Evaluations in the background: several processes share a store, and any of them may die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import ConfigError
from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.messages import user
from evoclaw.core.ports import Ports
from evoclaw.core.state import new_run
from evoclaw.evolution.cases import CaseFile, CaseFolder
from evoclaw.evolution.evaluation import CaseRun, OpenRun, wilson
from evoclaw.evolution.evaluation_service import (
    EVALUATION_KEY,
    BackgroundEvaluation,
    EvaluationRequest,
    EvaluationRunning,
    EvaluationService,
    EvaluationState,
)
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, says
from evoclaw.store.databases.database import Database
from evoclaw.store.evaluations import MAX_KEPT_EVALUATIONS, SCHEMA, EvaluationStore
from evoclaw.store.genomes import SCHEMA as GENOMES
from evoclaw.store.genomes import GenomeStore
from evoclaw.tools.fake import FakeOps
from evoclaw.trust.receipts import DeviceKey
from tests.support.databases import Place
from tests.support.waiting import until

CASE = """
message = "Go."
tools = [{ name = "look" }]
[[checks]]
kind = "answer"
contains = "done"
"""
KEY = DeviceKey(bytes(range(32)))


class Process:
    """What one orchestrator has of it."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        self.lineage = GenomeLineage(GenomeStore(database), KEY.public_key, KEY.sign_genome)
        self.store = EvaluationStore(database)
        self.may_go_on = asyncio.Event()
        self.problem: Exception | None = None
        self.service = EvaluationService(
            self.store, self.lineage, CaseFolder(folder), self._open, **settings
        )

    @asynccontextmanager
    async def _open(self, agent: str, genome: Genome) -> AsyncGenerator[OpenRun]:
        @asynccontextmanager
        async def open_run(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
            await self.may_go_on.wait()
            if self.problem is not None:
                raise self.problem
            recorded = RecordedResults(case)
            ports = Ports(Scripted(says("done")), recorded, Autonomy(Level.FULL))
            yield CaseRun(new_run([user("Go.")]), ports, LoopSettings(), FakeOps(), recorded)

        yield open_run

    async def start(self) -> str:
        return await self.service.start("bob", EvaluationRequest(), by="ann")

    async def ended(self, id: str) -> BackgroundEvaluation:
        async def so() -> bool:
            return (await self.service.get("bob", id)).state is not EvaluationState.RUNNING

        await until(so, 20, "the evaluation has ended")
        return await self.service.get("bob", id)


@asynccontextmanager
async def process(place: Place, folder: Path, **settings: Any) -> AsyncGenerator[Process]:
    (folder / "one.toml").write_text(CASE)
    database = await place.open(GENOMES, SCHEMA)
    try:
        made = Process(database, folder, **settings)
        async with made.service.serving(alone=False):
            yield made
    finally:
        await database.close()


async def test_of_two_processes_one_evaluates_an_agent_and_the_other_can_cancel_it(
    place: Place, tmp_path: Path
) -> None:
    async with (
        process(place, tmp_path, renew_interval_s=0.05) as first,
        process(place, tmp_path) as second,
    ):
        id = await first.start()
        with pytest.raises(EvaluationRunning):
            await second.start()
        assert (await second.service.get("bob", id)).state is EvaluationState.RUNNING
        await second.service.cancel("bob", id, by="ann")
        assert (await second.ended(id)).state is EvaluationState.CANCELLED
        second.may_go_on.set()
        assert (await second.ended(await second.start())).passed == 1


async def test_an_evaluation_whose_process_died_is_interrupted_and_another_can_start(
    place: Place, tmp_path: Path
) -> None:
    async with process(place, tmp_path) as first:
        id = await first.start()
        view = (await first.service.get("bob", id)).state
        assert view is EvaluationState.RUNNING
        other = Process(first.store.database, tmp_path, lease_s=0.0)
        async with other.service.serving(alone=False):
            found = await other.service.get("bob", id)
            assert found.state is EvaluationState.INTERRUPTED and "again" in found.error
            other.may_go_on.set()
            done = await other.ended(await other.start())
        assert (done.state, done.passed) == (EvaluationState.COMPLETED, 1)


async def test_a_process_whose_evaluation_was_given_up_ends_it(
    place: Place, tmp_path: Path
) -> None:
    async with process(place, tmp_path, renew_interval_s=0.02) as first:
        id = await first.start()
        await first.store.interrupt(float("inf"))
        done = await first.ended(id)
        assert (done.state, done.result) == (EvaluationState.INTERRUPTED, None)


async def test_a_result_in_the_lineage_counts_though_the_process_died_before_it_said_so(
    place: Place, tmp_path: Path
) -> None:
    async with process(place, tmp_path) as first:
        id = await first.start()
        scores = {EVALUATION_KEY: id, **msgspec.to_builtins(wilson(1, 2))}
        await first.lineage.add_evaluation("bob", CONFIGURED, scores, by="ann")
        found = await first.service.get("bob", id)
        assert (found.state, found.result, found.error) == (EvaluationState.COMPLETED, 1, "")
        assert (found.done, found.passed) == (2, 1)  # not the counts that were stored last


async def test_an_evaluation_that_cannot_run_fails_with_its_reason(
    place: Place, tmp_path: Path
) -> None:
    async with process(place, tmp_path) as first:
        first.may_go_on.set()
        first.problem = ConfigError("no model was found")
        done = await first.ended(await first.start())
        assert (done.state, done.error) == (EvaluationState.FAILED, "no model was found")
        first.problem = ZeroDivisionError("secret of the code")
        done = await first.ended(await first.start())
        assert (done.state, "secret" in done.error) == (EvaluationState.FAILED, False)
        assert await first.lineage.history("bob") == []


async def test_a_stop_ends_a_running_evaluation_without_a_result(
    place: Place, tmp_path: Path
) -> None:
    reasons = [""]

    def stopped(agent: str) -> str:
        return reasons[-1]

    async with process(place, tmp_path, stopped=stopped, renew_interval_s=0.02) as first:
        id = await first.start()
        reasons.append("a person stopped everything")
        done = await first.ended(id)
        assert done.state is EvaluationState.FAILED
        assert "a person stopped everything" in done.error
        assert await first.lineage.history("bob") == []


async def test_only_the_last_evaluations_are_kept(place: Place, tmp_path: Path) -> None:
    async with process(place, tmp_path) as first:
        for number in range(MAX_KEPT_EVALUATIONS + 3):
            id = f"e{number:03}"
            assert await first.store.start(id, "bob", "me", b"{}", lapsed_before=0.0)
            await first.store.finish(id, "me", "failed", b"{}")
        kept = [one.id for one in await first.store.of_agent("bob")]
        assert len(kept) == MAX_KEPT_EVALUATIONS
        assert "e000" not in kept
