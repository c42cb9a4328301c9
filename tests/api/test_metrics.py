"""Figures over HTTP: one's own, or all of the tenant; and pages that are full."""

from __future__ import annotations

import time
from pathlib import Path

from evoclaw.core.events import CallFinished, CallStarted, Record, RunFinished, StopReason
from evoclaw.core.messages import ToolResult
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from tests.support.service import Client, running_service

WORK = calls(("work", {"what": "it"}))


async def ask(client: Client) -> None:
    run = (await client.post("/v1/runs", {"message": "work"})).json
    await client.until(f"/v1/runs/{run['run_id']}", "state", "ended")


async def test_a_user_sees_metrics_of_own_runs_and_an_admin_of_all_runs(tmp_path: Path) -> None:
    model = Scripted(WORK, says("done"), calls(("nothing", {})), WORK, says("done"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with("runs:read", "runs:write")
        bob = await up.client_with("runs:read", "runs:write", user="bob")
        admin = await up.client_with("runs:read", "admin", user="root")
        stranger = await up.client_with("*", tenant="acme")
        await ask(ann)
        await ask(bob)
        own = (await ann.get("/v1/figures")).json
        both = (await admin.get("/v1/figures")).json
        helpers = (await admin.get("/v1/figures?agent=helper")).json
        others = (await admin.get("/v1/figures?agent=coder")).json
        none = (await stranger.get("/v1/figures")).json
        narrow = (await ann.get(f"/v1/figures?since={time.time() - 100}&step=10")).json
    (tool,) = own["tools"]
    assert (tool["tool"], tool["calls"], tool["success_rate"]) == ("work", 1, 1.0)
    assert 0 <= tool["p50_ms"] <= tool["p95_ms"] <= tool["max_ms"]
    assert own["requests"]["stops"] == {"completed": 1}
    assert own["requests"]["iterations"]["avg"] == 2
    assert own["requests"]["recovery_rate"] is None
    assert {tool["tool"]: tool["calls"] for tool in both["tools"]} == {"work": 2, "nothing": 1}
    assert both["requests"]["error_types"] == {"not_found": 1}
    assert both["requests"]["recovery_rate"] == 1.0
    assert (helpers["requests"]["count"], others["requests"]["count"]) == (2, 0)
    assert (none["tools"], none["requests"]["count"]) == ([], 0)
    assert len(own["series"]) <= 60 and sum(point["runs"] for point in own["series"]) == 1
    assert set(own["tool_series"]) == {"work"}
    assert narrow["step"] == 10 and 10 <= len(narrow["series"]) <= 11


async def test_a_denied_call_is_counted_as_denied(tmp_path: Path) -> None:
    model = Scripted(WORK, says("I may not."))
    async with running_service(tmp_path, model, rules=Autonomy(Level.READ_ONLY)) as up:
        ann = await up.client_with("runs:read", "runs:write")
        await ask(ann)
        (tool,) = (await ann.get("/v1/figures")).json["tools"]
    assert (tool["denied"], tool["failed"], tool["avg_ms"]) == (1, 1, None)
    assert "work" in tool["last_error"]


async def test_invalid_metrics_queries_are_refused(tmp_path: Path) -> None:
    wrong = ("since=20&until=10", "step=0.001", "since=-1", "agent=%00", "until=x", "sinse=1")
    async with running_service(tmp_path) as up:
        ann = await up.client_with("runs:read")
        for query in wrong:
            answer = await ann.get(f"/v1/figures?{query}")
            assert answer.status == 422, (query, answer.body)
        assert (await (await up.client_with("fleet:read")).get("/v1/figures")).status == 403
        assert (await up.client("").get("/v1/figures")).status == 401


async def test_delegations_list_source_and_target_of_calls(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        store, now = SessionStore(up.house.database), time.time()
        for owner in ("ann", "bob"):
            await store.create(Session(f"s-{owner}", "helper", owner))
            run = await store.create_run(f"r-{owner}", f"s-{owner}", "hi")
            result = ToolResult("c", "temperature", (), None, {"agent": f"pi-{owner}"})
            events = (
                CallStarted("c", "temperature", {}, "x"),
                CallFinished(result),
                RunFinished(StopReason.COMPLETED, ""),
            )
            records = [Record(run.id, seq, now, event) for seq, event in enumerate(events, 1)]
            await store.append(run, records, [], RunUsage(), StopReason.COMPLETED)
        own = (await (await up.client_with("fleet:read")).get("/v1/fleet/delegations")).json[
            "items"
        ]
        admin = await up.client_with("*", user="root")
        both = (await admin.get("/v1/fleet/delegations")).json["items"]
        before = (await admin.get(f"/v1/fleet/delegations?until={now - 1}")).json["items"]
        wrong = await admin.get("/v1/fleet/delegations?since=2&until=1")
    assert own == [
        {"source": "helper", "target": "pi-ann", "kind": "edge", "calls": 1, "errors": 0,
         "last": now}
    ]  # fmt: skip
    assert [one["target"] for one in both] == ["pi-ann", "pi-bob"]
    assert before == [] and wrong.status == 422


async def test_workflow_pages_are_full_despite_workflows_of_other_users(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("workflows:read", "workflows:run")
        bob = await up.client_with("workflows:read", "workflows:run", user="bob")
        mine: list[str] = []
        for _ in range(3):
            mine.append((await ann.post("/v1/workflows/greet/runs", {})).json["id"])
            for _ in range(3):
                await bob.post("/v1/workflows/greet/runs", {})
        first = (await ann.get("/v1/workflow-runs?limit=2")).json
        second = (await ann.get(f"/v1/workflow-runs?limit=2&before={first['next']}")).json
        exact = (await ann.get("/v1/workflow-runs?limit=3")).json
        rest = (await ann.get(f"/v1/workflow-runs?limit=3&before={exact['next']}")).json
    assert [one["id"] for one in first["items"]] == [mine[2], mine[1]]
    assert ([one["id"] for one in second["items"]], second["next"]) == ([mine[0]], "")
    assert [one["id"] for one in exact["items"]] == mine[::-1]
    assert (rest["items"], rest["next"]) == ([], "")
