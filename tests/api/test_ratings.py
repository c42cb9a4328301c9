"""What people say of runs, over HTTP and in a chat."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from evoclaw.orchestrator.sessions.retention import SessionRetention
from evoclaw.providers.scripted import Scripted, says
from tests.support.service import Client, RunningService, running_service
from tests.support.waiting import until


async def ended_run(client: Client) -> dict[str, Any]:
    """A run that has ended."""
    started = (await client.post("/v1/runs", {"message": "hello"})).json
    await client.until(f"/v1/runs/{started['run_id']}", "state", "ended")
    return started


async def judged(up: RunningService, client: Client) -> dict[str, Any]:
    """A run that a person said was good."""
    run = await ended_run(client)
    given = await client.post(f"/v1/runs/{run['run_id']}/rating", {"verdict": "good"})
    assert given.status == 200, given.json
    return run


async def test_a_person_says_whether_a_run_was_good_and_the_last_word_counts(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path, Scripted(says("hi"))) as up:
        ann = await up.client_with("runs:read", "runs:write", "human")
        path = f"/v1/runs/{(await ended_run(ann))['run_id']}/rating"
        assert (await ann.get(path)).status == 404
        assert (await ann.post(path, {"verdict": "great"})).status == 422
        assert (await ann.post(path, {"verdict": "good"})).status == 200
        given = await ann.post(path, {"verdict": "bad", "reason": "too short"})
        assert given.status == 200
        found = (await ann.get(path)).json
        assert abs(found.pop("at") - time.time()) < 60
        assert found == {"verdict": "bad", "reason": "too short", "user": "ann"}

        program = await up.client_with("runs:read", "runs:write")
        assert (await program.post(path, {"verdict": "good"})).status == 403
        for stranger in (
            await up.client_with("*", tenant="acme"),
            await up.client_with("runs:read", "human", user="bob"),
        ):
            assert (await stranger.get(path)).status == 404
            assert (await stranger.post(path, {"verdict": "good"})).status == 404


async def test_a_run_is_shown_and_listed_with_its_rating(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("hi"), says("hi"))) as up:
        ann = await up.client_with("*")
        rated, other = await judged(up, ann), await ended_run(ann)

        shown = (await ann.get(f"/v1/runs/{rated['run_id']}")).json
        assert (shown["text"], shown["rating"]["verdict"]) == ("hi", "good")
        assert "rating" not in (await ann.get(f"/v1/runs/{other['run_id']}")).json
        listed = (await ann.get("/v1/runs")).json["items"]
        assert [one["run_id"] for one in listed] == [other["run_id"], rated["run_id"]]
        assert "rating" not in listed[0] and listed[1] == shown


async def test_a_rating_is_deleted_with_its_session(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("hi"), says("hi"), says("hi"))) as up:
        ann = await up.client_with("*")
        gone, old, stays = [await judged(up, ann) for _ in range(3)]
        rating, canvases = up.house.ratings, up.house.canvases
        assert (await ann.ask("DELETE", f"/v1/sessions/{gone['session_id']}")).status == 204
        assert await rating.get("local", gone["run_id"]) is None
        assert await rating.get("local", stays["run_id"]) is not None

        retention = SessionRetention(up.house.database, canvases, keep_days=1e-9)
        async with retention.serving(), asyncio.timeout(20):

            async def deleted() -> bool:
                return await rating.get("local", old["run_id"]) is None

            await until(deleted, 20, "the rating of an old session is deleted")
