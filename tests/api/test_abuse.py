"""What somebody tries who is in, and wants more: streams, tools that change, work for others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event, Semaphore

import pytest
from aiohttp import ClientResponse

from evoclaw.api import sse
from evoclaw.api.routes import replays
from evoclaw.api.settings import ServerSettings
from evoclaw.core.events import Record
from evoclaw.core.labels import Principal
from evoclaw.core.run_comparison import Difference
from evoclaw.orchestrator.people.access import Caller
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.trust.pairing import Devices
from tests.api.test_runs import begun, next_event, watching
from tests.support.service import LIMIT, Client, running_service

RUNNER = ("runs:read", "runs:write")


async def opened(client: Client, path: str, stack: AsyncExitStack) -> ClientResponse:
    return await stack.enter_async_context(
        client.http.get(client.url + path, headers=client.headers())
    )


async def test_simultaneous_stream_requests_respect_the_watcher_limit(
    tmp_path: Path,
) -> None:
    settings = ServerSettings(port=0, watchers_per_caller=2, stop_within_s=1)
    async with running_service(tmp_path, settings=settings) as up, AsyncExitStack() as stack:
        ann = await up.client_with(*RUNNER)
        asked = [opened(ann, "/v1/events?topics=runs", stack) for _ in range(12)]
        answers = Counter([answer.status for answer in await asyncio.gather(*asked)])
        assert answers == {200: 2, 429: 10}


class Signed:
    """Tokens `TENANT:NAME` of somebody who gives the same name to people of two tenants."""

    def authenticate(self, bearer: str) -> Caller | None:
        tenant, _, name = bearer.partition(":")
        return Caller(Principal(tenant, name), frozenset(RUNNER), name)


async def test_watcher_limits_are_separate_for_equal_names_in_two_tenants(
    tmp_path: Path,
) -> None:
    settings = ServerSettings(port=0, watchers_per_caller=1, stop_within_s=1)
    async with (
        running_service(tmp_path, settings=settings, others=Signed()) as up,
        watching(up.client("a:ann"), "/v1/events?topics=runs") as stream,
    ):
        assert await next_event(stream) is not None
        async with watching(up.client("b:ann"), "/v1/events?topics=runs") as other:
            assert await next_event(other) is not None


async def test_a_revoked_token_stops_receiving_run_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TOKEN_RECHECK_INTERVAL_S", 0.01)
    async with running_service(tmp_path, Scripted(calls(("work", {})), says("secret"))) as up:
        up.house.may_go_on.clear()
        ann, thief = await up.client_with(*RUNNER), await up.client_with(*RUNNER)
        path = f"/v1/runs/{await begun(ann)}/events?follow=true"
        async with watching(thief, path) as stream, asyncio.timeout(LIMIT):
            assert await next_event(stream) is not None
            assert await up.house.tokens.revoke(thief.token.split("_")[1], "local")
            told: list[str] = []
            while (event := await next_event(stream)) is not None:
                told.append(event.event)
        up.house.may_go_on.set()
        assert told[-1] == "error"
        assert "run_finished" not in told


async def test_approving_tools_that_changed_since_they_were_shown_is_refused(
    tmp_path: Path,
) -> None:
    devices = Devices(tmp_path)
    await devices.compare_tools("pi", [("read", "h1")], 1.0)
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        seen = (await ann.get("/v1/fleet/pi")).json["surface"]
        await devices.compare_tools("pi", [("read", "another"), ("wipe", "h2")], 2.0)

        refused = await ann.post(f"/v1/fleet/pi/approve?seen={seen}")
        assert (refused.status, refused.code) == (409, "changed")
        edge = (await ann.get("/v1/fleet/pi")).json
        assert (edge.get("approved"), edge["waiting"]) == (None, ["read", "wipe"])

        approved = await ann.post(f"/v1/fleet/pi/approve?seen={edge['surface']}")
        assert approved.json["approved"] == ["read", "wipe"]
        assert "surface" not in approved.json


async def test_at_most_two_run_comparisons_are_made_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_ones, go_on = Semaphore(0), Event()

    def slow(_a: Sequence[Record], _b: Sequence[Record]) -> Iterator[Difference]:
        begun_ones.release()
        assert go_on.wait(LIMIT)
        yield from ()

    monkeypatch.setattr(replays, "compare", slow)
    async with running_service(tmp_path) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await begun(ann)
        await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        path = f"/v1/runs/{run_id}/compare/{run_id}"
        asked = [asyncio.create_task(ann.get(path)) for _ in range(6)]
        for _ in range(2):
            assert await asyncio.to_thread(begun_ones.acquire, timeout=LIMIT)
        for _ in range(20):  # whatever else could begin meanwhile has begun
            assert (await ann.get("/v1/me")).status == 200
        assert not begun_ones.acquire(blocking=False)
        go_on.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}


async def test_policy_explain_refuses_oversized_arguments(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("tools:read")
        long = {"tool": "question", "arguments": {"command": "echo a; " * 20_000}}
        refused = await ann.post("/v1/policy/explain", long)
        assert (refused.status, refused.code) == (422, "invalid")
        assert "65536" in refused.body.decode()
