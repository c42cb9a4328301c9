"""The service through the whole house: `evoclaw up` as a process, a model server beside it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import pytest
import pytest_asyncio

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.settings import WebhookSettings
from evoclaw.orchestrator.channels.signatures import WebhookSignatures
from tests.api.test_runs import all_events, next_event, watching
from tests.support.model_server import ModelServer
from tests.support.service import Client
from tests.support.up_process import (
    PATIENCE,
    SETTINGS,
    UpProcess,
    ok,
    session_texts,
    start_run,
    up_process,
    wait_for_state,
)
from tests.support.waiting import until
from tests.support.webhook_receiver import WebhookReceiver, open_webhook_receiver

SECRET = "0123456789abcdef0123456789abcdef"
CAREFUL = """
[[agents]]
id = "careful"
capabilities = ["*"]
"""
HOOK = """
[[channels]]
name = "hook"
kind = "webhook"
agent = "evoclaw"
senders = {{ U1 = "ann" }}

[channels.webhook]
secret_env = "HOOK_SECRET"
callback_url = "{url}"
"""
GREET = """
description = "Writes a letter, if a person lets it."
output = "{{ steps.letter.output.text }} / {{ steps.read.output.text }}"

[inputs.to]
type = "string"

[[steps]]
name = "letter"
kind = "agent"
agent = "evoclaw"
message = "say Dear {{ inputs.to }}"

[[steps]]
name = "sure"
kind = "approval"
message = "Send {{ steps.letter.output.text }}?"

[[steps]]
name = "write"
kind = "tool"
tool = "write"
arguments = { path = "letter.txt", content = "{{ steps.letter.output.text }}" }

