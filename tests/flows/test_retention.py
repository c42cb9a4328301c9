"""Retention in a real `evoclaw up`: what ended long ago vanishes, all else stays."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex

import pytest

from tests.support.databases import Place
from tests.support.service import Client
from tests.support.up_process import (
    PATIENCE,
    SETTINGS,
    ok,
    session_texts,
    start_run,
    up_process,
    wait_for_state,
)
from tests.support.waiting import until

KEEP_30_DAYS = "\n[store]\nkeep_days = 30\n"
MAKE_OLD = (
    "UPDATE runs SET began_at = began_at - ?1, ended_at = ended_at - ?1 "
    "WHERE tenant = 'local' AND session_id = ?2"
)
MAKE_WORKFLOW_OLD = "UPDATE workflow_runs SET ended_at = ended_at - ?1 WHERE id = ?2"
GREET = """
[[steps]]
name = "letter"
kind = "agent"
agent = "evoclaw"
message = "say hello"
"""
DAY_S = 86_400.0
ROWS = (
    "SELECT (SELECT count(*) FROM sessions WHERE id = ?1), "
    "(SELECT count(*) FROM messages WHERE session_id = ?1), "
    "(SELECT count(*) FROM runs WHERE session_id = ?1), "
    "(SELECT count(*) FROM records WHERE run_id = ?2)"
)


async def said(owner: Client, message: str, session: str = "") -> tuple[str, str]:
    """A run that has ended, and its session."""
    more = {"session_id": session} if session else {}
    run_id = await start_run(owner, message, **more)
    return run_id, str((await wait_for_state(owner, run_id))["session_id"])


async def finished_workflow(owner: Client) -> str:
    """The path of a workflow run that has ended."""
    started = ok(await owner.post("/v1/workflows/greet/runs", {"inputs": {}}))
    path = f"/v1/workflow-runs/{started['id']}"
    await owner.until(path, "state", "succeeded")
    return path


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_old_sessions_and_workflow_runs_are_deleted_and_newer_ones_stay(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(up_process(tmp_path))
        place = Place(up.home / "evoclaw.db")
        if kind == "postgres":
            place = Place(request.getfixturevalue("postgres_url"), f"test_{token_hex(6)}")
            up.shell.env |= {
                "EVOCLAW_STORE_URL": str(place.at),
                "EVOCLAW_STORE_SCHEMA": place.schema,
            }
        up.configure(SETTINGS + KEEP_30_DAYS)
        (up.home / "workflows").mkdir()
        (up.home / "workflows" / "greet.toml").write_text(GREET)
        owner = await up.start()
        old_flow, young_flow = await finished_workflow(owner), await finished_workflow(owner)
        old_run, old = await said(owner, "say old")
        continued_run, continued = await said(owner, "say first")
        _, young = await said(owner, "say young")
        held = await start_run(owner, "wait held 4")
        await until(lambda: up.models.held["held"].is_set(), PATIENCE, "a run is active")
        active = str(ok(await owner.get(f"/v1/runs/{held}"))["session_id"])
        await up.kill()
        database = await place.open()
        for session, days in ((old, 31), (continued, 31), (young, 29), (active, 31)):
            values = (days * DAY_S, session)
            await database.write(lambda c, values=values: c.execute(MAKE_OLD, values))
        for flow, days in ((old_flow, 31), (young_flow, 29)):
            values = (days * DAY_S, flow.rpartition("/")[2])
            await database.write(lambda c, values=values: c.execute(MAKE_WORKFLOW_OLD, values))
        await database.close()

        # With another run it is younger; the service looks for what is old at its start.
        up.configure(SETTINGS)
        owner = await up.start()
        await said(owner, "say second", continued)
        await up.stop()
        up.configure(SETTINGS + KEEP_30_DAYS)
        owner = await up.start()

        async def is_deleted() -> bool:
            return (await owner.get(f"/v1/sessions/{old}")).status == 404

        await until(is_deleted, PATIENCE, "the old session is deleted")

        async def is_workflow_deleted() -> bool:
            return (await owner.get(old_flow)).status == 404

        await until(is_workflow_deleted, PATIENCE, "the old workflow run is deleted")
        assert ok(await owner.get(young_flow))["state"] == "succeeded"
        up.models.gates["held"].set()
        assert (await owner.get(f"/v1/runs/{old_run}")).status == 404
        assert await session_texts(owner, young) == ["say young", "young"]
        texts = await session_texts(owner, continued)
        assert texts == ["say first", "first", "say second", "second"]
        assert ok(await owner.get(f"/v1/runs/{continued_run}"))["text"] == "first"
        assert (await wait_for_state(owner, held))["stop"] == "completed"
        await up.stop()
        database = await place.open()
        left = await database.read(lambda c: c.execute(ROWS, (old, old_run)).fetchone())
        assert tuple(left) == (0, 0, 0, 0)
        await database.close()
        assert "Traceback" not in up.output(), up.output()
