from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp import types
from mcp.shared.exceptions import MCPError

from evoclaw.api.app import create_app
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from tests.fleet.test_outputs import kept, make
from tests.support.mcp_clients import Person, connected, said, send
from tests.support.service import LIMIT, RunningService, build_service, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


async def token_of(service: RunningService, *scopes: str, **who: str) -> str:
    return await service.house.token(*scopes, **who)


def text_of(result: types.ReadResourceResult) -> Any:
    (found,) = result.contents
    assert isinstance(found, types.TextResourceContents)
    return json.loads(found.text)


async def test_sessions_and_runs_are_resources(tmp_path: Path, mode: str) -> None:
    async with running_service(tmp_path, Scripted(says("It is open."))) as service:
        client = await service.client_with("*")
        run = (await client.post("/v1/runs", {"message": "Is the door open?"})).json
        await client.until(f"/v1/runs/{run['run_id']}", "state", "ended")
        async with connected(f"{service.url}/mcp", client.token, mode=mode) as mcp:
            listed = (await mcp.list_resources()).resources
            templates = (await mcp.list_resource_templates()).resource_templates
            shown = text_of(await mcp.read_resource(f"evoclaw://runs/{run['run_id']}"))
            messages = f"evoclaw://sessions/{run['session_id']}/messages"
            talk = text_of(await mcp.read_resource(messages))
            records = await mcp.read_resource(f"evoclaw://runs/{run['run_id']}/records")
            fleet = text_of(await mcp.read_resource("evoclaw://fleet"))

    uris = [str(resource.uri) for resource in listed]
    assert uris[:3] == ["evoclaw://sessions", "evoclaw://runs", "evoclaw://fleet"]
    assert messages in uris
    assert "evoclaw://runs/{run_id}" in [template.uri_template for template in templates]
    assert (shown["text"], shown["state"]) == ("It is open.", "ended")
    assert len(talk["items"]) >= 2 and fleet == {"items": [], "next": ""}
    (lines,) = records.contents
    assert isinstance(lines, types.TextResourceContents)
    first = json.loads(lines.text.splitlines()[0])
    assert first["event"]["type"] == "run_started"


async def test_resources_of_other_users_and_tenants_are_not_found(
    tmp_path: Path, mode: str
) -> None:
    async with running_service(tmp_path) as service:
        ann = await service.client_with("*")
        run = (await ann.post("/v1/runs", {"message": "hello"})).json
        for who in ({"user": "bob"}, {"tenant": "other"}):
            token = await token_of(service, "runs:read", "sessions:read", **who)
            async with connected(f"{service.url}/mcp", token, mode=mode) as mcp:
                listed = [str(found.uri) for found in (await mcp.list_resources()).resources]
                assert listed == ["evoclaw://sessions", "evoclaw://runs"]
                for uri in (
                    f"evoclaw://runs/{run['run_id']}",
                    f"evoclaw://runs/{run['run_id']}/records",
                    f"evoclaw://sessions/{run['session_id']}/messages",
                ):
                    with pytest.raises(MCPError, match="There is no such"):
                        await mcp.read_resource(uri)
                with pytest.raises(MCPError, match="lacks the scope 'fleet:read'"):
                    await mcp.read_resource("evoclaw://fleet")


@pytest.mark.parametrize(
    "uri", ["evoclaw://nothing", "file:///etc/passwd", "evoclaw://runs/../tokens", "x" * 10_000]
)
async def test_unknown_uris_are_protocol_errors(tmp_path: Path, uri: str) -> None:
    async with (
        running_service(tmp_path) as service,
        connected(f"{service.url}/mcp", await token_of(service)) as mcp,
    ):
        with pytest.raises(MCPError, match="There is no resource"):
            await mcp.read_resource(uri)


