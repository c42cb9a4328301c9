"""What a session shows, over HTTP; it goes when the session goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

from evoclaw.core.canvases import Canvas, CanvasSheet
from evoclaw.providers.scripted import Scripted, says
from evoclaw.store.sessions.expired_sessions import ExpiredSessions
from tests.support.service import Client, RunningService, running_service


def canvas(up: RunningService, session: str) -> Canvas:
    return cast("Canvas", up.house.canvases.of("local", session))


async def opened(client: Client) -> str:
    return str((await client.post("/v1/sessions", {"agent": "helper"})).json["id"])


async def test_the_canvas_of_a_session_is_visible_to_its_owner_only(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("sessions:read", "sessions:write")
        session = await opened(ann)
        path = f"/v1/sessions/{session}/canvas"
        empty = await ann.get(path)
        assert (empty.status, empty.code) == (404, "not_found")
        sheet = CanvasSheet("<b>tea</b><script>x</script>", "html", "Plan")
        await canvas(up, session).show(sheet)
        found = (await ann.get(path)).json
        assert abs(found.pop("at") - time.time()) < 60
        assert found == {"title": "Plan", "format": "html", "content": sheet.content}
        for other in (
            await up.client_with("*", tenant="acme"),
            await up.client_with("sessions:read", user="bob"),
        ):
            assert (await other.get(path)).status == 404


async def test_deleting_a_session_deletes_its_canvas(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("sessions:read", "sessions:write")
        gone, stays = await opened(ann), await opened(ann)
        for session in (gone, stays):
            await canvas(up, session).show(CanvasSheet("x", "markdown"))
        assert (await ann.ask("DELETE", f"/v1/sessions/{gone}")).status == 204
        assert await canvas(up, gone).current() is None
        assert await canvas(up, stays).current() is not None


async def test_deleting_old_sessions_deletes_their_canvas(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("hi"))) as up:
        session = await opened(await up.client_with("sessions:write"))
        await canvas(up, session).show(CanvasSheet("x", "html"))

        async def clear(tenant: str, session_id: str) -> None:
            await up.house.canvases.of(tenant, session_id).clear()

        assert await ExpiredSessions(up.house.database).delete(time.time() + 1, clear) == 1
        assert await canvas(up, session).current() is None
