"""Undoing runs and summarising sessions over HTTP: who may, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evoclaw.providers.scripted import Scripted, says
from tests.support.service import Client, running_service


async def ended_run(client: Client, **more: str) -> dict[str, Any]:
    """A run that has ended."""
    started = (await client.post("/v1/runs", {"message": "hello", **more})).json
    await client.until(f"/v1/runs/{started['run_id']}", "state", "ended")
    return started


async def test_a_run_is_undone_by_its_owner_with_the_scope_to_call_tools(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("hi"))) as up:
        ann = await up.client_with("runs:read", "runs:write", "tools:execute")
        path = f"/v1/runs/{(await ended_run(ann))['run_id']}/undo"
        answer = await ann.post(path)
        assert answer.status == 200
        assert (answer.json["machines"], answer.json["left"]) == ([], [])
        reader = await up.client_with("runs:read", "runs:write")
        assert (await reader.post(path)).status == 403
        for stranger in (
            await up.client_with("*", tenant="acme"),
            await up.client_with("runs:read", "tools:execute", user="bob"),
        ):
            assert (await stranger.post(path)).status == 404
        assert (await ann.post("/v1/runs/unknown/undo")).status == 404


async def test_a_session_is_summarised_by_its_owner_only(tmp_path: Path) -> None:
    script = Scripted(says("one"), says("two"), says("they counted"))
    async with running_service(tmp_path, script) as up:
        ann = await up.client_with("runs:read", "runs:write", "sessions:read", "sessions:write")
        session = (await ended_run(ann))["session_id"]
        path = f"/v1/sessions/{session}/compact"
        empty = await ann.post(path, {})
        assert (empty.status, empty.code) == (409, "cannot_compact")
        await ended_run(ann, session_id=session)
        stranger = await up.client_with("*", tenant="acme")
        assert (await stranger.post(path, {})).status == 404
        made = await ann.post(path, {})
        assert made.status == 201
        assert made.json["from_session"] == session
        messages = (await ann.get(f"/v1/sessions/{made.json['session_id']}/messages")).json["items"]
        texts = str(messages)
        assert "they counted" in texts and "two" in texts and "'one'" not in texts
