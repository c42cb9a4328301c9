"""From what was written down to agents: capped, bounded, asked with what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.config import read_evoclaw_toml
from evoclaw.core.agent import Agent, Field, FieldType, LoopSettings
from evoclaw.core.messages import JSON
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.orchestrator.agents.definitions import (
    InvalidAgentInputs,
    agents_of,
    budget_of,
    check_inputs,
    default_of,
    iterative_settings,
    level_of,
    require_inputs,
)

Made = Callable[..., Mapping[str, Agent]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def one(text: str = "", model: str = "") -> Mapping[str, Agent]:
        path = tmp_path / "evoclaw.toml"
        path.write_text(text)
        config = read_evoclaw_toml(path, {"HOME": "/home/pi"})
        return agents_of(config.agents, config.run_defaults, model=model)

    return one


def test_the_default_agent_is_created_without_definitions(made: Made) -> None:
    agents = made(model="ollama/x")
    assert list(agents) == ["evoclaw"] and default_of(agents) == "evoclaw"
    assert agents["evoclaw"] == Agent("evoclaw", "ollama/x", capabilities=frozenset({"*"}))


def test_the_first_defined_agent_is_the_default(made: Made) -> None:
    agents = made('[[agents]]\nid = "b"\n[[agents]]\nid = "a"\nmodel = ["x/y", "z/w"]', model="m/n")
    assert (list(agents), default_of(agents)) == (["b", "a", "evoclaw"], "b")
    assert (agents["b"].model, agents["a"].model) == ("m/n", "x/y,z/w")
    assert agents["b"].capabilities == frozenset()


def test_the_default_agent_stays_unless_it_is_removed_or_others_are_let_in(made: Made) -> None:
    one = '[[agents]]\nid = "one"\n'
    assert list(made(one)) == ["one", "evoclaw"]
    assert made(one)["evoclaw"].capabilities == {"*"}
    assert list(made(f"{one}[orchestrator]\ndefault_agent = false\n")) == ["one"]
    jwt = '[server.jwt]\nissuer = "i"\naudience = "a"\n'
    assert list(made(one + jwt)) == ["one"]
    assert list(made(f"{one}{jwt}[orchestrator]\ndefault_agent = true\n")) == ["one", "evoclaw"]
    assert list(made("")) == ["evoclaw"]


def test_agent_capabilities_are_limited_by_global_permissions(made: Made) -> None:
    two = (
        '[[agents]]\nid = "a"\ncapabilities = ["*"]\n'
        '[[agents]]\nid = "b"\ncapabilities = ["shell", "git"]\n'
        "[orchestrator.tools.permissions]\ngit = true\nshell = false\nnetwork = true\n"
    )
    agents = made(two)
    assert agents["a"].capabilities == {"git", "network"}
    assert agents["b"].capabilities == {"git"}
    assert made("[orchestrator.tools.permissions]\n")["evoclaw"].capabilities == frozenset()


def test_disabling_the_tool_loop_removes_all_capabilities(made: Made) -> None:
    text = '[orchestrator]\ntool_loop_enabled = false\n[[agents]]\nid = "a"\ncapabilities = ["*"]'
    assert made(text)["a"].capabilities == frozenset()


def test_agent_limits_override_the_orchestrator_defaults(made: Made) -> None:
    agents = made(
        "[orchestrator]\nmax_tool_iterations = 4\ntool_error_limit = 2\nevidence = true\n"
        '[[agents]]\nid = "a"\n[agents.limits]\nmax_turns = 9\nmax_tokens = 50\n'
        '[[agents]]\nid = "b"\n[agents.outputs.answer]\n[agents.outputs.why]\n'
    )
    assert agents["a"].settings == LoopSettings(
        max_turns=9, max_tokens=50, tool_error_limit=2, evidence=True
    )
    assert agents["b"].settings.max_turns == 4
    assert agents["b"].settings.output_fields == ("answer", "why")
    assert "evidence" not in msgspec.to_builtins(made()["evoclaw"].settings)


def test_the_iterative_api_has_its_own_max_turns_unless_the_agent_sets_them(made: Made) -> None:
    chosen = made('[[agents]]\nid = "a"\n[agents.limits]\nmax_turns = 3\ntemperature = 0.5')["a"]
    assert (iterative_settings(chosen).max_turns, iterative_settings(chosen).temperature) == (
        3,
        0.5,
    )
    assert (
        iterative_settings(made()["evoclaw"]).max_turns,
        iterative_settings(chosen).confirm,
    ) == (20, True)


def test_an_agent_budget_never_exceeds_the_default_budget() -> None:
    usual = BudgetSettings(turns=10, tokens=100)
    agent = Agent("a", "", budget={"turns": 50, "tokens": 7, "dollars": 1.5})
    held = budget_of(agent, usual)
    assert (held.turns, held.tokens, held.dollars, held.calls) == (10, 7, 1.5, usual.calls)
    assert budget_of(Agent("b", ""), usual) is usual


def test_an_autonomy_level_never_exceeds_the_process_maximum() -> None:
    silent, free = Agent("a", ""), Agent("b", "", autonomy="full")
    assert level_of(silent) is Level.SUPERVISED
    assert level_of(free) is Level.FULL
    assert level_of(free, maximum=Level.READ_ONLY) is Level.READ_ONLY
    assert level_of(silent, default=Level.FULL, maximum=Level.SUPERVISED) is Level.SUPERVISED


ASKED = Agent(
    "weather",
    "",
    inputs={
        "city": Field(FieldType.STRING, required=True),
        "days": Field(FieldType.INTEGER),
        "share": Field(FieldType.NUMBER),
        "brief": Field(FieldType.BOOLEAN),
        "places": Field(FieldType.ARRAY),
        "more": Field(FieldType.OBJECT),
        "any": Field(FieldType.ANY),
    },
)


@pytest.mark.parametrize(
    ("inputs", "wrong"),
    [
        ({"city": "Oslo"}, ()),
        ({"city": "Oslo", "days": 3.0, "share": 1, "brief": False, "any": [1]}, ()),
        ({"city": "Oslo", "places": [], "more": {}, "days": None}, ()),
        ({}, ("city",)),
        ({"city": None}, ("city",)),
        ({"city": 3}, ("city",)),
        ({"city": "Oslo", "days": True, "share": "1", "brief": 0}, ("days", "share", "brief")),
        ({"city": "Oslo", "days": 1.5, "places": {}, "more": []}, ("days", "places", "more")),
        ({"City": "Oslo"}, ("city", "City")),
    ],
)
def test_invalid_agent_inputs_are_listed_by_field(
    inputs: dict[str, JSON], wrong: tuple[str, ...]
) -> None:
    assert tuple(one.field for one in check_inputs(ASKED, inputs)) == wrong


def test_an_agent_without_declared_inputs_accepts_any_input() -> None:
    assert check_inputs(Agent("a", ""), {"x": 1}) == ()


def test_the_bad_inputs_error_names_the_fields_to_change() -> None:
    with pytest.raises(InvalidAgentInputs) as refused:
        require_inputs(ASKED, {"town": "Oslo"})
    assert "city: is missing; it is required" in str(refused.value)
    assert "town: is unknown; known inputs: city, days" in str(refused.value)
    assert [one.field for one in refused.value.problems] == ["city", "town"]
    require_inputs(ASKED, {"city": "Oslo"})


@given(st.dictionaries(st.text(max_size=20), st.integers(), max_size=60))
def test_input_validation_reports_at_most_twenty_problems(inputs: dict[str, JSON]) -> None:
    assert 0 < len(check_inputs(ASKED, inputs)) <= 20
