"""The routes of genomes: who may read and change them."""

from __future__ import annotations

from pathlib import Path

from evoclaw.transport.wire import Advert
from tests.api.test_events import fleet_of
from tests.support.service import running_service

CHANGE = {"genome": {"prompt": "Be brief."}}


async def test_reading_and_changing_genomes_need_scopes_of_their_own(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        reader = await up.client_with("evolution:read")
        writer = await up.client_with("evolution:read", "evolution:write")
        person = await up.client_with("evolution:read", "evolution:write", "human")
        other = await up.client_with("runs:read", "human")
        stranger = await up.client_with("*", tenant="acme")
        versions = "/v1/genomes/helper/versions"
        for client, status in ((reader, 403), (writer, 403), (other, 403), (stranger, 403)):
            assert (await client.post(versions, CHANGE)).status == status
            assert (await client.post("/v1/genomes/helper/rollback", {})).status == status
        for client, status in ((reader, 200), (other, 403), (stranger, 403)):
            for path in ("", "/helper", "/helper/history", "/helper/export"):
                assert (await client.get(f"/v1/genomes{path}")).status == status, path
        changed = await person.post(versions, CHANGE)
        assert (changed.status, changed.json["version"]) == (200, 1)
        (item,) = (await reader.get("/v1/genomes")).json["items"]
        assert item["digest"] == changed.json["digest"]


async def test_wrong_requests_for_genomes_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with()
        assert (await ann.get("/v1/genomes/nobody")).status == 404
        assert (await ann.get("/v1/genomes/nobody/history")).status == 404
        assert (await ann.get("/v1/genomes/helper?version=7")).status == 404
        assert (await ann.post("/v1/genomes/helper/rollback", {"version": 7})).status == 404
        wrong = await ann.post("/v1/genomes/helper/versions", {"genome": {"tokens": 1}})
        assert (wrong.status, wrong.code) == (422, "invalid")
        assert "'tokens' is not part of the genome" in wrong.json["error"]["message"]
        stale = {**CHANGE, "expected": 3}
        assert (await ann.post("/v1/genomes/helper/versions", stale)).status == 422


async def test_no_genome_is_changed_while_the_audit_cannot_be_written(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with()
        up.house.audit.failing = "no space left on device"
        try:
            refused = await ann.post("/v1/genomes/helper/versions", CHANGE)
        finally:
            up.house.audit.failing = ""
        assert (refused.status, refused.code) == (503, "audit")
        assert (await ann.get("/v1/genomes/helper")).json["version"] == 0


async def test_roll_outs_need_the_scopes_of_evolution_and_a_person(tmp_path: Path) -> None:
    start = {"selector": "lamp", "genome": {"max_turns": 3}}
    async with running_service(tmp_path) as up:
        reader = await up.client_with("evolution:read")
        writer = await up.client_with("evolution:read", "evolution:write")
        person = await up.client_with("evolution:read", "evolution:write", "human")
        other = await up.client_with("runs:read", "human")
        stranger = await up.client_with("*", tenant="acme")
        path = "/v1/genome-rollouts"
        for client, status in ((reader, 403), (writer, 403), (other, 403), (stranger, 403)):
            assert (await client.post(path, start)).status == status
            assert (await client.post(f"{path}/rollout-1/halt", {})).status == status
        for client, status in ((reader, 200), (other, 403), (stranger, 403)):
            assert (await client.get(path)).status == status
        nowhere = await person.post(path, start)
        assert (nowhere.status, nowhere.code) == (404, "not_found")
        assert "no known edge matches 'lamp'" in nowhere.json["error"]["message"]
        assert (await person.get(f"{path}/rollout-1")).status == 404
        assert (await person.post(f"{path}/rollout-1/halt", {})).status == 404
        fleet_of(up).on_advert(Advert("lamp", "shines", genome="ab" * 32))
        wrong = await person.post(path, {**start, "stages": [50]})
        assert (wrong.status, wrong.code) == (422, "invalid")
        begun = await person.post(path, start)
        assert (begun.status, begun.json["edges"]) == (201, {"planned": 1})
        assert (await person.post(path, start)).code == "rolling_out"
        shown = await reader.get(f"{path}/{begun.json['id']}")
        assert [edge["state"] for edge in shown.json["edges"]] == ["planned"]
        halted = await person.post(f"{path}/{begun.json['id']}/halt", {"reason": "not now"})
        assert (halted.status, halted.json["problem"]) == (200, "not now")
        watcher = await up.client_with("fleet:read")
        (lamp,) = (await watcher.get("/v1/fleet")).json["items"]
        assert lamp["genome"] == "ab" * 32
