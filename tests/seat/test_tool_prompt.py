"""A genome's `tool_prompt`, typed: proposed, promoted, read by a model with calls in text."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from evoclaw.cli import exits
from evoclaw.core.profile import CallStyle
from evoclaw.providers.text_calls import shipped_tool_prompt
from tests.support.model_server import ModelServer, model_server
from tests.support.up_process import PATIENCE, UpProcess, ok, start_run, up_process, wait_for_state
from tests.support.waiting import until

pytest.importorskip("gepa", reason="install gepa")

ROOT = Path(__file__).parents[2]
RULE = "Answer with the result only."
SETTINGS = """
[[agents]]
id = "adder"
prompt = "You add."
capabilities = ["file_read"]
tools = ["read"]

[agents.evolution]
proposers = ["gepa"]
repeats = 1
shadow_runs = 1
canary_share = 1.0
canary_runs = 1
watch_runs = 1
"""
QUESTION = "How much is 1 plus 1?"


class Adder(ModelServer):
    """Adds; answers briefly if what tells it its tools has the rule, and adds it if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        """The instructions of each request to add."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert "tools" not in body, "it has no native calls"
        texts = [str(message["content"]) for message in body["messages"]]
        if "You improve one text" in texts[-1]:
            answer = self._improved(texts[-1])
        else:
            answer = json.dumps({"name": "answer", "arguments": {"text": self._sum(texts)}})
        self.scripts[texts[-1]] = f"recite {json.dumps(answer)}"
        return await super().complete(request)

    def _improved(self, said: str) -> str:
        now = re.search(r"The text now:\n(.*?)\n\nThe agent had", said, re.S)
        if now is None or "what tells its model the tools" not in said:
            return "It is good."
        assert now[1] == shipped_tool_prompt(CallStyle.JSON)
        return f"<text>{now[1]}\n{RULE}</text>"

    def _sum(self, texts: list[str]) -> str:
        numbers = [found for text in texts for found in re.findall(r"(\d+) plus (\d+)", text)]
        if not numbers:
            return "I only add."
        self.told.append(texts[0])
        result = str(sum(map(int, numbers[-1])))
        return result if texts[0].endswith(RULE) else f"I believe it is {result}."


@asynccontextmanager
async def adder(folder: Path) -> AsyncGenerator[tuple[UpProcess, Adder]]:
    """The agent with its cases; the service is not started."""
    async with model_server(Adder()) as models, up_process(folder) as up:
        assert isinstance(models, Adder)
        model = {"EVOCLAW_MODEL": "vllm/qwen2.5-coder-adder"}
        up.shell.env |= models.env | model
        up.configure(SETTINGS)
        making = await asyncio.create_subprocess_exec(
            "sh", str(ROOT / "examples/evolution/make_cases.sh"), str(up.home / "cases")
        )
        assert await making.wait() == 0
        yield up, models


async def test_a_tool_prompt_is_found_promoted_and_read_by_the_model_of_real_sessions(
    tmp_path: Path,
) -> None:
    async with adder(tmp_path) as (up, models):

        async def typed(*arguments: str) -> Any:
            ran = await up.shell.type(*arguments, "--json")
            assert ran.out, ran.err
            return json.loads(ran.out)

        async def candidate() -> dict[str, Any]:
            (found,) = (await typed("evolve", "list", "adder"))["candidates"]
            return found

        async def asked() -> tuple[str, list[Any]]:
            """The run of a new session, and its events."""
            run = await start_run(client, QUESTION, agent="adder")
            await wait_for_state(client, run)
            records = await client.get(f"/v1/runs/{run}/records")
            return run, [json.loads(line)["event"] for line in records.body.splitlines()]

        ran = await up.shell.type("evolve", "adder")
        assert "waits for an approval" in ran.out, (ran.out, ran.err)
        found = await candidate()
        number = str(found["number"])
        promoted_text = f"{shipped_tool_prompt(CallStyle.JSON)}\n{RULE}"
        assert found["genome"] == {"tool_prompt": promoted_text}
        approved = await up.shell.type("evolve", "approve", "adder", number, "--reason", "brief")
        assert approved.code == exits.OK, approved.err

        client = await up.start(edge=True)
        await up.wait_online(client)
        old, events = await asked()
        assert events[-1]["text"] == "I believe it is 2."
        assert "tool_prompt" not in events[0]["settings"]

        async def reached(stage: str) -> bool:
            now = await candidate()
            assert now["state"] != "rejected", (now, up.output())
            return stage in (now["stage"], now["state"])

        await until(lambda: reached("canary"), PATIENCE)
        await asked()
        await until(lambda: reached("promoted"), PATIENCE)
        new, events = await asked()
        assert events[-1]["text"] == "2"
        assert events[0]["settings"]["tool_prompt"] == promoted_text
        assert '{"name":"read"' in models.told[-1] and "{tools}" not in models.told[-1]
        for run in (old, new):
            replay = ok(await client.post(f"/v1/runs/{run}/replay"))
            assert replay["same"], replay

        shown = await up.shell.type("genome", "show", "adder")
        assert RULE in shown.out and "tool_prompt" in shown.out
        diff = await typed("genome", "diff", "adder", "0")
        assert diff == {"tool_prompt": promoted_text}
        assert (await up.shell.type("genome", "verify", "adder")).code == exits.OK
        version = str((await typed("genome", "show", "adder"))["version"])
        for number, rate in (("0", 0), (version, 1)):
            done = await typed("eval", "adder", "--genome", number, "--cases", "sum-1")
            assert done["total"]["passed"] == rate
        assert models.told[-1].endswith(RULE) and not models.told[-2].endswith(RULE)
        assert (await up.shell.type("genome", "rollback", "adder")).code == exits.OK
        _, events = await asked()
        assert events[-1]["text"] == "I believe it is 2."
