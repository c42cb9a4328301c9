"""Asking an agent over HTTP: once, in the loop, as a stream; and what it says when it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.providers.scripted import calls, says
from tests.support.chat_service import SUMS, ChatService, HeldModel, script_of, serve_agents

ITERATIVE = "/v1/agents/lead/invoke-iterative"


async def test_invoke_is_one_reply_without_tools(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, says('```json\n{"total": 3}\n```')) as house:
        async with await house.http() as http:
            body = {"inputs": {"a": 1, "b": 2}, "temperature": 0.5}
            answer = await http.post("/v1/agents/sums/invoke", json=body)
        assert answer.status_code == 200
        assert answer.json() == {
            "agent": "sums",
            "output": {"total": 3},
            "tokens_used": 15,
            "model": "scripted/model",
        }
        run = await house.runs.get("local", answer.headers["x-evoclaw-run"])
        assert run is not None
        assert (run.agent, run.turns, run.asked) == ("sums", 1, '{"a":1,"b":2}')


async def test_invoke_never_offers_a_tool_and_never_confirms(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, says("done")) as house, await house.http() as http:
        answer = await http.post("/v1/agents/lead/invoke", json={"inputs": {"task": "x"}})
        assert answer.json()["output"] == {"result": "done"}
        (asked,) = script_of(house).requests
        assert asked.tools == ()


async def test_invoke_iterative_returns_the_documented_fields(tmp_path: Path) -> None:
    script = (calls(("work", {"what": "a"})), says("done"), says("COMPLETED: all done"))
    async with serve_agents(tmp_path, *script) as house, await house.http() as http:
        answer = await http.post(ITERATIVE, json={"inputs": {"task": "work"}})
        shape = answer.json()
        assert shape.pop("run_id") == answer.headers["x-evoclaw-run"]
        assert shape == {
            "agent": "lead",
            "output": {"result": "all done"},
            "raw_response": "all done",
            "tokens_used": 45,
            "model": "scripted/model",
            "iterations": 3,
            "tool_calls_made": 1,
            "tools_used": ["work"],
            "termination_reason": "completed",
        }


async def test_max_iterations_and_double_confirmation_can_be_set(tmp_path: Path) -> None:
    again = [calls(("work", {"what": str(n)})) for n in range(2)]
    script = (*again, says("that far"), says("unconfirmed"))
    async with serve_agents(tmp_path, *script) as house, await house.http() as http:
        short = await http.post(ITERATIVE, json={"max_iterations": 2})
        assert short.json()["termination_reason"] == "max_iterations"
        assert short.json()["raw_response"] == "that far"
        once = await http.post(ITERATIVE, json={"enable_double_confirmation": False})
        assert (once.json()["iterations"], once.json()["raw_response"]) == (1, "unconfirmed")


async def test_the_timeout_of_calls_can_be_set_for_one_run(tmp_path: Path) -> None:
    async def never(what: str) -> str:
        await asyncio.Event().wait()
        return what

    script = (calls(("work", {"what": "a"})), says("It took too long."))
    async with serve_agents(tmp_path, *script) as house, await house.http() as http:
        house.house.body = never
        body = {"tool_call_timeout_seconds": 0.05, "enable_double_confirmation": False}
        answer = await http.post(ITERATIVE, json=body)
        assert answer.json()["raw_response"] == "It took too long."
        result = script_of(house).requests[-1].messages[-1]
        assert "Tool 'work' timed out after 0.05s." in str(result)


async def test_a_stream_sends_every_record_and_then_the_answer(tmp_path: Path) -> None:
    script = (calls(("work", {"what": "a"})), says("done"), says("COMPLETED: all done"))
    async with serve_agents(tmp_path, *script) as house, await house.http() as http:
        answer = await http.post(f"{ITERATIVE}/stream", json={"inputs": {"task": "work"}})
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = [block for block in answer.text.split("\n\n") if "event: " in block]
        names = [block.split("event: ")[1].split("\n")[0] for block in found]
        assert names[0] == "run_started"
        assert names[-2:] == ["run_finished", "response"]
        assert "call_started" in names
        assert found[0].startswith("id: 1\n")
        last = msgspec.json.decode(found[-1].split("data: ")[1])
        assert last["termination_reason"] == "completed"
        assert last["run_id"] == answer.headers["x-evoclaw-run"]


async def status(house: ChatService, path: str, body: Any, *scopes: str) -> tuple[int, Any]:
    async with await house.http(*scopes) as http:
        answer = await http.post(path, json=body)
    return answer.status_code, answer.json().get("error", {})


async def test_invalid_invocations_return_404_422_or_403(tmp_path: Path) -> None:
    async with serve_agents(tmp_path) as house:
        for way in ("invoke", "invoke-iterative", "invoke-iterative/stream"):
            code, error = await status(house, f"/v1/agents/nobody/{way}", {})
            assert (code, error["code"]) == (404, "not_found")
            wrong = {"inputs": {"b": "x", "c": 1}}
            code, error = await status(house, f"/v1/agents/sums/{way}", wrong)
            assert (code, error["code"]) == (422, "bad_inputs")
            assert set(error["details"]["problems"]) == {"a", "b", "c"}
            for bad in ({"inputs": 1}, {"temperature": 9}, {"input": 1}, {"temperature": "hot"}):
                assert (await status(house, f"/v1/agents/lead/{way}", bad))[0] == 422
            assert (await status(house, f"/v1/agents/lead/{way}", {}, "runs:read"))[0] == 403
        code, _ = await status(house, ITERATIVE, {"max_iterations": 0})
        assert code == 422
        assert await house.runs.list("local") == []


async def test_a_failing_provider_is_502_and_an_unusable_one_503(tmp_path: Path) -> None:
    down = ProviderError(ProviderErrorKind.SERVER_ERROR, "it is down")
    shut = ProviderError(ProviderErrorKind.AUTH_ERROR, "no key")
    async with serve_agents(tmp_path, down, down, shut) as house:
        code, error = await status(house, "/v1/agents/lead/invoke", {})
        assert (code, error["message"]) == (502, "it is down")
        assert (await status(house, ITERATIVE, {}))[0] == 502
        assert (await status(house, ITERATIVE, {}))[0] == 503
        await house.runs.drain(0)
        code, error = await status(house, ITERATIVE, {})
        assert (code, error["code"]) == (503, "draining")


async def test_a_cancelled_run_is_reported_to_its_caller(tmp_path: Path) -> None:
    for path, wanted in (("/v1/agents/lead/invoke", 409), (ITERATIVE, 200)):
        model = HeldModel()
        async with serve_agents(tmp_path / str(wanted), model=model) as house, asyncio.timeout(30):
            asking = asyncio.create_task(status(house, path, {}))
            await model.asked.wait()
            (run,) = await house.runs.list("local")
            await house.runs.cancel("local", run.run_id)
            code, error = await asking
            assert code == wanted
            assert error.get("details", {"run_id": run.run_id}) == {"run_id": run.run_id}


async def test_concurrent_requests_with_one_idempotency_key_share_one_run(tmp_path: Path) -> None:
    script = (says("one"), says("COMPLETED: one"))
    async with serve_agents(tmp_path, *script) as house, await house.http() as http:
        headers = {"idempotency-key": "k"}
        found = await asyncio.gather(
            *(http.post(ITERATIVE, json={}, headers=headers) for _ in range(3))
        )
        assert len({answer.text for answer in found}) == 1
        assert len(await house.runs.list("local")) == 1
        other = await http.post(ITERATIVE, json={"inputs": {"x": 1}}, headers=headers)
        assert other.status_code == 409


async def test_agents_are_listed_with_their_description_and_inputs(tmp_path: Path) -> None:
    async with serve_agents(tmp_path) as house, await house.http() as http:
        listed = (await http.get("/v1/agents")).json()["agents"]
        assert [one["name"] for one in listed] == ["lead", "talker", "sums"]
        one = (await http.get("/v1/agents/sums")).json()
        assert one == listed[2]
        assert one["inputs"]["a"] == {"type": "integer", "required": True}
        assert one["max_iterations"] == 20
        assert one["model"] == SUMS.model
        assert "prompt" not in one
        assert (await http.get("/v1/agents/nobody")).status_code == 404
