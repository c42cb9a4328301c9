"""The wire as a public contract: other software speaks to an orchestrator and to an edge."""

from __future__ import annotations

import json
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.core.messages import JSON
from tests.support.mosquitto_clients import MosquittoClient, needs_mosquitto_clients
from tests.support.seat import Seat, seat
from tests.support.up_process import PATIENCE, ok, start_run, wait_for_state
from tests.support.waiting import until

ADVERT = (
    '{ "agent_id": "alex-eye", '
    '"capabilities": "Pi sensor node — temperature, CPU/disk stats, camera" }'
)
"""The advert of the design document, literally."""
HEARTBEAT = (
    '{"agent_id":"alex-eye","agent_type":"monitor","report_type":"heartbeat",'
    '"payload":{"cpu_percent":"42%"}}'
)
COMMAND = """{
  "command": "tool",
  "payload": {
    "tool": "bash",
    "parameters": {
      "command": "ls -la"
    },
    "timeout_ms": 30000,
    "request_id": "req-1739635200000000000"
  },
  "request_id": "req-1739635200000000000"
}"""
"""The command of the design document, literally."""


def at(agent_id: str, kind: str) -> str:
    return f"evoclaw/agents/{agent_id}/{kind}"


async def account_of(place: Seat, name: str) -> MosquittoClient:
    made = await place.type("edges", "account", name, "--json")
    assert made.code == exits.OK, made.err
    account = MosquittoClient(**json.loads(made.out))
    await account.wait_accepted(at(name, "reports"))
    return account


def orchestrator_account(place: Seat) -> MosquittoClient:
    login = json.loads((place.up.home / "orchestrator.json").read_text())
    return MosquittoClient(login["url"], login["username"], login["password"])


async def asked_with(place: Seat, run_id: str) -> str:
    """What the model was told at the end of a run, after it was called."""
    client = await place.up.wait_ready()
    await wait_for_state(client, run_id)
    return json.dumps(place.up.models.asked[-1].body["messages"][-1], ensure_ascii=False)


@needs_mosquitto_clients
async def test_a_device_that_speaks_only_the_basic_messages_is_online_and_answers(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        client = await place.up.wait_ready()
        for number in range(3):
            place.up.models.scripts[f"how warm is it, {number}?"] = (
                'call edge_call {"agent_id": "alex-eye", "query": "What is the temperature?"}\n'
                "say Now I know."
            )
        pi = await account_of(place, "alex-eye")
        async with pi.subscribed(at("alex-eye", "commands")) as commands:
            await pi.publish(at("alex-eye", "capabilities"), ADVERT, retain=True)
            await pi.publish(at("alex-eye", "reports"), HEARTBEAT)

            async def online() -> bool:
                edges: list[JSON] = ok(await client.get("/v1/fleet"))["items"]
                return any(edge["agent_id"] == "alex-eye" and edge["online"] for edge in edges)

            await until(online, PATIENCE, "alex-eye is online")
            shown = ok(await client.get("/v1/fleet/alex-eye"))
            assert shown["delivery_guarantees"] is False
            assert "camera" in shown["summary"]
            await pi.publish(at("alex-eye", "reports"), HEARTBEAT)

            run_id = await start_run(client, "how warm is it, 0?")
            command = await commands.wait_for(1)
            assert command["command"] == "prompt"
            assert command["payload"]["prompt"] == "What is the temperature?"
            answer = {"content": "CPU temperature is 42.3°C", "request_id": command["request_id"]}
            report = {"agent_id": "alex-eye", "agent_type": "monitor", "report_type": "result"}
            await pi.publish(at("alex-eye", "reports"), json.dumps({**report, "payload": answer}))
            assert "CPU temperature is 42.3°C" in await asked_with(place, run_id)

            run_id = await start_run(client, "how warm is it, 1?")
            command = await commands.wait_for(2)
            empty = {"request_id": command["request_id"], "elapsed_ms": 3}
            await pi.publish(at("alex-eye", "reports"), json.dumps({**report, "payload": empty}))
            assert "must have `result` or `content`" in await asked_with(place, run_id)

            run_id = await start_run(client, "how warm is it, 2?")
            await commands.wait_for(3)
            bare = {"status": "success", "tool": "bash", "result": "temp=45.6°C", "exit_code": 0}
            await pi.publish(at("alex-eye", "reports"), json.dumps(bare))
            assert "temp=45.6°C" in await asked_with(place, run_id)

            listed = await place.type("edges")
            assert listed.code == exits.OK, listed.err
            assert "alex-eye             online " in listed.out
            assert "camera (no delivery guarantees)" in listed.out
            kinds = {message["command"] for message in commands.messages}
            assert (kinds, len(commands.messages)) == ({"prompt"}, 3)


@needs_mosquitto_clients
async def test_an_edge_runs_the_documented_command_and_answers_unreadable_ones(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        account = await account_of(place, "living-room-pi")
        edge = place.new_edge("living-room-pi")
        home = edge.shell.home
        (home / "password").write_text(account.password)
        edge.config.write_text(
            f"""agent_id = "living-room-pi"
capabilities = ["*"]
allow_unsigned = true
workspace = "files"

[broker]
url = "{account.url}"
username = "living-room-pi"
password_file = "password"
"""
        )
        (home / "files").mkdir()
        (home / "files" / "file1.txt").write_text("1")
        await edge.start()
        await place.wait_online(edge.name)

        sender = orchestrator_account(place)
        commands, reports = at(edge.name, "commands"), at(edge.name, "reports")
        async with sender.subscribed(reports) as heard:

            def outcomes() -> list[JSON]:
                return [
                    message["payload"]
                    for message in heard.messages
                    if message["report_type"] in ("result", "error")
                ]

            await sender.publish(commands, COMMAND)
            await until(lambda: len(outcomes()) == 1, PATIENCE, "the command is answered")
            done = outcomes()[0]
            assert (done["status"], done["tool"], done["exit_code"]) == ("success", "bash", 0)
            assert done["request_id"] == "req-1739635200000000000"
            assert "file1.txt" in done["result"]

            await sender.publish(commands, '{"command": "tool", "payload": {"tool": "bash"}}')
            await sender.publish(commands, "take a picture, please")

            def refusals() -> list[str]:
                return [one["error"] for one in outcomes() if one["status"] == "error"]

            await until(lambda: len(refusals()) == 2, PATIENCE, "both are answered")
            assert "has no request_id" in refusals()[0]
            assert "not JSON" in refusals()[1]
