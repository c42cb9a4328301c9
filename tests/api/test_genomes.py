"""The routes of genomes: who may read and change them, and what those of edges answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw import verify
from evoclaw.api import edge_genomes
from evoclaw.core.messages import JSON
from evoclaw.transport.wire import Advert
from tests.api.test_events import fleet_of
from tests.support.fleet import FleetHarness, open_fleet
from tests.support.service import Answer, Client, running_service
from tests.support.waiting import until

CHANGE = {"genome": {"prompt": "Be brief."}}
PI = "/v1/genomes/pi"


@asynccontextmanager
async def service_with_edge(folder: Path) -> AsyncGenerator[tuple[Client, FleetHarness]]:
    """A service with the edge `pi`, and a person who may do everything."""
    async with (
        open_fleet(folder) as here,
        running_service(folder, fleet=here.orchestrator) as up,
    ):
        yield await up.client_with(), here


async def stop_edge(here: FleetHarness) -> None:
    await here.pi.stop()
    await until(lambda: not here.orchestrator.fleet.is_online("pi"))


async def start_edge(here: FleetHarness) -> None:
    await here.pi.start()
    await here.wait_online()


async def set_turns(ann: Client, turns: int, **more: JSON) -> Answer:
    return await ann.post(f"{PI}/versions", {"genome": {"max_turns": turns}, **more})


async def turns_of(ann: Client, version: int | None = None) -> tuple[int, int]:
    """The version that is shown for an edge, and its turns."""
    shown = (await ann.get(PI if version is None else f"{PI}?version={version}")).json
    return shown["version"], shown["genome"]["max_turns"]


async def recorded(ann: Client) -> list[tuple[int, int]]:
    """The versions in the history of an edge, and their turns."""
    items = (await ann.get(f"{PI}/history")).json["items"]
    return [(item["version"], item["genome"]["max_turns"]) for item in items]


async def lineage_problems(ann: Client) -> list[str]:
    export = (await ann.get(f"{PI}/export")).body
    return verify.verify(verify.read_bundle(export), {})[1]


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


async def test_a_tool_that_nothing_has_is_a_warning_with_the_name_that_was_meant(
    tmp_path: Path,
) -> None:
    async with service_with_edge(tmp_path) as (ann, _):
        texts = {"questionn": {"description": "?"}, "look": {"description": "?"}, "gone": None}
        changed = await ann.post("/v1/genomes/helper/versions", {"genome": {"tools": texts}})
        (warning,) = changed.json["warnings"]
        assert "no tool has the name 'questionn' now" in warning
        assert "did you mean 'question'?" in warning
        assert (await ann.get("/v1/genomes/helper")).json["warnings"] == []


async def test_an_edge_that_is_offline_is_an_error_that_says_so(tmp_path: Path) -> None:
    async with service_with_edge(tmp_path) as (ann, here):
        assert (await set_turns(ann, 3)).status == 200
        await stop_edge(here)
        for answer in (
            await ann.get(PI),
            await ann.get(f"{PI}?version=0"),
            await set_turns(ann, 4),
            await ann.post(f"{PI}/rollback", {}),
        ):
            assert (answer.status, answer.code) == (409, "offline")
            assert "The edge 'pi' is offline. Start it" in answer.json["error"]["message"]
        assert await turns_of(ann, 2) == (2, 3), "the lineage has it"


async def test_an_edge_that_does_not_answer_is_an_error_that_says_what_may_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_genomes, "ANSWER_TIMEOUT_S", 0.2)
    async with service_with_edge(tmp_path) as (ann, here):
        here.link.drop_next("evolution", count=1000)
        silent = await ann.get(PI)
        assert (silent.status, silent.code) == (409, "offline")
        assert "did not answer within 0.2s. Try again" in silent.json["error"]["message"]
        here.link.drop_next("update_genome", count=1000)
        unsure = await set_turns(ann, 4)
        assert (unsure.status, unsure.code) == (409, "offline")
        assert "It may have made the change" in unsure.json["error"]["message"]


async def test_a_version_of_an_edge_has_one_number_everywhere(tmp_path: Path) -> None:
    async with service_with_edge(tmp_path) as (ann, _):
        assert await turns_of(ann) == (0, 10)
        assert (await ann.get(f"{PI}?version=1")).status == 404
        changed = (await set_turns(ann, 3)).json
        assert await recorded(ann) == [(1, 10), (2, 3)]
        assert (changed["version"], changed["genome"]["max_turns"]) == (2, 3)
        assert await turns_of(ann) == (2, 3)
        for version, turns in await recorded(ann):
            assert await turns_of(ann, version) == (version, turns)
        back = (await ann.post(f"{PI}/rollback", {"version": 1})).json
        assert (back["version"], back["restored"], back["genome"]["max_turns"]) == (3, 1, 10)
        forth = (await ann.post(f"{PI}/rollback", {"version": 2})).json
        assert (forth["version"], forth["restored"], forth["genome"]["max_turns"]) == (4, 2, 3)
        configured = (await ann.post(f"{PI}/rollback", {"version": 0})).json
        assert (configured["version"], configured["genome"]["max_turns"]) == (5, 10)
        again = (await ann.post(f"{PI}/rollback", {"version": 2, "reason": "first one"})).json
        assert (again["version"], again["restored"]) == (6, 2), "the one that was asked for"
        missing = await ann.post(f"{PI}/rollback", {"version": 7})
        assert (missing.status, missing.code) == (404, "not_found")
        assert "agent 'pi' has no genome version 7" in missing.json["error"]["message"]
        assert await recorded(ann) == [(1, 10), (2, 3), (3, 10), (4, 3), (5, 10), (6, 3)]
        audited = (await ann.get("/v1/audit?kind=genome")).json["items"]
        assert [row["version"] for row in audited] == [2, 3, 4, 5, 6]
        assert await lineage_problems(ann) == []


async def test_an_edge_is_rolled_back_to_the_version_before_if_none_is_named(
    tmp_path: Path,
) -> None:
    async with service_with_edge(tmp_path) as (ann, _):
        nothing = await ann.post(f"{PI}/rollback", {})
        assert (nothing.status, nothing.code) == (422, "invalid")
        assert "There is no earlier version" in nothing.json["error"]["message"]
        for turns in (3, 4):
            await set_turns(ann, turns)
        for restored, turns in ((2, 3), (1, 10)):
            back = (await ann.post(f"{PI}/rollback", {})).json
            assert (back["restored"], back["genome"]["max_turns"]) == (restored, turns)
        assert (await ann.post(f"{PI}/rollback", {})).status == 422


async def test_a_genome_that_was_changed_elsewhere_has_the_number_that_it_is_recorded_with(
    tmp_path: Path,
) -> None:
    async with service_with_edge(tmp_path) as (ann, here):
        await set_turns(ann, 3)
        await here.orchestrator.query("pi", "update_genome", {"genome": {"max_turns": 7}})
        assert await turns_of(ann) == (3, 7)
        assert await turns_of(ann, 3) == (3, 7)
        assert (await set_turns(ann, 4, expected=2)).status == 422
        assert (await set_turns(ann, 4, expected=3)).json["version"] == 4
        assert await recorded(ann) == [(1, 10), (2, 3), (3, 7), (4, 4)]
        assert await lineage_problems(ann) == []


async def test_a_number_means_the_same_genome_after_the_edge_lost_its_journal(
    tmp_path: Path,
) -> None:
    async with service_with_edge(tmp_path) as (ann, here):
        await set_turns(ann, 3)
        await stop_edge(here)
        here.pi.lose_journal()
        await start_edge(here)
        await set_turns(ann, 4)
        assert await recorded(ann) == [(1, 10), (2, 3), (3, 10), (4, 4)]
        back = (await ann.post(f"{PI}/rollback", {"version": 2})).json
        assert (back["version"], back["restored"], back["genome"]["max_turns"]) == (5, 2, 3)
        assert await turns_of(ann) == (5, 3)
        assert await lineage_problems(ann) == []


async def test_a_change_of_an_edge_names_its_runs_and_is_refused_for_another_version(
    tmp_path: Path,
) -> None:
    async with service_with_edge(tmp_path) as (ann, _):
        stale = await set_turns(ann, 3, expected=77)
        assert (stale.status, stale.code) == (422, "invalid")
        assert "The current version is 0, not 77" in stale.json["error"]["message"]
        assert await turns_of(ann) == (0, 10), "nothing was changed"
        assert (await set_turns(ann, 3, expected=0, runs=["run-1"])).status == 200
        items = (await ann.get(f"{PI}/history")).json["items"]
        assert [item.get("runs") for item in items] == [None, ["run-1"]]


async def test_of_two_changes_of_an_edge_that_saw_the_same_version_one_is_refused(
    tmp_path: Path,
) -> None:
    async with service_with_edge(tmp_path) as (ann, _):
        answers = await asyncio.gather(*(set_turns(ann, turns, expected=0) for turns in (3, 4)))
        assert sorted(answer.status for answer in answers) == [200, 422]
        assert [version for version, _ in await recorded(ann)] == [1, 2]
        await asyncio.gather(*(set_turns(ann, turns) for turns in (5, 6, 7)))
        assert sorted(turns for _, turns in (await recorded(ann))[2:]) == [5, 6, 7]
        assert await lineage_problems(ann) == []
