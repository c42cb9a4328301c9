"""`evoclaw evolve` beside a running service: it asks the service, and drives nothing itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.evolution.candidates import Stage
from tests.api.test_campaigns import ON, end_round, evolving
from tests.api.test_candidates import pass_until, propose
from tests.support.command_line import Shell
from tests.support.service import RunningService

pytestmark = pytest.mark.process


@asynccontextmanager
async def beside(
    folder: Path, *scopes: str, settings: AgentEvolution = ON
) -> AsyncGenerator[tuple[RunningService, Shell]]:
    """A service whose agent evolves, and a shell whose commands find it."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    async with evolving(folder, settings) as up:
        token = await up.house.token(*scopes)
        yield up, Shell(home, work, {"EVOCLAW_URL": up.url, "EVOCLAW_TOKEN": token})


async def test_evolve_asks_a_running_service_for_another_round(tmp_path: Path) -> None:
    async with beside(tmp_path) as (up, shell):
        await end_round(up)
        dry = await shell.type("evolve", "helper", "--dry-run")
        assert dry.out.splitlines()[0] == "helper has no candidates", dry.err
        assert "the proposers have nothing more today" in dry.out
        assert len(await up.house.genomes.history("helper")) == 1, "a dry run changes nothing"
        asked = await shell.type("evolve", "helper")
        assert asked.code == exits.OK, asked.err
        assert "asked the proposers for another round" in asked.out
        assert (await up.house.genomes.history("helper"))[-1].scores == {"requested": True}
        dry = await shell.type("evolve", "helper", "--dry-run")
        assert dry.out.splitlines()[-1] == "next: ask the proposers"
        again = await shell.type("evolve", "helper")
        assert again.code == exits.OK
        assert "a round is under way" in again.out
        assert "has no train case" in again.err


async def test_evolve_shows_the_candidates_of_the_service_and_why_it_waits(tmp_path: Path) -> None:
    async with beside(tmp_path) as (up, shell):
        candidate = await propose(up.house.genomes, "Be brief.", reason="too long")
        await pass_until(up.house.genomes, candidate, Stage.VALIDATION)
        dry = await shell.type("evolve", "helper", "--dry-run")
        assert f"next: judge candidate {candidate.number} at the stage validation" in dry.out
        await pass_until_approval(up, candidate.number)
        ran = await shell.type("evolve", "helper", "--json")
        found = json.loads(ran.out)
        assert f"candidate {candidate.number} waits for an approval" in found["status"]
        (row,) = found["candidates"]
        assert (row["number"], row["stage"], row["reason"]) == (
            candidate.number, "approval", "too long",
        )  # fmt: skip
        assert row["genome"] == {"prompt": "Be brief."} and len(row["hash"]) == 64


async def pass_until_approval(up: RunningService, number: int) -> None:
    """Let a candidate pass the rest of the stages that need no person."""
    lineage = up.house.genomes
    for stage in (Stage.VALIDATION, Stage.SAFETY):
        entries = await lineage.history("helper")
        await lineage.add_verdict(
            "helper", entries[number - 1], stage, passed=True, after=len(entries), by="gate"
        )


async def test_evolve_reports_what_the_service_refuses(tmp_path: Path) -> None:
    async with beside(tmp_path, "evolution:read", "evolution:write") as (up, shell):
        await end_round(up)
        refused = await shell.type("evolve", "helper")
        assert refused.code == exits.MISUSED
        assert "needs the scope 'human'" in refused.err
        assert (await shell.type("evolve", "nobody")).code == exits.MISUSED
        shell.env["EVOCLAW_URL"] = "http://127.0.0.1:9"
        gone = await shell.type("evolve", "helper")
        assert "the service is not running" in gone.err, "the named service, and no other, is asked"


async def test_evolve_of_an_agent_that_does_not_evolve_says_how_to_switch_it_on(
    tmp_path: Path,
) -> None:
    async with beside(tmp_path, settings=AgentEvolution()) as (_, shell):
        off = await shell.type("evolve", "helper")
        assert off.code == exits.MISUSED
        assert "add [agents.evolution] with proposers" in off.err
