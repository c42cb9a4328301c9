"""A2A on the broker of a real `evoclaw up`, used by Mosquitto's own clients."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from evoclaw.core.messages import JSON
from tests.support.mosquitto_clients import MosquittoClient, needs_mosquitto_clients
from tests.support.up_process import PATIENCE, SETTINGS, up_process

A2A_SETTINGS = f"""{SETTINGS}
[a2a]
mqtt = true
prefix = "$a2a"
org = "acme"
unit = "lab"
"""
CARD, REQUEST = "$a2a/v1/discovery/acme/lab/evoclaw", "$a2a/v1/request/acme/lab/evoclaw"
REPLY = "$a2a/v1/reply/acme/lab/ann/1"


async def ask(client: MosquittoClient, token: str, text: str, task_id: str = "") -> JSON:
    """What `mosquitto_rr` gets as the reply to a message."""
    task_id = task_id or str(uuid4())
    message: JSON = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    params: JSON = {"message": {**message, "taskId": task_id}}
    body: JSON = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    options = [*client.options, "-V", "mqttv5", "-t", REQUEST, "-e", REPLY, "-m", json.dumps(body)]
    options += ["-D", "publish", "correlation-data", "7"]
    options += ["-D", "publish", "user-property", "a2a-authorization", f"Bearer {token}"]
    process = await asyncio.create_subprocess_exec(
        "mosquitto_rr", *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert out, err
    return json.loads(out)


@pytest.mark.process
@needs_mosquitto_clients
@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="install mosquitto-clients")
@pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin") is None,
    reason="install mosquitto",
)
async def test_an_account_of_the_broker_finds_an_agent_and_sends_it_a_task(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        up.configure(A2A_SETTINGS)
        await up.start("--engine", "mosquitto")
        login = json.loads((up.home / "orchestrator.json").read_text())
        made = await up.shell.type("channels", "user", "ann")
        scopes = ("--scope", "agents:invoke")
        token = await up.shell.type("token", "new", "--name", "ann", *scopes)
        assert (made.code, token.code) == (0, 0), (made.err, token.err)
        password = made.out.strip().splitlines()[-1].split()[-1]
        ann = MosquittoClient(login["url"], "ann", password, login.get("ca_file") or "")
        await ann.wait_accepted(REQUEST)
        async with ann.subscribed(CARD) as cards:
            card = await cards.wait_for(1)
            assert card["name"] == "evoclaw"
            task_id = str(uuid4())
            done = await ask(ann, token.out.strip(), "say hello over there", task_id)
            task = done["result"]["task"]
            assert task["id"] == task_id
            assert task["artifacts"][0]["parts"][0]["text"] == "hello over there"
            refused = await ask(ann, "ec_not_a_token", "say hello")
            assert refused["error"]["data"][0]["reason"] == "UNAUTHENTICATED"
            await up.kill()
            client = await up.start("--engine", "mosquitto")
            found = await client.post(
                "/a2a",
                {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task_id}},
            )
            assert found.json["result"]["status"]["state"] == "TASK_STATE_COMPLETED"
