"""The other routes, a flow each: sessions, workflows, fleet, tools, stops, tokens, figures."""

from __future__ import annotations

from pathlib import Path

from litestar.di import Provide

from evoclaw.core.labels import Principal
from evoclaw.observe.audit.sink import AuditContext
from evoclaw.orchestrator.agents.memory import EventType, Observation
from evoclaw.providers.scripted import Scripted, says
from evoclaw.store.sessions.sessions import Session
from evoclaw.trust.pairing import Devices
from tests.support.service import running_service


async def test_a_session_can_be_used_renamed_branched_and_deleted(tmp_path: Path) -> None:
    model = Scripted(says("one"), says("two"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with("sessions:read", "sessions:write", "runs:read", "runs:write")
        made = await ann.post("/v1/sessions", {"agent": "helper", "title": "first"})
        assert made.status == 201, made.body
        path = f"/v1/sessions/{made.json['id']}"
        for said in ("hello", "again"):
            run = (await ann.post(f"{path}/messages", {"message": said})).json
            await ann.until(f"/v1/runs/{run['run_id']}", "state", "ended")
        page = (await ann.get(f"{path}/messages?limit=2")).json
        assert [item["message"]["role"] for item in page["items"]] == ["system", "user"]
        rest = (await ann.get(f"{path}/messages?start={page['next']}")).json
        assert rest["items"][-1]["message"]["text"] == "two"
        assert rest["next"] is None
        renamed = await ann.ask("PATCH", path, {"title": "second"})
        assert renamed.json["title"] == "second"
        branch = await ann.post(f"{path}/branch", {"at_message": 2, "title": "other"})
        assert branch.status == 201, branch.body
        assert (branch.json["messages"], branch.json["title"]) == (3, "other")
        whole = await ann.post(f"{path}/branch")
        assert whole.json["messages"] == 5
        assert len((await ann.get("/v1/sessions")).json["items"]) == 3
        first = (await ann.get("/v1/sessions?limit=2")).json
        second = (await ann.get(f"/v1/sessions?limit=2&before={first['next']}")).json
        assert len(first["items"]) == 2
        assert [item["id"] for item in second["items"]] == [made.json["id"]]
        assert (await ann.ask("DELETE", path)).status == 204
        assert (await ann.get(path)).status == 404
        assert (await ann.post("/v1/sessions", {"agent": "nobody"})).status == 404


async def test_deleting_a_session_deletes_its_memory_and_that_of_child_sessions(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("sessions:read", "sessions:write")
        id_ = (await ann.post("/v1/sessions", {"agent": "helper"})).json["id"]
        store = up.house.talks.store
        await store.create(Session("below", "helper", "ann", parent=id_, depth=1))
        memory = up.house.memory.of("local", "ann")
        for place in (id_, "below", "elsewhere"):
            note = Observation(place, place, "helper", EventType.DECISION, "the blue door")
            await memory.record(note)
        assert len((await ann.get("/v1/memory?query=door")).json["items"]) == 3
        assert (await ann.ask("DELETE", f"/v1/sessions/{id_}")).status == 204
        (left,) = (await ann.get("/v1/memory?query=door")).json["items"]
        assert left["id"] == "elsewhere"


async def test_a_workflow_is_started_and_continues_after_human_approval(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("workflows:read", "workflows:run")
        person = await up.client_with("human", "workflows:read")
        (defined,) = (await ann.get("/v1/workflows")).json["items"]
        assert (defined["name"], defined["steps"]) == ("greet", ["ask", "hello"])
        begun = await ann.post("/v1/workflows/greet/runs", {}, idempotency_key="k")
        assert begun.status == 201, begun.body
        again = await ann.post("/v1/workflows/greet/runs", {}, idempotency_key="k")
        assert again.json["id"] == begun.json["id"]
        path = f"/v1/workflow-runs/{begun.json['id']}"
        await ann.until(path, "state", "waiting")
        answer = {"step": "ask", "decision": "approve"}
        assert (await ann.post(f"{path}/answer", answer)).status == 403
        assert (await person.post(f"{path}/answer", answer)).status == 200
        found = await ann.until(path, "state", "succeeded")
        assert found["steps"][-1]["output"]["result"] == "hello"
        async with ann.http.get(f"{ann.url}{path}/events", headers=ann.headers()) as response:
            told = (await response.read()).decode()
        assert "event: workflow_finished" in told
        assert (await ann.post("/v1/workflows/none/runs", {})).status == 404
        wrong = await ann.post("/v1/workflows/greet/runs", {"inputs": {"no": "such"}})
        assert wrong.status == 422
        assert [one["id"] for one in (await ann.get("/v1/workflow-runs")).json["items"]] == [
            begun.json["id"]
        ]


async def test_a_person_approves_a_step_of_a_definition_from_now_on(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        person = await up.client_with("human", "workflows:read")
        program = await up.client_with("admin", "workflows:read")
        (defined,) = (await ann.get("/v1/workflows")).json["items"]
        (step,) = defined["approvable"]
        assert (step["name"], step["message"]) == ("ask", "May I greet?")
        waiting = (await ann.post("/v1/workflows/greet/runs", {})).json["id"]
        await ann.until(f"/v1/workflow-runs/{waiting}", "state", "waiting")
        path, body = "/v1/workflows/greet/steps/ask/approve", {"sha256": defined["sha256"]}
        assert (await person.post(path, body)).status == 403  # it covers the runs of all users
        assert (await program.post(path, body)).status == 403
        assert (await ann.post(path, {"sha256": "0" * 64})).code == "definition_changed"
        assert (await ann.post("/v1/workflows/greet/steps/hello/approve", body)).status == 404
        assert (await ann.post("/v1/workflows/none/steps/ask/approve", body)).status == 404
        approved = await ann.post(path, body)
        assert approved.status == 200, approved.body
        await ann.until(f"/v1/workflow-runs/{waiting}", "state", "succeeded")
        begun = (await ann.post("/v1/workflows/greet/runs", {})).json["id"]
        await ann.until(f"/v1/workflow-runs/{begun}", "state", "succeeded")

        (defined,) = (await ann.get("/v1/workflows")).json["items"]
        id_ = defined["approvable"][0]["approval_id"]
        assert id_ == approved.json["approval_id"]
        assert (await ann.post(f"/v1/approvals/{id_}/withdraw")).status == 200
        begun = (await ann.post("/v1/workflows/greet/runs", {})).json["id"]
        await ann.until(f"/v1/workflow-runs/{begun}", "state", "waiting")


async def test_edges_are_listed_by_page(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    for name in ("d", "b", "a"):
        await devices.compare_tools(name, [("read", "h1")], 1.0)
    async with running_service(tmp_path) as up:
        ann, other = await up.client_with("*"), await up.client_with("*", tenant="other")
        provided = up.app.dependencies["parts"]
        assert isinstance(provided, Provide)
        orchestrator = provided.dependency().orchestrator
        for name in ("c", "b"):
            orchestrator.fleet.member(name)
        pages = [(await ann.get("/v1/fleet?limit=3")).json]
        pages.append((await ann.get(f"/v1/fleet?limit=3&after={pages[0]['next']}")).json)
        listed = [[edge["agent_id"] for edge in page["items"]] for page in pages]
        assert listed == [["a", "b", "c"], ["d"]]
        assert [page["next"] for page in pages] == ["c", ""]
        states = {edge["agent_id"]: edge["state"] for page in pages for edge in page["items"]}
        assert states == {"a": "pending", "b": "pending", "c": "unknown", "d": "pending"}
        every = (await ann.get("/v1/fleet")).json
        assert [edge["agent_id"] for edge in every["items"]] == ["a", "b", "c", "d"]
        assert every["next"] == ""
        assert (await ann.get("/v1/fleet?limit=1001")).status == 422
        assert (await other.get("/v1/fleet?limit=3&after=a")).json["items"] == []


async def test_edges_are_listed_and_approved_by_the_operator_only(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    await devices.compare_tools("pi", [("read", "h1")], 1.0)
    async with running_service(tmp_path) as up:
        ann, other = await up.client_with("*"), await up.client_with("*", tenant="other")
        admin = await up.client_with("admin")
        (edge,) = (await ann.get("/v1/fleet")).json["items"]
        assert (edge["agent_id"], edge["online"], edge["waiting"]) == ("pi", False, ["read"])
        assert (await other.get("/v1/fleet")).json["items"] == []
        assert (await other.post("/v1/fleet/pi/approve")).status == 404
        assert (await admin.post("/v1/fleet/pi/approve")).status == 403
        approved = await ann.post("/v1/fleet/pi/approve")
        assert approved.json["approved"] == ["read"]
        assert (await ann.post("/v1/fleet/pi/ping")).code == "offline"
        assert (await ann.post("/v1/fleet/nobody/ping")).status == 404


async def test_a_stop_is_released_only_by_a_human_token_of_the_operator(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        admin, person = await up.client_with("admin"), await up.client_with("admin", "human")
        other = await up.client_with("*", tenant="other")
        assert (await other.post("/v1/stops", {"kind": "all"})).status == 403
        assert (await admin.post("/v1/stops", {"kind": "tool"})).status == 422
        put = await admin.post("/v1/stops", {"kind": "tool", "name": "bash", "reason": "hm"})
        assert put.status == 201
        (stop,) = put.json["items"]
        assert (stop["name"], stop["by"]) == ("bash", "ann")
        path = "/v1/stops/tool?name=bash"
        assert (await admin.ask("DELETE", path)).status == 403
        assert (await person.ask("DELETE", path)).json == {"items": []}
        assert (await person.ask("DELETE", path)).status == 404


async def test_a_token_cannot_create_tokens_with_more_scopes_than_its_own(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        admin = await up.client_with("admin", tenant="acme")
        made = await admin.post("/v1/tokens", {"name": "ci", "scopes": ["runs:read"]})
        assert made.status == 201, made.body
        new = up.client(made.json["token"])
        me = (await new.get("/v1/me")).json
        assert me == {
            "tenant": "acme", "user": "", "token": made.json["id"], "scopes": ["runs:read"],
        }  # fmt: skip
        for scopes in (["human"], ["*"], ["runs:read", "human"]):
            refused = await admin.post("/v1/tokens", {"name": "x", "scopes": scopes})
            assert (refused.status, refused.code) == (403, "forbidden")
        elsewhere = {"name": "x", "scopes": ["runs:read"], "tenant": "other"}
        assert (await admin.post("/v1/tokens", elsewhere)).status == 403
        operator = await up.client_with("*")
        assert (await operator.post("/v1/tokens", elsewhere)).status == 201
        listed = (await admin.get("/v1/tokens")).json["items"]
        assert all("hash" not in one and "token" not in one for one in listed)
        assert (await admin.ask("DELETE", f"/v1/tokens/{made.json['id']}")).status == 204
        assert (await new.get("/v1/me")).status == 401


async def test_tools_skills_budgets_audit_and_memory_are_listed(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("done"))) as up:
        ann = await up.client_with("*")
        assert [one["name"] for one in (await ann.get("/v1/tools")).json["items"]] == ["question"]
        assert (await ann.get("/v1/tools/question")).json["permissions"] == ["interact"]
        assert (await ann.get("/v1/tools/none")).status == 404
        assert (await ann.get("/v1/skills")).json == {"items": [], "problems": []}
        run = (await ann.post("/v1/runs", {"message": "go"})).json
        await ann.until(f"/v1/runs/{run['run_id']}", "state", "ended")
        accounts = (await ann.get("/v1/budgets")).json["items"]
        assert {one["account"] for one in accounts} >= {"tenant:local", "tenant:local/user:ann"}
        spent = (await ann.get(f"/v1/budgets/runs/{run['run_id']}")).json
        assert spent["kinds"]["tokens"]["spent"] == 15
        up.house.audit.record("refused", _who("local"), reason="no")
        up.house.audit.record("refused", _who("other"), reason="no")
        (found,) = (await ann.get("/v1/audit?kind=refused")).json["items"]
        assert found["tenant"] == "local"
        verified = (await ann.get("/v1/audit/verify")).json
        assert (verified["ok"], verified["records"]) == (True, 2)
        assert (await ann.get("/v1/memory?query=go")).json == {"items": []}


def _who(tenant: str) -> AuditContext:
    return AuditContext(principal=Principal(tenant), agent_id="")


async def test_a_misspelled_parameter_is_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        wrong = await ann.get("/v1/runs?limt=5")
        assert (wrong.status, wrong.code) == (422, "invalid")
        assert "limit" in wrong.json["error"]["message"]
        assert (await ann.get("/v1/runs?limit=0")).status == 422
        assert (await ann.get("/v1/runs?limit=100000")).status == 422
        unknown = await ann.post("/v1/runs", {"message": "x", "mesage": "y"})
        assert unknown.status == 422


async def test_metrics_require_their_scope(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        scraper, ann = await up.client_with("metrics:read"), await up.client_with("runs:read")
        assert (await ann.get("/metrics")).status == 403
        told = await scraper.get("/metrics")
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = told.body.decode()
        assert "evoclaw_test 1" in text
        assert 'evoclaw_http_responses_total{status="403"} 1' in text
        ready = await up.client("").get("/health/ready")
        assert ready.json == {"ready": True, "parts": {"store": "ok", "runs": "ok"}}
