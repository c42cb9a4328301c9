"""What answers, put together: settings read again, and what runs leave behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.history import History
from evoclaw.core.ports import Ask
from evoclaw.core.tools import Call
from evoclaw.orchestrator.agents.policy_explainer import PolicyQuestion
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.providers.cache import MAX_CACHED_MODELS
from evoclaw.store.sessions.sessions import Session
from evoclaw.tools.question import UserPrompter
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.wiring.http import policy_explainer
from evoclaw.wiring.runtime import Runtime, open_runtime
from evoclaw.wiring.settings_reload import reload_settings
from evoclaw.wiring.store import open_stores

FIRST = """
[orchestrator]
cheaper_models = []

[[agents]]
id = "one"
capabilities = ["*"]
"""
SECOND = """
[orchestrator]
cheaper_models = ["ollama/small"]

[[agents]]
id = "two"
capabilities = ["*"]
"""


class _Held:
    """Something that a run is handed."""


@asynccontextmanager
async def brain(home: Path) -> AsyncGenerator[tuple[Runtime, dict[str, str]]]:
    """What answers, without a broker or a service around it."""
    env = {"EVOCLAW_HOME": str(home), "HOME": str(home), "EVOCLAW_MODEL": "ollama/none"}
    (home / "evoclaw.toml").write_text(FIRST)
    async with open_stores(env) as stored:
        orchestrator = Orchestrator(MemoryLink(MemoryBroker()), stored.commands)
        async with open_runtime(orchestrator, stored, env) as made:
            yield made, env


async def test_reloaded_agents_and_fallback_models_are_used_everywhere(tmp_path: Path) -> None:
    async with brain(tmp_path) as (made, env):
        assert made.runs.default_agent == "one"
        (tmp_path / "evoclaw.toml").write_text(SECOND)
        assert set(reload_settings(made, env).changed) == {"agents", "orchestrator"}
        assert made.runs.default_agent == made.default_agent.name == "two"
        assert [one.model for one in made.conversations.of("acme").cheaper] == ["ollama/small"]


async def test_invalid_settings_are_rejected_on_reload_and_change_nothing(tmp_path: Path) -> None:
    async with brain(tmp_path) as (made, env):
        before = made.run_factory.governance
        (tmp_path / "evoclaw.toml").write_text(f'{SECOND}\n[policy]\nrules = "gone.toml"\n')
        with pytest.raises(ConfigError, match=r"gone\.toml"):
            reload_settings(made, env)
        assert made.run_factory.governance is before
        assert list(made.agents) == ["one", "evoclaw"]


async def test_the_policies_of_an_agent_keep_no_reference_to_its_first_run(
    tmp_path: Path,
) -> None:
    async with brain(tmp_path) as (made, _):
        given: dict[type, object] = {UserPrompter: (held := _Held()), History: History()}
        made.run_factory.ports(made.default_agent, Session("s", "one"), given)
        left = weakref.ref(held)
        del given, held
        gc.collect()
        assert left() is None


async def test_the_provider_cache_is_bounded_for_models_named_by_callers(tmp_path: Path) -> None:
    async with brain(tmp_path) as (made, _):
        of = made.providers.get
        models = [of(f"ollama/{number}") for number in range(MAX_CACHED_MODELS + 5)]
        assert of("ollama/0") is models[0]
        assert of(f"ollama/{MAX_CACHED_MODELS + 4}") is not models[-1]
        assert models[-1].model == f"ollama/{MAX_CACHED_MODELS + 4}"


async def test_the_canvas_of_a_session_is_visible_to_no_other_session(tmp_path: Path) -> None:
    async with brain(tmp_path) as (made, _):

        async def canvas(tenant: str, id_: str, **arguments: str) -> str:
            session = Session(id_, "one", tenant=tenant)
            executor = made.run_factory.ports(
                made.default_agent, session, {History: History()}
            ).executor
            (tool,) = [one for one in executor.tools() if one.name == "canvas"]
            call = Call("1", tool, dict(arguments), "r.1.0.1", 10.0)
            return (await executor.execute(call, lambda _: None)).text

        await canvas("acme", "s", action="show", content="the plans of acme")
        assert "the plans" in await canvas("acme", "s", action="snapshot")
        assert "the plans" not in await canvas("acme", "t", action="snapshot")
        assert "the plans" not in await canvas("other", "s", action="snapshot")


async def test_policy_explanations_use_the_policy_chain_of_real_runs(tmp_path: Path) -> None:
    async with brain(tmp_path) as (made, env):
        shown = policy_explainer(made.run_factory, made.agents)
        ports = made.run_factory.ports(
            made.default_agent, Session("s", "one"), {History: History()}
        )
        (tool,) = [one for one in ports.executor.tools() if one.name == "todowrite"]
        given = {"todos": [{"content": "x"}]}
        judged = await ports.policy.judge(Call("1", tool, dict(given), "r.1.0.1", 10.0))
        told = await shown.explain(PolicyQuestion("todowrite", dict(given)))
        assert told is not None and isinstance(judged, Ask)
        assert (told.verdict, told.code) == ("ask", judged.code)
        settings = f'{FIRST}\n[policy]\noff = {{todowrite = "not today"}}\n'
        (tmp_path / "evoclaw.toml").write_text(settings)
        reload_settings(made, env)
        told = await shown.explain(PolicyQuestion("todowrite", dict(given)))
        assert told is not None and (told.verdict, told.by) == ("deny", "ToolStatus")
        assert (await shown.describe()).settings["off"] == {"todowrite": "not today"}
