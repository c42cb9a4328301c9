"""The routes of genomes: who may read and change them."""

from __future__ import annotations

from pathlib import Path

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
