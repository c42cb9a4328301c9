"""The routes of campaigns: what evolution does next, and a person's request for another round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from evoclaw.core.evolution_settings import AgentEvolution, ProposerName
from evoclaw.evolution.candidates import Stage
from evoclaw.governance.stops import Stop, StopFile, StopKind
from tests.api.test_candidates import pass_until, propose
from tests.support.service import AGENT, RunningService, running_service

CAMPAIGN = "/v1/agents/helper/campaign"
ON = AgentEvolution(proposers=(ProposerName.NUMBERS,), max_runs_per_day=100)


@asynccontextmanager
async def evolving(folder: Path, settings: AgentEvolution = ON) -> AsyncGenerator[RunningService]:
    """A service whose agent evolves, but that no engine drives."""
    async with running_service(folder) as up:
        agents = cast(dict[str, Any], up.house.talks.agents)
        agents["helper"] = replace(AGENT, evolution=settings)
        yield up


async def end_round(up: RunningService, **spent: Any) -> None:
    """Record that the proposers were asked."""
    await up.house.genomes.add_campaign(
        "helper", by="evoclaw", reason="", evidence={"proposals": 0, "spent": spent}
    )


async def test_a_campaign_says_what_is_next_and_what_today_has_cost(tmp_path: Path) -> None:
    async with evolving(tmp_path, replace(ON, max_cost_per_day=2.0)) as up:
        ann, lineage = await up.client_with("evolution:read"), up.house.genomes
        first = (await ann.get(CAMPAIGN)).json
        assert (first["on"], first["next"], first["reason"]) == (True, "propose", "")
        assert [first[name] for name in ("runs", "max_runs", "cost", "max_cost")] == [
            0, 100, 0.0, 2.0,
        ]  # fmt: skip
        candidate = await propose(lineage, "Be brief.")
        await end_round(up, runs=7, cost=0.5)
        judged = (await ann.get(CAMPAIGN)).json
        assert (judged["next"], judged["stage"]) == ("judge", "static")
        assert (judged["candidate"], judged["runs"], judged["cost"]) == (candidate.number, 7, 0.5)
        await pass_until(lineage, candidate, Stage.APPROVAL)
        waiting = (await ann.get(CAMPAIGN)).json
        assert (waiting["next"], waiting["candidate"]) == ("wait", None)
        assert "waits for an approval" in waiting["reason"]
        assert (await ann.get("/v1/agents/nobody/campaign")).status == 404


async def test_a_person_has_the_proposers_asked_again_once_until_the_round_ends(
    tmp_path: Path,
) -> None:
    async with evolving(tmp_path) as up:
        ann = await up.client_with("*")
        await end_round(up)
        assert (await ann.get(CAMPAIGN)).json["next"] == "wait"
        asked = await ann.post(CAMPAIGN)
        assert (asked.status, asked.json["next"]) == (202, "propose")
        *_, request = await up.house.genomes.history("helper")
        assert (request.kind, request.by, request.scores) == (
            "campaign", "ann", {"requested": True},
        )  # fmt: skip
        again = await ann.post(CAMPAIGN)
        assert (again.status, again.code) == (409, "busy")
        assert "a round is under way" in again.json["error"]["message"]
        up.house.audit.flush()
        (record,) = (await ann.get("/v1/audit?kind=evolution")).json["items"]
        assert (record["what"], record["user"], record["entry"]) == ("campaign", "ann", 2)
        await end_round(up)
        assert (await ann.get(CAMPAIGN)).json["next"] == "wait", "the request is done"
        assert (await ann.post(CAMPAIGN)).status == 202


async def test_of_two_requests_at_the_same_moment_one_is_refused(tmp_path: Path) -> None:
    async with evolving(tmp_path) as up:
        ann = await up.client_with("*")
        await end_round(up)
        both = await asyncio.gather(ann.post(CAMPAIGN), ann.post(CAMPAIGN))
        assert sorted(answer.status for answer in both) == [202, 409]
        assert len(await up.house.genomes.history("helper")) == 2


async def test_a_request_that_cannot_be_followed_now_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with evolving(tmp_path) as up:
        ann, lineage = await up.client_with("*"), up.house.genomes
        due = await ann.post(CAMPAIGN)
        assert (due.status, due.code) == (409, "busy"), "the first round of the day is due"
        candidate = await propose(lineage, "Be brief.")
        await end_round(up)
        await pass_until(lineage, candidate, Stage.APPROVAL)
        held = await ann.post(CAMPAIGN)
        assert (held.status, held.code) == (409, "busy")
        assert f"candidate {candidate.number} waits" in held.json["error"]["message"]
        path = f"/v1/agents/helper/candidates/{candidate.number}/decision"
        await ann.post(path, {"decision": "reject", "reason": "no"})
        await end_round(up, runs=100, cost=0.0)
        spent = await ann.post(CAMPAIGN)
        assert (spent.status, spent.code) == (409, "busy")
        assert "100 runs of today are spent" in spent.json["error"]["message"]


async def test_an_agent_that_is_off_or_stopped_is_not_asked(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        off = (await ann.get(CAMPAIGN)).json
        assert (off["on"], off["next"]) == (False, "wait")
        assert "add [agents.evolution]" in off["reason"]
        refused = await ann.post(CAMPAIGN)
        assert (refused.status, refused.code) == (409, "evolution_off")
    async with evolving(tmp_path) as up:
        ann = await up.client_with("*")
        await end_round(up)
        StopFile(tmp_path / "stops.json").put(Stop(StopKind.AGENT, "helper", "holiday"))
        stopped = await ann.post(CAMPAIGN)
        assert (stopped.status, stopped.code) == (409, "stopped")
        assert "holiday" in stopped.json["error"]["message"]
        assert "holiday" in (await ann.get(CAMPAIGN)).json["reason"]
        assert len(await up.house.genomes.history("helper")) == 1


async def test_only_a_person_of_the_operator_asks_and_only_if_it_is_audited(
    tmp_path: Path,
) -> None:
    async with evolving(tmp_path) as up:
        await end_round(up)
        assert (await up.client("ec_wrong").get(CAMPAIGN)).status == 401
        assert (await up.client("ec_wrong").post(CAMPAIGN)).status == 401
        reader = await up.client_with("evolution:read")
        program = await up.client_with("evolution:read", "evolution:write")
        stranger = await up.client_with("*", tenant="acme")
        for client in (reader, program, stranger):
            assert (await client.post(CAMPAIGN)).status == 403
        for client in (stranger, await up.client_with("runs:read")):
            assert (await client.get(CAMPAIGN)).status == 403
        person = await up.client_with("evolution:write", "human")
        up.house.audit.failing = "no space left on device"
        try:
            assert (await person.post(CAMPAIGN)).code == "audit"
        finally:
            up.house.audit.failing = ""
        assert (await person.post(CAMPAIGN)).status == 202


async def test_missing_cases_and_names_that_match_nothing_are_named(tmp_path: Path) -> None:
    settings = replace(
        ON, allowed_regressions=("old", "rename"), tenants=("local", "acme", "ghost")
    )
    cases = tmp_path / "cases"
    cases.mkdir()
    check = '[[checks]]\nkind = "answer"\nequals = "yes"\n'
    (cases / "old.toml").write_text(f'message = "x"\n{check}')
    (cases / "rename.toml").write_text(f'message = "x"\nsplit = "validation"\n{check}')
    async with evolving(tmp_path, settings) as up:
        stranger = await up.client_with("*", tenant="acme")
        assert (await stranger.post("/v1/sessions", {"agent": "helper"})).status == 201
        ann = await up.client_with("evolution:read")
        regressions, tenants = (await ann.get(CAMPAIGN)).json["problems"]
        assert "names 'old', which is none of its validation cases" in regressions
        assert "names 'ghost', which has no session here" in tenants
        (cases / "old.toml").unlink()
        missing, *_ = (await ann.get(CAMPAIGN)).json["problems"]
        assert "`evoclaw cases add RUN --split train`" in missing
