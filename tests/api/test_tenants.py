"""Fault 56: whatever a tenant's id is guessed for, it is as if it were not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.api_request_bodies import body_of, like
from tests.support.service import Client, RunningService, running_service

OPEN = {"/health/live", "/health/ready"}
ENDLESS = {"/v1/events"}
"""Goes on for as long as somebody listens; tests/api/test_events.py says who may."""


async def ids_of_a(up: RunningService) -> dict[str, str]:
    """One of each that tenant A has."""
    ann = await up.client_with("*", tenant="a")
    run = (await ann.post("/v1/runs", {"message": "secret plans"})).json
    await ann.until(f"/v1/runs/{run['run_id']}", "state", "waiting")
    (approval,) = (await ann.get("/v1/approvals")).json["items"]
    workflow = (await ann.post("/v1/workflows/greet/runs", {"inputs": {}})).json
    token = (await ann.post("/v1/tokens", {"name": "x", "scopes": ["runs:read"]})).json
    return {
        "run_id": run["run_id"],
        "session_id": run["session_id"],
        "approval_id": approval["id"],
        "workflow_id": workflow["id"],
        "token_id": token["id"],
    }


async def asked(client: Client, method: str, path: str, name: str) -> tuple[int, bytes]:
    body = body_of(name) if method in ("post", "patch") else None
    answer = await client.ask(method.upper(), path, body)
    return answer.status, answer.body


async def test_fault_56_ids_of_another_tenant_are_404_like_unknown_ids(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("done"))
    async with running_service(tmp_path, model, rules=Autonomy(Level.SUPERVISED)) as up:
        ids = await ids_of_a(up)
        bob = await up.client_with("*", tenant="b")
        paths = (await bob.get("/openapi.json")).json["paths"]
        tried = 0
        for path, methods in paths.items():
            names = re.findall(r"{(\w+)}", path)
            if not names or any(name not in ids for name in names):
                continue
            for method, operation in methods.items():
                up.house.refusals.clear()
                real = path.format(**ids)
                invented = path.format(**{name: like(ids[name]) for name in names})
                name = operation["operationId"]
                found = await asked(bob, method, real, name)
                other = await asked(bob, method, invented, name)
                assert found[0] == 404, (method, path, found)
                assert found == other, (method, path)
                assert up.house.refusals[0].tenant == "b", (method, path)
                assert up.house.refusals[0].path == real
                tried += 1
        assert tried >= 20
        for path in ("/v1/runs", "/v1/sessions", "/v1/approvals", "/v1/questions",
                     "/v1/workflow-runs", "/v1/audit", "/v1/budgets", "/v1/fleet",
                     "/v1/memory?query=secret"):  # fmt: skip
            answer = await bob.get(path)
            assert answer.status == 200, (path, answer.body)
            assert answer.json["items"] == [], path
        for path in ("/metrics", "/v1/audit/verify", "/v1/stops"):
            assert (await bob.get(path)).status == 403, path
        ann = await up.client_with("*", tenant="a")
        still = (await ann.get(f"/v1/runs/{ids['run_id']}")).json
        assert still["state"] == "waiting"
        assert not up.house.ran


async def test_only_an_admin_sees_runs_and_sessions_of_other_users(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("done"))) as up:
        ann = await up.client_with("runs:write", "runs:read", "sessions:read", user="ann")
        eve = await up.client_with("runs:read", "sessions:read", user="eve")
        boss = await up.client_with("admin", user="boss")
        run = (await ann.post("/v1/runs", {"message": "mine"})).json
        for path in (f"/v1/runs/{run['run_id']}", f"/v1/sessions/{run['session_id']}"):
            assert (await ann.get(path)).status == 200
            assert (await eve.get(path)).status == 404
            assert (await boss.get(path)).status == 200
        assert (await eve.get("/v1/runs")).json["items"] == []
        assert (await eve.get("/v1/sessions?owner=ann")).status == 403
        assert len((await boss.get("/v1/sessions?owner=ann")).json["items"]) == 1


async def test_only_an_admin_sees_and_answers_approvals_of_other_users(
    tmp_path: Path,
) -> None:
    asks = calls(("question", {"question": "Which key?"}))
    model = Scripted(calls(("work", {"what": "ann's own"})), asks, says("done"))
    async with running_service(tmp_path, model, rules=Autonomy(Level.SUPERVISED)) as up:
        ann = await up.client_with("*", user="ann")
        eve = await up.client_with("human", "approvals:read", "runs:read", user="eve")
        boss = await up.client_with("admin", "human", user="boss")
        run = (await ann.post("/v1/runs", {"message": "mine"})).json["run_id"]
        await ann.until(f"/v1/runs/{run}", "state", "waiting")
        (approval,) = (await ann.get("/v1/approvals")).json["items"]
        path = f"/v1/approvals/{approval['id']}"
        assert (await eve.get("/v1/approvals")).json["items"] == []
        assert (await eve.get(path)).status == 404
        assert (await eve.post(f"{path}/answer", {"decision": "once"})).status == 404
        assert (await eve.post(f"{path}/withdraw")).status == 404
        assert not up.house.ran
        assert len((await boss.get("/v1/approvals")).json["items"]) == 1
        assert (await boss.post(f"{path}/answer", {"decision": "once"})).status == 200
        await ann.until(f"/v1/runs/{run}", "reason", "Which key?")
        (asked,) = (await boss.get("/v1/questions")).json["items"]
        assert asked["text"] == "Which key?"
        assert (await eve.get("/v1/questions")).json["items"] == []
        assert len((await ann.get("/v1/questions")).json["items"]) == 1


@pytest.mark.parametrize("scope", ["runs:read", "human", "audit:read"])
async def test_each_route_requires_its_own_scope(tmp_path: Path, scope: str) -> None:
    async with running_service(tmp_path) as up:
        held = await up.client_with(scope)
        document = (await held.get("/openapi.json")).json
        wants = {
            handler.opt["scope"]
            for route in up.app.routes
            for handler in getattr(route, "route_handlers", ())
            if "scope" in handler.opt
        }
        assert {"runs:read", "admin", "human"} <= wants
        refused = 0
        for path, methods in document["paths"].items():
            for method in methods:
                if path in OPEN | ENDLESS or path.startswith("/v1/channels"):
                    continue
                answer = await held.ask(method.upper(), re.sub(r"{\w+}", "x", path))
                refused += answer.status == 403
                assert answer.status != 500
        assert refused > 20
        assert document["paths"]["/v1/runs"]["get"]["security"] == [{"token": ["runs:read"]}]


async def test_every_route_declares_its_scope(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        silent = [
            str(handler)
            for route in up.app.routes
            for handler in getattr(route, "route_handlers", ())
            if "scope" not in handler.opt and "OPTIONS" not in handler.http_methods
        ]
        assert not silent