[[steps]]
name = "read"
kind = "tool"
tool = "bash"
arguments = { command = "cat letter.txt" }
"""
MARK = 'call bash {"command": "echo x >> %s"}\nsay done'
module = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Here:
    """One `evoclaw up` with an edge, for all tests that neither stop nor break it."""

    up: UpProcess
    owner: Client
    posts: WebhookReceiver

    @property
    def models(self) -> ModelServer:
        return self.up.models

    def marks(self, name: str) -> int:
        """How often a command left its mark on the edge."""
        return self.up.marks(name)


@pytest_asyncio.fixture(name="here", scope="module", loop_scope="module")
async def _here(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Here]:
    async with AsyncExitStack() as stack:
        posts = await stack.enter_async_context(open_webhook_receiver())
        up = await stack.enter_async_context(up_process(tmp_path_factory.mktemp("up")))
        up.configure(SETTINGS + CAREFUL + HOOK.format(url=posts.url))
        up.shell.env["HOOK_SECRET"] = SECRET
        owner = await up.start(edge=True)
        await up.wait_online(owner)
        yield Here(up, owner, posts)
    assert "Traceback" not in up.output(), up.output()


@module
async def test_two_watchers_see_the_same_events_and_can_resume_by_event_id(here: Here) -> None:
    run_id = await start_run(here.owner, f"{MARK % 'watched'}\nnever")
    path = f"/v1/runs/{run_id}/events"
    whole, same = await asyncio.gather(all_events(here.owner, path), all_events(here.owner, path))
    numbers = [int(event.id) for event in whole]
    assert numbers == sorted(set(numbers))
    assert [event.event for event in whole][0] == "run_started"
    assert "call_output" in [event.event for event in whole] or here.marks("watched") == 1
    assert whole[-1].data["event"]["text"] == "done"
    assert same == whole
    for cut in (1, len(whole) // 2, len(whole) - 1):
        rest = await all_events(here.owner, path, last_event_id=whole[cut - 1].id)
        assert rest == whole[cut:]
    assert await all_events(here.owner, path, last_event_id=whole[-1].id) == []
    assert here.marks("watched") == 1


@module
async def test_a_watcher_that_reconnects_during_a_reply_misses_no_event(here: Here) -> None:
    run_id = await start_run(here.owner, "wait middle 40")
    path = f"/v1/runs/{run_id}/events"
    seen: list[JSON] = []
    async with watching(here.owner, path) as stream:
        while sum(one.event == "text_delta" for one in seen) < 10:
            event = await next_event(stream)
            assert event is not None
            seen.append(event)
    rest = asyncio.create_task(all_events(here.owner, path, last_event_id=seen[-1].id))
    here.models.gates["middle"].set()
    seen += await rest
    words = "".join(e.data["event"]["text"] for e in seen if e.event == "text_delta")
    assert words == "".join(f"word{number} " for number in range(40))
    assert seen == await all_events(here.owner, path)


@module
async def test_a_message_steers_a_running_run(here: Here) -> None:
    run_id = await start_run(here.owner, "wait steered 10")
    await asyncio.wait_for(here.models.held["steered"].wait(), PATIENCE)
    said = await here.owner.post(f"/v1/runs/{run_id}/messages", {"message": "say heard you"})
    assert said.status == 202
    here.models.gates["steered"].set()
    view = await wait_for_state(here.owner, run_id)
    assert (view["stop"], view["text"]) == ("completed", "heard you")
    late = await here.owner.post(f"/v1/runs/{run_id}/messages", {"message": "say more"})
    assert (late.status, late.code) == (409, "ended")


@module
async def test_cancelling_a_run_closes_its_model_request(here: Here) -> None:
    run_id = await start_run(here.owner, "wait cancelled 10")
    await asyncio.wait_for(here.models.held["cancelled"].wait(), PATIENCE)
    gone = here.models.gone
    assert ok(await here.owner.post(f"/v1/runs/{run_id}/cancel"))["cancelled"] is True
    view = await wait_for_state(here.owner, run_id)
    assert view["stop"] == "cancelled"
    await until(lambda: here.models.gone == gone + 1, say="the model's reply is not heard out")
    assert here.models.count("wait cancelled") == 1
    assert ok(await here.owner.post(f"/v1/runs/{run_id}/cancel"))["cancelled"] is False


@module
@pytest.mark.parametrize("by", ["http", "command", "denied"])
async def test_a_run_waits_for_approval_and_continues_with_the_decision(
    here: Here, by: str
) -> None:
    run_id = await start_run(here.owner, MARK % f"approved-{by}", agent="careful")
    waiting = await wait_for_state(here.owner, run_id, "waiting")
    assert waiting["stop"] == "waiting"
    found = ok(await here.owner.get(f"/v1/approvals?run_id={run_id}"))["items"]
    assert [one["tool"] for one in found] == ["bash"]
    assert here.marks(f"approved-{by}") == 0
    match by:
        case "http":
            ok(await here.owner.post(f"/v1/runs/{run_id}/approve"))
        case "denied":
            ok(await here.owner.post(f"/v1/runs/{run_id}/deny", {"reason": "not now"}))
        case _:
            # Another process of the person's, which knows nothing of the one that runs.
            typed = await here.up.shell.type("approvals", "approve", found[0]["id"])
            assert typed.code == 0, typed.err
    view = await wait_for_state(here.owner, run_id)
    assert (view["stop"], view["text"]) == ("completed", "done")
    assert here.marks(f"approved-{by}") == (by != "denied")
    assert here.models.count(MARK % f"approved-{by}") == 2, "no turn was paid twice"


@module
async def test_a_run_continues_when_its_question_is_answered(here: Here) -> None:
    asks = json.dumps({"question": "Which colour?", "options": ["red", "blue"]})
    run_id = await start_run(here.owner, f"call question {asks}\nsay thank you")
    await wait_for_state(here.owner, run_id, "waiting")
    found = ok(await here.owner.get("/v1/questions"))["items"]
    assert [(one["run_id"], one["text"]) for one in found] == [(run_id, "Which colour?")]
    wrong = await here.owner.post(f"/v1/runs/{run_id}/answer", {"question_id": "x", "text": "?"})
    assert wrong.status == 404
    ok(await here.owner.post(f"/v1/runs/{run_id}/answer", {"chosen": ["blue"]}))
    assert (await wait_for_state(here.owner, run_id))["text"] == "thank you"
    told = here.models.asked[-1].body["messages"][-1]
    assert told["role"] == "tool" and "blue" in str(told["content"])


@module
async def test_messages_of_one_session_run_one_after_the_other(here: Here) -> None:
    session = ok(await here.owner.post("/v1/sessions", {"agent": "evoclaw"}))["id"]
    first = await start_run(here.owner, "wait first 4", session_id=session)
    await asyncio.wait_for(here.models.held["first"].wait(), PATIENCE)
    both = [
        start_run(here.owner, f"say {name}", session_id=session) for name in ("second", "third")
    ]
    second, third = await asyncio.gather(*both)
    other = await start_run(here.owner, "say elsewhere")
    assert (await wait_for_state(here.owner, other))["text"] == "elsewhere"
    assert here.models.count("say second") == here.models.count("say third") == 0
    states = [ok(await here.owner.get(f"/v1/runs/{one}"))["state"] for one in (second, third)]
    assert states == ["queued", "queued"]
    here.models.gates["first"].set()
    views = [await wait_for_state(here.owner, one) for one in (first, second, third)]
    spans = sorted((view["began_at"], view["ended_at"]) for view in views)
    assert all(view["stop"] == "completed" for view in views)
    said = await session_texts(here.owner, session)
    assert len(said) == 6 and said[0] == "wait first 4"
    assert {said[2], said[4]} == {"say second", "say third"}
    assert [said[3], said[5]] == [text.removeprefix("say ") for text in (said[2], said[4])]
    assert spans[0][0] < spans[0][1] <= spans[1][1] <= spans[2][1]


@module
async def test_a_workflow_added_to_the_folder_runs_with_its_approval(here: Here) -> None:
    folder = here.up.home / "workflows"
    folder.mkdir(exist_ok=True)
    (folder / "greet.toml").write_text(GREET)
    (folder / "broken.toml").write_text("[[steps]]\nkind = 'nothing'\n")
    listed = ok(await here.owner.get("/v1/workflows"))["items"]
    assert {one["name"]: bool(one.get("problem")) for one in listed} == {
        "greet": False,
        "broken": True,
    }
    started = await here.owner.post("/v1/workflows/greet/runs", {"inputs": {"to": "Ann"}})
    path = f"/v1/workflow-runs/{ok(started)['id']}"
    await here.owner.until(path, "state", "waiting")
    assert not (here.up.workspace / "letter.txt").exists()
    ok(await here.owner.post(f"{path}/answer", {"step": "sure", "decision": "approve"}))
    async with asyncio.timeout(PATIENCE):
        await all_events(here.owner, f"{path}/events")
    view = ok(await here.owner.get(path))
    assert (view["state"], view["output"]) == ("succeeded", "Dear Ann / Dear Ann"), view
    assert (here.up.workspace / "letter.txt").read_text() == "Dear Ann"


@module
async def test_a_signed_webhook_message_is_answered_at_the_callback(here: Here) -> None:
    signatures = WebhookSignatures(WebhookSettings(secret_env="X"), SECRET.encode())
    body = msgspec.json.encode(
        {"message": "say twelve minutes", "sender": "U1", "conversation": "c", "message_id": "m1"}
    )

    async def post(headers: dict[str, str]) -> int:
        url = f"{here.owner.url}/v1/channels/hook"
        async with here.owner.http.post(url, data=body, headers=headers) as response:
            return response.status

    assert await post({}) == 401
    signed = signatures.headers(body, time.time())
    assert await asyncio.gather(post(signed), post(signed)) == [202, 202]
    (answer,) = await here.posts.wait_for_posts(1)
    assert (answer["state"], answer["text"]) == ("answer", "twelve minutes")
    signatures.check(here.posts.headers[0], here.posts.bodies[0], time.time())
    assert here.models.count("say twelve minutes") == 1, "the same letter twice is one run"


@module
async def test_settings_are_reloaded_on_sighup_and_invalid_ones_change_nothing(here: Here) -> None:
    file = here.up.home / "evoclaw.toml"
    before = file.read_text()
    unknown = await here.owner.post("/v1/runs", {"message": "say hi", "agent": "fresh"})
    assert unknown.status == 404
    goes_on = await start_run(here.owner, "wait reload 4")
    await asyncio.wait_for(here.models.held["reload"].wait(), PATIENCE)
    file.write_text(f"{before}\n[[agents]]\nid = 'fresh'\nprompt = 'You are new here.'\n")
    here.up.signal(signal.SIGHUP)
    await here.up.wait_for_output("settings reloaded: agents")
    run_id = await start_run(here.owner, "say I am new", agent="fresh")
    assert (await wait_for_state(here.owner, run_id))["text"] == "I am new"
    (asked,) = [one for one in here.models.asked if one.said == "say I am new"]
    assert "You are new here." in str(asked.body["messages"][0]["content"])
    assert "tools" not in asked.body, "it has no capabilities"
    file.write_text(f"{before}\n[[agents]]\nid = 'fresh'\nautonomy = 'boundless'\n")
    here.up.signal(signal.SIGHUP)
    await here.up.wait_for_output("the settings were not reloaded: ")
    assert "autonomy" in here.up.output()
    run_id = await start_run(here.owner, "say still here", agent="fresh")
    assert (await wait_for_state(here.owner, run_id))["text"] == "still here"
    file.write_text(before)
    here.up.signal(signal.SIGHUP)
    here.models.gates["reload"].set()
    assert (await wait_for_state(here.owner, goes_on))["stop"] == "completed"


@module
async def test_config_set_changes_the_settings_of_a_running_service(here: Here) -> None:
    file = here.up.home / "evoclaw.toml"
    before = file.read_text()
    file.write_text(f"{before}\n[[agents]]\nid = 'set'\n")
    typed = await here.up.shell.type("config", "set", "agents.set.prompt", "You were set.")
    assert "the running service uses it from the next run on" in typed.err
    run_id = await start_run(here.owner, "say I was set", agent="set")
    assert (await wait_for_state(here.owner, run_id))["text"] == "I was set"
    (asked,) = [one for one in here.models.asked if one.said == "say I was set"]
    assert "You were set." in str(asked.body["messages"][0]["content"])
    typed = await here.up.shell.type("config", "set", "runs.lease_s", "21")
    assert "it takes effect when you restart `evoclaw up`" in typed.err
    refused = await here.up.shell.type("config", "set", "agents.set.autonomy", "boundless")
    assert refused.code == 2 and "allowed: " in refused.err
    file.write_text(before)
    reloaded = await here.owner.post("/v1/settings/reload", {})
    assert "agents" in ok(reloaded)["changed"]
