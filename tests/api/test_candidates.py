"""The routes of candidates: what they show, and what a person may decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.messages import JSON
from evoclaw.evolution.candidates import STAGES, Stage
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry
from evoclaw.trust.receipts import DeviceKey
from tests.support.service import AGENT, Answer, running_service

CANDIDATES = "/v1/agents/helper/candidates"


async def propose(lineage: GenomeLineage, prompt: str, **more: Any) -> LineageEntry:
    """A candidate with another prompt."""
    found = await lineage.propose("helper", {"prompt": prompt}, by="search", **more)
    assert found is not None
    return found


async def pass_until(lineage: GenomeLineage, candidate: LineageEntry, stage: Stage) -> None:
    """Let it pass the stages before this one."""
    for before in STAGES[: STAGES.index(stage)]:
        after = len(await lineage.history("helper"))
        await lineage.add_verdict(
            "helper", candidate, before, passed=True, after=after, by="gate", evidence={"n": 3}
        )


async def test_a_candidate_is_shown_with_its_stages_its_runs_and_what_it_changes(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        lineage, ann = up.house.genomes, await up.client_with("evolution:read")
        await lineage.change("helper", {"prompt": "Be kind.", "notes": ["a"]}, by="ann")
        first = await propose(lineage, "Be brief.", reason="too long", runs=["r1", "r2"])
        await pass_until(lineage, first, Stage.SAFETY)
        second = await propose(lineage, "Be loud.", untrusted=True)

        listed = (await ann.get(CANDIDATES)).json
        assert [one["number"] for one in listed["items"]] == [second.number, first.number]
        assert listed["last"] == 5
        assert listed["items"][0]["untrusted"] and listed["items"][0]["stage"] == "static"
        shown = (await ann.get(f"{CANDIDATES}/{first.number}")).json
        candidate = shown["candidate"]
        assert (candidate["state"], candidate["stage"]) == ("open", "safety")
        assert (candidate["reason"], candidate["runs"]) == ("too long", ["r1", "r2"])
        assert (candidate["by"], candidate["parent_version"]) == ("search", 1)
        assert [(s["stage"], s["passed"], s["by"]) for s in candidate["stages"]] == [
            ("static", True, "gate"),
            ("validation", True, "gate"),
        ]
        assert candidate["stages"][0]["evidence"] == {"n": 3}
        assert shown["before"] == {"prompt": "Be kind.", "notes": ["a"]}
        assert shown["changes"] == {"prompt": "Be brief."}
        assert (await ann.get(f"{CANDIDATES}/99")).status == 404
        assert (await ann.get(f"{CANDIDATES}/1")).status == 404, "an entry that is no proposal"
        assert (await ann.get("/v1/agents/nobody/candidates")).status == 404


async def test_a_person_approves_or_rejects_what_waits_for_a_person(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        lineage, ann = up.house.genomes, await up.client_with("*")
        good, bad = await propose(lineage, "Be brief."), await propose(lineage, "Be loud.")
        for candidate in (good, bad):
            await pass_until(lineage, candidate, Stage.APPROVAL)
        waiting = (await ann.get("/v1/evolution")).json["items"][0]
        assert (waiting["candidates"], waiting["waiting"]) == (2, [good.number, bad.number])

        path = f"{CANDIDATES}/{bad.number}/decision"
        silent = await ann.post(path, {"decision": "reject", "reason": " "})
        assert (silent.status, silent.code) == (422, "invalid")
        rejected = await ann.post(path, {"decision": "reject", "reason": "rude"})
        assert (rejected.status, rejected.json["state"]) == (200, "rejected")
        assert rejected.json["stages"][-1] | {"at": 0} == {
            "stage": "approval", "passed": False, "by": "ann", "at": 0, "reason": "rude",
            "evidence": {"approval": "person"},
        }  # fmt: skip
        for decision in ("approve", "reject"):
            again = await ann.post(path, {"decision": decision, "reason": "again"})
            assert (again.status, again.code) == (409, "not_waiting")
        assert "is rejected" in again.json["error"]["message"]

        path = f"{CANDIDATES}/{good.number}/decision"
        last = (await ann.get(CANDIDATES)).json["last"]
        stale = await ann.post(path, {"decision": "approve", "after": last - 1})
        assert (stale.status, stale.code) == (409, "genome_changed")
        approved = await ann.post(path, {"decision": "approve", "after": last})
        assert (approved.status, approved.json["stage"]) == (200, "shadow")
        up.house.audit.flush()
        found = (await ann.get("/v1/audit?kind=evolution")).json["items"]
        assert sorted((one["passed"], one["candidate"], one["user"]) for one in found) == [
            (False, bad.number, "ann"),
            (True, good.number, "ann"),
        ]


async def test_a_decision_at_another_stage_is_refused_with_where_it_is(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        lineage, ann = up.house.genomes, await up.client_with("*")
        candidate = await propose(lineage, "Be brief.")
        path = f"{CANDIDATES}/{candidate.number}/decision"
        early = await ann.post(path, {"decision": "approve"})
        assert (early.status, early.code) == (409, "not_waiting")
        assert "at the stage static" in early.json["error"]["message"]
        assert len(await lineage.history("helper")) == 1
        await lineage.change("helper", {"prompt": "Other."}, by="ann")
        late = await ann.post(path, {"decision": "approve"})
        assert "is superseded" in late.json["error"]["message"]
        other = await propose(lineage, "Be calm.")
        path = f"{CANDIDATES}/{other.number}/decision"
        rejected = await ann.post(path, {"decision": "reject", "reason": "no need"})
        assert (rejected.status, rejected.json["stages"][0]["stage"]) == (200, "static")
        wrong = await ann.post(path, {"decision": "maybe"})
        assert wrong.status == 422


async def test_only_a_person_of_the_operator_decides_and_only_if_it_is_audited(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        lineage = up.house.genomes
        candidate = await propose(lineage, "Be brief.")
        await pass_until(lineage, candidate, Stage.APPROVAL)
        path = f"{CANDIDATES}/{candidate.number}"
        body: JSON = {"decision": "approve"}
        reader = await up.client_with("evolution:read")
        program = await up.client_with("evolution:read", "evolution:write")
        stranger = await up.client_with("*", tenant="acme")
        for client in (reader, program, stranger):
            assert (await client.post(f"{path}/decision", body)).status == 403
        other = await up.client_with("runs:read")
        for client in (other, stranger):
            for address in (CANDIDATES, path, "/v1/evolution"):
                assert (await client.get(address)).status == 403
        person = await up.client_with("evolution:read", "evolution:write", "human")
        up.house.audit.failing = "no space left on device"
        try:
            assert (await person.post(f"{path}/decision", body)).code == "audit"
        finally:
            up.house.audit.failing = ""
        assert (await reader.get(path)).json["candidate"]["stage"] == "approval"
        assert (await person.post(f"{path}/decision", body)).status == 200


async def test_a_release_pipeline_approves_over_http_with_a_key_of_its_own(tmp_path: Path) -> None:
    release, other = DeviceKey(bytes(range(1, 33))), DeviceKey(bytes(range(2, 34)))
    orchestrators = DeviceKey(bytes(32))
    accepted = (release.public_key, orchestrators.public_key)
    async with running_service(tmp_path) as up:
        agents = cast(dict[str, Any], up.house.talks.agents)
        agents["helper"] = replace(AGENT, evolution=AgentEvolution(approver_keys=accepted))
        lineage = up.house.genomes
        program = await up.client_with("evolution:read", "evolution:write")
        first, second = await propose(lineage, "Be brief."), await propose(lineage, "Be loud.")
        foreign = await propose(lineage, "Be kind.", untrusted=True)
        for candidate in (first, second, foreign):
            await pass_until(lineage, candidate, Stage.APPROVAL)
        shown = {one["number"]: one for one in (await program.get(CANDIDATES)).json["items"]}
        assert "untrusted origin" in shown[foreign.number]["person_needed"]
        assert shown[first.number]["person_needed"] == ""

        async def decide(candidate: LineageEntry, key: DeviceKey, of: int, **more: str) -> Answer:
            signature = f"{key.public_key}:{key.sign_approval(shown[of]['hash'])}"
            path = f"{CANDIDATES}/{candidate.number}/decision"
            return await program.post(path, {"decision": "approve", "signature": signature, **more})

        refusals = [
            (await decide(first, other, first.number), "not one of the approver_keys"),
            (await decide(first, orchestrators, first.number), "the key of the orchestrator"),
            (await decide(first, release, second.number), "the signature is not one of candidate"),
            (await decide(foreign, release, foreign.number), "only a person can approve"),
        ]
        for refused, why in refusals:
            assert (refused.status, refused.code) == (403, "forbidden")
            assert why in refused.json["error"]["message"]
        rejected = await decide(first, release, first.number, decision="reject", reason="no")
        assert (rejected.status, rejected.code) == (422, "invalid")
        approved = await decide(first, release, first.number, reason="tests are green")
        assert (approved.status, approved.json["stage"]) == (200, "shadow")
        last = approved.json["stages"][-1]
        assert last["by"] == f"key {release.public_key[:8]}"
        assert (last["reason"], last["evidence"]["key"]) == ("tests are green", release.public_key)
        again = await decide(first, release, first.number)
        assert (again.status, again.code) == (409, "not_waiting")
        stranger = await up.client_with("*", tenant="acme")
        body: JSON = {"decision": "approve", "signature": f"{'A' * 43}:{'A' * 86}"}
        reader = await up.client_with("evolution:read")
        for client in (stranger, reader):
            path = f"{CANDIDATES}/{second.number}/decision"
            assert (await client.post(path, body)).status == 403


async def test_a_promoted_and_rolled_back_candidate_says_which_version_it_was(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        lineage, ann = up.house.genomes, await up.client_with("*")
        candidate = await propose(lineage, "Be brief.")
        await pass_until(lineage, candidate, Stage.CANARY)
        after = len(await lineage.history("helper"))
        await lineage.promote("helper", candidate, after=after, by="gate")
        path = f"{CANDIDATES}/{candidate.number}"
        shown = (await ann.get(path)).json["candidate"]
        assert (shown["state"], shown["version"], shown["stage"]) == ("promoted", 1, None)
        assert (await ann.post("/v1/genomes/helper/rollback", {"reason": "odd"})).status == 200
        assert (await ann.get(path)).json["candidate"]["state"] == "rolled_back"
