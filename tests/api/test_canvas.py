"""What a session shows, over HTTP; it goes when the session goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

from evoclaw.providers.scripted import Scripted, says
from evoclaw.store.sessions.deletion import delete_expired_sessions
from evoclaw.tools.canvas import Canvas, Sheet
from tests.support.service import Client, Served, served


def canvas(up: Served, session: str) -> Canvas:
    return cast("Canvas", up.house.canvases.of("local", session))


async def opened(client: Client) -> str:
    return str((await client.post("/v1/sessions", {"agent": "helper"})).json["id"])


async def test_what_a_session_shows_is_seen_by_its_owner_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as up:
        ann = await up.as_("sessions:read", "sessions:write")
        session = await opened(ann)
        path = f"/v1/sessions/{session}/canvas"
        empty = await ann.get(path)
        assert (empty.status, empty.code) == (404, "not_found")
        sheet = Sheet("<b>tea</b><script>x</script>", "html", "Plan")
        await canvas(up, session).show(sheet)
        found = (await ann.get(path)).json
        assert abs(found.pop("at") - time.time()) < 60
        assert found == {"title": "Plan", "format": "html", "content": sheet.content}
        for other in (await up.as_("*", tenant="acme"), await up.as_("sessions:read", user="bob")):
            assert (await other.get(path)).status == 404


async def test_a_session_that_is_deleted_takes_its_canvas_with_it(tmp_path: Path) -> None:
    async with served(tmp_path) as up:
        ann = await up.as_("sessions:read", "sessions:write")
        gone, stays = await opened(ann), await opened(ann)
        for session in (gone, stays):
            await canvas(up, session).show(Sheet("x", "markdown"))
        assert len(list((tmp_path / "canvas").iterdir())) == 4
        assert (await ann.ask("DELETE", f"/v1/sessions/{gone}")).status == 204
        assert len(list((tmp_path / "canvas").iterdir())) == 2
        assert await canvas(up, gone).current() is None
        assert await canvas(up, stays).current() is not None


async def test_what_is_forgotten_for_its_age_shows_nothing_any_more(tmp_path: Path) -> None:
    async with served(tmp_path, Scripted(says("hi"))) as up:
        session = await opened(await up.as_("sessions:write"))
        await canvas(up, session).show(Sheet("x", "html"))

        async def clear(tenant: str, session_id: str) -> None:
            await up.house.canvases.of(tenant, session_id).clear()

        assert await delete_expired_sessions(up.house.database, time.time() + 1, clear) == 1
        assert list((tmp_path / "canvas").iterdir()) == []
