"""What the models of edges use counts for the run that asked them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.seat import seat
from tests.support.up_process import ENDED, SETTINGS, ok, start_run, wait_for_state

pytestmark = pytest.mark.process
MODEL = '\n[model]\nname = "vllm/qwen3-scripted"\n'
FLOW_OFF = '\n[flow]\npreset = "off"\n'
REPLY_TOKENS = 15
"""What the model server reports for each reply."""


async def test_a_small_model_of_an_edge_is_offered_few_tools(tmp_path: Path) -> None:
    async with seat(tmp_path, SETTINGS + FLOW_OFF) as here:
        edge = await here.join("garage", toml='\n[model]\nname = "llamacpp/qwen2.5-coder-0.5b"\n')
        edge.shell.env["LLAMACPP_BASE_URL"] = here.up.models.env["VLLM_BASE_URL"]
        await edge.start()
        await here.wait_online("garage")
        query = json.dumps({"agent_id": "garage", "query": "say hello"})
        here.up.models.scripts["ask"] = f"call edge_call {query}\nsay Done."
        here.up.models.scripts["say hello"] = "say hello"
        client = await here.up.wait_ready()
        await wait_for_state(client, await start_run(client, "ask"), ENDED)
        (told,) = [asked.body for asked in here.up.models.asked if asked.said == "say hello"]
        assert "no others: read, bash, answer." in str(told["messages"]), told


async def test_tokens_of_the_models_of_edges_count_for_the_run_that_asked(tmp_path: Path) -> None:
    async with seat(tmp_path, SETTINGS + FLOW_OFF) as here:
        for name in ("garage", "shed"):
            edge = await here.join(name, toml=MODEL)
            edge.shell.env.update(here.up.models.env)
            await edge.start()
            await here.wait_online(name)

        def ask(agent_id: str, query: str) -> str:
            return f"call edge_call {json.dumps({'agent_id': agent_id, 'query': query})}"

        scripts = here.up.models.scripts
        scripts["ask the garage"] = f"{ask('garage', 'ask the shed')}\nsay Done."
        scripts["ask the shed"] = f"{ask('shed', 'say hello')}\nsay It said hello."
        scripts["say hello"] = "say hello"
        client = await here.up.wait_ready()
        run = await start_run(client, "ask the garage")
        await wait_for_state(client, run, ENDED)

        replies = len(here.up.models.asked)
        assert replies == 5, "two of the orchestrator, two of the garage, one of the shed"
        shown = await here.type("runs", "show", run)
        assert shown.code == exits.OK, shown.err
        assert f" {replies * REPLY_TOKENS} tokens" in shown.out, shown.out
        budget = ok(await client.get(f"/v1/budgets/runs/{run}"))
        (tokens,) = [kind["spent"] for name, kind in budget["kinds"].items() if name == "tokens"]
        assert tokens == replies * REPLY_TOKENS, budget
