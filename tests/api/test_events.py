"""What changes, told over HTTP: to each what is his, within a second, whoever changed it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import StreamReader
from litestar.di import Provide

from evoclaw.api import sse
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.routes import events
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Policy, Provider
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.transport.wire import Advert, Heartbeat
from evoclaw.trust.pairing import Devices
from tests.api.test_runs import QUESTION, begun, next_event, watching
from tests.support.service import (
    AGENT,
    LIMIT,
    Client,
    RunningService,
    build_service,
    running_service,
)

READER = ("runs:read", "runs:write", "approvals:read", "fleet:read")
SUPERVISED = Autonomy(Level.SUPERVISED)


class Watched:
    """A stream, and how things stand by what it told."""

    def __init__(self, stream: StreamReader) -> None:
        self._stream = stream
        self.wholes: list[str] = []
        self.items: dict[str, dict[str, JSON]] = {}

    async def until(self, topic: str, holds: Callable[[dict[str, JSON]], bool]) -> dict[str, JSON]:
        """Read until what is known of a topic is so."""
        async with asyncio.timeout(LIMIT):
            while topic not in self.items or not holds(self.items[topic]):
                event = await next_event(self._stream)
                assert event is not None, "the stream ended"
                assert not event.id, "who comes back is told everything again"
                self._take(event.event, event.data)
        return self.items[topic]

    def _take(self, topic: str, data: JSON) -> None:
        key = {"fleet": "agent_id", "runs": "run_id"}.get(topic, "id")
        told = {item[key]: item for item in data["items"]}
        if data["whole"]:
            self.wholes.append(topic)
            self.items[topic] = told
        else:
            self.items[topic] |= told


@asynccontextmanager
async def following(client: Client, topics: str = "") -> AsyncGenerator[Watched]:
    async with watching(client, f"/v1/events{topics and f'?topics={topics}'}") as stream:
        yield Watched(stream)


@asynccontextmanager
async def serving(
    folder: Path, provider: Provider | None = None, rules: Policy | None = None
) -> AsyncGenerator[RunningService]:
    """A service that looks often, so that nobody waits for it here."""
    async with running_service(folder, provider, rules=rules) as up:
        up.app.state["feed"] = events.make_feed(
            parts_of(up), min_interval_s=0.02, max_interval_s=0.05
        )
        yield up


def parts_of(up: RunningService) -> ApiDependencies:
    provided = up.app.dependencies["parts"]
    assert isinstance(provided, Provide)
    return provided.dependency()


def fleet_of(up: RunningService) -> Fleet:
    orchestrator = parts_of(up).orchestrator
    assert orchestrator is not None
    return orchestrator.fleet


def is_looking() -> bool:
    return any(task.get_name() == "feed" for task in asyncio.all_tasks())


async def test_the_event_stream_sends_a_snapshot_and_then_changes(tmp_path: Path) -> None:
    async with serving(tmp_path, Scripted(says("four"), says("five"))) as up:
        ann = await up.client_with(*READER)
        first = await begun(ann, "2 + 2?")
        await ann.until(f"/v1/runs/{first}", "state", "ended")
        async with following(ann) as page:
            known = await page.until("runs", lambda runs: first in runs)
            assert known[first]["text"] == "four"
            for topic in ("fleet", "approvals", "questions"):
                assert await page.until(topic, lambda _: True) == {}
            second = await begun(ann, "3 + 2?")
            known = await page.until("runs", lambda r: r.get(second, {}).get("state") == "ended")
            assert known[second]["text"] == "five"
            assert sorted(page.wholes) == ["approvals", "fleet", "questions", "runs", "stops"]


async def test_run_events_equal_the_listed_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as up:
        ann = await up.client_with(*READER)
        async with following(ann, "runs") as page:
            await page.until("runs", lambda runs: not runs)
            run_id = await begun(ann)
            known = await page.until("runs", lambda r: r.get(run_id, {}).get("state") == "ended")
        listed = (await ann.get("/v1/runs")).json["items"]
        assert list(known.values()) == listed


async def test_approval_events_are_sent_when_requested_and_when_answered(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("done"))
    async with serving(tmp_path, model, rules=SUPERVISED) as up:
        ann = await up.client_with(*READER, "human")
        async with following(ann, "approvals,runs") as page:
            await page.until("approvals", lambda cases: not cases)
            run_id = await begun(ann)
            waiting = await page.until("approvals", bool)
            (case,) = waiting.values()
            assert [case] == (await ann.get("/v1/approvals")).json["items"]
            await page.until("runs", lambda runs: runs[run_id]["state"] == "waiting")
            await ann.post(f"/v1/approvals/{case['id']}/answer", {"decision": "once"})
            await page.until("approvals", lambda cases: not cases)
            await page.until("runs", lambda runs: runs[run_id]["state"] == "ended")


async def test_question_events_are_sent_when_asked_and_when_answered(tmp_path: Path) -> None:
    model = Scripted(calls(("question", QUESTION)), says("red it is"))
    async with serving(tmp_path, model) as up:
        ann = await up.client_with(*READER, "human")
        async with following(ann, "questions") as page:
            await page.until("questions", lambda found: not found)
            run_id = await begun(ann)
            asked = await page.until("questions", bool)
            assert list(asked.values()) == (await ann.get("/v1/questions")).json["items"]
            await ann.post(f"/v1/runs/{run_id}/answer", {"chosen": ["red"]})
            await page.until("questions", lambda found: not found)


async def test_a_user_receives_own_events_and_an_admin_those_of_the_tenant(tmp_path: Path) -> None:
    model = Scripted(*[calls(("work", {"what": "it"})) for _ in range(2)])
    async with serving(tmp_path, model, rules=SUPERVISED) as up:
        ann, bob = await up.client_with(*READER), await up.client_with(*READER, user="bob")
        eve = await up.client_with("*", tenant="else", user="ann")
        boss = await up.client_with("admin", user="boss")
        async with following(bob) as his, following(boss) as all_, following(eve) as hers:
            for page in (his, all_, hers):
                await page.until("approvals", lambda cases: not cases)
            run_id = await begun(ann)
            assert len(await all_.until("approvals", bool)) == 1
            await all_.until("runs", lambda runs: run_id in runs)
            own = await begun(bob)
            cases = await his.until("approvals", bool)
            assert [case["run_id"] for case in cases.values()] == [own]
            assert list(await his.until("runs", bool)) == [own]
            assert his.wholes.count("approvals") == 2, "nothing is told of what is somebody else's"
            assert hers.items["approvals"] == {}
        async with following(eve) as hers:
            assert await hers.until("runs", lambda _: True) == {}


async def test_edge_events_are_sent_on_advert_and_on_heartbeats(tmp_path: Path) -> None:
    async with serving(tmp_path) as up:
        ann, fleet = await up.client_with(*READER), fleet_of(up)
        fleet.on_advert(Advert("lamp", "shines"))
        async with following(ann, "fleet") as page:
            known = await page.until("fleet", bool)
            assert (known["lamp"]["online"], known["lamp"].get("last_seen", 0)) == (False, 0)
            fleet.on_heartbeat("lamp", Heartbeat("b", 1, 2, 3, 7, 12.5, 64.0, 99.0))
            known = await page.until("fleet", lambda edges: edges["lamp"]["online"])
            fleet.on_heartbeat("lamp", Heartbeat("b", 1, 1, 0))
            known = await page.until("fleet", lambda edges: len(edges["lamp"]["loads"]) == 2)
            assert known["lamp"]["loads"] == [5, 1]
            listed = (await ann.get("/v1/fleet")).json["items"]
            assert list(known.values()) == listed
            assert listed[0]["last_seen"] > 1e9
            assert page.wholes == ["fleet"]


async def test_an_edge_invited_by_another_process_appears_in_the_event_stream(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as up, following(await up.client_with(*READER), "fleet") as page:
        await page.until("fleet", lambda edges: not edges)
        await Devices(tmp_path).invite("lamp", 1.0)  # as another process does
        await page.until(
            "fleet", lambda edges: [one["state"] for one in edges.values()] == ["invited"]
        )


async def test_fleet_events_are_sent_to_the_operator_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as up:
        fleet_of(up).on_advert(Advert("lamp", "shines"))
        eve = await up.client_with("*", tenant="else")
        async with following(eve) as page:
            assert await page.until("fleet", lambda _: True) == {}
            await page.until("questions", lambda _: True)
            assert page.items["fleet"] == {}


async def test_runs_of_another_process_appear_in_the_event_stream(tmp_path: Path) -> None:
    model = Scripted(says("done"))
    async with (
        serving(tmp_path, model) as up,
        following(await up.client_with(*READER), "runs") as page,
    ):
        await page.until("runs", lambda runs: not runs)
        async with build_service(tmp_path, Scripted(says("done elsewhere"))) as (other, _):
            errand = RunRequest("go", agent=AGENT.name)
            view, _ = await other.runs.start(Principal(user="ann"), errand)
            await page.until("runs", lambda runs: view.run_id in runs)


async def test_topics_without_their_scope_are_omitted_and_unknown_ones_refused(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as up:
        ann = await up.client_with("runs:read")
        async with following(ann, "approvals,runs,fleet") as page:
            await page.until("runs", lambda _: True)
            assert list(page.items) == ["runs"]
        assert (await ann.get("/v1/events?topics=fleet")).status == 403
        wrong = await ann.get("/v1/events?topics=runs,flet")
        assert (wrong.status, wrong.code) == (400, "invalid")
        assert "fleet, runs, approvals, questions" in wrong.body.decode()
        assert (await up.client("").get("/v1/events")).status == 401


async def test_a_revoked_token_stops_receiving_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TOKEN_RECHECK_INTERVAL_S", 0.01)
    async with serving(tmp_path) as up:
        ann = await up.client_with(*READER)
        async with watching(ann, "/v1/events?topics=runs") as stream:
            first = await next_event(stream)
            assert first is not None and first.event == "runs"
            id_ = ann.token.split("_")[1]
            assert await up.house.tokens.revoke(id_, "local")
            async with asyncio.timeout(LIMIT):
                last = await next_event(stream)
                assert last is not None and last.event == "error"
                assert last.data["error"]["code"] == "unauthorized"
                assert await next_event(stream) is None


async def test_the_feed_stops_polling_without_watchers(tmp_path: Path) -> None:
    async with serving(tmp_path) as up:
        ann = await up.client_with(*READER)
        async with following(ann) as page, following(ann) as other:
            await page.until("runs", lambda _: True)
            await other.until("runs", lambda _: True)
            assert is_looking()
        looking = [task for task in asyncio.all_tasks() if task.get_name() == "feed"]
        if looking:
            await asyncio.wait(looking, timeout=LIMIT)
        assert not is_looking()