async def test_ids_are_completed(tmp_path: Path, mode: str) -> None:
    async with running_service(tmp_path) as service:
        client = await service.client_with("*")
        run = (await client.post("/v1/runs", {"message": "hello"})).json
        async with connected(f"{service.url}/mcp", client.token, mode=mode) as mcp:
            template = types.ResourceTemplateReference(uri="evoclaw://runs/{run_id}")
            argument = {"name": "run_id", "value": run["run_id"][:4]}
            found = (await mcp.complete(template, argument)).completion
    assert found.values == [run["run_id"]]


async def test_skills_are_prompts(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "skills" / "tidy"
    folder.mkdir(parents=True)
    text = "---\nname: tidy\ndescription: Tidies a folder.\n---\nRemove what is empty.\n"
    (folder / "SKILL.md").write_text(text)
    async with running_service(tmp_path) as service:
        token = await token_of(service, "skills:read")
        async with connected(f"{service.url}/mcp", token, mode=mode) as mcp:
            (prompt,) = (await mcp.list_prompts()).prompts
            got = await mcp.get_prompt("tidy", {"task": "my notes"})
            with pytest.raises(MCPError, match="There is no prompt 'none'"):
                await mcp.get_prompt("none")
            with pytest.raises(MCPError, match="Unknown argument 'x'"):
                await mcp.get_prompt("tidy", {"x": "y"})
        without = await token_of(service, "runs:read")
        async with connected(f"{service.url}/mcp", without, mode=mode) as mcp:
            assert (await mcp.list_prompts()).prompts == []
            with pytest.raises(MCPError, match="lacks the scope"):
                await mcp.get_prompt("tidy")

    assert (prompt.name, prompt.description) == ("tidy", "Tidies a folder.")
    texts = [getattr(message.content, "text", "") for message in got.messages]
    assert "Remove what is empty." in texts[0] and "my notes" in texts[1]


async def test_a_client_is_notified_of_changes_of_a_run(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(calls(("work", {})), says("ok"))) as service:
        service.house.may_go_on.clear()
        client = await service.client_with("*")
        run = (await client.post("/v1/runs", {"message": "work"})).json
        uri, updated = f"evoclaw://runs/{run['run_id']}", asyncio.Event()

        async def on_message(message: Any) -> None:
            if isinstance(message, types.ResourceUpdatedNotification):
                assert message.params.uri == uri
                updated.set()

        options = {"mode": "legacy", "message_handler": on_message}
        async with connected(f"{service.url}/mcp", client.token, **options) as mcp:
            await send(mcp, "resources/subscribe", uri=uri)
            await updated.wait()
            updated.clear()
            service.house.may_go_on.set()
            await updated.wait()
            await send(mcp, "resources/unsubscribe", uri=uri)
            with pytest.raises(MCPError, match="Only runs can be subscribed to"):
                await send(mcp, "resources/subscribe", uri="evoclaw://fleet")


async def test_a_client_of_the_newest_revision_listens_to_a_run(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(calls(("work", {})), says("ok"))) as service:
        service.house.may_go_on.clear()
        client = await service.client_with("*")
        run = (await client.post("/v1/runs", {"message": "work"})).json
        uri = f"evoclaw://runs/{run['run_id']}"
        async with (
            connected(f"{service.url}/mcp", client.token) as mcp,
            mcp.listen(resource_subscriptions=[uri]) as events,
        ):
            first = await anext(aiter(events))
            service.house.may_go_on.set()
            await anext(aiter(events))
    assert getattr(first, "uri", "") == uri


async def test_an_agent_is_asked_and_answers(tmp_path: Path, mode: str) -> None:
    async with running_service(tmp_path, Scripted(says("Four."), says("Five."))) as service:
        token = await token_of(service, "runs:write", "runs:read")
        async with connected(f"{service.url}/mcp", token, mode=mode) as mcp:
            names = [tool.name for tool in (await mcp.list_tools()).tools]
            first = await mcp.call_tool("ask_agent", {"message": "2 + 2?"})
            assert first.structured_content is not None
            again = {"message": "3 + 2?", "session_id": first.structured_content["session_id"]}
            second = await mcp.call_tool("ask_agent", again)
            with pytest.raises(MCPError, match="Invalid arguments for 'ask_agent'"):
                await mcp.call_tool("ask_agent", {"massage": "x"})
            with pytest.raises(MCPError, match="lacks the scope 'tools:execute'"):
                await mcp.call_tool("work", {})
    assert names == ["ask_agent"]
    assert (said(first), said(second)) == ("Four.", "Five.")


async def test_a_call_of_a_tool_is_a_run(tmp_path: Path, mode: str) -> None:
    async with running_service(tmp_path) as service:
        token = await token_of(service, "tools:execute", "tools:read")
        async with connected(f"{service.url}/mcp", token, mode=mode) as mcp:
            names = [tool.name for tool in (await mcp.list_tools()).tools]
            done = await mcp.call_tool("work", {"what": "it"})
            missing = await mcp.call_tool("nothing", {})
        listed = await service.house.runs.list("local")
    assert names == ["question"]
    assert said(done) == "worked on it" and not done.is_error
    assert missing.is_error and "not found" in said(missing)
    assert len(listed) == 2


@pytest.mark.parametrize(
    ("action", "content", "ran"),
    [
        ("accept", {"decision": "once"}, ["it"]),
        ("accept", {"decision": "deny", "reason": "not today"}, []),
        ("decline", {}, []),
        ("cancel", {}, []),
    ],
)
async def test_the_user_of_the_client_approves_a_call(
    tmp_path: Path, mode: str, action: str, content: dict[str, str], ran: list[str]
) -> None:
    person = Person(action, **content)
    async with running_service(tmp_path, rules=Autonomy(Level.SUPERVISED)) as service:
        options = {"mode": mode, "elicitation_callback": person}
        async with connected(f"{service.url}/mcp", await token_of(service), **options) as mcp:
            done = await mcp.call_tool("work", {"what": "it"})
    assert service.house.ran == ran and done.is_error == (not ran)
    (form,) = person.asked
    assert "Allow work?" in form.message and '"what":"it"' in form.message
    if content.get("reason"):
        assert "not today" in said(done)


async def test_without_a_person_a_call_waits_as_before(tmp_path: Path, mode: str) -> None:
    person = Person("accept", decision="once")
    async with running_service(tmp_path, rules=Autonomy(Level.SUPERVISED)) as service:
        whole = await token_of(service)
        no_person = await token_of(service, "tools:execute", "tools:read", "runs:read")
        for token, callback in ((whole, None), (no_person, person)):
            options = {"mode": mode, "elicitation_callback": callback}
            async with connected(f"{service.url}/mcp", token, **options) as mcp:
                waits = await mcp.call_tool("work", {"what": "it"})
                assert waits.is_error and "waits for a person" in said(waits)
    assert service.house.ran == [] and person.asked == []


async def test_the_user_of_the_client_answers_questions_of_an_agent(
    tmp_path: Path, mode: str
) -> None:
    person = Person("accept", choice="blue")
    asks = calls(("question", {"question": "Which colour?", "options": ["red", "blue"]}))
    async with running_service(tmp_path, Scripted(asks, says("Painted."))) as service:
        options = {"mode": mode, "elicitation_callback": person}
        async with connected(f"{service.url}/mcp", await token_of(service), **options) as mcp:
            done = await mcp.call_tool("ask_agent", {"message": "Paint the door."})
    assert said(done) == "Painted."
    (form,) = person.asked
    assert form.message == "Which colour?"
    assert form.requested_schema["properties"]["choice"]["enum"] == ["red", "blue"]


async def test_the_session_of_one_token_is_unknown_to_another(tmp_path: Path) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    async with running_service(tmp_path) as service:
        ann = await service.client_with("*")
        bob = await service.client_with("*", user="bob")
        opened = await ann.post("/mcp", hello, **accept)
        session = {"mcp_session_id": opened.headers["mcp-session-id"], **accept}
        assert (await bob.post("/mcp", listing, **session)).status == 404
        assert (await ann.post("/mcp", listing, **session)).status == 200
        assert (await service.client("").post("/mcp", hello, **accept)).status == 401
        assert (await service.client("ec_wrong").post("/mcp", hello, **accept)).status == 401


async def test_a_cancelled_request_cancels_its_run(tmp_path: Path, mode: str) -> None:
    async with running_service(tmp_path) as service:
        service.house.may_go_on.clear()
        token = await token_of(service)
        async with connected(f"{service.url}/mcp", token, mode=mode) as mcp:
            calling = asyncio.create_task(mcp.call_tool("work", {"what": "it"}))
            client = service.client(token)
            found: list[Any] = []

            async def is_running() -> bool:
                found[:] = (await client.get("/v1/runs")).json["items"]
                return bool(found) and found[0].get("calls", 0) > 0

            await until(is_running, LIMIT, "the call runs")
            calling.cancel()
            await asyncio.wait([calling])
            await client.until(f"/v1/runs/{found[0]['run_id']}", "stop", "cancelled")
    assert service.house.ran == []


async def test_a_service_that_stops_does_not_cancel_the_runs_of_its_clients(
    tmp_path: Path, mode: str
) -> None:
    found: list[Any] = []
    async with running_service(tmp_path) as service:
        service.house.may_go_on.clear()
        client = await service.client_with("*")

        async def call() -> None:
            async with connected(f"{service.url}/mcp", client.token, mode=mode) as mcp:
                await mcp.call_tool("work", {"what": "it"})

        async def is_running() -> bool:
            found[:] = (await client.get("/v1/runs")).json["items"]
            return bool(found) and found[0].get("calls", 0) > 0

        calling = asyncio.create_task(call())
        await until(is_running, LIMIT, "the call runs")
    await asyncio.wait([calling])
    assert calling.exception() is not None
    async with running_service(tmp_path) as service:
        client = await service.client_with("*")
        ended = await client.until(f"/v1/runs/{found[0]['run_id']}", "state", "ended")
    assert ended["stop"] == "completed" and service.house.ran == ["it"]


async def test_the_fleet_and_artifacts_of_its_edges_are_resources(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, stop_within_s=1)
    async with (
        asyncio.timeout(3 * LIMIT),
        kept(tmp_path / "fleet") as fleet,
        build_service(tmp_path, settings=settings) as (house, _),
        serving(create_app(house.parts(settings, fleet.orchestrator)), settings) as url,
    ):
        handle = await make(fleet, 20_000)
        uri = f"evoclaw://fleet/pi/artifacts/{handle}"
        async with connected(f"{url}/mcp", await house.token()) as mcp:
            listed = [str(found.uri) for found in (await mcp.list_resources()).resources]
            edge = text_of(await mcp.read_resource("evoclaw://fleet/pi"))
            (output,) = (await mcp.read_resource(uri)).contents
            with pytest.raises(MCPError, match="cannot be read"):
                await mcp.read_resource(f"evoclaw://fleet/pi/artifacts/sha256:{'0' * 64}")
            large = await make(fleet, 1_000_000)
            with pytest.raises(MCPError, match="at most 2,097,152 can be copied"):
                await mcp.read_resource(f"evoclaw://fleet/pi/artifacts/{large}")
        for scopes, who in (
            (("fleet:read",), {}),
            (("fleet:read", "tools:execute"), {"tenant": "other"}),
        ):
            token = await house.token(*scopes, **who)
            async with connected(f"{url}/mcp", token) as mcp:
                with pytest.raises(MCPError, match="lacks the scope|There is no such edge"):
                    await mcp.read_resource(uri)
    assert "evoclaw://fleet/pi" in listed and edge["online"] is True
    assert isinstance(output, types.TextResourceContents)
    assert output.text == "abcdefg" * 20_000
